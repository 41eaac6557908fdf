"""Pages for people who pick it up: what they say of keys and methods is the code's, and their examples run."""

from __future__ import annotations

import csv
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
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


HEADINGS = ["What it does", "What it needs", "Run it", "Measured", "Limits"]
FEDERATED = ("retrain", "rewind", "ft", "federaser", "fukd", "pgd", "fcu", "not", "mode", "sealed", "led")
ALIKE = (*FEDERATED, "randl", "ga", "badt", "l1-sparse", "ssd", "salun")


@pytest.mark.parametrize("name", ALIKE)
def test_a_methods_page_has_the_same_headings_as_the_others(name: str) -> None:
    page = text(f"docs/methods/{name}.md")
    assert re.findall("^## (.+)$", page, re.MULTILINE) == HEADINGS
    assert re.search("^unfed (forget|run) ", page, re.MULTILINE)
    assert len(page.split()) <= (600 if name in ("not", "sealed", "led") else 400)


@pytest.mark.parametrize("file", ["methods-digits", "central-digits"])
def test_the_numbers_on_the_methods_pages_stand_in_the_record(file: str) -> None:
    """Average gap, Forget and Test of a method, at the round that `best-gap` takes."""
    record = ROOT / f"benchmarks/records/2026-11-18-{file}.csv"
    rows = [row for row in csv.DictReader(record.open(encoding="utf-8")) if row["rule"] == "best-gap"]
    found = 0
    for row in rows:
        name = row["method"]
        if name not in ALIKE or name in ("retrain", "ft") or not row["average_gap"]:
            continue
        if name in ("not", "mode") and row["request"] != "client-0-leaves":  # it serves every scope; the page says one
            continue
        found += 1
        page = " ".join(text(f"docs/methods/{name}.md").split())
        said = re.search(r"[Aa]verage gap (\d+\.\d+)", page.partition("## Measured")[2])
        assert said and abs(float(said[1]) - float(row["average_gap"])) < 0.006, (name, row["average_gap"])
    assert found >= 4


def test_the_page_for_one_model_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, negation = re.findall(r"```python\n(.*?)```", text("docs/for/one-model.md"), re.DOTALL)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator)
    y = (x[:, 0] > 0).long()

    def build() -> torch.nn.Module:
        return torch.nn.Linear(4, 2)

    space = {"model": build(), "build": build, "x": x[:60], "y": y[:60], "x_test": x[60:], "y_test": y[60:]}
    exec(whole, space)
    assert capsys.readouterr().out.startswith("Retrain") and (here / "report.html").exists()
    before = space["model"].state_dict()["weight"].clone()  # type: ignore[attr-defined]
    exec(negation, space)
    assert torch.equal(space["model"].state_dict()["weight"], -before)  # type: ignore[attr-defined]


def test_the_lines_of_the_page_for_flower_run(here: Path) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed; pip install '.[flower]'")
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    (lines,) = re.findall(r"```python\n(.*?)```", text("docs/for/flower.md"), re.DOTALL)
    space = {"FedAvg": FedAvg, "ClientApp": ClientApp, "Net": lambda: torch.nn.Linear(4, 2)}
    exec(lines.replace("/data/forgotten", str(here / "forgotten")), space)
    assert type(space["strategy"]).__name__ == "Unlearn" and isinstance(space["app"], ClientApp)


def test_a_page_for_people_fits_on_a_screen() -> None:
    pages = sorted((ROOT / "docs/for").glob("*.md"))
    assert [page.stem for page in pages] == ["flower", "nvflare", "officer", "one-model", "research"]
    assert {page.stem: n for page in pages if (n := len(page.read_text(encoding="utf-8").split())) > 400} == {}


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
    shown, measured, followed = re.findall(r"```python\n(.*?)```", text("docs/how-to/results.md"), re.DOTALL)
    sent: list[tuple[str, float, int]] = []
    space: dict[str, object] = {"send": lambda *one: sent.append(one)}
    exec("import unfed\n" + followed, space)
    (here / "runs/tracked").rename(here / "runs/demo")
    exec(shown, space)
    assert (here / "forget.pdf").exists()
    assert [round for name, _, round in sent if name == "0/train/test"] == [1, 2]
    capsys.readouterr()
    exec(measured, space)
    told = capsys.readouterr().out
    assert re.search(r"^retrain test -?\d+\.\d forget -?\d+\.\d$", told, re.MULTILINE) and told.count("\n") == 3
