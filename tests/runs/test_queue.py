"""The queue: a request that fails stands in nobody's way, stays owed, and its rows stay out until it is withdrawn."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from test_run import kept_before_every_write, outcome
from unfed import storage
from unfed.api import write_report
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Halted, Refused, Unanswered, UnfedError, UnfedWarning
from unfed.federation.protocol import Server
from unfed.folder.folder import RunFolder
from unfed.folder.info import InForce
from unfed.methods import METHODS, Method, State
from unfed.methods.not_ import NoT
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.status import in_force, status
from unfed.runs.world import World

SETS = [
    "data.train_size=400",
    "data.test_size=60",
    "partition.clients=4",
    "model.name=cnn-tiny",
    "training.rounds=1",
    "training.lr=0.05",
    "unlearning.rounds=2",
    "checkpoint.rounds=1",
    "methods.run=['not']",
    *(f"methods.{name}.federated=true" for name in ("ga", "ssd", "salun")),
    "engine.name=sequential",
    "evaluation.attack=false",
    "evaluation.samples=false",
    "evaluation.recovered_within=100",
    "gate.max_drop=100",
]


@dataclass(frozen=True)
class Fake(Method):
    """A method that does nothing but what it is told, and notes which rows it was given."""

    name: ClassVar[str] = "fake"
    title: ClassVar[str] = "Fake"
    cite: ClassVar[str] = "nobody"

    fates: ClassVar[dict[int, str]] = {}
    """What happens to a request, by its unlearning seed; it is fulfilled where nothing is said."""
    seen: ClassVar[list[tuple[int, set[int], set[int]]]] = []
    """Seed, rows in any training view, rows in the retain view, of every begin and round."""

    def begin(self, server: Server) -> State:
        self._look(server)
        fate = self.fates.get(server.seed, "fulfil")
        if fate == "refuse":
            raise UnfedError("Fake does not want to; ask somebody else.")
        if fate == "gate":
            raise Refused("Fake's gate is shut.")
        if fate == "raise":
            raise KeyError("conv1.weight")
        if fate == "no answer":
            raise Unanswered("Nobody answered.")
        if fate == "full disk":
            raise Halted("The disk is full.")
        return State({name: t * 0 for name, t in server.params.items()} if fate == "spoil" else server.params)

    def round(self, server: Server, state: State) -> State:
        self._look(server)
        return replace(state, round=state.round + 1)

    def _look(self, server: Server) -> None:
        clients = cast(Any, server).engine._clients.values()
        rows = [{int(row) for c in clients for row in c.rows[c.view(view)]} for view in ("all", "retain")]
        self.seen.append((server.seed, rows[0], rows[1]))


@pytest.fixture(autouse=True)
def clean() -> None:
    Fake.fates.clear()
    Fake.seen.clear()


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    METHODS["fake"] = Fake
    yield
    del METHODS["fake"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, known: None) -> tuple[Path, World]:
    """A trained run, and the world it lives in: made once, copied by every test."""
    folder = tmp_path_factory.mktemp("queue") / "run"
    run = Run.create(Config.parse({}, [*SETS, "request=[]"]), folder)
    run.execute()
    return folder, run.world(0)


def opened(folder: Path, world: World) -> Run:
    run = Run.open(folder)
    run.use(world)
    return run


@pytest.fixture
def run(template: tuple[Path, World], tmp_path: Path) -> Run:
    shutil.copytree(template[0], tmp_path / "run")
    return opened(tmp_path / "run", template[1])


@pytest.fixture
def strict(run: Run) -> Run:
    """The same run, but recovery must reach all of what the model could before."""
    evaluation = {**run.config.to_json()["evaluation"], "recovered_within": 0.0}
    run.config = Config.parse({**run.config.to_json(), "evaluation": evaluation})
    run.use(replace(run.world(0), config=run.config))
    return run


def again(run: Run) -> Run:
    """The run as the next process finds it."""
    return opened(run.folder.path, run.world(0))


def fated(run: Run, **fates: str) -> None:
    for name, fate in fates.items():
        Fake.fates[run.world(0).seeds.request(name)] = fate


def client(name: str, number: int) -> Request:
    return Request(name, clients=(str(number),))


def queue(run: Run, *requests: Request, method: str = "fake", until: str = "1") -> None:
    """File requests while nobody serves them."""
    with run.folder.lock() as free:
        assert free
        for request in requests:
            assert again(run).forget(request, method, until).status == "queued"


def states(run: Run) -> dict[str, str]:
    return {e.request.id: e.standing for e in run.folder.book().entries}


def rows_of(run: Run, *requests: Request) -> set[int]:
    marked = run.world(0).scoped(requests).values()
    return {int(row) for c in marked for row in c.rows[c.view("forget")]}


FAILS = {
    "refuse": ("refused", "Request 'b' could not be served by Fake: Fake does not want to; ask somebody else."),
    "raise": ("refused", "Request 'b' could not be served by Fake: KeyError: 'conv1.weight'."),
    "gate": ("gate", "Request 'b' could not be served by Fake: Fake's gate is shut."),
    "spoil": ("not recovered", "Request 'b' is not recovered after 2 rounds"),
}


# --- nobody stands in another's way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", FAILS)
def test_of_three_requests_the_middle_one_fails_and_the_third_is_served(strict: Run, fate: str) -> None:
    run = strict
    fated(run, b=fate)
    queue(run, client("a", 3), until="1")
    queue(run, client("b", 2), until="recovered" if fate == "spoil" else "1")  # zeros recognise next to nothing
    reason, why = FAILS[fate]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert run.forget(client("c", 1), "fake", 1).status == "done"
    assert states(run) == {"a": "fulfilled", "b": f"denied ({reason})", "c": "fulfilled"}
    assert [str(w.message).startswith(why) for w in told if w.category is UnfedWarning] == [True]
    assert run.current_job(0) == Job(0, "c", "fake")
    assert status(run).state == "finished"


@pytest.mark.parametrize("method", ["ga", "ssd", "salun"])
def test_a_class_asked_for_twice_is_refused_when_it_is_filed(run: Run, method: str) -> None:
    run.forget(Request("first", classes=(3,)), method, 1)
    with pytest.raises(UnfedError, match="'second' asks for is out already, by request 'first'. Nothing is left to do"):
        run.forget(Request("second", classes=(3,)), method, 1)
    assert states(run) == {"first": "fulfilled"}
    assert run.forget(client("next", 2), method, 1).status == "done"


def test_a_request_fails_with_its_own_sentence_and_not_with_anothers(run: Run) -> None:
    fated(run, a="refuse", b="raise")
    queue(run, client("a", 3))
    with pytest.warns(UnfedWarning, match="Request 'a' could not be served"), pytest.raises(Refused) as caught:
        run.forget(client("b", 2), "fake", 1)
    assert str(caught.value).startswith("Request 'b' could not be served by Fake: KeyError")
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.exit_code == 3


def test_resume_goes_on_with_what_is_open_and_fails_only_once(run: Run) -> None:
    fated(run, b="refuse", c="raise")
    queue(run, client("a", 3), client("b", 2), client("c", 1))
    with pytest.warns(UnfedWarning, match="Request 'c'"), pytest.raises(Refused, match="^Request 'b'"):
        run.execute()
    again(run).execute()  # nothing is open any more: nothing fails
    assert states(run) == {"a": "fulfilled", "b": "denied (refused)", "c": "denied (refused)"}


def test_a_request_nobody_answers_is_put_off_and_tried_again_on_resume(run: Run) -> None:
    fated(run, a="no answer")
    queue(run, client("a", 3))
    with pytest.warns(UnfedWarning, match="It is still open"):
        run.forget(client("b", 2), "fake", 1)
    assert states(run) == {"a": "open", "b": "fulfilled"} and status(run).state == "waiting"
    fated(run, a="fulfil")
    again(run).execute()
    assert states(run) == {"a": "fulfilled", "b": "fulfilled"}
    assert run.current_job(0) == Job(0, "a", "fake")


def test_a_request_that_fails_in_a_round_leaves_no_lines_that_it_will_write_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seldom = {**run.config.to_json(), "checkpoint": {"rounds": 10}}
    run.use(replace(run.world(0), config=Config.parse(seldom)))
    original = Fake.round

    def round(self: Fake, server: Server, state: State) -> State:
        if state.round == 1 and server.seed == run.world(0).seeds.request("a"):
            raise ValueError("in the second round")
        return original(self, server, state)

    fated(run, b="no answer")  # it is scored as it was before, and so vouches for all lines up to there
    queue(run, client("a", 3), client("b", 2), until="3")
    with (
        monkeypatch.context() as patch,
        pytest.warns(UnfedWarning),
        pytest.raises(Refused, match="in the second round"),
    ):
        patch.setattr(Fake, "round", round)
        run.execute()
    run.withdraw("b")
    run.forget(client("a", 3), "fake", 3)
    assert [x["round"] for x in run.folder.lines() if x["method"] == "fake"] == [0, 1, 2, 3]


def test_a_full_disk_decides_nothing(run: Run) -> None:
    fated(run, a="full disk")
    with pytest.raises(Halted, match="The disk is full"):
        run.forget(client("a", 3), "fake", 1)
    assert states(run) == {"a": "in progress"} and status(run).state == "interrupted"
    fated(run, a="fulfil")
    again(run).execute()
    assert states(run) == {"a": "fulfilled"}


def test_a_comparison_that_fails_does_not_keep_the_queue_waiting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_compare", lambda *_: (_ for _ in ()).throw(ValueError("mend me")))
    queue(run, client("a", 3))
    with pytest.raises(ValueError, match="mend me"):
        run.execute()
    assert states(run) == {"a": "fulfilled"}


def test_what_is_filed_just_before_the_lock_is_let_go_is_served(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever filed it was told that it is queued, so somebody must take it up."""
    original = RunFolder.lock
    late: list[str] = []

    @contextmanager
    def lock(folder: RunFolder, name: Any = "work", wait: Any = False) -> Iterator[bool]:
        with original(folder, name, wait) as free:
            yield free
            if name == "work" and free and not late:
                late.append(again(run).forget(client("b", 2), "fake", 1).status)

    monkeypatch.setattr(RunFolder, "lock", lock)
    run.forget(client("a", 3), "fake", 1)
    assert late == ["queued"] and states(run) == {"a": "fulfilled", "b": "fulfilled"}


# --- rows that are gone already ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ([client("a", 3)], client("x", 3), "request 'a'"),
        ([client("a", 3)], Request("x", samples=(("3", 0), ("3", 1))), "request 'a'"),
        ([client("a", 3), client("b", 2)], Request("x", clients=("2", "3")), "requests 'a' and 'b'"),
        ([client("a", 3), client("b", 2), Request("c", classes=(3,))], Request("x", clients=("3",)), "request 'a'"),
    ],
)
def test_rows_that_are_gone_already_are_refused_with_the_request_by_which_they_left(
    run: Run, first: list[Request], second: Request, by: str
) -> None:
    for request in first:
        run.forget(request, "fake", 1)
    with pytest.raises(UnfedError, match=f"Every training row that request 'x' asks for is out already, by {by}[.]"):
        run.forget(second, "fake", 1)
    assert "x" not in states(run)


def test_rows_of_a_request_that_is_owed_are_asked_for_by_that_request(run: Run) -> None:
    fated(run, a="refuse")
    with pytest.raises(Refused):
        run.forget(client("a", 3), "fake", 1)
    with pytest.raises(UnfedError, match=r"by request 'a'.*'a' is denied \(refused\) and stays owed: `unfed forget"):
        run.forget(client("x", 3), "fake", 1)
    run.withdraw("a")
    assert run.forget(client("x", 3), "fake", 1).status == "done"


def test_some_new_rows_are_reason_enough(run: Run) -> None:
    run.forget(Request("a", samples=(("3", 0), ("3", 1))), "fake", 1)
    assert run.forget(client("b", 3), "fake", 1).status == "done"


def test_a_comparison_of_the_same_rows_twice_is_refused(template: tuple[Path, World], tmp_path: Path) -> None:
    twice = {"request": [{"id": "a", "classes": [3]}, {"id": "b", "classes": [3]}]}
    with pytest.raises(UnfedError, match="'b' asks for is out already, by request 'a'.* Leave it out of the config"):
        Run.create(config := Config.parse(twice, SETS), tmp_path / "x", replace(template[1], config=config))


# --- what is owed -----------------------------------------------------------------------------------------------------


def test_rows_of_a_denied_request_stay_out_of_the_next_recovery_and_are_measured_in_it(run: Run) -> None:
    fated(run, a="refuse")
    with pytest.raises(Refused):
        run.forget(Request("a", classes=(3,)), "fake", 1)
    run.forget(client("b", 2), "not", 1)
    a, b = Request("a", classes=(3,)), client("b", 2)
    line = run.lines()[-1]
    assert line["asked"] == {"1": ["0", "1", "3"]}
    world = run.world(0)
    clients = world.scoped([a, b], gone=[a])
    taught = sum(len(c.view("retain")) for c in clients.values())
    everything = sum(len(c.train) for c in world.clients)
    assert taught == everything - len(rows_of(run, a, b))
    found = world.evaluator([a, b])(run.current(0)).earlier["a"]
    own = world.evaluator([a])(run.current(0)).numbers["forget"]
    assert line["earlier"] == {"a": found} and found == pytest.approx(own)


def test_what_owners_have_deleted_is_listed_as_not_measured(run: Run) -> None:
    fated(run, a="refuse")
    with pytest.raises(Refused):
        run.forget(replace(client("a", 3), deleted=True), "fake", 1)
    run.forget(client("b", 2), "fake", 1)
    assert run.lines()[-1]["earlier"] == {"a": "not measured: its owners have deleted it"}


def test_status_and_report_name_what_is_owed_and_a_way_out_that_works(run: Run) -> None:
    fated(run, a="raise")
    with pytest.raises(
        Refused, match=r"stays owed.*`unfed forget .* --id a --method retrain --until 1`.*`unfed withdraw"
    ):
        run.forget(client("a", 3), "fake", 1)
    (request,) = status(run).requests
    assert (request.state, request.reason, request.owed) == ("denied", "refused", True)
    assert run.info().requests[-1].owed and "--id a --method retrain" in str(request.way_out)
    page = write_report(run).read_text()
    assert "Client 3 was not taken out: the request was denied, for it could not be served; it stays owed" in page
    assert "Still owed" in page and "KeyError" in page
    assert run.forget(client("a", 3), "retrain", 1).status == "done"
    (request,) = status(run).requests
    assert (request.state, request.owed, request.attempts[0]["method"]) == ("fulfilled", False, "fake")
    assert "Tried by fake" in write_report(run).read_text()


# --- asked again ------------------------------------------------------------------------------------------------------


def test_a_denied_request_goes_on_where_it_was_if_nothing_was_served_since(strict: Run) -> None:
    run = strict
    fated(run, a="spoil")
    with pytest.raises(Refused, match="not recovered after 2 rounds"):
        run.forget(client("a", 3), "fake")
    assert run.forget(client("a", 3), "fake", 4).status == "done"
    assert [x["round"] for x in run.folder.lines() if x["method"] == "fake"] == [0, 1, 2, 3, 4]


def test_asked_again_after_others_were_served_it_begins_anew_at_the_model_in_force(strict: Run) -> None:
    """Its old rounds led away from a model that still held who has left since."""
    run = strict
    fated(run, a="spoil")
    with pytest.raises(Refused, match="not recovered"):
        run.forget(client("a", 3), "fake")
    run.forget(client("b", 2), "not", 1)
    second = run.current(0)
    fated(run, a="fulfil")
    run.forget(client("a", 3), "fake", 3)
    assert run.current_job(0) == Job(0, "a", "fake")
    assert in_force(run, 0).sentence == "the model of request a by Fake", "whoever was filed last is another"
    assert all(torch.equal(t, second[n]) for n, t in run.current(0).items())  # Fake changes nothing
    lines = [x for x in run.lines() if x["request"] == "a"]
    assert [(x["method"], x["round"]) for x in lines] == [("before", 0), *(("fake", t) for t in range(4))]
    assert all(x["earlier"].keys() == {"b"} for x in lines)
    places = {e.request.id: (e.number, e.served, e.earlier) for e in run.folder.book().entries}
    assert places == {"a": (1, 2, ("b",)), "b": (2, 1, ("a",))}
    assert len([x for x in run.folder.lines() if x["request"] == "a"]) > len(lines)  # what was tried stays on record


def test_what_is_owed_is_not_said_to_be_in_a_model_that_was_drawn_anew_without_it(strict: Run) -> None:
    fated(strict, a="spoil")
    with pytest.raises(Refused, match="not recovered"):
        strict.forget(client("a", 3), "fake")
    assert in_force(strict, 0).sentence == "the model as trained (θ*); still in it: a"
    strict.forget(client("b", 2), "retrain", 1)
    strict.forget(client("c", 1), "ft", 1)
    found = in_force(strict, 0)
    assert found.sentence == "the model of request c by FT; without a too, which is not settled yet"
    assert found.still_in_it == () and found.to_json()["never_saw"] == ["a"]


def test_status_as_json_has_the_gate_as_its_file_has_it_and_its_keys_in_their_order(run: Run, tmp_path: Path) -> None:
    """Programs read `unfed status --json`: types of the values behind it change no byte of it."""
    run.forget(client("a", 3), "ft", 1)
    shutil.copytree(run.folder.path, tmp_path / "as another process reads it")
    found = json.loads(json.dumps(status(Run.open(tmp_path / "as another process reads it")).to_json()))
    (request,), (file,) = found["requests"], (run.folder.path / "requests").iterdir()
    assert json.dumps(request["gate"]) == json.dumps(json.loads(file.read_text())["gate"])
    first = ["id", "number", "subject", "created", "method", "until", "state", "reason", "why", "changed", "served"]
    assert list(request) == [*first, "expires", "gate", "purged", "attempts", "standing", "owed", "way_out"]
    assert list(found) == ["state", "jobs", "requests", "in_force", "seconds_left"]
    assert list(found["jobs"][0]) == ["job", "round", "rounds", "test", "forget", "state"]


def test_what_no_method_was_to_try_is_not_said_to_have_been_compared() -> None:
    found = InForce(Job(0, None, "train"), (), (), (), ("r1",))
    assert found.sentence.endswith("methods were only compared for r1, which is still in it")
    assert replace(found, nothing_ran=True).sentence.endswith("no method has run for r1, which is still in it")


def test_influence_follows_the_order_of_service(run: Run) -> None:
    fated(run, a="refuse")
    with pytest.raises(Refused):
        run.forget(client("a", 3), "fake", 1)
    run.forget(client("b", 2), "not", 1)
    run.forget(client("a", 3), "ft", 1)
    models = {(i.request, i.file) for i in run.info().influence or () if i.file.startswith("models/")}
    grown = ("a", "models/0/b/not.safetensors")  # without a's rows, but from a model that a was in
    turned = ("b", "models/0/b/not.safetensors")  # a minus sign brings b back, and another model is in force
    assert models == {("a", "models/0/train.safetensors"), ("b", "models/0/train.safetensors"), grown, turned}


def test_a_request_that_waits_may_be_given_another_method(run: Run) -> None:
    queue(run, client("a", 3))
    with run.folder.lock():
        again(run).forget(client("a", 3), "ft", 2)
    (entry,) = run.folder.book().entries
    assert (entry.method, entry.until, entry.state) == ("ft", "2", "open")


def test_a_request_at_work_keeps_its_method(run: Run) -> None:
    fated(run, a="full disk")
    with pytest.raises(Halted):
        run.forget(client("a", 3), "fake", 1)
    with pytest.raises(UnfedError, match="'a' is being served by fake"):
        run.forget(client("a", 3), "ft", 1)


def test_what_another_request_has_taken_out_meanwhile_is_withdrawn_instead(run: Run) -> None:
    fated(run, a="refuse")
    with pytest.raises(Refused):
        run.forget(Request("a", samples=(("3", 0), ("3", 1))), "fake", 1)
    run.forget(client("b", 3), "fake", 1)
    with pytest.raises(UnfedError, match="'a' asks for is out already, by request 'b'"):
        run.forget(Request("a", samples=(("3", 0), ("3", 1))), "ft", 1)
    run.withdraw("a")
    run.forget(client("c", 2), "fake", 1)
    assert not rows_of(run, client("b", 3)) & Fake.seen[-1][1]


def test_an_id_names_one_request_for_ever(run: Run) -> None:
    run.forget(client("a", 3), "fake", 1)
    with pytest.raises(UnfedError, match="is that of another request"):
        run.forget(client("a", 2), "fake", 1)
    queue(run, client("b", 2))
    run.withdraw("b")
    with pytest.raises(UnfedError, match="'b' was withdrawn; ask again under another --id"):
        run.forget(client("b", 2), "fake", 1)


# --- withdrawing ------------------------------------------------------------------------------------------------------


def test_withdrawal_readmits_the_rows_and_nothing_else_does(run: Run) -> None:
    fated(run, a="refuse")
    with pytest.raises(Refused):
        run.forget(client("a", 3), "fake", 1)
    run.forget(client("b", 2), "not", 1)
    assert run.lines()[-1]["asked"] == {"1": ["0", "1"]}
    assert run.withdraw("a").state == "revoked"
    run.forget(client("c", 1), "ft", 1)
    assert run.lines()[-1]["asked"] == {"1": ["0", "3"]} and "a" not in run.lines()[-1]["earlier"]
    assert not run.info().requests[0].owed
    assert "Client 3 was not taken out: the request was withdrawn." in write_report(run).read_text()


def test_withdrawn_twice_is_withdrawn_once(run: Run) -> None:
    queue(run, client("a", 3))
    first = run.withdraw("a")
    file = next((run.folder.path / "requests").glob("*.json"))
    before = file.read_bytes()
    assert run.withdraw("a") == first and file.read_bytes() == before


def test_what_cannot_be_withdrawn_is_one_sentence(run: Run) -> None:
    with pytest.raises(UnfedError, match="no request 'a'; it has no requests"):
        run.withdraw("a")
    run.forget(client("a", 3), "fake", 1)
    with pytest.raises(UnfedError, match="'a' is fulfilled; to have its rows in a model, train again"):
        run.withdraw("a")
    with pytest.raises(UnfedError, match="no request 'b'; it has a"):
        run.withdraw("b")


def test_a_request_withdrawn_while_it_is_served_is_let_go_at_the_next_round(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, other, made = Fake.round, again(run), []

    def round(self: Fake, server: Server, state: State) -> State:
        made.append(state.round + 1)
        if state.round == 1:
            other.withdraw("a")
        return original(self, server, state)

    monkeypatch.setattr(Fake, "round", round)
    assert run.forget(client("a", 3), "fake", 4).status == "withdrawn"
    assert made == [1, 2]
    assert run.current_job(0) == Job(0, None, "train") and states(run) == {"a": "withdrawn"}
    assert len(Fake.seen) == 3  # its beginning, round 1, and round 2, in which it was withdrawn
    monkeypatch.setattr(Fake, "round", original)
    run.forget(client("b", 2), "fake", 1)
    assert rows_of(run, client("a", 3)) <= Fake.seen[-1][2]


def test_a_request_withdrawn_after_its_last_round_does_not_come_into_force(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RunFolder.save_model

    def save_model(folder: RunFolder, job: Job, *rest: Any) -> None:
        original(folder, job, *rest)
        again(run).withdraw("a")

    monkeypatch.setattr(RunFolder, "save_model", save_model)
    assert run.forget(client("a", 3), "fake", 1).status == "withdrawn"
    assert run.current_job(0) == Job(0, None, "train")


def test_a_waiting_request_that_is_withdrawn_takes_part_from_the_next_round_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unfed.methods import NoT

    original, other = NoT.round, again(run)
    queue(run, client("b", 2), method="not", until="3")
    queue(run, client("c", 1))

    def round(self: NoT, server: Server, state: State) -> State:
        if state.round == 1:
            other.withdraw("c")
        return original(self, server, state)

    monkeypatch.setattr(NoT, "round", round)
    run.execute()
    asked = {t: c for x in run.lines() if x["method"] == "not" for t, c in x["asked"].items()}
    assert asked == {"1": ["0", "3"], "2": ["0", "3"], "3": ["0", "1", "3"]}


def test_who_waits_is_not_asked_to_help_another_begin(run: Run) -> None:
    queue(run, client("a", 3), client("b", 2))
    run.execute()
    seeds = run.world(0).seeds
    begins = {seed: all_rows for seed, all_rows, _ in reversed(Fake.seen)}
    assert not rows_of(run, client("b", 2)) & begins[seeds.request("a")]
    assert not rows_of(run, client("a", 3)) & begins[seeds.request("b")]


def test_a_comparison_leaves_out_who_asked_to_leave_meanwhile(template: tuple[Path, World], tmp_path: Path) -> None:
    config = Config.parse({}, [*SETS, "request.clients=['0']"])
    run = Run.create(config, tmp_path / "run", replace(template[1], config=config))
    run._train(0, Watch())
    queue(run, client("a", 3))
    run.execute()
    asked = {(x["request"], t): c for x in run.lines() if "asked" in x for t, c in x["asked"].items() if x["request"]}
    assert asked["request-1", "1"] == ["1", "2"]


# --- expiring ---------------------------------------------------------------------------------------------------------


def test_a_request_not_begun_by_its_date_expires_and_stays_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with run.folder.lock():
        assert again(run).forget(client("a", 3), "fake", 1, expires="2099-01-31").status == "queued"
    assert run.folder.book().entries[0].expires == "2099-01-31T23:59:59Z"
    for where in ("unfed.requests.book.now", "unfed.runs.serving.now"):
        monkeypatch.setattr(where, lambda: "2099-02-01T00:00:00Z")
    assert states(run) == {"a": "expired"} and status(run).state == "finished"
    run.forget(client("b", 2), "fake", 1)
    assert states(run) == {"a": "expired", "b": "fulfilled"} and run.lines()[-1]["earlier"].keys() == {"a"}
    assert not rows_of(run, client("a", 3)) & Fake.seen[-1][1]
    assert "expired before it was begun; it stays owed" in write_report(run).read_text()
    assert run.forget(client("a", 3), "fake", 1).status == "done"  # asked again, without a date
    assert run.current_job(0) == Job(0, "a", "fake")


def test_a_date_in_the_past_is_refused(run: Run) -> None:
    with pytest.raises(UnfedError, match="would have expired at 2020-01-31T23:59:59Z"):
        run.forget(client("a", 3), "fake", 1, expires="2020-01-31")
    assert run.folder.book().entries == ()


# --- crashes and folders of before ------------------------------------------------------------------------------------


def described(run: Run) -> list[dict[str, Any]]:
    """Where every request stands, without the times."""
    times = ("changed", "created", "begun")
    return [{k: v for k, v in e.to_json().items() if k not in times} for e in run.folder.book().entries]


@pytest.mark.slow
def test_a_queue_killed_at_any_write_ends_as_if_it_had_not_been(run: Run, tmp_path: Path) -> None:
    fated(run, b="raise")
    queue(run, client("a", 3), client("b", 2), client("c", 1))
    with pytest.raises(Refused, match="'b'"), kept_before_every_write(run.folder.path, tmp_path / "killed") as kept:
        run.execute()
    truth, entries = outcome(run.folder.path), described(run)
    assert len(kept) >= 20
    for folder in kept[::2]:  # the three requests make the same writes, and these fall on others of each
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                opened(folder, run.world(0)).execute()
            except Refused as error:
                assert "'b'" in str(error)
        assert outcome(folder) == truth and described(opened(folder, run.world(0))) == entries, folder


def test_a_request_file_cannot_name_a_file_elsewhere(run: Run) -> None:
    queue(run, client("a", 3))
    (file,) = (run.folder.path / "requests").glob("*.json")
    raw = json.loads(file.read_text())
    storage.write_json(file, {**raw, "request": {**raw["request"], "id": "../../a"}})
    with pytest.raises(UnfedError, match="is no file name"):
        run.folder.book()


# --- any sequence -----------------------------------------------------------------------------------------------------


class Sequences(RuleBasedStateMachine):
    """Requests are filed, served, fail, are withdrawn and asked again, in any order."""

    made: ClassVar[tuple[Path, World]]
    count: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        Sequences.count += 1
        folder = self.made[0].with_name(f"sequence-{Sequences.count}")
        shutil.copytree(self.made[0], folder)
        self.run_ = opened(folder, self.made[1])
        Fake.fates.clear()
        Fake.seen.clear()
        self.filed: dict[str, Request] = {}

    @rule(
        what=st.sampled_from(["1", "2", "3", "class", "some"]),
        fate=st.sampled_from(["fulfil", "refuse", "raise", "no answer", "spoil"]),
    )
    def file(self, what: str, fate: str) -> None:
        name = f"r{len(self.filed)}"
        request = {
            "class": Request(name, classes=(3,)),
            "some": Request(name, samples=(("1", 0), ("2", 1), ("3", 2))),
        }.get(what) or Request(name, clients=(what,))
        out = rows_of(self.run_, *(e.request for e in self.run_.queue.book.accepted(0)))
        fated(self.run_, **{name: fate})
        with self.run_.folder.lock():
            if rows_of(self.run_, request) <= out:
                with pytest.raises(UnfedError, match="is out already, by request"):
                    again(self.run_).forget(request, "fake", 1)
            else:
                self.filed[name] = request
                assert again(self.run_).forget(request, "fake", 1).status == "queued"

    @precondition(lambda self: self.filed)
    @rule(data=st.data(), fate=st.sampled_from(["fulfil", "refuse"]))
    def ask_again(self, data: Any, fate: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.filed)))
        before = self.run_.queue.book.find(name)
        assert before is not None
        fated(self.run_, **{name: fate})
        with self.run_.folder.lock():
            try:
                asked = again(self.run_).forget(self.filed[name], "fake", 1).status
            except UnfedError as error:
                assert before.state == "revoked" or (before.owed and "is out already" in str(error))
            else:
                assert asked == ("already done" if before.state == "fulfilled" else "queued")

    @precondition(lambda self: self.filed)
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.filed)))
        found = self.run_.queue.book.find(name)
        assert found is not None
        if found.state == "fulfilled":
            with pytest.raises(UnfedError, match="is fulfilled"):
                self.run_.withdraw(name)
        else:
            assert self.run_.withdraw(name).state == "revoked"

    @rule()
    def serve(self) -> None:
        Fake.seen.clear()
        before = {e.request.id: e for e in self.run_.folder.book().entries}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.run_.execute()
            except Refused:
                assert any(e.waiting for e in before.values())
        seeds, accepted = self.run_.world(0).seeds, self.run_.queue.book.accepted(0)
        for seed, taught, retained in Fake.seen:
            for entry in accepted:
                own = rows_of(self.run_, entry.request)
                assert not own & retained
                assert seeds.request(entry.request.id) == seed or not (own & taught) - rows_of_seed(self, seed)
        after = {e.request.id: e for e in self.run_.folder.book().entries}
        for name, entry in after.items():  # nothing waits but what nobody answered
            assert not entry.waiting or Fake.fates[seeds.request(name)] == "no answer"
            if before[name].state in ("fulfilled", "denied", "revoked"):
                assert entry == before[name]

    @invariant()
    def numbers_and_places_are_unique_and_the_last_served_is_in_force(self) -> None:
        if not hasattr(self, "run_"):
            return
        entries = self.run_.folder.book().entries
        assert [e.number for e in entries] == list(range(1, len(entries) + 1))
        served = sorted((e for e in entries if e.state == "fulfilled"), key=lambda e: e.served or 0)
        assert [e.served for e in served] == list(range(1, len(served) + 1))
        in_force = self.run_.current_job(0).request
        assert in_force == (served[-1].request.id if served else None)


def rows_of_seed(machine: Sequences, seed: int) -> set[int]:
    """The rows of the request that is served under a seed: it may be asked to train on them."""
    seeds = machine.run_.world(0).seeds
    return rows_of(machine.run_, *(r for name, r in machine.filed.items() if seeds.request(name) == seed))


def test_any_sequence_of_requests_keeps_rows_out_and_blocks_nobody(template: tuple[Path, World]) -> None:
    Sequences.made = template
    run_state_machine_as_test(Sequences, settings=settings(max_examples=8, stateful_step_count=12))


# --- guards: the same in Python as on the command line --------------------------------------------------------------


def test_without_a_method_it_is_retrain_and_asked_again_it_is_as_last_time(run: Run) -> None:
    entry, _ = run.ask(Request("leaves", clients=("1",)))
    assert entry.method == "retrain" and "tune" in entry.how.set["unlearning"]
    again, _ = run.ask(entry.request)
    assert (again.method, again.until, again.how) == (entry.method, entry.until, entry.how)
    chosen, _ = run.ask(Request("chosen", clients=("2",)), "not")
    assert (chosen.method, chosen.until, chosen.how.set) == ("not", "recovered", {})


def test_a_client_that_is_not_there_is_refused_in_python_too_and_nothing_is_said_of_a_default(run: Run) -> None:
    with (
        warnings.catch_warnings(),
        pytest.raises(UnfedError, match="^This run has no client '42'; it has 0, 1, 2"),
    ):
        warnings.simplefilter("error")
        run.forget(Request("leaves", clients=("42",)))
    assert run.folder.book().entries == ()
