"""The command line on a terminal of 80 columns, and how soon it answers."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any, cast

import pytest
import typer
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from unfed.cli.console import Console, between_words
from unfed.cli.display import Display, gate_in_short, print_results, request_line
from unfed.cli.main import ORDER, PANELS, app
from unfed.folder.info import RequestInfo
from unfed.measures.metrics import Spread
from unfed.measures.trajectory import Line
from unfed.methods import METHODS
from unfed.report import rows
from unfed.requests.entry import Job
from unfed.runs.run import Run
from worlds import Small

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "pydantic", "jinja2", "safetensors", "PIL")


ROOT = typer.main.get_group(app)
"""All commands, as a shell finds them."""


def test_help_version_and_completion_import_nothing_heavy() -> None:
    """So `--help` of every command, and completion, take a fraction of a second. In one process of its own."""
    words = [["--version"], ["--help"], ["forget", "--help"], []]
    asked = {"_UNFED_COMPLETE": "complete_bash", "COMP_WORDS": "unfed run --me", "COMP_CWORD": "2"}
    code = f"""import os, sys
from unfed.__main__ import main
for words in {words!r}:
    sys.argv = ["unfed", *words]
    os.environ.update({{}} if words else {asked!r})
    try: main()
    except SystemExit as end: assert not end.code, end.code
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"""
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stderr.splitlines()[-1] == "[]"
    assert all(text in seen.stdout for text in ("unfed 0.", "Serve a deletion request", "What leaves"))
    assert seen.stdout.endswith("--methods\n")


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("unfed res", ["resume"]),
        ("unfed run demo --set training.rounds=2 --q", ["--quiet"]),
        ("unfed methods sh", ["show"]),
        ("unfed sweep demo --over seed=0,1 --o", ["--over", "--out"]),
    ],
)
def test_a_shell_completes_commands_and_options(
    line: str, offers: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; that no command imports anything heavy is held below."""
    asked = {"_UNFED_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app(prog_name="unfed")
    assert capsys.readouterr().out.split() == offers


def test_commands_stand_in_panels_in_the_order_people_need_them() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    places = [said.index(f"─ {panel} ") for panel in PANELS]
    assert places == sorted(places)
    listed = re.findall(r"^│ ([a-z]+) ", said, re.MULTILINE)
    assert listed == ORDER and listed.index("demo") < listed.index("forget") < listed.index("paper")
    assert set(ROOT.commands) == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_the_first_sentence_of_a_command_fits_its_line_of_the_list(name: str) -> None:
    summary = (ROOT.commands[name].help or "").strip().split("\n\n")[0]
    assert 0 < len(summary) <= 64 and summary.endswith(".")


@pytest.mark.parametrize(
    ("command", "panels"),
    [
        ("forget", ["Arguments", "What leaves", "How", "When it is done", "Output"]),
        ("run", ["Arguments", "How", "Output"]),
        ("status", ["Arguments", "Options", "Output"]),
        ("serve", ["Arguments", "Where it listens", "How"]),
    ],
)
def test_options_are_grouped_and_help_stands_in_the_last_group(command: str, panels: list[str]) -> None:
    said = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    assert re.findall(r"^╭─ (.+?) ─", said, re.MULTILINE) == panels
    assert "--help" in said.partition(f"─ {panels[-1]} ")[2]


# --- eighty columns ---------------------------------------------------------------------------------------------------


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, highlight=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_sentence_breaks_between_words_and_never_between_a_number_and_its_percent() -> None:
    sentence = (
        "The backdoor fires on 45.5 % of the stamped test images; see /a/very/long/path/that/goes/on/and/on.html now"
    )
    for width in range(8, 80):
        lines = between_words(Text(sentence), width).plain.split("\n")
        assert " ".join(lines) == sentence
        assert all(len(line) <= width or " " not in line.replace(" %", "") for line in lines)
        assert not any(line.startswith("%") for line in lines)


def test_what_goes_on_below_an_item_stands_below_its_text() -> None:
    text = Text("Proven:\n  - one two three four\n    → five six seven\nplain words go on at the edge", style="bold")
    assert between_words(text, 14).plain.split("\n") == [
        "Proven:",
        "  - one two",
        "    three four",
        "    → five six",
        "      seven",
        "plain words go",
        "on at the edge",
    ]
    assert between_words(text, 14).style == text.style and between_words(text, 200).plain == text.plain
    coloured = between_words(Text.from_markup("  - one two [red]three four[/red] five"), 14)
    assert [coloured.plain[span.start : span.end].split() for span in coloured.spans] == [["three", "four"]]


def test_a_command_is_not_broken_whatever_the_width_so_that_it_can_be_copied() -> None:
    commands = ["`unfed forget 'my run' --client 3`", "`unfed resume 'my run'`"]
    sentence = f"Take another one out with {commands[0]}, or go on with {commands[1]}; a ` alone is a mark like others."
    for width in range(8, 100):
        lines = between_words(Text(sentence), width).plain.split("\n")
        assert " ".join(lines) == sentence and all(any(one in line for line in lines) for one in commands)
        assert width < 36 or max(map(len, lines)) <= width


def test_on_a_terminal_texts_are_broken_at_words_and_in_a_pipe_not_at_all() -> None:
    words = " ".join(["forgetting"] * 20)
    on_screen, piped = terminal(), Console(file=io.StringIO(), width=80)
    for console in (on_screen, piped):
        console.print(words)
    assert max(map(len, written(on_screen).splitlines())) <= 80
    assert set(written(on_screen).split()) == {"forgetting"}
    assert written(piped) == words + "\n"


def test_a_title_is_broken_where_the_terminal_ends_and_not_where_its_table_does() -> None:
    console, table = (
        terminal(),
        Table(title="Two words [bold]or three[/bold], and more than the table is wide", box=None),
    )
    table.add_column("a")
    table.add_row("1")
    console.print(table)
    assert written(console).splitlines()[0] == "Two words or three, and more than the table is wide"
    assert [line.strip() for line in written(console).splitlines()[1:]] == ["a", "1"]


def line(method: str, **more: object) -> Line:
    values: dict[str, Any] = dict(retain=93.25, forget=19.83, test=93.61, mia=79.2, validation=93.0, backdoor=1.52)
    costs = dict(comm_bytes=21_300_000, wire_bytes=0, serialised_bytes=0, flops=21.6e9, seconds=3.0)
    costs |= dict(stored_server_bytes=0, stored_original_bytes=0, client_flops=0)
    made: Any = {"seed": 0, "request": "r1", "method": method, "round": 20, "done": True, **values, **costs, **more}
    return cast(Line, made)


@pytest.mark.parametrize("methods", [("before", "retrain", "federaser", "not"), ("before", "federaser", "not")])
@pytest.mark.parametrize("width", [60, 72, 80, 100, 160])
def test_the_results_fit_and_nothing_is_cut_off(methods: tuple[str, ...], width: int) -> None:
    console = terminal(width)
    found = rows([line(method) for method in methods], "last")
    found = [replace(r, metrics={**r.metrics, "forget": Spread(19.83, 0.42)}) for r in found]
    print_results(console, found, "After the last round.")
    said = written(console)
    assert "…" not in said and max(map(len, said.splitlines())) <= width
    assert "FedEraser" in said and "21.6 GFLOP" in said and "19.83 ±0.42" in said
    if "retrain" not in methods:
        assert said.count("no Retrain of this request") == 1 and "(1)" in said


def test_a_finished_line_says_how_long_it_took_and_fits(small: Small, tmp_path: object) -> None:
    run = Run.create(small("poison.client=0"), f"{tmp_path}/run")
    console = terminal()
    with Display(run, console) as display:
        job = Job(0, "r1", "not")
        display.begins(job, 0, 20)
        display.goes_on(job, 20, 20, {"test": 93.61, "forget": 19.8, "backdoor": 45.5})
        display.ends(job, "all rounds")
    (last,) = [text for text in written(console).splitlines() if "✓" in text]
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "")
    assert re.search(r"✓ NoT +20 rounds in 0:00  test 93.6 %  forget 19.8 %  backdoor 45.5 %", said)
    assert "left" not in said and len(said.strip()) <= 80


def test_a_method_is_a_line_of_the_list() -> None:
    said = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "80"}).stdout
    assert [text.split()[0] for text in said.splitlines()[1 : 1 + len(METHODS)]] == list(METHODS)
    assert "history: history that was recorded" in said and "central: one model and one data set" in said


def test_a_request_and_what_its_gate_found_take_a_line_each() -> None:
    common = dict(value=1.5, verdict="passed", what="the drop", bound=2.0)
    checks = [common | dict(name="utility", decides=True), common | dict(name="other", decides=False)]
    request = dict(id="r1", state="denied", standing="denied (gate)", why="It lost too much.", owed=True)
    request |= {"way_out": "ask again", "gate": {"checks": checks}}
    info = RequestInfo.model_validate(request)
    assert request_line(info) == "request r1: denied (gate); It lost too much; it stays owed: ask again."
    assert gate_in_short(info.gate) == "\n  gate: utility passed (1.5, at most 2), other passed"
