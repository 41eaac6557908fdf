"""Pages for people who pick it up: what they say of keys and methods is the code's, and their examples run."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from unfed.cli.main import main
from unfed.config.config import Config
from unfed.config.reading import table_in
from unfed.methods import METHODS

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def meanings(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str | None]]:
    for name, field in model.model_fields.items():
        inner = table_in(field.annotation)
        yield from meanings(inner, f"{path}{name}.") if inner else [(f"{path}{name}", field.description)]


def test_every_key_of_a_config_has_a_meaning() -> None:
    found = dict(meanings(Config))
    assert {"name", "training.schedule.kind", "request.clients", "methods.run", "deny.key"} <= found.keys()
    for key, meaning in found.items():
        assert meaning and meaning.endswith((".", "…", "?")) and "|" not in meaning, key


def test_which_method_names_every_method_with_what_it_needs() -> None:
    page = text("docs/how-to/which-method.md")
    for name, method in METHODS.items():
        assert f"[`{name}`](../methods/{name}.md)" in page
        row = next(line for line in page.splitlines() if line.startswith(f"| [`{name}`]") or f"[`{name}`]" in line)
        if row.startswith(f"| [`{name}`]") and row.count("](../methods/") == 1:
            assert row.split("|")[2].strip().split(", ") == sorted(method.needs, key=_order), name
            scopes = {"clients": "client", "classes": "class", "samples": "instance"}
            assert {scopes[word] for word in row.split("|")[3].strip().split(", ")} == set(method.scopes), name


def _order(need: str) -> int:
    return ["retain", "forget", "history", "public", "init"].index(need)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)
    sys.modules.pop("my_model", None)


def give(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["unfed", *words])
    try:
        main()
    except SystemExit as end:
        assert not end.code, words


def test_the_tutorials_client_is_forgotten(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = text("docs/tutorial/ten-minutes.md")
    for kind, name in (("python", "my_model.py"), ("toml", "my.toml")):
        (block,) = re.findall(rf"```{kind}\n(# {re.escape(name)}.*?)```", page, re.DOTALL)
        (here / name).write_text(block)
    (commands,) = re.findall(r"```\n(unfed run my\.toml --allow-code +#.*?)```", page, re.DOTALL)
    for line in commands.splitlines():
        give(monkeypatch, *line.partition("#")[0].split()[1:])
    assert (here / "without-client-3.safetensors").exists() and (here / "runs/mine/report.html").exists()


def test_the_pages_python_on_results_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; pip install '.[tensorboard]'")
    shown, measured, followed = re.findall(r"```python\n(.*?)```", text("docs/how-to/results.md"), re.DOTALL)
    space: dict[str, object] = {}
    exec("import unfed\n" + followed, space)
    (here / "runs/tracked").rename(here / "runs/demo")
    exec(shown, space)
    assert (here / "forget.pdf").exists() and list((here / "tracking/tensorboard/tracked").iterdir())
    capsys.readouterr()
    exec(measured, space)
    told = capsys.readouterr().out
    assert re.search(r"^retrain test -?\d+\.\d forget -?\d+\.\d$", told, re.MULTILINE) and told.count("\n") == 3
