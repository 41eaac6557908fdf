"""What was recorded leads to the model in force, whoever made it; where it would not, the method is refused."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import SMALL
from test_run import Crash, crash_at
from unfed import rng
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.federation.aggregate import average
from unfed.federation.history import FinishedRound, History, Recorder
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.folder.folder import RunFolder
from unfed.methods import FUKD, METHODS, PGD, Method, NoT
from unfed.methods.nr_freeze import NRFreeze
from unfed.model.params import Params
from unfed.model.perturb import PERTURBATIONS
from unfed.requests.entry import Job
from unfed.runs import admission
from unfed.runs.admission import FATES
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import LEAVES, Trained, serve, sized, train

EXACT = ("engine.precision=float64", "engine.name=sequential", "training.batch=16")
TRAIN = Job(0, None, "train")
pytestmark = pytest.mark.usefixtures("allow_code")
ABSENT = {"participation": 0.75, "drop_out": 0.3, "quorum": 0.0}
CLIMB: dict[str, Any] = {"lr": 0.01, "iterations": 1, "updates": 2, "threshold": 1e300, "clip": 1.0}
FEW: dict[str, dict[str, Any]] = {
    "pgd": CLIMB,
    "mode": {"guidance": 1, "degradation": 1, "coefficient": 0.5, "lr": 0.01, "degradation_lr": 0.01},
    "fcu": {"iterations": 2, "fuse_every": 2, "rho": 0.5},
    "fukd": {"epochs": 0},
    "led": {"teacher_rounds": 1},
}
KINDS: dict[str, type[Method]] = {**METHODS, "nr-freeze": NRFreeze}
LINEAGES = {
    "goes on": {"ft", "ga", "l1-sparse", "randl"},
    "carried": {"not", "fukd"},
    "moved": {"pgd", "mode", "fcu", "nr-freeze"},
    "anew": {"retrain"},
    "ends": {"federaser", "ssd", "salun", "badt", "sealed", "led"},
}


def gap(a: Params, b: Params, names: Any) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in names)


def total(history: History, *without: Any) -> Params:
    """Σ_k S_k, all clients but some."""
    sums = [record.tensors for client, record in history.own.items() if client not in without]
    return {n: torch.stack([own[n] for own in sums]).sum(0) for n in sums[0]}


@dataclass(frozen=True)
class Witness(Method):
    """Remembers the last recorded round as it was."""

    seen: list[FinishedRound] = field(default_factory=list)

    def begin(self, server: Server) -> State:
        raise AssertionError

    def record(self, history: History, past: FinishedRound) -> History:
        self.seen[:] = [past]
        return history


# --- every method keeps its promise -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> World:
    return sized(simulated(Config.parse(SMALL, EXACT), 0), 10, 30, 50, 70)


@pytest.fixture(scope="module")
def trained(world: World) -> Trained:
    recorded = {"fukd": FUKD(), "pgd": PGD(**CLIMB), "federaser": METHODS["federaser"]()}
    return train(world, 4, recorded, **ABSENT)


def test_every_method_says_what_becomes_of_recorded_histories() -> None:
    assert {name: kind.lineage for name, kind in KINDS.items()} == {
        name: said for said, names in LINEAGES.items() for name in names
    }
    assert Method.lineage == "ends"  # who promises nothing is believed in nothing
    assert {kind.follows for kind in KINDS.values()} == {"", "sums", "rounds"}


def made(world: World, trained: Trained, method: Any) -> tuple[Params, Params, History, History, list[Any]]:
    """(θ after begin, θ after some rounds, the sums before them and after, the last round that was recorded)."""
    theta, histories = trained
    server = serve(world, (LEAVES,), theta, histories.get(method.name), participation=0.75)
    before = histories["fukd"]
    if method.lineage == "carried":
        before = before.mapped(lambda own: method.carry(world.template.module, own, server.seed))
    sums, witness = Recorder(FUKD(), before), Witness()
    server.recorders = {"fukd": sums, "witness": Recorder(witness)}
    begun = state = method.begin(server)
    while not state.done and (state.round < 3 or not state.model):
        state = method.round(server, state)
    return begun.params, state.params, before, sums.history, witness.seen


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_method_keeps_what_its_lineage_promises(world: World, trained: Trained, name: str) -> None:
    kind, names, start = KINDS[name], world.template.trainable, world.fresh(1)
    method = kind(**FEW.get(name, {}))
    begun, end, before, after, seen = made(world, trained, method)

    def apart(origin: Params, history: History, *without: Any) -> float:
        """|θ⁰ + Σ_k S_k − θ|"""
        sums = total(history, *without)
        return gap(end, {n: origin[n] + sums[n] for n in names}, names)

    if kind.lineage == "ends":
        # Not one of its rounds could be read by another, or none may be; Led's are of two models in turn.
        assert kind.seals or name == "led" or not seen
        return
    led = average(seen[0].params, seen[0].blocks)
    assert all(torch.equal(end[n], led[n]) for n in end)
    if kind.lineage == "goes on":
        assert apart(start, after) < 1e-9
    elif name == "not":
        assert apart(method.carry(world.template.module, start, 7), after) < 1e-9
        assert gap(total(before), total(trained[1]["fukd"]), names) > 1e-3
    elif name == "fukd":  # the leaver's sum is out of the model, as it will be out of the record
        assert apart(start, after, "0") < 1e-9
    elif kind.lineage == "anew":
        assert gap(end, {n: begun[n] + total(after)[n] - total(before)[n] for n in names}, names) < 1e-9
    else:  # moved: nobody's part in the model is known any more
        assert apart(start, after) > 1e-3


@pytest.mark.parametrize("how", sorted(PERTURBATIONS))
def test_the_sums_follow_every_perturbation_of_not(world: World, trained: Trained, how: str) -> None:
    method = NoT(perturbation=how, layers=("conv1.weight", "conv2.weight[1:3]"), include_bias=False)
    begun, end, before, after, _ = made(world, trained, method)
    names, start = world.template.trainable, world.fresh(1)
    # What the perturbation adds to the model (noise, a fresh layer) is nobody's; the rest is what it makes of θ⁰.
    origin = {n: begun[n] - total(before)[n] for n in names}
    assert gap(end, {n: origin[n] + total(after)[n] for n in names}, names) < 1e-9
    if how not in ("noise", "reinit"):
        alone = method.begin(serve(world, (LEAVES,), start)).params
        assert gap(origin, alone, names) < 1e-9
    elif how == "reinit":
        assert torch.equal(origin["conv1.weight"], begun["conv1.weight"])
        assert all(not own.tensors["conv1.weight"].any() for own in before.own.values())
    else:  # noise is added to the model once, and to nobody's part of it
        assert gap(total(before), total(trained[1]["fukd"]), names) == 0
    rest = [n for n in names if n not in ("conv1.weight", "conv2.weight")]
    assert gap(total(before), total(trained[1]["fukd"]), rest) == 0


def test_a_frozen_layer_has_no_sum_to_carry(world: World) -> None:
    module = world.template.module
    assert NoT(layers=("conv1.weight",)).carry(module, {"conv2.weight": torch.ones(2)}, 1).keys() == {"conv2.weight"}


# --- in a run that serves ---------------------------------------------------------------------------------------------

QUICK: tuple[str, ...] = ("training.rounds=3", "unlearning.rounds=2", "evaluation.every=9", "evaluation.attack=false")
QUICK += ("evaluation.samples=false", "partition.clients=6", "partition.scheme=dirichlet", "partition.beta=0.5")
QUICK += ("training.participation=0.7", "training.drop_out=0.2", "training.quorum=0.1")


def config(*sets: Any, **methods: Any) -> Config:
    raw = {n: v for n, v in SMALL.items() if n != "request"}
    elsewhere = {"elsewhere": {"use": "not", "layers": ["conv2"]}}
    return Config.parse({**raw, "methods": {"run": ["not"], **FEW, **elsewhere, **methods}}, (*EXACT, *QUICK, *sets))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A trained run whose clients hold unequal shares and are often away; copy it before use."""
    folder = tmp_path_factory.mktemp("lineage") / "run"
    run = Run.create(config("training.record=['fukd', 'pgd']"), folder)
    run.execute()
    assert len({len(c.train) for c in run.world(0).clients}) == 6
    return run


@pytest.fixture
def run(served: Run, tmp_path: Path) -> Run:
    shutil.copytree(served.folder.path, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    run.use(served.world(0))
    return run


QUEUE = [("a", "4", "not"), ("b", "1", "ft"), ("c", "0", "fukd"), ("d", "5", "elsewhere")]


def serve_all(run: Run, until: int = 2) -> None:
    for name, client, method in QUEUE:
        run.forget(Request(name, clients=(client,)), method=method, until=until)


@pytest.mark.filterwarnings("ignore:NoT on other layers")
def test_after_several_requests_the_sums_still_lead_to_the_model_in_force(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "purge", lambda *_: None)  # so that the leavers' sums are there to be counted
    world = run.world(0)
    names, module = world.template.trainable, world.template.module
    theta, trained = run.current(0), run.folder.load_histories(TRAIN)["fukd"]
    start = {n: theta[n] - total(trained)[n] for n in names}
    assert gap(start, world.fresh(rng.key(world.seeds.training, "init")), names) < 1e-9
    serve_all(run)
    history = run.folder.load_histories(Job(0, "d", "elsewhere"))["fukd"]
    # "a" negates the first layer and "d" the second; "c" took client 0's sum out between them.
    found, turned = run.current(0), NoT(layers=("conv1", "conv2")).carry(module, start, 0)
    assert gap(found, {n: turned[n] + total(history, "0")[n] for n in names}, names) < 1e-9
    assert turned["conv1.weight"].equal(-start["conv1.weight"])


@pytest.mark.filterwarnings("ignore:NoT on other layers")
def test_purging_the_leavers_leaves_the_records_of_the_others_as_they_are(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run.folder.path, tmp_path / "kept")
    kept = Run.open(tmp_path / "kept")
    kept.use(run.world(0))
    serve_all(run)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "purge", lambda *_: None)
        serve_all(kept)
    a, b = (r.folder.load_histories(Job(0, "d", "elsewhere")) for r in (run, kept))
    assert set(a["fukd"].own) == {"2", "3"} and set(b["fukd"].own) == set("012345")
    for client in "23":
        mine, theirs = a["fukd"].own[client].tensors, b["fukd"].own[client].tensors
        assert all(torch.equal(mine[n], theirs[n]) for n in theirs)
    assert a["pgd"].numbers == b["pgd"].numbers and set(a["pgd"].own) <= {"2", "3"}
    x, y = run.current(0), kept.current(0)
    assert all(torch.equal(x[n], y[n]) for n in x)


def watched(monkeypatch: pytest.MonkeyPatch, kind: type[FUKD] | type[PGD], name: str, seen: list[Any]) -> None:
    """Let a method's function tell what it was given and what it gave."""
    original = getattr(kind, name)

    def telling(self: FUKD | PGD, *given: Any) -> Any:
        result = original(self, *given)
        seen.append((*given, result))
        return result

    monkeypatch.setattr(kind, name, telling)


def test_fukd_after_not_subtracts_what_the_leaver_left_in_the_negated_model(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pasts: list[Any] = []
    begun: list[Any] = []
    before = run.folder.load_histories(TRAIN)["fukd"].own["1"].tensors
    with monkeypatch.context() as patch:
        watched(patch, FUKD, "record", pasts)
        run.forget(Request("a", clients=("4",)), method="not", until=3)
    watched(monkeypatch, FUKD, "begin", begun)
    run.forget(Request("b", clients=("1",)), method="fukd", until=1)
    ((server, state),) = begun
    left = {n: -t if n == "conv1.weight" else t for n, t in before.items()}
    for _, past, _ in pasts:
        for client, samples, params in past.models():
            if client == "1":
                left = {n: left[n] + samples / past.samples * (params[n] - past.params[n]) for n in left}
    assert gap(state.params, {n: server.params[n] - left[n] for n in left}, left) < 1e-12
    assert before["conv1.weight"].abs().max() > 1e-3


def test_a_killed_not_carries_the_sums_along_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, job = Request("a", clients=("4",)), Job(0, "a", "not")
    folders = {number: tmp_path / str(number) for number in range(1, 6)}
    for folder in folders.values():
        shutil.copytree(run.folder.path, folder)
    run.forget(request, "not", until=2)
    truth = run.folder.load_histories(job)["fukd"].pack()
    for number, folder in folders.items():
        killed, again = Run.open(folder), Run.open(folder)
        killed.use(run.world(0))
        again.use(run.world(0))
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, number + 1)  # the first write files the request
            killed.forget(request, "not", until=2)
        again.execute()
        tensors, numbers = again.folder.load_histories(job)["fukd"].pack()
        assert numbers == truth[1] and all(torch.equal(tensors[n], t) for n, t in truth[0].items())


# --- refusing ---------------------------------------------------------------------------------------------------------

SHRINK = """
from dataclasses import dataclass
from typing import ClassVar
from unfed.methods import Method, State


@dataclass(frozen=True)
class Shrink(Method):
    name: ClassVar[str] = "shrink"
    title: ClassVar[str] = "Shrink"
    cite: ClassVar[str] = "nobody, nowhere"

    def begin(self, server):
        return State({n: 0.5 * t if t.is_floating_point() else t for n, t in server.params.items()})
"""


@pytest.mark.parametrize("maker", ["mode", "fcu", "pgd", "nr-freeze", "shrink"])
def test_fukd_is_refused_when_filed_after_who_moved_the_model_beyond_its_sums(
    served: Run, tmp_path: Path, maker: str
) -> None:
    (tmp_path / "shrink.py").write_text(SHRINK)
    own = {"shrink": {"use": str(tmp_path / "shrink.py")}, "nr-freeze": {"use": "unfed.methods.nr_freeze:NRFreeze"}}
    shutil.copytree(served.folder.path, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    run.config = config("training.record=['fukd', 'pgd']", **({maker: own[maker]} if maker in own else {}))
    run.use(served.world(0))
    title = run.config.method(maker).title
    run.forget(Request("a", clients=("4",)), method=maker, until=1)
    job = Job(0, "a", maker)
    with pytest.raises(UnfedError, match=rf"rebuilt by request 'a' \({title}\).*use not, ft or retrain"):
        run.forget(Request("b", clients=("1",)), method="fukd")
    kept = run.folder.load_histories(job)
    assert "fukd" not in kept and ("pgd" in kept) == (maker != "shrink")
    if maker == "shrink":
        with pytest.raises(UnfedError, match=r"rebuilt by request 'a' \(Shrink\)"):
            run.forget(Request("b", clients=("1",)), method="pgd")
    assert [entry.request.id for entry in run.folder.book().entries] == ["a"]
    run.forget(Request("c", clients=("0",)), method="retrain", until=1)
    assert set(run.folder.load_histories(Job(0, "c", "retrain"))) == {"fukd", "pgd"}  # here it begins anew


def test_pgd_looks_at_the_rounds_since_the_model_was_moved_only(run: Run) -> None:
    run.forget(Request("a", clients=("4",)), method="not", until=1)
    job = Job(0, "a", "not")
    history = run.folder.load_histories(job)["pgd"]
    seed = run.world(0).seeds.request("a")
    assert history.rounds == 1 and history.numbers["latest"] == f"{seed}-1"
    assert list(history.shared) == [f"{seed}-1"]
    absent = next(c for c in "01235" if c not in history.own)
    with pytest.raises(UnfedError, match=f"PGD has no record of client {absent} on the way to this model"):
        PGD(**CLIMB).begin(serve(run.world(0), (Request("b", clients=(absent,)),), run.current(0), history))


def test_a_history_that_ended_meanwhile_is_refused_at_work_too(run: Run) -> None:
    run.forget(Request("a", clients=("4",)), method="mode", until=1)
    with pytest.raises(UnfedError, match=r"but request 'a' \(mode\) left none; use not, ft or retrain"):
        admission.history_of(run.folder, "fukd", FUKD(), TRAIN, Job(0, "a", "mode"))


FOLLOWER = (
    SHRINK.replace("Shrink", "Loose")
    .replace("shrink", "loose")
    .replace(
        '"nobody, nowhere"\n',
        '"nobody, nowhere"\n    needs: ClassVar[frozenset[str]] = frozenset({"retain", "history"})\n'
        '    follows: ClassVar[str] = "sums"\n',
    )
)


def test_a_comparison_of_several_requests_refuses_who_cannot_follow_itself(tmp_path: Path) -> None:
    (tmp_path / "loose.py").write_text(FOLLOWER)
    two = [{"id": "a", "clients": ["0"]}, {"id": "b", "clients": ["1"]}]
    raw = {**SMALL, "request": two, "methods": {"run": ["loose"], "loose": {"use": str(tmp_path / "loose.py")}}}
    with pytest.raises(UnfedError, match=r"Loose needs history .* rebuilt by request 'a' \(Loose\)"):
        Run.create(Config.parse(raw, (*EXACT, *QUICK)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    one = Config.parse({**raw, "request": two[:1]}, (*EXACT, *QUICK))
    Run.create(one, tmp_path / "run")


def test_every_fate_is_known() -> None:
    assert set(FATES) == {(what, said) for what in ("sums", "rounds") for said in LINEAGES}


BEST = "training.keep_model=best-test"


def test_a_history_that_leads_past_the_kept_model_is_refused_before_any_work(tmp_path: Path) -> None:
    says = r"history for fukd.* leads to the last model, but training\.keep_model = 'best-test'"
    with pytest.raises(UnfedError, match=says):
        Run.create(config(BEST, "training.record=['fukd', 'pgd']"), tmp_path / "run")
    compared = Config.parse({**SMALL, "methods": {"run": ["not", "fukd"]}}, (*EXACT, *QUICK, BEST))
    with pytest.raises(UnfedError, match=says):
        Run.create(compared, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    Run.create(config(BEST), tmp_path / "run")  # nothing is recorded, so nothing can be wrong


# --- repeating a round that is over -----------------------------------------------------------------------------------


def test_a_round_is_repeated_on_the_rows_it_had_whatever_left_before_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.config = config("training.record=['fukd', 'pgd']", "methods.randl.federated=true")
    run.forget(Request("a", classes=(3,)), "not", until=1)
    pasts: list[Any] = []
    climbed: list[Any] = []
    with monkeypatch.context() as patch:
        watched(patch, PGD, "record", pasts)
        run.forget(Request("b", classes=(5,)), method="randl", until=1)
    (_, past, _) = pasts[-1]
    leaver, model = next((client, params) for client, _, params in past.models())
    watched(monkeypatch, PGD, "last_models", climbed)
    run.forget(Request("c", clients=(leaver,)), method="pgd", until=1)
    ((_, found),) = climbed
    assert all(torch.equal(found[leaver][n], t) for n, t in model.items())
