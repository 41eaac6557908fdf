"""Requests one after another: what was taken out stays out, and a method that would bring it back is refused."""

from __future__ import annotations

import shutil
import signal
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unfed
from command_line import called
from conftest import SMALL
from unfed import storage
from unfed.api import write_report
from unfed.cli.main import main
from unfed.client.scores import score
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError, UnfedWarning
from unfed.methods import METHODS, FineTune, Method, NoT
from unfed.methods.nr_freeze import NRFreeze
from unfed.model.files import negate_file
from unfed.model.networks import build
from unfed.model.perturb import Perturbed
from unfed.report import tables
from unfed.report.rules import asked as asked_of
from unfed.report.sentences import first_sentence
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.requests.reversible import inverse_of, turned_back
from unfed.runs.record import affected
from unfed.runs.run import Run
from unfed.values import Value, is_measured
from worlds import slow

SERVES = ("methods.run=[]", "request=[]")
OTHER = ('methods.elsewhere={use="not", layers=["conv2"]}',)
FIRST, SECOND, THIRD = (Request(f"r{i}", clients=(str(i),)) for i in range(3))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Run.create(Config.parse(SMALL, [*SERVES, *OTHER]), tmp_path_factory.mktemp("trained") / "run")
    made.execute()
    return made.folder.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(trained, tmp_path / "run"))


@dataclass(frozen=True)
class Negates(FineTune):
    """A method of somebody's own, which says what it does."""

    def perturbed(self, module: nn.Module) -> Perturbed | None:
        return NoT().perturbed(module)


# --- what turns back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "now", "back"),
    [
        ([NoT()], NoT(), ["conv1.weight"]),
        ([NoT(), FineTune()], NoT(), ["conv1.weight"]),
        ([NoT(), NoT(layers=("conv2",))], NoT(), ["conv1.weight"]),
        ([NoT(layers=("conv1", "conv2"))], NoT(layers=("conv2", "head.linear")), ["conv2.weight"]),
        ([NoT(perturbation="flip-width")], NoT(perturbation="flip-width"), ["conv1.weight"]),
        ([NoT(perturbation="rotate-90")], NoT(perturbation="rotate-270"), ["conv1.weight"]),
        ([NoT(perturbation="rotate-90")] * 3, NoT(perturbation="rotate-90"), ["conv1.weight"]),
        ([NoT()], NoT(layers=("conv2",)), []),
        ([NoT()], NoT(perturbation="flip-width"), []),
        ([NoT(perturbation="noise")], NoT(perturbation="noise"), []),
        ([NoT(perturbation="reinit")], NoT(perturbation="reinit"), []),
        ([NoT(perturbation="orthogonal")], NoT(perturbation="orthogonal"), []),
        ([NoT()], FineTune(), []),
        ([], NoT(), []),
        ([NoT()], NoT(layers=("conv1.weight[0:2]",)), ["conv1.weight"]),  # half of it
        ([NoT(layers=("conv1.weight[0:2]",))], NoT(), ["conv1.weight"]),
        ([NoT(layers=("conv1.weight[0:2]",))], NoT(layers=("conv1.weight[2:4]",)), []),
        ([NoT(), FineTune()], NoT(layers=("norm1.weight",)), ["conv1.weight"]),  # its normalisation's scale
        ([NoT(layers=("norm2.weight",))], NoT(layers=("conv2",)), ["norm2.weight"]),
        ([NoT()], NoT(layers=("norm2.weight",)), []),
        ([NoT(layers=("conv1", "norm1.weight"))], NoT(layers=("conv2",)), []),  # it turned itself back
        ([NoT(), NoT(perturbation="noise", scale=0.01)], NoT(), ["conv1.weight"]),  # under noise it is still there
        ([NRFreeze()], NoT(), ["conv1.weight"]),
        ([Negates()], Negates(), ["conv1.weight"]),
        ([NoT()], Negates(), ["conv1.weight"]),
    ],
)
def test_a_perturbation_that_is_its_own_inverse_turns_back(earlier: list[Method], now: Method, back: list[str]) -> None:
    module = build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0)
    assert list(now.undoes(module, earlier)) == back


def test_rows_that_were_turned_back_before_are_nobodys_fault_now() -> None:
    module = build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0)
    earlier = [NoT(), NoT(layers=("conv1.weight[0:2]",))]
    assert NoT(layers=("conv2",)).undoes(module, earlier) == ()


def test_queries_turn_keys_back_and_a_projection_the_values_before_it() -> None:
    module = build("vit-tiny", shape=(3, 8, 8), classes=10, seed=0)
    found = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.MultiheadAttention))
    attention, width = next((name, part.embed_dim) for name, part in found)
    joint = f"{attention}.in_proj_weight"
    query, key, value = (NoT(layers=(f"{joint}[{i * width}:{(i + 1) * width}]",)) for i in range(3))
    projection = NoT(layers=(f"{attention}.out_proj.weight",))
    assert key.undoes(module, [query]) == query.undoes(module, [key]) == (joint,)
    assert projection.undoes(module, [value]) == (joint,) and value.undoes(module, [query]) == ()


@pytest.mark.parametrize(
    "between, back",
    [
        (nn.Tanh(), ("0.weight",)),
        (nn.ReLU(), ()),
        (nn.Identity(), ()),  # `forward` may call what is no module
        (nn.Sequential(nn.Tanh(), nn.ReLU()), ()),
    ],
)
def test_behind_an_odd_activation_the_next_layer_turns_the_one_before_back(between: nn.Module, back: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4, False), nn.Dropout(), between, nn.Linear(4, 4)).eval()
    assert NoT(layers=("3.weight",)).undoes(module, [NoT(layers=("0.weight",))]) == back
    if back:
        rows = torch.randn(5, 4)
        was = module(rows)
        for name in ("0.weight", "3.weight"):
            module.get_parameter(name).data.neg_()
        assert torch.allclose(was, module(rows)), "that is why"


def test_adapters_halves_turn_each_other_back() -> None:
    module = nn.ModuleDict({"fc": nn.ModuleDict({"lora_A": nn.Linear(4, 2, False), "lora_B": nn.Linear(2, 4, False)})})
    assert NoT(layers=("fc.lora_B",)).undoes(module, [NoT(layers=("fc.lora_A",))]) == ("fc.lora_A.weight",)


def test_not_after_not_is_refused_when_filed_and_names_the_way_that_holds(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.forget(FIRST, "not", until=1)
    command = ["unfed", "forget", str(run.folder.path), "--client", "1", "--method", "not", "--until", "1"]
    monkeypatch.setattr(sys, "argv", command)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main()
    signal.signal(signal.SIGTERM, handler)
    said = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2
    assert "conv1.weight back to what it was before request 'r0'" in said and "--method sealed" in said
    assert [entry.request.id for entry in run.folder.book().entries] == ["r0"], "nothing is filed"


def test_not_on_other_layers_is_served_with_a_warning(run: Run) -> None:
    run.forget(FIRST, "not", until=1)
    with pytest.warns(UnfedWarning, match="can turn both back; --method sealed"):
        assert run.forget(SECOND, "elsewhere", until=1).status == "done"
    with pytest.raises(UnfedError, match="before request 'r0'"):
        run.forget(THIRD, "not", until=1)


def test_layers_that_one_request_asked_for_are_remembered(run: Run) -> None:
    """`--layers` belongs to a request, not to the run: whether the next one turns it back is judged by it."""
    second = RequestOptions(set={"layers": ["conv2"]})
    run.forget(FIRST, "not", until=1, how=second)
    with pytest.warns(UnfedWarning, match="--method sealed"):
        assert run.forget(SECOND, "not", until=1).status == "done"
    with pytest.raises(UnfedError, match=r"conv2.weight back to what it was before request 'r0'"):
        run.forget(THIRD, "not", until=1, how=second)


@pytest.mark.parametrize("between", ["retrain", "sealed"])
def test_not_is_served_again_once_the_model_started_over_or_was_sealed(run: Run, between: str) -> None:
    run.forget(FIRST, "not", until=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfedWarning)
        run.forget(SECOND, between, until=1)
        assert run.forget(THIRD, "not", until=1).status == "done"


@pytest.mark.parametrize(
    "less, said",
    [
        ({"layers": ["conv1"]}, "leaves conv2.weight as it is"),
        ({"keep": 0.9}, "leaves more of the old"),
        ({"perturbation": "signs"}, "leaves about half of every layer as it was"),
    ],
)
def test_a_seal_on_other_layers_or_a_weak_one_does_not_let_not_turn_a_layer_back(
    run: Run, less: dict[str, Any], said: str
) -> None:
    """What nobody drew is still there: a second negation of it would bring the first leaver back."""
    second = RequestOptions(set={"layers": ["conv2"]})
    run.forget(FIRST, "not", until=1, how=second)
    with pytest.warns(UnfedWarning, match=said):
        run.forget(SECOND, "sealed", until=1, how=RequestOptions(set=less))
    with pytest.raises(UnfedError, match=r"conv2.weight back to what it was before request 'r0'"):
        run.forget(THIRD, "not", until=1, how=second)
    entries = run.folder.book().entries
    assert [e.request.id for e in turned_back(run.folder.book(), entries)] == ["r0", "r1"], (
        "a minus sign still turns it back"
    )


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from unfed.methods import Method, NoT, State

@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
    cite: ClassVar[str] = "me"

    def begin(self, server):
        return NoT().begin(server)

    def perturbed(self, module):
        return NoT().perturbed(module)

@dataclass(frozen=True)
class Tunes(Mine):
    name: ClassVar[str] = "tunes"

    def begin(self, server):
        return State(server.params)

    def perturbed(self, module):
        return None

@dataclass(frozen=True)
class Silent(Mine):
    name: ClassVar[str] = "silent"
    title: ClassVar[str] = "Silent"

    def perturbed(self, module):
        return None
"""


@pytest.mark.parametrize("negates, title", [("mine", "Mine"), ("silent", "Silent")])
def test_what_a_method_of_ones_own_negates_is_known_and_not_negated_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, negates: str, title: str
) -> None:
    """Client 0's backdoor was at 52.7 % again when such a method had served a second request of the demo."""
    (tmp_path / "own_negation.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    named = [f'methods.{name.lower()}={{use="own_negation:{name}"}}' for name in ("Mine", "Tunes", "Silent")]
    with unfed.allow_code():
        run = Run.create(Config.parse(SMALL, [*SERVES, *named]), tmp_path / "run")
        run.execute()
        run.forget(FIRST, negates, until=1)
        for method, called in ((negates, title), ("not", "NoT")):
            with pytest.raises(UnfedError, match=f"{called} would turn conv1.weight back to .* before request 'r0'"):
                run.forget(SECOND, method, until=1)
        run.forget(SECOND, "tunes", until=1)
    assert [e.request.id for e in turned_back(run.folder.book(), run.folder.book().entries)] == ["r0", "r1"]
    told = {one.file: one.what for one in affected(run, "0") if "by one minus sign" in one.what}
    assert len(told) == 3, f"the model of r0, which is not in force, its state, and that of r1: {told}"
    with unfed.allow_code():
        run.forget(THIRD, "sealed", until=1)
    assert [e.request.id for e in turned_back(run.folder.book(), run.folder.book().entries)] == ["r0", "r1"]


@pytest.mark.parametrize("how", ["orthogonal", "noise"])
def test_a_draw_of_not_follows_from_seed_and_name_so_its_model_can_be_turned_back(run: Run, how: str) -> None:
    """Of the demo, mixed by Q and tuned for 20 rounds, Qᵀ brings the backdoor from 0 to 50.6 %."""
    run.forget(FIRST, "not", until=1, how=RequestOptions(set={"perturbation": how}))
    (entry,) = run.folder.book().entries
    assert str(inverse_of(run.folder.book(), entry)).startswith(f"the same draw of {how!r}, which follows from")
    (found,) = [one for one in affected(run, "0") if one.file == "models/0/r0/not.safetensors"]
    assert "anyone who has it can turn back what NoT did for request 'r0', by the same draw" in found.what


@pytest.mark.parametrize("how, warns", [("orthogonal", True), ("permute", True), ("reinit", False), ("fade", False)])
def test_a_seal_that_was_undone_where_it_was_tried_is_served_with_a_warning(run: Run, how: str, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UnfedWarning)
        run.forget(FIRST, "sealed", until=1, how=RequestOptions(set={"perturbation": how}))
    assert any("was undone on a dense network; use 'fade'" in str(one.message) for one in seen) == warns


def test_a_comparison_runs_not_as_published_and_its_table_says_so(tmp_path: Path) -> None:
    several = 'request=[{id="a", clients=["0"]}, {id="b", clients=["1"]}]'
    run = Run.create(Config.parse(SMALL, [several, "methods.run=['not','ft']"]), tmp_path / "run")
    run.execute()
    assert run.description.undone == {"not": {"b": ("conv1.weight",)}}
    text = tables.markdown(unfed.results(run, "last"))
    assert [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| b")][1:] == [
        "NoT (turns back)", "FT",
    ]  # fmt: skip
    assert "turns conv1.weight back to what it was before an earlier request" in text
    assert text.count("(turns back)") == 1


# --- five requests ----------------------------------------------------------------------------------------------------

FIVE = [
    Request("a", clients=("0",)),
    Request("b", classes=(3,)),
    Request("c", samples=tuple(("2", i) for i in range(20))),
    Request("d", classes=(7,)),
    Request("e", clients=("5",)),
]
STORY = {
    "name": "five",
    "data": {"name": "digits", "test_size": 360},
    "partition": {"clients": 8},
    "poison": {"client": "0", "target_class": 0},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 12, "batch": 16, "lr": 0.05},
    "methods": {"run": []},
    "evaluation": {"attack": False, "samples": False, "every": 100},
    "gate": {"max_drop": 100.0},  # of what use the models are is asked below
}


def number(value: Value) -> float:
    """What was measured."""
    assert isinstance(value, float), value
    return value


def test_whoever_claims_that_it_lasts_is_tried_below() -> None:
    assert {name for name, kind in METHODS.items() if kind.lasts} == {"led", "retrain", "sealed"}


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("five") / "run"
    Run.create(Config.parse(STORY), folder).execute()
    return folder


@pytest.mark.parametrize("method", ["sealed", *slow("retrain", "led")])
def test_five_requests_in_a_row_stay_forgotten(five: Path, tmp_path: Path, method: str) -> None:
    run = Run.open(shutil.copytree(five, tmp_path / "run"))
    planted = number(run.lines()[-1]["backdoor"])
    assert planted > 50, "there is something to forget"
    rounds = {"sealed": 6, "retrain": 5, "led": 15}[method]
    for i, request in enumerate(FIVE[:3] if method == "led" else FIVE):  # its second step makes each request long
        how = RequestOptions({"teacher_rounds": 5} if method == "led" else {})
        run.forget(request, method, rounds, how=how)
        line = [x for x in run.lines() if x["request"] == request.id][-1]
        assert number(line["backdoor"]) < planted / 4, f"client 0 is back after request {request.id}"
        assert number(line["test"]) > 60, "and the model is of use"
        again = line.get("earlier", {})
        assert list(again) == [r.id for r in FIVE[:i]], "every earlier request is measured again"
        assert all(number(again[r.id]) < 10 for r in FIVE[:i] if r.classes), "a class that left is not read any more"


def test_what_left_earlier_is_measured_again_beside_what_a_model_that_never_saw_it_would_show(tmp_path: Path) -> None:
    sets = (*SERVES, "poison.client=0", "evaluation.every=100", "data.train_size=600", "data.test_size=200")
    run = Run.create(Config.parse(SMALL, sets), tmp_path / "run")
    run.execute()
    samples = Request("s", samples=tuple(("2", i) for i in range(40)))
    for request in (FIRST, Request("seven", classes=(7,)), samples, SECOND):
        run.forget(request, "ft", until=1)
    entry, params, world = run.queue.book.find("r1"), run.current(0), run.world(0)
    assert entry is not None and set(entry.again) == {"r0", "seven", "s"}
    client, seven, some = (entry.again[name] for name in ("r0", "seven", "s"))
    line = run.lines()[-1]
    assert {name: one["forget"] for name, one in entry.again.items()} == line["earlier"]
    assert client["backdoor"] == line["backdoor"] and "backdoor was planted in its rows" in str(client["expected"])
    assert seven["chance"] == 10.0 and "expected" not in seven and not {"backdoor"} & (seven.keys() | some.keys())
    assert all(is_measured(one["mia"]) for one in entry.again.values())
    rows = torch.cat([c.rows[c.view("forget")] for c in world.scoped([samples]).values()])
    labels = [int(y) for y in world.dataset.train.labels[rows] if int(y) != 7]  # sevens had left before
    test = world.dataset.test
    assert test is not None
    right = score(world.template, params, test, torch.arange(len(test))).correct
    usual = [float(right[test.labels == y].double().mean()) for y in labels]
    assert some["expected"] == pytest.approx(100 * sum(usual) / len(usual))
    page = " ".join(write_report(run).read_text(encoding="utf-8").split()).replace("\u00a0", " ")
    assert f"a model that never saw it would be on about {some['expected']:.1f} %; MIA {some['mia']:.1f} %" in page
    assert f"its backdoor works on {client['backdoor']:.1f} %" in page


def test_a_request_has_one_number_on_one_model_whoever_asks_next(run: Run) -> None:
    """Rows that had left before are not counted as its own, neither when it is served nor afterwards."""
    samples = Request("s", samples=tuple(("1", i) for i in range(60)))
    for request in (Request("seven", classes=(7,)), samples, THIRD):
        run.forget(request, "ft", until=1)
    served = [x for x in run.lines() if x["request"] == "s"][-1]
    later = next(x for x in run.lines() if x["request"] == "r2" and x["method"] == "before")
    assert later["earlier"]["s"] == served["own"] and later["earlier"]["seven"] == served["earlier"]["seven"]


def test_every_number_of_a_request_is_about_what_it_takes_out_itself(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forget in the trajectory counts whoever left before, too: a class that is gone would seem to be half there."""
    run.forget(FIRST, "ft", until=1)
    asked = ["--class", "7", "--method", "ft", "--until", "1", "--max-drop", "100"]
    monkeypatch.setattr(sys, "argv", ["unfed", "forget", str(run.folder.path), *asked])
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main()
    signal.signal(signal.SIGTERM, handler)
    assert not end.value.code
    world, seven = run.world(0), Request("class-7", classes=(7,))
    rows = torch.cat([c.rows[c.view("forget")] for c in world.scoped([FIRST, seven], gone=[FIRST]).values()])
    line = [x for x in run.lines() if x["request"] == "class-7"][-1]
    own = score(world.template, run.current(0), world.dataset.train, rows).accuracy
    assert line["own"] == pytest.approx(own)
    info, earlier = run.info().requests[-1].to_json(), number(line["earlier"]["r0"])
    assert info["forgotten_rows"] == len(rows) < info["rows_out"]
    both = len(rows) * own + (info["rows_out"] - len(rows)) * earlier
    assert line["forget"] == pytest.approx(both / info["rows_out"]), "those of client 0 are counted there"
    said = " ".join(capsys.readouterr().out.split())
    assert f"forget {own:.1f} %" in said and "served after 1 round:" in said
    was = [x for x in run.lines() if x["request"] == "class-7" and x["method"] == "before"][-1]["earlier"]["r0"]
    right = f"Earlier request r0: the new model is right on {earlier:.1f} % of its data, the old one on {was:.1f} %;"
    assert right in said
    page = " ".join((run.folder.path / "report.html").read_text(encoding="utf-8").split())
    described, found = run.info(), [row for row in unfed.results(run, "last") if row.request == "class-7"]
    said = first_sentence(described, asked_of(described, run.lines())["class-7"], found)
    assert f"the model is right on {own:.1f} % of its data" in said
    assert "Earlier request r0" in page and f"Class 7, {len(rows)} training samples" in page


def test_a_model_that_can_be_turned_back_says_so_where_it_is_gone_on_with(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next run knows nothing of the requests of this one, and NoT there would bring back whom NoT took out here."""
    run.forget(FIRST, "not", 1)
    run.forget(SECOND, "ft", 1)
    file, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    export = ["export", str(run.folder.path), "-o", str(file)]
    assert called(export, monkeypatch, capsys)[0] == 0
    first, second, third = (
        run.folder.model_file(Job(0, f"r{i}", how)) for i, how in enumerate(("not", "ft", "retrain"))
    )
    notes = [storage.way_back(storage.numbers_of(path)) for path in (first, second, file)]
    assert (
        notes == ["what NoT did for request 'r0', by one minus sign"] * 3
    )  # whoever takes it from the folder reads it too
    said = r"can be turned back \(what NoT did for request 'r0', by one minus sign\)"
    with pytest.warns(UnfedWarning, match=f"{said}, and the same method here may"):
        Run.create(Config.parse(SMALL, [*SERVES, f"model.initial='{file}'"]), tmp_path / "next")
    with pytest.warns(UnfedWarning, match=f"{said}: what is negated once more"):
        negate_file(file, other, ["conv1.weight"])
    assert storage.numbers_of(other) == {}  # what the notes said of the model is not true of this one
    run.forget(THIRD, "retrain", 1)
    assert called(export, monkeypatch, capsys)[0] == 0
    assert storage.WAY_BACK not in storage.numbers_of(third)
    with warnings.catch_warnings(action="error"):
        Run.create(Config.parse(SMALL, [*SERVES, f"model.initial='{file}'"]), tmp_path / "after")
