"""The command line as a person meets it: what it prints, what it writes, how it fails."""

import csv
import io
import json
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from command_line import Started
from unfed import storage
from unfed.__main__ import main as begun
from unfed.cli import looking
from unfed.cli.main import app, main
from unfed.runs.run import Run
from worlds import rounds_take, saved

SMALL = """
name = "small"
data = { train_size = 240, test_size = 120 }
partition.clients = 4
model.name = "cnn-tiny"
training = { rounds = 4, batch = 16, lr = 0.05 }
unlearning.rounds = 3
poison.client = 0
request = { id = "r1", clients = ["0"] }
methods.run = ["not", "retrain"]
checkpoint.rounds = 1
gate.max_drop = 100.0
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


@pytest.fixture
def unfed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Any]]:
    """Runs a command in this process: (exit code, stdout, stderr)."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unfed", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one small finished run, for all tests of this file; they take copies."""
    return tmp_path_factory.mktemp("finished") / "small"


@pytest.fixture
def done(unfed: Callable[..., Any], here: Path, finished: Path) -> Path:
    """A small finished run; what it printed lies beside its folder."""
    if not finished.exists():
        code, out, err = unfed("run", "small.toml")
        assert code == 0, err
        finished.with_suffix(".out").write_text(out)
        shutil.copytree(here / "runs" / "small", finished)
    else:
        shutil.copytree(finished, here / "runs" / "small")
    return here / "runs" / "small"


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_a_table_and_the_path_of_a_report(done: Path, finished: Path) -> None:
    out = finished.with_suffix(".out").read_text()
    assert "4 clients, cnn-tiny" in out and "engine on cpu" in out
    assert "Training" in out and "4 rounds" in out
    assert "NoT" in out and "Retrain" in out and "Avg. gap" in out
    assert "runs/small/report.html" in out
    assert (done / "report.html").read_text().startswith("<!doctype html>")


def test_json_prints_json(unfed: Callable[..., Any], done: Path) -> None:
    code, out, _ = unfed("run", "small.toml", "--json")
    value = json.loads(out)
    assert code == 0 and value["report"].endswith("report.html")
    assert {line["method"] for line in value["lines"]} == {"train", "before", "not", "retrain"}


def test_quiet_prints_nothing_and_set_and_device_change_the_config(unfed: Callable[..., Any], here: Path) -> None:
    assert unfed("run", "small.toml", "-q", "--set", "training.rounds=1", "--device", "cpu")[:2] == (0, "")
    config = json.loads((here / "runs/small/run.json").read_text())["config"]
    assert config["training"]["rounds"] == 1 and config["device"] == "cpu"


def test_a_run_that_exists_is_said_to_exist_and_not_trained_again(
    unfed: Callable[..., Any], done: Path, here: Path
) -> None:
    before = (done / "trajectory.jsonl").read_bytes()
    code, out, err = unfed("run", "small.toml")
    assert code == 0 and "Avg. gap" in out and "report.html" in out
    assert "note: runs/small holds this very run (" in err and "finished); nothing is trained again." in err
    assert "To train it again, give --out DIR." in err
    assert (done / "trajectory.jsonl").read_bytes() == before and not (here / "runs/small-2").exists()


def test_another_run_under_the_same_name_gets_a_folder_of_its_own_and_says_so(
    unfed: Callable[..., Any], done: Path, here: Path
) -> None:
    code, _, err = unfed("run", "small.toml", "--methods", "ft", "--set", "training.rounds=1")
    assert code == 0 and "note: runs/small holds another run; this one goes to runs/small-2." in err
    config = json.loads((here / "runs/small-2/run.json").read_text())["config"]
    assert config["methods"]["run"] == ["ft"]


def test_a_folder_that_a_killed_beginning_left_is_begun_again(unfed: Callable[..., Any], here: Path) -> None:
    half = here / "runs" / "small"
    half.mkdir(parents=True)
    for name in (".work.lock", ".run.json.4711.tmp", "deny.key"):
        (half / name).write_text("{")
    assert unfed("run", "small.toml", "-q", "--set", "training.rounds=1", "--set", "request=[]")[0] == 0
    assert [path.name for path in (here / "runs").iterdir()] == ["small"]
    assert not list(half.glob(".*.tmp")) and not (half / "deny.key").exists()


def test_resuming_a_finished_run_does_nothing_new(unfed: Callable[..., Any], done: Path) -> None:
    before = (done / "trajectory.jsonl").read_bytes()
    assert unfed("resume", done)[0] == 0
    assert (done / "trajectory.jsonl").read_bytes() == before


def test_status_says_where_a_run_stands(unfed: Callable[..., Any], done: Path) -> None:
    code, out, _ = unfed("status", done)
    assert code == 0 and "finished" in out and "0/r1/not" in out and "3/3" in out
    value = json.loads(unfed("status", done, "--json")[1])
    assert value["state"] == "finished" and value["jobs"][0]["round"] == 4


def test_status_takes_a_line_per_request_and_shows_one_with_its_gate(
    unfed: Callable[..., Any], done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in ("2", "3"):
        code, _, err = unfed("forget", done, "--client", client, "--method", "ft", "--until", "1")
        assert code == 0, err
    out = unfed("status", done)[1]
    lines = [line for line in out.splitlines() if "client-2" in line]
    assert lines[0].startswith("request client-2: fulfilled") and "gate:" not in out and "0/r1/not" in out
    monkeypatch.setattr(looking, "SCREEN", 1)
    out = unfed("status", done)[1]
    assert "request client-2" not in out and "request client-3" in out
    assert "1 earlier request, settled:" in " ".join(out.split())
    one = unfed("status", done, "--request", "client-2")[1]
    assert "0/client-2/ft" in one and "gate: utility" in one and "client-3:" not in one and "0/r1/not" not in one
    value = json.loads(unfed("status", done, "--request", "client-2", "--json")[1])
    assert [one["id"] for one in value["requests"]] == ["client-2"]
    assert [job["job"] for job in value["jobs"]] == ["0/client-2/ft"]
    code, _, err = unfed("status", done, "--request", "nobody", "--json")
    assert code == 2 and "There is no request 'nobody'" in err


def test_without_a_method_forget_files_a_tuned_retrain(unfed: Callable[..., Any], done: Path) -> None:
    code, _, err = unfed("forget", done, "--client", "2", "--wait")
    (entry,) = Run.open(done).folder.book().entries
    assert code == 0 and not err and entry.method == "retrain" and "tune" in entry.how.set["unlearning"]


def test_forget_serves_a_request_once(unfed: Callable[..., Any], done: Path) -> None:
    code, out, err = unfed("forget", done, "--method", "not", "--client", "2", "--until", "2")
    assert code == 0, err
    assert "Request 'client-2' is served after 2 rounds" in out and "report.html" in out
    assert "\nWhether it was forgotten cannot be decided: " in out or "\nNothing to forget could be seen: " in out
    assert "In force: the model of request client-2 by NoT; methods were only compared for r1, which is still" in out
    assert f"`unfed export {done} -o model.safetensors` writes it to a file." in out
    code, out, _ = unfed("forget", done, "--method", "not", "--client", "2", "--until", "2")
    assert code == 0 and "was served already" in out
    assert "client-2" in unfed("status", done)[1]


@pytest.mark.slow
def test_forget_by_class_and_by_samples(unfed: Callable[..., Any], done: Path, here: Path) -> None:
    assert unfed("forget", done, "--method", "not", "--class", "3", "--until", "1", "--quiet")[:2] == (0, "")
    (here / "ids.csv").write_text("client,position\n1,0\n1,5\n")
    code, out, err = unfed("forget", done, "--samples", "ids.csv", "--method", "sealed", "--until", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["status"] == "done" and json.loads(out)["request"].startswith("samples-")


@pytest.mark.slow
def test_forget_by_not_ends_with_what_that_choice_means(unfed: Callable[..., Any], done: Path) -> None:
    _, out, _ = unfed("forget", done, "--method", "not", "--client", "2", "--until", "1")
    said = out.replace("\n", " ")
    assert "undo NoT by one minus sign" in said and f"unfed probe {done}" in said
    assert "`--method retrain` lasts, `--method sealed` has no inverse." in said
    told = json.loads(unfed("forget", done, "--method", "not", "--client", "2", "--until", "1", "--json")[1])
    assert told["lasting"] in said


@pytest.mark.slow
def test_forget_warns_of_no_way_back_where_there_is_none(unfed: Callable[..., Any], done: Path) -> None:
    drawn = ("--set", "perturbation=reinit")
    for client, how in (("1", ("--method", "retrain")), ("2", drawn), ("3", ("--method", "sealed"))):
        code, out, err = unfed("forget", done, "--method", "not", "--client", client, "--until", "1", "--json", *how)
        assert code == 0 and json.loads(out)["lasting"] is None, err


def test_not_recovered_is_exit_code_3(unfed: Callable[..., Any], done: Path) -> None:
    code, _, err = unfed("forget", done, "--method", "not", "--client", "2")
    assert code == 3 and "is not recovered after 3 rounds" in err and "--until recovered,6" in err


@pytest.mark.slow
def test_after_exit_code_3_status_names_ways_out_that_work(unfed: Callable[..., Any], done: Path) -> None:
    assert unfed("forget", done, "--method", "not", "--client", "2")[0] == 3
    code, out, _ = unfed("status", done)
    assert code == 0 and "request client-2: denied (not recovered)" in out and "it stays owed" in out
    assert "finished" in out and "unfed resume" not in out
    assert f"unfed forget {done} --id client-2 --method retrain --until 4" in out.replace("\n", " ")
    assert f"unfed withdraw {done} client-2" in out.replace("\n", " ")
    code, out, _ = unfed("resume", done)
    assert code == 0 and "request client-2: denied (not recovered)" in out
    code, out, err = unfed("forget", done, "--id", "client-2", "--method", "retrain", "--until", "4")
    assert code == 0 and "Request 'client-2' is served after 4 rounds" in out, err
    assert "request client-2: fulfilled" in unfed("status", done)[1]


@pytest.mark.slow
def test_another_request_is_served_though_the_one_before_was_not(unfed: Callable[..., Any], done: Path) -> None:
    assert unfed("forget", done, "--method", "not", "--client", "2", "--json")[0] == 3
    code, out, err = unfed("forget", done, "--method", "not", "--client", "3", "--until", "1", "--json")
    assert code == 0 and json.loads(out)["status"] == "done", err
    value = json.loads(unfed("status", done, "--json")[1])
    assert [(r["id"], r["state"], r["reason"]) for r in value["requests"]] == [
        ("client-2", "denied", "not recovered"),
        ("client-3", "fulfilled", None),
    ]
    code, _, err = unfed("forget", done, "--method", "not", "--client", "3", "--id", "again", "--until", "1")
    assert code == 2 and "is out already, by request 'client-3'" in err.replace("\n", " ")


def test_withdraw_lets_a_request_go(unfed: Callable[..., Any], done: Path) -> None:
    assert unfed("forget", done, "--method", "not", "--client", "2")[0] == 3
    code, out, _ = unfed("withdraw", done, "client-2")
    assert code == 0 and "Request 'client-2' is withdrawn" in out
    assert json.loads(unfed("withdraw", done, "client-2", "--json")[1])["state"] == "revoked"
    assert "request client-2: withdrawn" in unfed("status", done)[1]
    for arguments, says in [
        (("withdraw", done, "nobody"), "no request 'nobody'; it has client-2"),
        (("withdraw", done, "r1"), "was only compared, not served"),
        (("withdraw", "nowhere", "x"), "is not a run folder"),
        (("forget", done, "--id", "nobody"), "no request 'nobody' to try again"),
        (("forget", done, "--client", "2"), "'client-2' was withdrawn; ask again under another --id"),
        (("forget", done, "--client", "1", "--expires", "soon"), "'soon' is no date"),
    ]:
        code, out, err = unfed(*arguments)
        assert code == 2 and says in err.replace("\n", " ") and not out.strip(), err


def test_a_model_goes_into_a_folder_with_its_card(unfed: Callable[..., Any], done: Path, here: Path) -> None:
    code, out, _ = unfed("export", done, "--method", "not", "-o", "hub")
    assert code == 0 and "Wrote hub: the model 0/r1/not, which is not in force." in out.replace("\n", " ")
    assert {path.name for path in (here / "hub").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    config = json.loads((here / "hub/config.json").read_text())
    assert config["architectures"] == ["cnn-tiny"] and config["unfed"]["way_back"]
    assert {*load_file(here / "hub/model.safetensors")} == {*storage.load(here / "hub/model.safetensors")[0]}
    card = (here / "hub/README.md").read_text()
    assert card.startswith("---\nlibrary_name: safetensors\n") and card.splitlines()[5].endswith(": NoT")
    for word in ("Request `r1`, by NoT.", "| Retrain |", "Does it last? ", "This is evidence, not proof."):
        assert word in card
    affected = json.loads(unfed("lineage", done, "--affected", "0", "--json")[1])
    assert str(here / "hub/model.safetensors") in json.dumps(affected), "an export is found again"
    assert unfed("export", done, "--method", "not", "-o", "hub")[0] == 2, "a folder that is there is not written over"


def test_export_evaluate_and_negate(unfed: Callable[..., Any], done: Path, here: Path) -> None:
    code, out, err = unfed("export", done, "-o", "m.safetensors")
    assert code == 2 and not (here / "m.safetensors").exists()
    assert "This run only compares methods; say with --method which model: not or retrain, or train for θ*" in err
    code, out, _ = unfed("export", done, "--method", "not", "-o", "m.safetensors")
    assert code == 0 and "the model 0/r1/not, which is not in force" in out.replace("\n", " ")
    params, about = storage.load(here / "m.safetensors")
    assert about["architecture"] == "cnn-tiny" and about["in_force"] is False and about["job"] == "0/r1/not"
    assert (
        "In force: the model as trained (θ*); methods were only compared for r1, which is still in it."
        in unfed("status", done)[1]
    )
    value = json.loads(unfed("evaluate", done, "--model", "m.safetensors", "--json")[1])
    last = [line for line in Run.open(done).lines() if line["method"] == "not"][-1]
    assert value["forget"] == pytest.approx(last["forget"]) and value["mia"] == pytest.approx(last["mia"])
    assert "forget" in (told := unfed("evaluate", done)[1]) and "Model: the model as trained (θ*)" in told
    code, out, _ = unfed("negate", "m.safetensors", "--dry-run")
    assert code == 0 and "would negate conv1.weight" in out
    with warnings.catch_warnings(action="default"):
        code, out, err = unfed("negate", "m.safetensors", "--layers", "conv2", "--include-bias", "-o", "n.safetensors")
    assert code == 0 and "negated conv2.weight" in out and "m.safetensors can be turned back" in err
    after, _ = storage.load(here / "n.safetensors")
    assert torch.equal(after["conv2.weight"], -params["conv2.weight"])
    assert torch.equal(after["conv1.weight"], params["conv1.weight"])


def test_convert_reads_a_state_dict(unfed: Callable[..., Any], here: Path) -> None:
    torch.save({"state_dict": {"a.weight": torch.ones(2, 2)}}, here / "m.pt")
    assert unfed("convert", "m.pt", "-o", "m.safetensors")[0] == 0
    assert storage.load(here / "m.safetensors")[0]["a.weight"].tolist() == [[1, 1], [1, 1]]


def test_reports_in_three_formats(unfed: Callable[..., Any], done: Path, here: Path) -> None:
    assert unfed("report", done, "-o", "x.html")[0] == 0 and (here / "x.html").exists()
    assert "| Method |" in unfed("report", done, "--format", "md", "--rule", "last")[1]
    assert unfed("report", done, "--format", "latex", "-o", "t.tex")[0] == 0
    assert r"\toprule" in (here / "t.tex").read_text()


@pytest.mark.figures
def test_numbers_and_figures_of_a_run_as_files(unfed: Callable[..., Any], done: Path, here: Path) -> None:
    found = list(csv.DictReader(io.StringIO(unfed("report", done, "--format", "csv")[1])))
    assert [line["method"] for line in found] == ["before", "retrain", "not"]
    last = [line for line in Run.open(done).lines() if line["method"] == "not"][-1]
    assert float(found[-1]["forget"]) == last["forget"] and float(found[-1]["flops"]) == last["flops"]
    assert unfed("report", done, "--format", "csv", "--rounds", "-o", "rounds.csv")[0] == 0
    assert len((here / "rounds.csv").read_text().splitlines()) == 1 + len(Run.open(done).lines())
    told = json.loads(unfed("report", done, "--format", "json")[1])
    assert told["results"][-1]["forget"] == last["forget"] and len(told["rounds"]) == len(Run.open(done).lines())
    for kind, begins in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        code, out, err = unfed("report", done, "--format", kind)
        assert code == 0 and "files in small-figures" in out, err
        written = sorted(path.name for path in (here / "small-figures").glob(f"*.{kind}"))
        assert {f"forget.{kind}", f"test.{kind}", f"cost-flops.{kind}", f"training.{kind}"} <= set(written)
        assert all((here / "small-figures" / name).read_bytes().startswith(begins) for name in written)


def test_methods_are_listed_with_what_they_need(unfed: Callable[..., Any]) -> None:
    code, out, _ = unfed("methods")
    assert code == 0 and "NoT" in out and "Retrain" in out
    listed = json.loads(unfed("methods", "--json")[1])
    assert listed["not"]["needs"] == ["retain"] and "init" in listed["retrain"]["needs"]
    assert [listed[name]["where"] for name in ("not", "ga", "mode")] == [
        ["federated", "central"],
        ["central"],
        ["federated"],
    ]
    out = unfed("methods", "show", "not")[1]
    assert '["paper"]' in out and "false" in out, "as one writes them in a config"


def test_help_and_version(unfed: Callable[..., Any]) -> None:
    assert "forget" in unfed("--help")[1]
    assert unfed("--version")[1].startswith("unfed ")


# --- failing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "none.toml"), "cannot be read"),
        (("run", "small.toml", "--set", "training.round=3"), "Did you mean 'rounds'"),
        (("run", "small.toml", "--set", "methods.run=['nott']"), "Did you mean 'not'"),
        (("run", "small.toml", "--set", "methods.not.layers=['conv7']"), "conv7"),
        (("run", "small.toml", "--set", "request.clients=['9']"), "9"),
        (("run", "small.toml", "--device", "tpu"), "use auto, cpu, cuda"),
        (("demo", "--methods", "nott"), "Did you mean 'not'"),
        (("resume", "."), "is not a run folder"),
        (("status", "nowhere"), "is not a run folder"),
        (("forget", "nowhere", "--client", "1"), "is not a run folder"),
        (("forget", "nowhere"), "exactly one of --client, --class or --samples"),
        (("forget", "nowhere", "--samples", "none.csv"), "none.csv"),
        (("negate", "none.safetensors", "--dry-run"), "none.safetensors"),
        (("negate", "small.toml", "-o", "x"), "small.toml"),
        (("negate", "small.toml"), "-o FILE, or look first with --dry-run"),
        (("convert", "small.toml", "-o", "x.safetensors"), "small.toml"),
        (("methods", "show", "nott"), "Did you mean 'not'"),
        (("report", "nowhere"), "is not a run folder"),
    ],
)
def test_bad_input_is_one_sentence_exit_code_2_and_nothing_written(
    unfed: Callable[..., Any], here: Path, arguments: Any, says: str
) -> None:
    before = sorted(os.listdir(here))
    code, out, err = unfed(*arguments)
    assert code == 2
    assert says in err.replace("\n", " ")
    assert "Traceback" not in err and out == ""
    assert sorted(os.listdir(here)) == before


def test_bad_input_about_a_run(unfed: Callable[..., Any], done: Path, here: Path) -> None:
    for arguments, says in [
        (("report", done, "--format", "png"), "takes html, md, latex, csv, json, svg or pdf, not 'png'"),
        (("report", done, "--rule", "first"), "first"),
        (("forget", done, "--client", "1", "--method", "nott"), "Did you mean 'not'"),
        (("forget", done, "--client", "9", "--until", "1"), "9"),
        (("export", done, "-o", "x", "--method", "ft"), "makes no model 0/r1/ft"),
        (("evaluate", done, "--model", "small.toml"), "cannot be read as safetensors"),
    ]:
        code, _, err = unfed(*arguments)
        assert code == 2 and says in err.replace("\n", " "), err
    storage.save(here / "other.safetensors", {"w": torch.ones(1)}, {})
    code, _, err = unfed("evaluate", done, "--model", "other.safetensors")
    assert code == 2 and "another architecture" in err.replace("\n", " ")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_terminal_that_does_not_know_every_letter_is_no_reason_to_stop(
    here: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setattr(sys, "argv", ["unfed", "methods"])
    with pytest.raises(SystemExit) as end:
        main()
    signal.signal(signal.SIGTERM, handler)
    sys.stdout.flush()
    assert not end.value.code
    assert "?1-sparse" in written.getvalue().decode(encoding)


# --- dying ------------------------------------------------------------------------------------------------------------


LONG = (
    "--set",
    "data.train_size=600",
    "--set",
    "training.rounds=90",
    "--set",
    "unlearning.rounds=15",
    "--set",
    "evaluation.attack=false",
)


@pytest.mark.parametrize("kill", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_ends_with_130_and_the_command_that_resumes(here: Path, kill: Any) -> None:
    process = Started(here, "run", "small.toml", *LONG)
    process.until(lambda: (here / "runs/small/state").exists())
    process.send(kill)
    code, said = process.ended()
    assert code == 130 and "unfed resume runs/small" in said and "Traceback" not in said, said


def test_an_interrupt_of_a_short_command_is_answered_and_leaves_nothing(
    unfed: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typer ended it in silence."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    before = list(here.iterdir())
    monkeypatch.setattr(os, "replace", killed)
    assert unfed("keys", "new", "me") == (130, "", "Interrupted; nothing half-written was left.\n")
    assert list(here.iterdir()) == before


def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "unfed.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "unfed.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Killed(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        begun()
    assert end.value.code == 130


@pytest.mark.slow  # in `make test`: a run at its writes (test_run.py); methods that keep more: test_history.py
def test_a_run_killed_while_it_trains_and_while_it_forgets_ends_as_if_it_had_not_been(
    unfed: Callable[..., Any], here: Any
) -> None:
    # Long enough to be hit.
    sets = ["training.rounds=6", "unlearning.rounds=6", "checkpoint.rounds=2", "evaluation.attack=false"]
    sets += ["data.train_size=600", "methods.run=['not']"]
    rounds = [word for one in sets for word in ("--set", one)]
    assert unfed("run", "small.toml", *rounds, "--quiet", "--out", "whole")[0] == 0
    process = Started(here, "run", "small.toml", *rounds, "--quiet", "--out", "killed")
    process.until(lambda: (here / "killed/state").exists())
    chance, hit, told = random.Random(0), 0, here / "killed/trajectory.jsonl"
    for method in ("train", "not"):
        process.until(lambda method=method: f'"method":"{method}","round":1,' in told.read_text(), 120)
        time.sleep(chance.uniform(0, 0.3))
        hit += process.running()
        process.send(signal.SIGKILL)
        process.ended()
        if method == "train":
            process = Started(here, "resume", "killed", "--quiet")
    assert hit, "nothing was killed: give it more rounds"
    assert unfed("resume", "killed", "--quiet")[0] == 0
    a, b = (Run.open(here / name).lines() for name in ("whole", "killed"))
    assert [{k: v for k, v in line.items() if k != "seconds"} for line in a] == [
        {k: v for k, v in line.items() if k != "seconds"} for line in b
    ]
    for path in (here / "whole/models").rglob("*.safetensors"):
        assert path.read_bytes() == (here / "killed" / path.relative_to(here / "whole")).read_bytes()


@pytest.mark.slow
def test_status_of_a_running_run(here: Path, unfed: Callable[..., Any]) -> None:
    process = Started(here, "run", "small.toml", *LONG, "--quiet")
    try:
        process.until(lambda: (here / "runs/small/progress.json").exists())
        value = json.loads(unfed("status", "runs/small", "--json")[1])
        assert value["state"] == "running"
        code, out, _ = unfed("forget", "runs/small", "--method", "not", "--client", "2", "--until", "1")
        assert code == 0 and "is filed" in out
    finally:
        process.send(signal.SIGKILL)
        process.ended()
    code, out, _ = unfed("status", "runs/small")
    assert "interrupted" in out and "unfed resume runs/small" in out


def test_a_run_stops_after_the_round_in_which_its_budget_is_spent_and_is_resumed(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no save is due for days, and where a display stands before the clock."""
    rounds_take(40, monkeypatch)
    sets = ["training.rounds=3", "unlearning.rounds=1", "checkpoint.rounds=1000", "checkpoint.seconds=1000000"]
    arguments = ["run", "small.toml", *(part for one in sets for part in ("--set", one)), "--methods", "not"]
    stopped = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--budget", "1h"])
    assert stopped.exit_code == 130
    assert f"The budget is spent. Nothing is lost: go on with `unfed resume {tmp_path / 'run'}`." in stopped.stderr
    run = Run.open(tmp_path / "run")
    assert saved(run.folder, run.training_job(0)).round == 2, "the hour is up in the second round"
    assert CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "-q", "--budget", "9h"]).exit_code == 0
    assert CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "whole"), "-q"]).exit_code == 0
    ends = [Run.open(tmp_path / name).model(method="not") for name in ("run", "whole")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
