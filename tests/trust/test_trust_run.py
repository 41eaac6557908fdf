"""From a signed request to a model in force, in a run that keeps a log: what is asked, answered, logged and shown."""

from __future__ import annotations

import json
import shlex
import shutil
import stat
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from command_line import called
from unfed import storage
from unfed.config.config import Config
from unfed.data import Request, SampleList
from unfed.errors import UnfedError, UnfedWarning
from unfed.folder import purge
from unfed.folder.folder import RunFolder
from unfed.requests import entry as requests
from unfed.requests.options import RequestOptions
from unfed.runs import record as trust_log
from unfed.runs.description import request_id
from unfed.runs.progress import Watch
from unfed.runs.record import RunRecord
from unfed.runs.run import Run
from unfed.trust import bundle, intake, logbook, request, signing
from unfed.trust.findings import findings, served
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Handling
from unfed.trust.log import LOG
from unfed.trust.logbook import faults_of
from unfed.trust.request import NotBelieved, Opening
from unfed.trust.signing import Envelope
from unfed.trust.verdict import verdict
from worlds import rounds_take, saved

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {"train_size": 300, "test_size": 100},
    "partition": {"clients": 3},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 1, "batch": 256},
    "unlearning": {"rounds": 2},
    "checkpoint": {"rounds": 1},
    "evaluation": {"attack": False, "samples": False, "recovered_within": 100},
    "gate": {"max_drop": 100},
    "engine": {"name": "sequential"},
    "device": "cpu",
}
TWO = Handling(until="2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that was trained under a log, with everybody's keys beside it."""
    folder = tmp_path_factory.mktemp("trust")
    for name in ("operator", "zero", "one", "stranger"):
        signing.new_key(folder / name)
    run = Run.create(Config.parse(TINY), folder / "run")
    trust = TrustFolder.begin(run.folder.path, folder / "operator.key")
    trust.enrol({"0": signing.public_key(folder / "zero.pub"), "1": signing.public_key(folder / "one.pub")})
    with logbook.logged(run) as watch:
        run.execute(watch)
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    shutil.copytree(made, folder)
    told = json.loads((folder / "run/trust/operator.json").read_text())
    (folder / "run/trust/operator.json").write_text(json.dumps({**told, "key": str(folder / "operator.key")}))
    return folder


def signed(home: Path, who: str = "zero", scope: Any = None, agent: str = "0", **more: Any) -> Envelope:
    operator = signing.public_key(home / "operator.pub")
    value = request.value(scope or {"clients": [agent]}, agent, operator.id, **more)
    value["log"] = TrustFolder(home / "run").log.origin
    return request.sign(value, signing.signing_key(home / f"{who}.key"))


def hand_in(home: Path, what: Envelope, opening: Opening | None = None) -> intake.Taken:
    return intake.receive(Run.open(home / "run"), what.to_bytes(), opening, TWO)


def serve(home: Path) -> None:
    run = Run.open(home / "run")
    with logbook.logged(run) as watch:
        run.execute(watch)


def types(home: Path) -> list[str]:
    return [leaf["type"] for leaf in TrustFolder(home / "run").log.leaves]


@pytest.fixture
def unfed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Gives a command in this process, but only `report` writes a report: exit code, stdout, stderr."""

    def give(*words: object) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patched:
            if words[0] != "report":
                patched.setattr("unfed.api.write_report", lambda run: run.folder.path / "report.html")
            return called([*map(str, words)], monkeypatch, capsys)

    return give


# --- a request is taken -----------------------------------------------------------------------------------------------


def test_a_request_is_filed_logged_and_answered_in_one_month(home: Path) -> None:
    asked = signed(home)
    taken = hand_in(home, asked)
    operator = signing.public_key(home / "operator.pub")
    answer = request.acknowledged(taken.acknowledgement, [operator])
    assert answer.request == asked
    assert answer.expected_by == request.month_later(answer.received)
    assert taken.entry.state == "open" and taken.entry.request.clients == ("0",)
    assert types(home)[-4:] == ["request", "acknowledgement", "state", "deny"]
    for path in (home / "run/trust").rglob("*.json*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize("name", ["request", "received-at", "expected_by", "pseudonym", "leaf", "line", "checkpoint"])
def test_an_answer_that_was_altered_is_not_believed(home: Path, name: str) -> None:
    taken, operator = hand_in(home, signed(home)).acknowledgement, signing.public_key(home / "operator.pub")
    value = json.loads(taken.payload)
    payload = json.dumps({**value, name: "0"}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(UnfedError, match="altered"):
        request.acknowledged(Envelope(payload, taken.type, taken.signatures), [operator])


class Later(datetime):
    """An hour and more after now."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + timedelta(hours=1, minutes=1)


def test_what_is_not_believed_is_refused_and_counted_by_hour_and_reason(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(home / "run")
    taken = signed(home)
    hand_in(home, taken)
    cases = {
        "unreadable": b"nothing",
        "signature": signed(home, "stranger").to_bytes(),
        "agent": signed(home, "one").to_bytes(),
        "not its own": signed(home, scope={"clients": ["1"]}).to_bytes(),
        "replayed": taken.to_bytes(),
    }
    before = len(TrustFolder(home / "run").log.lines), len(TrustFolder(home / "run").log.checkpoints())
    for _ in range(3):
        for reason, data in cases.items():
            with pytest.raises(NotBelieved) as caught:
                intake.receive(run, data, None, TWO)
            assert caught.value.reason == reason
    log = TrustFolder(home / "run").log
    assert (len(log.lines), len(log.checkpoints())) == before, "a flood adds no leaf and no checkpoint"
    serve(home)
    assert "refusals" not in types(home), "their hour is not over"
    monkeypatch.setattr(requests, "datetime", Later)
    for _ in range(2):
        serve(home)
    (leaf,) = [leaf for leaf in TrustFolder(home / "run").log.leaves if leaf["type"] == "refusals"]
    assert leaf["reasons"] == dict.fromkeys(cases, 3)
    with pytest.raises(NotBelieved):
        intake.receive(run, b"nothing", None, TWO)
    assert [*json.loads((home / "run/trust" / logbook.REFUSED).read_text()).values()] == [{"unreadable": 1}]
    assert len(run.folder.book().entries) == 1
    assert faults_of(home / "run") == []


def test_a_request_is_taken_by_the_federation_that_it_was_signed_for_and_by_no_other(home: Path) -> None:
    """The same operator runs a second federation with the same client: a request is bound to the log's origin."""
    other = home / "other"
    Run.create(Config.parse({**TINY, "name": "other"}), other)
    trust = TrustFolder.begin(other, home / "operator.key")
    trust.enrol({"0": signing.public_key(home / "zero.pub")})
    asked = signed(home)
    with pytest.raises(NotBelieved, match="The request names another federation .*; sign it for this one") as caught:
        intake.receive(Run.open(other), asked.to_bytes(), None, TWO)
    assert caught.value.reason == "federation" and Run.open(other).folder.book().entries == ()
    value = {name: own for name, own in json.loads(asked.payload).items() if name != "log"}
    older = request.sign(value, signing.signing_key(home / "zero.key"))
    with pytest.raises(NotBelieved, match="names no federation, so any run could take it; sign it for this one"):
        hand_in(home, older)
    path = TrustFolder(home / "run").file("request", value["agent-request-id"])
    storage.write_bytes(path, older.to_bytes())  # an earlier version had begun to take it
    assert hand_in(home, older).entry.request.clients == ("0",)


# --- it is refused, or taken back -------------------------------------------------------------------------------------


def test_what_a_client_signed_only_the_client_takes_back(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    run, name = home / "run", hand_in(home, signed(home)).entry.request.id
    code, _, err = unfed("withdraw", run, name)
    assert code == 2 and f"Client '0' signed request '{name}'" in err and "--revocation FILE" in err
    with pytest.raises(UnfedError, match="only its --revocation FILE withdraws it"):
        Run.open(run).withdraw(name)
    file, operator = home / "back.json", signing.public_key(home / "operator.pub").id
    for who, agent in (("operator", "operator"), ("one", "1")):
        own = request.revoke(name, agent, operator, signing.signing_key(home / f"{who}.key"))
        file.write_bytes(own.to_bytes())
        code, _, err = unfed("withdraw", run, name, "--revocation", file)
        assert code == 2 and f"is not one that '{agent}' asked for" in err
    assert Run.open(run).queue.book.find(name).state == "open"  # type: ignore[union-attr]
    words = ("--client", "0", "--key", home / "zero.key", "--to", home / "operator.pub", "-o", file)
    assert unfed("request", "revoke", "another", *words)[0] == 0
    code, _, err = unfed("withdraw", run, name, "--revocation", file)
    assert code == 2 and f"does not revoke request '{name}'" in err
    assert unfed("request", "revoke", name, *words)[0] == 0
    assert unfed("withdraw", run, name, "--revocation", file)[0] == 0
    assert [e.state for e in Run.open(run).folder.book().entries] == ["revoked"] and faults_of(run) == []


def test_what_the_operator_asked_the_operator_takes_back(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    run = home / "run"
    assert unfed("forget", run, "--client", "2", "--wait", "-q", "--method", "ft")[0] == 0
    asked = hand_in(home, signed(home, "operator", {"classes": [3]}, "operator"))
    for entry in Run.open(run).folder.book().entries:
        assert unfed("withdraw", run, entry.request.id)[0] == 0
    assert {e.state for e in Run.open(run).folder.book().entries} == {"revoked"} and asked.entry.number == 2
    code, _, err = unfed("request", "refuse", run, "nothing", "--reason", "no")
    assert code == 2 and "came unsigned" in err


def test_a_refusal_is_signed_and_logged_and_the_request_stays_owed(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    run, asked = home / "run", signed(home, name="r")
    hand_in(home, asked)
    for bad in ("", "  ", "two\nlines"):
        assert unfed("request", "refuse", run, "r", "--reason", bad)[0] == 2
    reason = "The law obliges us to keep it until 2030."
    code, said, err = unfed("request", "refuse", run, "r", "--reason", reason)
    assert code == 0 and "declined/r.json" in said, err
    trust = TrustFolder(run)
    told, _ = signing.opened(
        signing.read((run / "trust/declined/r.json").read_bytes()), intake.REFUSAL, [trust.operator]
    )
    assert told["reason"] == reason and told["request"] == asked.digest and "complain" in told["complaint"]
    entry = Run.open(run).queue.book.find("r")
    assert entry is not None and entry.owed and entry.accepted and entry.reason == "by the operator"
    assert types(home)[-2:] == ["declined", "state"] and faults_of(run) == []
    said = " ".join(unfed("status", run)[1].split())
    assert (
        f"denied (by the operator); it takes out client 0; The operator refused it: {reason.removesuffix('.')}" in said
    )
    assert "stays owed" in said and "unfed withdraw" not in said
    assert unfed("report", run)[0] == 0
    assert "for the operator refused it; it stays owed" in (run / "report.html").read_text()
    (run / "trust/declined/r.json").unlink()
    assert any("is not the declined that was logged" in one for one in faults_of(run))


@pytest.mark.parametrize("fresh", [False, True], ids=["the same file", "signed again"])
def test_a_client_whose_request_was_refused_may_hand_it_in_again(home: Path, fresh: bool) -> None:
    run, asked = home / "run", signed(home, name="r")
    first = hand_in(home, asked)
    with pytest.raises(NotBelieved, match="served once"):
        hand_in(home, asked)
    intake.refuse(Run.open(run), "r", "We think not.")
    with pytest.raises(NotBelieved, match="used for another"):
        hand_in(home, signed(home, "one", agent="1", name="r"))
    taken = hand_in(home, signed(home, name="r", regime="ccpa") if fresh else asked)
    assert taken.entry.state == "open" and taken.acknowledgement != first.acknowledgement
    assert [types(home).count(kind) for kind in ("request", "acknowledgement", "declined")] == [2, 2, 1]
    with pytest.raises(NotBelieved, match="used for another" if fresh else "served once"):
        hand_in(home, asked)
    serve(home)
    record, trust = RunRecord(RunFolder(run)), TrustFolder(run)
    entry = served(record, "r")
    whole = bundle.sign(findings(record, entry), trust.key, bundle.from_log(record, entry))
    shown = verdict(whole.to_bytes(), [trust.operator.pem])
    assert any(one.startswith("The operator first refused this request, on 20") for one in shown.proven)
    assert any("first refused, and signed the reason" in one for _, one in shown.checklist)
    assert shown.decision[1][1] == "proven: 2 rounds" and faults_of(run) == []


def test_a_fresh_signed_request_takes_the_place_of_one_that_was_refused(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    """Under another id, for the same data: one of them is owed, and the evidence shows both."""
    run = home / "run"
    for name in ("r", "again"):
        hand_in(home, signed(home, name=name))
        intake.refuse(Run.open(run), name, "We think not.")
    with pytest.raises(UnfedError, match="out already"):  # the operator's own does not take a client's place
        Run.open(run).ask(Request("own", clients=("0",)), "ft")
    for name, who, agent in (("other", "one", "1"), ("fresh", "zero", "0")):  # nor does another client's
        sent = signed(home, who, agent=agent, name=name)
        intake.receive(Run.open(run), sent.to_bytes(), None, Handling("ft", "2"))
    entries = {e.request.id: e for e in Run.open(run).folder.book().entries}
    assert [(name, e.state, e.superseded) for name, e in entries.items()] == [
        ("r", "revoked", "again"),
        ("again", "revoked", "fresh"),
        ("other", "open", None),
        ("fresh", "open", None),
    ]
    said = " ".join(unfed("status", run)[1].split())
    assert "request r: replaced by request again" in said and "stays owed" not in said
    with pytest.raises(UnfedError, match="was replaced by request again; ask again"):
        hand_in(home, signed(home, name="r"))
    serve(home)
    record, trust = RunRecord(RunFolder(run)), TrustFolder(run)
    entry = served(record, "fresh")
    whole = bundle.sign(findings(record, entry), trust.key, bundle.from_log(record, entry))
    shown = verdict(whole.to_bytes(), [trust.operator.pem])
    replaced = [one for one in shown.proven if one.startswith("It takes the place of request ")]
    assert [one.split("'")[1] for one in replaced] == ["again", "r"]
    assert any("first refused, and signed the reason" in one for _, one in shown.checklist)
    assert faults_of(run) == []
    assert unfed("report", run)[0] == 0 and "was replaced by request again" in (run / "report.html").read_text()


def test_a_purge_that_a_signed_request_stops_names_the_clients_revocation(home: Path) -> None:
    run = home / "run"
    hand_in(home, signed(home, name="r"))
    serve(home)
    opened, asked = Run.open(run), signed(home, "one", agent="1", name="w")
    waiting = intake.receive(opened, asked.to_bytes(), None, Handling("ft", "2")).entry
    opened.folder.put_request(replace(waiting, begun=requests.now()))
    with pytest.raises(UnfedError, match=r"withdraw \S+ w --revocation FILE` with its client's signed revocation"):
        purge.purge(opened, "r")


def test_a_second_request_under_a_taken_id_is_refused(home: Path) -> None:
    hand_in(home, signed(home, name="mine"))
    with pytest.raises(NotBelieved, match="was used for another"):
        hand_in(home, signed(home, "one", agent="1", name="mine"))


def test_a_request_that_the_queue_refuses_is_logged_and_leaves_nothing(home: Path) -> None:
    hand_in(home, signed(home))
    again = signed(home, name="again")  # its rows are out already
    with pytest.raises(UnfedError, match="out already"):
        hand_in(home, again)
    trust = TrustFolder(home / "run")
    assert [*json.loads((home / "run/trust" / logbook.REFUSED).read_text()).values()] == [{"queue": 1}]
    assert trust.kept("request", "again") is None


def test_samples_leave_by_the_opening_and_neither_salt_nor_ids_are_in_the_log(home: Path) -> None:
    opening = Opening.drawn([("1", 3), ("1", 5)])
    asked = signed(home, "one", {"samples": opening.scope()}, "1")
    with pytest.raises(UnfedError, match="--opening"):
        hand_in(home, asked)
    taken = hand_in(home, asked, opening)
    assert taken.entry.request.samples == (("1", 3), ("1", 5))
    for path in (home / "run").rglob("*"):
        if path.is_file():
            assert opening.salt.hex().encode() not in path.read_bytes(), path
            assert opening.salt not in path.read_bytes(), path


@pytest.mark.parametrize("step", range(4))
def test_handed_in_again_after_a_crash_the_rest_is_done_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Killed after the intent, after filing, after the leaf, after the answer was signed: the same bytes go on."""
    asked, run = signed(home), Run.open(home / "run")

    class Killed(BaseException):
        pass

    def killed(*args: Any, **kwargs: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        if step == 0:
            patched.setattr(type(run.queue), "file", killed)
        elif step == 1:
            patched.setattr(TrustFolder, "enter", killed)
        elif step == 2:
            patched.setattr(request, "acknowledge", killed)
        else:
            patched.setattr(request, "month_later", killed)
        with pytest.raises(Killed):
            intake.receive(run, asked.to_bytes(), None, TWO)
    hand_in(home, asked)
    assert [types(home).count(kind) for kind in ("request", "acknowledgement")] == [1, 1]
    assert not (home / "run/trust" / logbook.REFUSED).exists()
    assert len(Run.open(home / "run").folder.book().entries) == 1
    with pytest.raises(NotBelieved, match="served once"):
        hand_in(home, asked)


# --- it is served -----------------------------------------------------------------------------------------------------


def test_the_log_tells_the_story_and_shows_that_the_leaver_took_no_part(home: Path) -> None:
    taken = hand_in(home, signed(home))
    name = taken.entry.request.id
    serve(home)
    trust = TrustFolder(home / "run")
    leaves = trust.log.leaves
    own = [(leaf["type"], leaf.get("state", leaf.get("round"))) for leaf in leaves if leaf.get("request") == name]
    assert own == [
        ("request", None),
        ("acknowledgement", None),
        ("state", "open"),
        ("state", "in_progress"),
        ("round", 0),
        ("round", 1),
        ("round", 2),
        ("gate", None),
        ("state", "fulfilled"),
        ("in-force", None),
    ]
    assert [leaf["clients"] for leaf in leaves if leaf["type"] == "deny"] == [1]  # once, when the list changed
    trained = [leaf for leaf in leaves if leaf["type"] == "round" and leaf["method"] == "train"]
    assert [leaf["participants"]["size"] for leaf in trained] == [0, 3]
    final = [leaf for leaf in leaves if leaf["type"] == "round"][-1]
    assert final["model"] == next(leaf["model"] for leaf in leaves if leaf["type"] == "in-force")
    assert final["participants"]["size"] == 2
    assert faults_of(home / "run") == []

    me = trust.pseudonyms.known("0")
    assert me.hex() == request.acknowledged(taken.acknowledgement, [trust.operator]).pseudonym
    for line in trust.log.lines:  # nobody has a name in it
        assert b'"0"' not in line and b'"client-0"' not in line


def test_a_job_that_repeats_a_round_after_a_crash_logs_it_once(home: Path) -> None:
    class Stop(BaseException):
        pass

    class Stopped(Watch):
        def goes_on(self, *told: Any) -> None:  # after a round is logged, before it is saved
            raise Stop

    hand_in(home, signed(home))
    run = Run.open(home / "run")
    with pytest.raises(Stop):
        run.execute(logbook.LoggedWatch(run, TrustFolder(home / "run"), Stopped()))
    serve(home)
    leaves = TrustFolder(home / "run").log.leaves
    rounds = [leaf["round"] for leaf in leaves if leaf["type"] == "round" and leaf["method"] == "retrain"]
    assert rounds == [0, 1, 2]
    assert faults_of(home / "run") == []


def test_with_a_budget_every_round_is_logged_once_and_saved_when_the_time_is_up(
    tmp_path: Path, unfed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds_take(40, monkeypatch)
    signing.new_key(tmp_path / "operator")
    sets = ("training.rounds=3", "unlearning.rounds=1", "checkpoint.rounds=1000", "checkpoint.seconds=1000000")
    words = ["run", "demo", "--out", tmp_path / "run", "-q", "--methods", "not", "--budget", "1h"]
    words += [part for one in sets for part in ("--set", one)]
    assert unfed(*words, "--operator", tmp_path / "operator.key")[0] == 130
    run = Run.open(tmp_path / "run")
    assert saved(run.folder, run.training_job(0)).round == 2
    assert unfed("resume", tmp_path / "run", "-q", "--budget", "9h")[0] == 0
    leaves = TrustFolder(tmp_path / "run").log.leaves
    rounds = [(leaf["method"], leaf["round"]) for leaf in leaves if leaf["type"] == "round"]
    assert rounds == [("train", 0), ("train", 1), ("train", 2), ("train", 3), ("not", 0), ("not", 1)]
    assert faults_of(tmp_path / "run") == []


def test_a_model_that_was_made_beside_the_log_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_in(home, signed(home))
    (home / "run/trust").rename(home / "trust")
    with monkeypatch.context() as patched:  # whoever takes the log away, and does not ask whether there was one
        patched.setattr(trust_log, "keeps_log", lambda run: False)
        Run.open(home / "run").execute()
    (home / "trust").rename(home / "run/trust")
    assert "are not in its log yet" in faults_of(home / "run")[0]
    serve(home)
    assert any("made without the log" in one for one in faults_of(home / "run"))


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens in the same second, as far as anybody writes it down."""

    class Still(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Still:
            return cls(2026, 11, 16, tzinfo=tz)

    monkeypatch.setattr(requests, "datetime", Still)


@pytest.mark.usefixtures("one_second")
def test_a_model_of_before_the_log_is_told_from_one_that_was_made_beside_it(tmp_path: Path) -> None:
    signing.new_key(tmp_path / "operator")
    run = Run.create(Config.parse(TINY), tmp_path / "run")
    run.execute()
    run.forget(Request("early", clients=("2",)), "not", 1)
    TrustFolder.begin(run.folder.path, tmp_path / "operator.key")
    serve(tmp_path)
    assert "in-force" in [leaf["type"] for leaf in TrustFolder(run.folder.path).log.leaves]
    assert faults_of(run.folder.path) == []
    (run.folder.path / "trust").rename(tmp_path / "trust")
    Run.open(run.folder.path).forget(Request("late", clients=("1",)), "ft", 1)
    (tmp_path / "trust").rename(run.folder.path / "trust")
    serve(tmp_path)
    (said,) = faults_of(run.folder.path)
    assert "The model of request 'late' came into force" in said and "made without the log" in said


def test_without_the_operators_key_no_work_is_done(home: Path) -> None:
    hand_in(home, signed(home))
    (home / "operator.key").unlink()
    with pytest.raises(UnfedError, match="put it back"):
        serve(home)
    assert Run.open(home / "run").folder.book().entries[0].state == "open"


def test_a_command_that_could_not_be_logged_is_not_begun(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    name = hand_in(home, signed(home)).entry.request.id
    (home / "operator.key").unlink()
    out = home / "m.safetensors"
    for words in (("withdraw", home / "run", name), ("export", home / "run", "--method", "train", "-o", out)):
        code, _, err = unfed(*words)
        assert code == 2 and "put it back" in err
    assert Run.open(home / "run").folder.book().entries[0].state == "open" and not out.exists()


def test_status_says_by_when_a_signed_request_was_promised(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    taken = hand_in(home, signed(home))
    due = request.acknowledged(taken.acknowledgement, [signing.public_key(home / "operator.pub")]).expected_by
    code, said, _ = unfed("status", home / "run")
    assert code == 0 and f"promised by {due}" in said
    code, said, _ = unfed("status", home / "run", "--json")
    assert [request["expected_by"] for request in json.loads(said)["requests"]] == [due]
    (home / "run/trust" / LOG).write_bytes(b"nothing\n")
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnfedWarning)
        code, _, err = unfed("status", home / "run")
    assert code == 0 and "note: When signed requests are due is not known: " in err


def test_a_log_whose_beginning_was_killed_is_begun_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*args: Any) -> Any:
        raise Killed

    shutil.rmtree(home / "run")
    Run.create(Config.parse(TINY), home / "run")
    (home / "run/trust").mkdir()  # killed before anything was in it
    with monkeypatch.context() as patched:
        patched.setattr(TrustFolder, "enter", killed)
        with pytest.raises(Killed):
            TrustFolder.begin(home / "run", home / "operator.key")
    TrustFolder.begin(home / "run", home / "operator.key")
    assert types(home) == ["begin"]
    TrustFolder.begin(home / "run", home / "operator.key")
    assert types(home) == ["begin"]
    with pytest.raises(UnfedError, match="another key"):
        TrustFolder.begin(home / "run", home / "stranger.key")


@pytest.mark.parametrize("name", ["log.jsonl", "checkpoints.jsonl", "participants.jsonl", "roster.json"])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(home: Path, name: str) -> None:
    (home / "run/trust" / name).unlink()
    (home / "run/trust" / name).mkdir()
    (said, *_) = faults_of(home / "run")
    assert f"{name} cannot be read (Is a directory); restore it" in said


@pytest.mark.parametrize("name", ["operator.json", "pseudonyms.json"])
def test_no_work_goes_on_without_who_signs_and_who_took_part(home: Path, name: str) -> None:
    """Without the first nothing would be logged any more, without the second the same people by other names."""
    hand_in(home, signed(home))
    (home / "run/trust" / name).unlink()
    before = (home / "run/trust/log.jsonl").read_bytes(), (home / "run/trajectory.jsonl").read_bytes()
    with pytest.raises(UnfedError, match=rf"{name} is gone.*restore it"):
        serve(home)
    with pytest.raises(UnfedError, match=rf"{name} is gone.*restore it"):
        Run.open(home / "run").execute()
    assert before == ((home / "run/trust/log.jsonl").read_bytes(), (home / "run/trajectory.jsonl").read_bytes())
    (said,) = faults_of(home / "run")
    assert f"{name} is gone" in said


def test_a_run_whose_log_was_taken_away_is_not_whole_does_no_work_and_begins_no_other(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    run, kept = home / "run", home / "kept"
    hand_in(home, signed(home, name="r"))
    assert unfed("check", run)[0] == 0
    (run / "trust").rename(kept)
    gone = f"{run / 'trust/operator.json'} is gone or damaged, so who signs the log of {run} is not known; restore it"
    for words in (
        ("check", run),
        ("log", "check", run),
        ("resume", run, "-q"),
        ("export", run, "-o", home / "m.safetensors"),
        ("keys", "roster", run, "--operator", home / "operator.key"),
    ):
        code, _, said = unfed(*words)
        assert code == 2 and gone in said, words
    assert not (run / "trust").exists() and not (home / "m.safetensors").exists()
    kept.rename(run / "trust")
    serve(home)
    assert unfed("check", run)[0] == 0


def test_the_log_of_another_run_in_the_place_of_its_own_is_found(home: Path) -> None:
    other = Run.create(Config.parse(TINY), home / "other")
    TrustFolder.begin(other.folder.path, home / "operator.key")
    shutil.rmtree(home / "run/trust")
    shutil.copytree(home / "other/trust", home / "run/trust")
    (said, *_) = faults_of(home / "run")
    start = f"{home / 'run/trust'} has another log than the one that was kept when {home / 'run/state'}/"
    assert said.startswith(start) and said.endswith(" was saved; restore it.")


def test_a_state_that_was_saved_without_a_log_vouches_for_none(home: Path) -> None:
    plain = Run.create(Config.parse(TINY), home / "plain")
    plain.execute()
    TrustFolder.begin(plain.folder.path, home / "operator.key")
    (home / "plain/trust/operator.json").unlink()
    assert trust_log.keeps_log(home / "plain"), "the log itself tells"
    shutil.rmtree(home / "plain/trust")
    assert not trust_log.keeps_log(home / "plain"), "nothing was worked on since it began, so nothing can tell"


@pytest.mark.parametrize("file", ["roster.json", "requests/r.json", "acknowledgements/r.json"])
def test_a_signed_file_that_is_lost_or_of_another_day_is_found(home: Path, file: str) -> None:
    old = (home / "run/trust/roster.json").read_bytes()
    TrustFolder(home / "run").enrol({"2": signing.public_key(home / "stranger.pub")})
    hand_in(home, signed(home, name="r"))
    assert faults_of(home / "run") == []
    path = home / "run/trust" / file
    for other in (None, old):
        path.unlink() if other is None else path.write_bytes(other)
        (said,) = faults_of(home / "run")
        assert said.startswith(f"{path} is not the ") and "that was logged" in said


def test_leaves_that_are_not_signed_for_yet_are_told_from_those_that_are(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    assert "is the one that was signed for.\n" in unfed("log", "check", home / "run")[1]
    TrustFolder(home / "run").log.append({"type": "test", "at": "2026-01-01T00:00:00Z"})
    said = unfed("log", "check", home / "run")[1]
    assert "signed for; the last 1 (test) are not signed for yet: the next command signs them.\n" in said
    assert json.loads(unfed("log", "check", home / "run", "--json")[1])["unsigned"] == 1


def test_what_a_killed_writer_left_is_swept(home: Path) -> None:
    left = home / "run/trust/.pseudonyms.json.12345.tmp"
    left.write_bytes(b"half")
    serve(home)
    assert not left.exists()


# --- where requests stand ---------------------------------------------------------------------------------------------


def test_where_a_request_stands_is_read_from_files_and_log(home: Path) -> None:
    hand_in(home, signed(home))
    run, trust = Run.open(home / "run"), TrustFolder(home / "run")
    before = intake.rows(run.folder, trust)
    assert [(row.state, row.phase, row.signed_by) for row in before] == [("open", None, "0")]
    serve(home)
    (row,) = intake.rows(run.folder, TrustFolder(home / "run"))
    assert (row.state, row.expected_by) == ("fulfilled", before[0].expected_by)


# --- by commands ------------------------------------------------------------------------------------------------------


def test_the_whole_way_by_commands(made: Path, tmp_path: Path, unfed: Callable[..., tuple[int, str, str]]) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(
        'name = "tiny"\ndevice = "cpu"\n[partition]\nclients = 3\n[model]\nname = "cnn-tiny"\n[training]\nrounds = 1\n'
        "batch = 256\n[unlearning]\nrounds = 2\n[evaluation]\nattack = false\nsamples = false\n[gate]\nmax_drop = 100\n"
    )
    run, file = tmp_path / "run", tmp_path / "leave.json"
    for name in ("operator", "zero"):
        assert unfed("keys", "new", tmp_path / name)[0] == 0
    operator = tmp_path / "operator.key"
    assert unfed("run", config, "--out", run, "--operator", operator, "--quiet")[0] == 0
    code, said, _ = unfed("keys", "roster", run, f"0={tmp_path / 'zero.pub'}", "--operator", operator)
    assert code == 0 and "the operator and 1 client." in said
    words = ("--key", tmp_path / "zero.key", "--to", tmp_path / "operator.pub", "--client", "0", "-o", file)
    assert unfed("request", "sign", *words, "--log", run / "trust/checkpoints.jsonl")[0] == 0
    code, said, _ = unfed("request", "check", run, file)
    assert code == 0 and "is believed: 0 asks to forget all its data" in said
    code, said, err = unfed("forget", run, "--request", file, "--until", "1")
    assert code == 0, err
    assert "is believed and filed" in said and "is served" in said
    code, _, err = unfed("forget", run, "--request", file)
    assert code == 2 and "served once" in err
    answer = next((run / "trust/acknowledgements").iterdir())
    kept = tmp_path / "answer.json"
    shutil.copy(answer, kept)
    code, said, err = unfed("log", "check", run, "--kept", kept)
    assert code == 0 and "has grown from" in said, err
    assert unfed("bundle", run, "-o", tmp_path / "evidence.json")[0] == 0
    code, said, err = unfed("verify", tmp_path / "evidence.json", "--key", tmp_path / "operator.pub")
    assert code == 0 and "trained in none of the 1 rounds" in said, err
    assert unfed("export", run, "-o", tmp_path / "m.safetensors")[0] == 0
    assert unfed("check", run)[0] == 0

    request, me = answer.stem, TrustFolder(run).pseudonyms.known("0")
    code, said, err = unfed("purge", run, "--request", request, "--dry-run")
    assert code == 0 and f"Write its evidence first, `unfed bundle {run} --request {request} -o" in said, err
    assert unfed("purge", run, "--request", request, "--quiet", "--yes")[0] == 0
    leaves = TrustFolder(run).log.leaves
    assert {"publication", "purge", "unlinked", "deny"} <= {leaf["type"] for leaf in leaves}
    assert not answer.exists()
    with pytest.raises(UnfedError, match="a purge destroyed it"):
        TrustFolder(run).pseudonyms.known("0")
    for path in (run / "trust").rglob("*"):  # nothing here ties the client to its pseudonym any more
        if path.is_file() and path.name not in ("participants.jsonl",):
            assert me.hex().encode() not in path.read_bytes(), path
    assert unfed("check", run)[0] == 0

    lines = (run / "trust" / LOG).read_bytes().splitlines(keepends=True)
    (run / "trust" / LOG).write_bytes(b"".join(lines[:-1]))
    code, _, err = unfed("check", run)
    assert code == 2 and "its end is gone" in err


def test_what_the_operator_asks_without_a_signature_names_nobody_in_the_log(
    home: Path, tmp_path: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    run, rows = home / "run", tmp_path / "rows.csv"
    rows.write_text("client,position\n1,0\n1,3\n")
    for asked in (("--client", "0"), ("--samples", rows)):
        code, _, err = unfed("forget", run, *asked, "--method", "ft", "--until", "1")
        assert code == 0, err
        code, said, _ = unfed("forget", run, *asked, "--method", "ft", "--until", "1")
        assert code == 0 and "was served already" in said, "asking twice is asking once"
    named = {leaf["request"] for leaf in TrustFolder(run).log.leaves if leaf.get("request")}
    assert len(named) == 2 and all(name.startswith("r-") for name in named)
    plain = {request_id({"clients": ["0"]}), request_id({"samples": SampleList.read(rows).samples})}
    assert not any(name in (run / "trust" / LOG).read_text() for name in plain)


def test_without_the_extra_a_command_says_how_to_get_it(
    unfed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib.util as util

    real = util.find_spec
    for name in [name for name in sys.modules if name.startswith("unfed.trust")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "rfc8785" else real(name, *rest))
    code, _, err = unfed("keys", "new", tmp_path / "mine")
    assert code == 2 and "pip install '.[trust]'" in err
    assert not list(tmp_path.iterdir())


# --- several share one recovery ---------------------------------------------------------------------------------------


def test_the_command_that_is_named_under_a_bundle_checks_it(
    home: Path, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    for half in ("key", "pub"):
        (home / f"operator.{half}").rename(home / f"the firm.{half}")
    told = json.loads((home / "run/trust/operator.json").read_text())
    (home / "run/trust/operator.json").write_text(json.dumps({**told, "key": str(home / "the firm.key")}))
    assert unfed("forget", home / "run", "--client", "0", "--until", "2", "--method", "ft", "-q")[0] == 0
    code, out, _ = unfed("bundle", home / "run", "-o", home / "evidence.json")
    assert code == 0
    code, _, said = unfed(*shlex.split(out.split("`")[1])[1:])
    assert code == 0, said


def test_two_that_share_a_recovery_have_each_its_answer_leaves_and_bundle_about_one_model(home: Path) -> None:
    run = Run.open(home / "run")
    together = Handling(until="2", how=RequestOptions(together=True))
    for who, agent in (("zero", "0"), ("one", "1")):
        intake.receive(run, signed(home, who, agent=agent, name=f"r{agent}").to_bytes(), None, together)
    serve(home)
    trust, record = TrustFolder(home / "run"), RunRecord(RunFolder(home / "run"))
    leaves = trust.log.leaves
    rounds = [leaf for leaf in leaves if leaf["type"] == "round" and leaf["request"] is not None]
    assert [(leaf["request"], leaf["round"]) for leaf in rounds] == [("together-1", n) for n in (0, 1, 2)]
    in_force = {leaf["request"]: leaf["model"] for leaf in leaves if leaf["type"] == "in-force"}
    assert in_force == {"r0": rounds[-1]["model"], "r1": rounds[-1]["model"]}
    for name in ("r0", "r1"):
        assert {leaf["type"] for leaf in leaves if leaf.get("request") == name} >= {"acknowledgement", "gate", "state"}
        entry = served(record, name)
        whole = bundle.sign(findings(record, entry), trust.key, bundle.from_log(record, entry))
        shown = verdict(whole.to_bytes(), [trust.operator.pem])
        assert any("trained in none of the 2 rounds" in one for one in shown.proven)
        assert any("as the one in force" in one for one in shown.proven)
    entries = record.folder.book().entries
    assert [intake.phase(intake.leaves_about(one, leaves)) for one in entries] == ["published", "published"]
    assert faults_of(home / "run") == []


def test_no_way_to_work_leaves_rounds_out_of_the_log(home: Path) -> None:
    run = Run.open(home / "run")
    run.forget(Request("r", clients=("2",)), "ft", 2)
    rounds = [
        leaf["round"] for leaf in TrustFolder(home / "run").log.leaves if leaf.get("request") == "r" and "round" in leaf
    ]
    assert rounds == [0, 1, 2] and faults_of(home / "run") == []


def test_without_the_key_python_does_no_work_either(home: Path) -> None:
    (home / "operator.key").unlink()
    with pytest.raises(UnfedError, match="not at"):
        Run.open(home / "run").forget(Request("r", clients=("2",)), "ft", 2)
    assert not (home / "run/models/0/r").exists()
