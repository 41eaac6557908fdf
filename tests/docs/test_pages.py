"""What pages print can be done: commands exist with their options, configs are valid, Python is run by some test."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from unfed.cli.main import app
from unfed.config.config import Config, presets
from unfed.errors import UnfedError

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

# Who runs the Python of a page; a page with Python that is not named here is a page that nobody has tried.
RUN_BY = {
    "README.md": "docs/test_readme.py::test_the_ten_lines_run",
    "docs/flower/choose-nodes.md": "flower/test_flower_strategies.py",
    "docs/flower/forget-in-your-app.md": "flower/test_flower_docs.py",
    "docs/flower/recipes.md": "flower/test_flower_strategies.py",
    "docs/for/flower.md": "docs/test_product_docs.py::test_the_lines_of_the_page_for_flower_run",
    "docs/for/one-model.md": "docs/test_product_docs.py::test_the_page_for_one_model_runs",
    "docs/how-to/analysis.md": "analysis/test_analysis.py::test_the_page_s_examples_run",
    "docs/how-to/beyond-images.md": "docs/test_docs_data_models.py",
    "docs/how-to/central.md": "docs/test_central_docs.py",
    "docs/how-to/data.md": "docs/test_docs_data_models.py",
    "docs/how-to/language-models.md": "central/test_zoo.py",
    "docs/how-to/libraries.md": "central/test_zoo.py",
    "docs/how-to/method.md": "docs/test_docs.py::test_the_method_of_the_how_to_keeps_the_contract",
    "docs/how-to/models.md": "docs/test_docs_data_models.py",
    "docs/how-to/results.md": "docs/test_product_docs.py::test_the_pages_python_on_results_runs",
    "docs/how-to/trust.md": "docs/test_trust_docs.py",
    "docs/for/nvflare.md": "nvflare/test_nvflare_unlearn.py::test_the_lines_of_the_pages_run",
    "docs/nvflare.md": "nvflare/test_nvflare_unlearn.py::test_the_lines_of_the_pages_run",
    "docs/methods/led.md": "flower/test_flower_led.py::test_the_lines_of_the_page_run",
    "docs/notebooks/language-model.md": "docs/test_notebooks.py::test_what_is_kept_is_what_the_cells_give_today",
    "docs/notebooks/flower-app.md": "docs/test_notebooks.py::test_what_is_kept_is_what_the_cells_give_today",
    "docs/notebooks/first-run.md": "docs/test_notebooks.py::test_what_is_kept_is_what_the_cells_give_today",
    "docs/notebooks/own-model.md": "docs/test_notebooks.py::test_what_is_kept_is_what_the_cells_give_today",
    "docs/tutorial/ten-minutes.md": "docs/test_product_docs.py::test_the_tutorials_client_is_forgotten",
}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_python_of_every_page_is_run_by_a_test() -> None:
    with_python = [name(page) for page in PAGES if blocks(page, "python")]
    assert sorted(RUN_BY) == with_python, "name in RUN_BY the test that runs the Python of a new page"
    for page, who in RUN_BY.items():
        file, _, test = who.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {test}" in text if test else Path(page).name in text, f"{who} does not run {page}"


def test_the_commands_of_pages_are_found_at_all() -> None:
    found = [line for page in PAGES for line in commands(page)]
    assert len(found) > 150 and {line.split()[1] for line in found} >= {"run", "forget", "sweep", "report", "negate"}
    command, words = parsed("unfed methods show not --nonsense")
    assert command is not None and command.name == "show" and words == ["not", "--nonsense"]
    assert parsed("unfed frget RUN")[0] is None


def in_blocks(page: Path) -> Iterator[str]:
    """Every `unfed …` that stands in a block, on a line of its own, to be typed."""
    text = page.read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if kind in ("", "sh", "bash", "console"):
            joined = block.replace("\\\n", " ")
            yield from re.findall(r"^(?:\$ |[A-Z_]+=\S+ )*(unfed [a-z].*)$", joined, re.MULTILINE)


def commands(page: Path) -> Iterator[str]:
    """Every `unfed …` that a page prints: lines of blocks without their comments, and words in backticks."""
    yield from in_blocks(page)
    text = page.read_text(encoding="utf-8")
    without = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for words in re.findall(r"`([^`]+)`", without):
        yield from (part.strip() for part in re.split(r"&&|;", words) if re.match(r"unfed [a-z]", part.strip()))


def parsed(line: str) -> tuple[click.Command | None, list[str]]:
    """The command that a line names, and its further words."""
    words = shlex.split(line.replace("…", "X"), comments=True)[1:]
    command: Any = typer.main.get_command(app)
    with click.Context(command) as context:
        while words and isinstance(command, click.Group):
            found = command.get_command(context, words[0])
            if found is None:
                return None, words
            command, words = found, words[1:]
    return command, words


def refused(line: str) -> str:
    """Why the command line does not take a line as it stands; empty where it does. Nothing is run."""
    line = re.split(r"\s[|>&]", line)[0]
    command, words = parsed(line)
    if command is None or "…" in line or "$" in line:  # a reader puts something in their place
        return "" if command else "there is no such command"
    try:
        command.make_context("unfed", words)
    except click.UsageError as error:
        return error.format_message()
    except click.exceptions.Exit:  # --help
        pass
    return ""


def test_every_command_in_a_block_can_be_typed_as_it_stands() -> None:
    """Its remark is a comment, and nothing that the command asks for is missing."""
    shown = [(name(page), line) for page in PAGES for line in in_blocks(page)]
    assert len(shown) > 100
    assert [(*one, why) for one in shown if (why := refused(one[1]))] == []
    assert refused("unfed verify evidence.json") == "Missing option '--key'."
    assert "unexpected" in refused("unfed demo RUN      the claims that need no training")


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in PAGES])
def test_every_command_that_a_page_prints_exists_with_its_options(page: Path) -> None:
    wrong = []
    for line in commands(page):
        try:
            command, words = parsed(line)
        except ValueError:  # a quote that a line break has cut in two
            continue
        if command is None:
            wrong.append(line)
            continue
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
        given = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
        wrong += [f"{line}: {option}" for option in given if option not in known]
        if command.name in ("run", "sweep") and words and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|demo", words[0]):
            wrong += [] if words[0] in presets() else [f"{line}: no such preset"]
    assert wrong == []


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in PAGES if blocks(page, "toml")])
def test_every_config_that_a_page_prints_is_valid(page: Path) -> None:
    for block in blocks(page, "toml"):
        raw = tomllib.loads(block)
        if "project" in raw or "trust" in raw:
            continue
        try:
            Config.parse(raw)
        except UnfedError as error:  # what it names is made elsewhere on the page, where a test runs it
            assert re.search("names code|is not a population", str(error)), block
