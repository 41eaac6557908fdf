"""The pages on data and models are run: files written, Python executed, commands given, as a reader would.

A block whose first line is a comment with a file name is that file. Other Python blocks are executed, `console` blocks
are given line by line; `sh` blocks need a network or torchvision and are only read.
"""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unfed.cli.main import main
from unfed.config.config import Config
from unfed.data import DATASETS
from unfed.model.networks import MODELS
from unfed.plugins import allow_code
from unfed.runs.run import Run

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(page: str) -> list[tuple[str, str]]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's folder, on the Python path; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    known, handler = set(sys.modules), signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)
    for name in set(sys.modules) - known:
        if name.startswith("my_"):
            del sys.modules[name]


def give(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of a console block, in this process."""
    program, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    if program == "python":
        runpy.run_path(arguments[0], run_name="__main__")
        return
    assert program == "unfed", command
    if arguments[0] == "run":
        sys.argv += ["--device", "cpu"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, f"{command} ended with {end.code}"


def follow(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for language, text in blocks(page):
        named = re.match(r"# (\S+\.(?:py|toml))\n", text)
        if named:
            Path(named[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, page, "exec"), {"__name__": "__main__"})
        elif language == "console":
            for line in text.splitlines():
                give(line.removeprefix("$ "), monkeypatch)
        else:
            assert language == "sh", f"{page} has a {language} block without a file name"


def test_the_page_on_text_and_tables_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("beyond-images.md", monkeypatch)
    people = Run.open("runs/people")
    assert people.lines()[-1]["method"] == "not" and people.description.classes == ("no", "yes")


def test_the_page_on_data_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("data.md", monkeypatch)
    assert Config.read("cifar.toml").data.flip == 0
    stripes, blobs = Run.open("runs/stripes"), Run.open("runs/blobs")
    assert stripes.world(0).dataset.classes == ("lying", "standing")
    assert stripes.world(0).dataset.train.shape == (3, 16, 16) and len(stripes.world(0).dataset.test) == 40
    with allow_code():
        assert blobs.world(0).dataset.train.shape == (2,)


def test_the_page_on_models_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow("models.md", monkeypatch)
    out = capsys.readouterr().out
    assert "first -> ['conv_proj.weight']" in out and "1 -> ['conv_proj.weight']" in out
    assert Config.read("small-vit.toml").model.options == {"depth": 1, "heads": 4}
    assert Run.open("runs/continued").world(0).initial is not None
    with allow_code():
        assert type(Run.open("runs/own-model").world(0).template.module).__name__ == "Net"


def test_the_tables_name_what_there_is() -> None:
    data, models = ((PAGES / page).read_text(encoding="utf-8") for page in ("data.md", "models.md"))
    assert all(f"`{name}`" in data for name in DATASETS)
    assert all(f"`{name}`" in models for name in MODELS if not name.startswith("cnn-tiny"))
