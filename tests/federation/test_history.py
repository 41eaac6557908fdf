"""Histories: recorded only if needed, saved with their state, purged with their client, refused when missing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import SMALL
from test_run import Crash, kept_before_every_write, outcome
from unfed.client import step
from unfed.client.batch import Batch, Draws
from unfed.client.plan import Plan
from unfed.config.config import Config
from unfed.data import Request
from unfed.data.scope import ClientData
from unfed.errors import UnfedError
from unfed.federation.aggregate import average
from unfed.federation.history import History
from unfed.federation.protocol import Server
from unfed.federation.robust import Robust
from unfed.federation.state import State
from unfed.folder.folder import RunFolder
from unfed.folder.histories import HistoryLog
from unfed.methods import FUKD, PGD, FedEraser
from unfed.model.params import Params
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import serve, train, unlearn

TRAIN = Job(0, None, "train")
QUICK: tuple[str, ...] = ("checkpoint.rounds=1", "training.rounds=3", "unlearning.rounds=2", "evaluation.every=2")
QUICK += ("engine.name=sequential",)
RECORD = "training.record=['federaser', 'fukd', 'pgd']"
# Strong enough to be seen on a model that has hardly begun to learn.
NUMBERS: dict[str, dict[str, Any]] = {
    "pgd": {"lr": 0.01, "iterations": 2, "updates": 2},
    "mode": {"guidance": 2, "degradation": 1},
    "fcu": {"iterations": 4, "fuse_every": 2},
}
SCOPES = {
    "client": {"id": "r1", "clients": ["0"]},
    "class": {"id": "r1", "classes": [3]},
    "instance": {"id": "r1", "fraction": 0.1},
}
SERVED = [("federaser", "client"), ("fukd", "client")]
SERVED += [(name, scope) for name in ("pgd", "mode", "fcu") for scope in SCOPES]
WIDE: dict[str, dict[str, Any]] = {"pgd": {"any_scope": True}, "fcu": {"any_scope": True}}


def config(*labels: Any, scope: str = "client", sets: Any = ()) -> Config:
    tables = {
        name: {**numbers, **(WIDE.get(name, {}) if scope != "client" else {})} for name, numbers in NUMBERS.items()
    }
    return Config.parse({**SMALL, "request": SCOPES[scope], "methods": {"run": labels, **tables}}, (*QUICK, *sets))


def alone(*sets: Any) -> Config:
    """A run without a comparison, for requests that come later."""
    return Config.parse({n: v for n, v in SMALL.items() if n != "request"}, (*QUICK, "methods.run=['not']", *sets))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run that recorded for everybody and serves requests; copy it before use."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    made = Config.parse(
        {**{n: v for n, v in SMALL.items() if n != "request"}, "methods": {"run": ["not"], **NUMBERS}}, (*QUICK, RECORD)
    )
    Run.create(made, folder).execute()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    shutil.copytree(trained, tmp_path / "run")
    return Run.open(tmp_path / "run")


def history(run: Run, label: str, job: Job = TRAIN) -> History:
    return run.folder.load_histories(job)[label]


# --- recording --------------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_unless_a_method_needs_it(tmp_path: Path) -> None:
    Run.create(config("not", "ft"), tmp_path / "run").execute()
    assert RunFolder(tmp_path / "run").load_histories(TRAIN) == {}
    assert all(line["stored_server_bytes"] == 0 for line in Run.open(tmp_path / "run").lines() if "flops" in line)


def test_recording_changes_nothing_in_the_training(tmp_path: Path, run: Run) -> None:
    Run.create(alone(), tmp_path / "plain").execute()
    a, b = Run.open(tmp_path / "plain").model(method="train"), run.model(method="train")
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_stored_bytes_are_what_is_stored_beside_what_the_original_would_store(tmp_path: Path) -> None:
    Run.create(config("federaser", "fukd", "pgd"), tmp_path / "run").execute()
    run = Run.open(tmp_path / "run")
    last: dict[str, Any] = {line["method"]: line for line in run.lines()}
    size, clients, rounds = 4 * run.description.parameters, 4, 3
    for name in ("federaser", "fukd", "pgd"):
        assert last[name]["stored_server_bytes"] == history(run, name).stored_bytes
    assert clients * size <= last["fukd"]["stored_server_bytes"] < clients * size + 1000
    assert size <= last["pgd"]["stored_server_bytes"] < size + 2000
    assert last["federaser"]["stored_original_bytes"] == (1 + clients * rounds) * size
    assert last["fukd"]["stored_original_bytes"] == clients * rounds * size
    assert last["pgd"]["stored_original_bytes"] == clients * size
    total = sum(float(last[name]["stored_server_bytes"]) for name in ("federaser", "fukd", "pgd"))
    assert [x for x in run.lines() if x["method"] == "train"][-1]["stored_server_bytes"] == total


# --- resuming ---------------------------------------------------------------------------------------------------------


# Every write point is a whole run again, so what is not in question there (attacks, batches, rows) is kept small.
LITTLE: tuple[str, ...] = ("evaluation.samples=false", "evaluation.attack=false", "training.batch=256")
LITTLE += ("data.test_size=60", "data.train_size=240")


def reopened(folder: Path, like: Run) -> Run:
    """A run as a new process would open it; the world is a function of the config, so it is not built again."""
    run = Run.open(folder)
    run.use(like.world(0))
    return run


@pytest.mark.slow
def test_a_training_that_records_survives_a_crash_at_every_write(tmp_path: Path) -> None:
    whole = Run.create(alone(RECORD, *LITTLE), tmp_path / "whole")
    with kept_before_every_write(tmp_path / "whole", tmp_path / "killed") as kept:
        whole.execute()
    truth = {label: history(whole, label).pack() for label in ("federaser", "fukd", "pgd")}
    assert len(kept) > 8
    for folder in kept:
        run = reopened(folder, whole)
        run.execute()
        assert outcome(folder) == outcome(whole.folder.path)
        for label, (tensors, numbers) in truth.items():
            again = history(run, label).pack()
            assert again[1] == numbers and all(torch.equal(again[0][n], tensors[n]) for n in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scope"),
    [("federaser", "client"), ("fukd", "client"), ("pgd", "client"), ("mode", "class"), ("fcu", "class")],
)
def test_a_method_survives_a_crash_at_every_write(name: str, scope: str, tmp_path: Path) -> None:
    whole = Run.create(config(name, scope=scope, sets=LITTLE), tmp_path / "whole")
    whole._train(0, Watch())
    with kept_before_every_write(tmp_path / "whole", tmp_path / "killed") as kept:
        whole.execute()
    truth = outcome(tmp_path / "whole")
    assert len(kept) >= 6 and truth[0][-1]["method"] == name and truth[0][-1]["done"]
    for folder in kept:
        reopened(folder, whole).execute()
        assert outcome(folder) == truth, f"differs after a crash before write {folder.name} of {len(kept)}"


# --- who touches D_u --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scope"), [*SERVED, *((name, scope) for name in ("not", "ft", "retrain") for scope in SCOPES)]
)
def test_a_method_trains_on_forgotten_rows_only_if_it_says_so(
    name: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = config(name, scope=scope, sets=LITTLE)
    world, method, requests = simulated(own, 0), own.method(name), own.requests()
    theta, histories = train(world, 1, {name: method} if "history" in method.needs else {})
    forgotten = {int(row) for c in world.scoped(requests).values() for row in c.rows[c.view("forget")]}
    touched = set()
    original = step.fetch

    def seen(client: ClientData, order: Tensor, draws: Draws, begin: int, end: int) -> Batch:
        touched.update(client.rows[order[begin:end]].tolist())
        return original(client, order, draws, begin, end)

    monkeypatch.setattr(step, "fetch", seen)
    unlearn(method, serve(world, requests, theta, histories.get(name)), 1)
    assert bool(touched & forgotten) == ("forget" in method.needs)
    held = {int(row) for c in world.clients for row in c.rows[c.val]}
    assert bool(touched & held) == (name == "fukd")
    leavers = {int(row) for row in world.clients[0].rows[world.clients[0].val]}
    assert not (scope == "client" and touched & leavers)


# --- serving and purging ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["federaser", "fukd", "pgd", "not"])
def test_a_served_request_purges_the_leaver_from_every_history(run: Run, method: str) -> None:
    run.forget(Request("r1", clients=("2",)), method=method, until=1)
    states = list(run.folder.states())
    held = [history.clients for _, saved in states for history in saved.histories.values()]
    assert held and not any("2" in clients for clients in held)
    for path, saved in states:
        for kept in HistoryLog(path).load(saved).values():
            assert "2" not in kept.own
        if saved.log is not None:  # and no file of before is left beside it
            assert b'"own","2"' not in path.with_name(saved.log.file).read_bytes()
            assert [p.name for p in path.parent.glob(f"{path.stem}.history-*")] == [saved.log.file]
    files = {(item.file, item.what) for item in run.info().influence or ()}
    assert ("models/0/train.safetensors", "a model that was trained with it") in files
    assert any(
        file.startswith("state/0/train.history-") and what == "history for fukd: records of others, made beside it"
        for file, what in files
    )
    assert not any("records of client 2" in what for _, what in files)
    assert not any(f"r1/{method}" in file and "trained with it" in what for file, what in files)


def test_a_comparison_purges_nothing_and_says_so(tmp_path: Path) -> None:
    run = Run.create(config("fukd", "not"), tmp_path / "run")
    run.execute()
    assert "0" in history(run, "fukd").own
    (log,) = (run.folder.path / "state/0").glob("train.history-*")
    carries = "r1", f"state/0/{log.name}", "history for fukd: records of client 0"
    assert carries in {(one.request, one.file, one.what) for one in run.info().influence or ()}


def test_purging_is_taken_up_again_after_a_crash(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(RunFolder, "purge", lambda *_: (_ for _ in ()).throw(Crash))
        run.forget(Request("r1", clients=("2",)), method="fukd", until=1)
    assert "2" in history(run, "fukd").own
    Run.open(run.folder.path).execute()
    assert "2" not in history(run, "fukd").own and history(run, "fukd").purged == ("2",)


@pytest.mark.parametrize("method", ["federaser", "fukd", "pgd", "mode", "fcu", "ft", "retrain"])
def test_a_second_request_starts_from_what_the_first_left(run: Run, method: str) -> None:
    run.forget(Request("r1", clients=("2",)), method=method, until=2)
    first = run.current(0)
    run.forget(Request("r2", clients=("0", "1")), method=method, until=2)
    second = run.current(0)
    assert any(not torch.equal(first[n], second[n]) for n in first)
    lines = [line for line in run.lines() if line["request"] == "r2" and line["method"] == method]
    asked = {client for line in lines for clients in line["asked"].values() for client in clients}
    assert "2" not in asked and (asked == {"3"} or method in ("pgd", "mode", "fcu"))


def test_histories_of_those_that_start_at_the_model_in_force_go_on_during_recovery(run: Run) -> None:
    run.forget(Request("r1", clients=("2",)), method="not", until=2)
    job = Job(0, "r1", "not")
    later = run.folder.load_histories(job)
    assert set(later) == {"fukd", "pgd"}  # FedEraser replays the training, whatever came since
    assert later["fukd"].own["1"].numbers["rounds"] == 3 + 2
    assert later["pgd"].own["1"].numbers["last"].endswith("-2")
    server_seed = run.world(0).seeds.request("r1")
    assert later["pgd"].own["1"].numbers["last"].startswith(str(server_seed))
    run.forget(Request("r2", clients=("1",)), method="pgd", until=1)


def test_after_retrain_histories_begin_anew_and_after_federaser_they_end(run: Run) -> None:
    run.forget(Request("r1", clients=("2",)), method="retrain", until=2)
    assert run.folder.load_histories(Job(0, "r1", "retrain"))["fukd"].rounds == 2
    run.forget(Request("r2", clients=("1",)), method="federaser", until=1)
    for method in ("fukd", "pgd"):
        with pytest.raises(UnfedError, match=r"rebuilt by request 'r2'.*use not, ft or retrain"):
            run.forget(Request("r3", clients=("0",)), method=method)
    assert [entry.request.id for entry in run.folder.book().entries] == ["r1", "r2"]


def test_federaser_replays_without_all_leavers_so_far(run: Run) -> None:
    run.forget(Request("r1", clients=("2",)), method="not", until=1)
    run.forget(Request("r2", clients=("0",)), method="federaser", until=1)
    lines = [line for line in run.lines() if line["request"] == "r2" and line["method"] == "federaser"]
    assert [line["model"] for line in lines] == [False, False, True]  # until=1 cannot cut it short
    assert all(set(clients) == {"1", "3"} for line in lines for clients in line["asked"].values())


def test_federaser_goes_on_where_its_only_calibrator_leaves_and_the_process_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: tuple[str, ...] = (
        "training.participation=0.25",
        "training.rounds=6",
        "partition.scheme=dirichlet",
        "partition.beta=1",
    )
    few += ("evaluation.attack=false", "evaluation.samples=false")
    run = Run.create(alone("training.record=['federaser']", *few), tmp_path / "run")
    run.execute()
    seen = {t: c for c, r in history(run, "federaser").own.items() for t in r.numbers.get("rounds", ())}
    first = next(c for c, r in history(run, "federaser").own.items() if "samples" in r.numbers)
    leaver = next(c for c in "0123" if c != first and c != seen[2])
    replay = [t for t in sorted(seen) if seen[t] != leaver]
    (second,) = {seen[replay[1]]} - {seen[replay[0]]}  # it alone was there in the second round that is replayed

    def dies(self: FedEraser, server: Server, state: State) -> State:
        if state.round == 1:  # another process files a request
            other = reopened(run.folder.path, run)
            assert other.forget(Request("b", clients=(second,)), "not", until=1).status == "queued"
            raise Crash
        return original(self, server, state)

    original = FedEraser.round
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(FedEraser, "round", dies)
        run.forget(Request("a", clients=(leaver,)), method="federaser", until=1)
    reopened(run.folder.path, run).execute()
    asked: dict[Any, Any] = {}
    for line in run.lines():
        if line["request"] == "a" and line["method"] == "federaser":
            asked |= line["asked"]
    assert asked == {str(t): [seen[t]] for t in replay if t == replay[0] or seen[t] != second}
    assert run.current_job(0) == Job(0, "b", "not")


def test_a_comparison_of_several_requests_hands_each_method_its_own_history(tmp_path: Path) -> None:
    two = [{"id": "r1", "clients": ["0"]}, {"id": "r2", "clients": ["1"]}]
    made = Config.parse({**SMALL, "request": two, "methods": {"run": ["federaser", "fukd", "pgd"], **NUMBERS}}, QUICK)
    run = Run.create(made, tmp_path / "run")
    run.execute()
    assert set(run.folder.load_histories(Job(0, "r1", "fukd"))) == {"fukd"}
    assert run.folder.load_histories(Job(0, "r2", "fukd")) == {}  # nobody comes after it
    assert set(run.folder.load_histories(Job(0, "r1", "pgd"))["pgd"].own) == {"1", "2", "3"}  # since the ascent


# --- refusing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["federaser", "fukd", "pgd"])
def test_a_history_that_was_not_recorded_is_asked_for_by_name(tmp_path: Path, method: str) -> None:
    run = Run.create(alone(), tmp_path / "run")
    run.execute()
    with pytest.raises(UnfedError, match=rf'during training; set training.record = \["{method}"\]') as caught:
        run.forget(Request("r1", clients=("0",)), method=method)
    assert "Use " in str(caught.value) and "not" in str(caught.value) and not run.folder.book().entries


@pytest.mark.parametrize("method", ["pgd", "mode", "fcu"])
def test_who_needs_data_that_was_deleted_is_refused_before_any_work(run: Run, tmp_path: Path, method: str) -> None:
    gone = Request("r1", clients=("3",), deleted=True)
    title = run.config.method(method).title
    with pytest.raises(
        UnfedError, match=rf"^{title} needs the target client's data; its owners have deleted it\. Use "
    ):
        run.forget(gone, method=method)
    with pytest.raises(UnfedError, match="have deleted it"):
        Run.create(config(method, sets=("request.deleted=true",)), tmp_path / "refused")
    assert not (tmp_path / "refused").exists() and not run.folder.book().entries


def test_what_was_deleted_is_not_scored_either(run: Run) -> None:
    run.forget(Request("r1", clients=("3",), deleted=True), method="not", until=1)
    line = run.lines()[-1]
    assert line["forget"] == line["mia"] == "not measured: its owners have deleted it"
    assert (run.info().requests[-1].forgotten_rows or 0) > 0


@pytest.mark.parametrize(
    ("method", "scope"), [("federaser", "class"), ("fukd", "instance"), ("pgd", "class"), ("fcu", "class")]
)
def test_a_scope_that_is_not_served_is_refused_with_those_that_serve_it(
    tmp_path: Path, method: str, scope: str
) -> None:
    made = Config.parse({**SMALL, "request": SCOPES[scope], "methods": {"run": [method]}}, QUICK)
    with pytest.raises(UnfedError, match=rf"does not serve {scope}-wise requests\. Use .*mode.*not"):
        Run.create(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fukd_without_images_at_the_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match=r"FUKD needs unlabelled data at the server; partition\.validation is 0"):
        Run.create(config("fukd", sets=("partition.validation=0",)), tmp_path / "run")


def test_federaser_cannot_follow_a_request_for_rows(run: Run) -> None:
    run.forget(Request("r1", classes=(3,)), method="not", until=1)
    with pytest.raises(UnfedError, match="rows of request 'r1' took part"):
        run.forget(Request("r2", clients=("0",)), method="federaser")


def test_only_methods_that_need_history_can_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match=r"which needs no history; it takes .*federaser"):
        Run.create(alone("training.record=['not']"), tmp_path / "run")
    with pytest.raises(UnfedError, match="not known"):
        Run.create(alone("training.record=['fedraser']"), tmp_path / "run")


def test_a_purged_client_is_not_taken_for_one_that_never_took_part(run: Run) -> None:
    from worlds import serve

    run.forget(Request("r1", clients=("2",)), method="not", until=1)
    world, method = run.world(0), run.config.method("fukd")
    server = serve(world, (Request("x", clients=("2",)),), history=history(run, "fukd"))
    with pytest.raises(UnfedError, match="record of client 2 was purged"):
        method.begin(server)


# --- under robust aggregation ---------------------------------------------------------------------------------------

entering = Robust.entering
NORM = Robust("norm", bound=0.5)  # below the median, so that more than half of the updates are shortened


def sums_off(params: Params, start: Params, kept: History) -> float:
    """How far θ⁰ + Σ S_k is from θ*, against how far θ* is from θ⁰."""
    total = {n: sum(record.tensors[n] for record in kept.own.values()) for n in next(iter(kept.own.values())).tensors}
    gaps = [(params[n] - start[n] - t).double().norm() ** 2 for n, t in total.items()]
    moved = [(params[n] - start[n]).double().norm() ** 2 for n in total]
    return float((sum(gaps) / sum(moved)) ** 0.5)


def robust_training(**changes: Any) -> tuple[World, Params, Params, dict[str, History]]:
    world = simulated(alone("engine.precision=float64"), 0)
    methods = {"fukd": FUKD(), "pgd": PGD(), "federaser": FedEraser()}
    start = world.fresh(1)
    return world, start, *train(world, 3, methods, **changes)


def test_under_the_norm_rule_sums_are_of_updates_as_they_entered_the_mean() -> None:
    _, start, params, kept = robust_training(robust=NORM)
    assert sums_off(params, start, kept["fukd"]) < 1e-9
    factors = [record.numbers.get("factor") for record in kept["pgd"].own.values()]
    assert any(f is not None and 0 < f < 1 for f in factors)
    plain = robust_training()[3]["pgd"]
    assert not any("factor" in record.numbers for record in plain.own.values())


def test_under_the_norm_rule_pgds_reference_is_the_mean_of_the_others_shortened_updates() -> None:
    world, _, params, kept = robust_training(robust=NORM)
    leaving = next(c for c, r in kept["pgd"].own.items() if "factor" in r.numbers)
    server = serve(world, (Request("r", clients=(leaving,)),), params, kept["pgd"], settings=world.training_settings())
    method = PGD()
    reference = method.reference(server, method.last_models(server))
    # The others' models as they entered: θ^{T−1}, and everybody's last round repeated and shortened in the test.
    numbers = kept["pgd"].numbers
    before = kept["pgd"].shared[numbers["latest"]]
    plan = Plan.from_json(numbers[numbers["latest"]]["plan"])
    everybody = serve(world, (), before, seed=world.seeds.training)
    blocks = list(everybody.train(plan, before, everybody.clients))
    lengths = {
        c: sum((b.of(i)[n] - before[n]).norm() ** 2 for n in before if before[n].is_floating_point()) ** 0.5
        for b in blocks
        for i, c in enumerate(b.clients)
    }
    allowed = 0.5 * sorted(lengths.values())[(len(lengths) - 1) // 2]
    others = [(c, b.samples[i], b.of(i)) for b in blocks for i, c in enumerate(b.clients) if c != leaving]
    total = sum(n for _, n, _ in others)
    for name in server.template.trainable:
        deltas = [n * min(1.0, float(allowed / lengths[c])) * (p[name] - before[name]) for c, n, p in others]
        torch.testing.assert_close(reference[name], before[name] + sum(deltas) / total, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_a_rule_without_shares_is_refused_when_a_run_that_records_is_created(rule: str, tmp_path: Path) -> None:
    sets = (f'training.robust.rule="{rule}"', RECORD)
    with pytest.raises(UnfedError, match=f"cannot be recorded under training.robust.rule = '{rule}'"):
        Run.create(alone(*sets), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    own = f'unlearning.robust.rule="{rule}"'
    with pytest.raises(UnfedError, match="fukd and pgd cannot be recorded under unlearning"):
        Run.create(alone(own, RECORD), tmp_path / "run")
    Run.create(alone(own, "training.record=['federaser']"), tmp_path / "run")  # it replays the training alone


def test_a_history_that_does_not_lead_to_the_model_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every rule but the mean once did it: what was recorded is not what was averaged."""
    made = Run.create(alone('training.robust={rule="norm", bound=0.5}', RECORD), tmp_path / "run")
    monkeypatch.setattr(Robust, "entering", lambda self, params, blocks: (list(blocks), {}))
    shorter = Robust("norm", bound=0.5)
    monkeypatch.setattr(
        Robust, "combined", lambda self, params, found: average(params, entering(shorter, params, found)[0])
    )
    with pytest.raises(UnfedError, match="recorded history does not add up to the model"):
        made.execute()
    state = made.folder.load_state(TRAIN)
    assert state is not None and state[0].round == 0
    monkeypatch.undo()
    Run.open(tmp_path / "run").execute()
    found = made.folder.load_state(TRAIN)
    assert found is not None and found[0].round == 3
