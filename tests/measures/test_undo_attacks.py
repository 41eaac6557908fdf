"""The attacks that train nothing or almost nothing: a class's bias raised, a backdoor taught again. Each by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pages import probes, undone
from unfed.data import TensorSource, triggered
from unfed.data.poison import Trigger
from unfed.measures.attacks import OwnTrigger
from unfed.measures.undo.flip import NO_CLASS, gaps, largest_lift, lift
from unfed.measures.undo.refits import CLEAN, STAMPED, STOPS, triggers
from unfed.measures.undo.refits import triggers as package
from unfed.measures.undo.scene import Scene, View
from unfed.measures.undo.traces import auc, inside, ridge
from unfed.model.functional import Template
from unfed.model.params import Params, params_of
from unfed.report.undo import comes_back, grid


class Straight(nn.Module):
    """A head alone whose logits are its inputs, plus the bias."""

    head_name = "head"

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


def straight(bias: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Params:
    return {"head.weight": torch.eye(3).double(), "head.bias": torch.tensor(bias, dtype=torch.float64)}


def three_classes(**changes: Any) -> Scene:
    """Twenty test rows of classes 0 and 1, and four forgotten rows of class 2, written as logits."""
    right = [[2.0, 0.0, 2.0 - margin] for margin in (0.5, 1.5, *range(2, 19))]  # 19 right, margins to class 2 as named
    wrong = [[1.0, 3.0, 0.9]]  # of class 0, read as 1: its margin of 0.1 is nobody's to lose
    forgotten = [[1.0, 0.0, 0.75], [0.0, 3.0, 2.0], [4.0, 0.0, 2.0], [2.5, 1.0, 1.0]]  # 0.25, 1, 2 and 1.5 below
    x = torch.tensor([*right, *wrong, *forgotten]).double()
    y = torch.tensor([0] * 20 + [2] * 4)
    source = TensorSource(x, y, classes=3, dtype=torch.float64)
    test, gone = View(source, torch.arange(20)), View(source, torch.arange(20, 24))
    template = Template(Straight().double(), (3,))
    here = Scene(template, test, gone, test, None, lambda seed: straight(), batch=7, classes=(2,))
    return replace(here, **changes)


# --- lift -------------------------------------------------------------------------------------------------------------


def test_a_lift_by_hand_on_three_classes() -> None:
    """Of 20 rows 1 point is none, so δ is the smallest margin, 0.5; 5 points are one row, so δ is the second, 1.5."""
    found = lift(three_classes(), straight())
    assert (found["lifts_1"], found["lifts_5"]) == ([0.5], [1.5])
    assert found["back_1"] == 25.0, "the row that lies 0.25 below"
    assert found["back_5"] == 50.0, "those 0.25 and 1 below; the one that lies exactly 1.5 below is a tie, not back"
    assert found["on"] == "test" and found["classes"] == [2]


def test_the_lift_is_the_bias_that_really_does_it() -> None:
    """A hair below δ no more rows than allowed are lost, a hair above one more is; the same rows come back."""
    here = three_classes()
    for points, allowed in ((1, 0), (5, 1)):
        by = lift(here, straight())[f"lifts_{points}"][0]
        below, above = (here.quick(straight((0.0, 0.0, by + step))) for step in (-1e-9, 1e-9))
        assert below["test"] == pytest.approx(95.0 - 5 * allowed) and above["test"] == pytest.approx(90.0 - 5 * allowed)
        assert below["forget"] == lift(here, straight())[f"back_{points}"]


def test_a_bias_that_hides_a_class_is_lifted_away_whatever_it_is() -> None:
    here, hidden = three_classes(), straight((0.0, 0.0, -30.0))
    assert here.quick(hidden)["forget"] == 0.0
    assert lift(here, hidden)["back_5"] == 50.0 and lift(here, hidden)["lifts_5"] == [31.5]


def test_every_row_may_be_lost_where_none_is_right() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0]]).double()
    assert largest_lift(logits, torch.tensor([0]), 2, 5) == math.inf
    assert gaps(logits, 2).tolist() == [1.0]
    assert gaps(torch.tensor([[-1.0, -2.0, -3.0]]), 2).tolist() == [2.0]


def test_each_class_is_lifted_by_itself_and_rows_of_classes_that_left_cost_nothing() -> None:
    here = three_classes()
    x = torch.cat([here.forget.tensors()[0], torch.tensor([[0.0, 0.0, 9.0]]).double()])
    source = TensorSource(x, torch.tensor([2, 2, 2, 2, 1]), classes=3, dtype=torch.float64)
    both = replace(here, forget=View(source, torch.arange(5)), classes=(1, 2))
    found = lift(both, straight())
    assert found["back_5"] == 40.0, "two rows of class 2 of five; the row of class 1 lies 9 below"
    more = torch.cat([torch.arange(20), torch.full((20,), 20)])
    withall = replace(both, test=View(here.retain.source, more))
    assert lift(withall, straight()) == found, "test rows of a class that left are no rows of the other classes"


def test_without_a_class_or_a_row_of_it_nothing_is_lifted_and_without_test_data_retained_rows_say_how_far() -> None:
    here = three_classes()
    assert lift(replace(here, classes=()), straight())["reason"].startswith("not measured: no class was asked to leave")
    nothing = View(here.forget.source, here.forget.rows[:0])
    assert lift(replace(here, forget=nothing), straight())["reason"].startswith("not measured: no forgotten row")
    found = lift(replace(here, test=None), straight())
    assert found["on"] == "retain" and found["back_5"] == 50.0


# --- triggers ---------------------------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """One dense layer over 8x8 pixels."""

    head_name = "head"

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def planted(**changes: Any) -> tuple[Scene, Params]:
    torch.manual_seed(0)
    images, labels = torch.randint(0, 200, (90, 1, 8, 8), dtype=torch.uint8), torch.arange(90) % 3
    source = TensorSource(images, labels, classes=3, dtype=torch.float64)
    rows, armed = triggered(source, 1)
    test, retain = torch.arange(60, 90), torch.arange(0, 60)
    here = Scene(
        Template(Pixels().double(), (1, 8, 8)),
        View(source, retain),
        View(source, retain[:0]),
        View(source, test),
        View(armed, rows[rows >= 60]),
        lambda seed: params_of(Pixels().double()),
        seed=3,
    )
    return replace(here, **changes), params_of(Pixels().double())


def by_hand(images: Tensor, labels: Tensor, params: Params, lr: float) -> Params:
    """Twenty steps of SGD with momentum 0.9 and decay 5e-4 over all rows at once, by torch.optim."""
    weight, bias = (params[f"head.{name}"].clone().requires_grad_() for name in ("weight", "bias"))
    optimiser = torch.optim.SGD([weight, bias], lr=lr, momentum=0.9, weight_decay=5e-4)
    for _ in range(20):
        optimiser.zero_grad()
        F.cross_entropy(images.flatten(1) @ weight.T + bias, labels).backward()
        optimiser.step()
    return {"head.weight": weight.detach(), "head.bias": bias.detach()}


def test_a_backdoor_is_taught_again_as_plain_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here, params = planted()
    calls: list[dict[str, Any]] = []
    module = __import__("unfed.measures.undo.refits", fromlist=["fit"])
    real = module.fit

    def spying(problem: Any, tasks: Any, pool: Any, budget: Any) -> Any:
        calls.append({"tasks": tasks, "pool": pool})
        return real(problem, tasks, pool, budget)

    monkeypatch.setattr(module, "fit", spying)
    found = package(here, params, 0.2)
    images, labels = here.retain.tensors()
    seen, more = calls
    x, y = seen["pool"]
    stamps = [*(OwnTrigger("a square", (v, h)).stamp for v in (0, 1) for h in (0, 1)), Trigger().stamp]
    assert len(seen["tasks"]) == 5 and max(STOPS) == 20 and (STAMPED, CLEAN) == (5, 15)
    ends = []
    ten = (stamps[-1], more["tasks"][0], *more["pool"], 10)
    for stamp, task, x, y, k in [*((s, t, x, y, 5) for s, t in zip(stamps, seen["tasks"], strict=True)), ten]:
        own, truth = x[task.rows], y[task.rows]
        assert len(own) == 20 and truth[:k].tolist() == [1] * k
        origin = [next(i for i, image in enumerate(images) if torch.equal(stamp(image), row)) for row in own[:k]]
        assert all(int(labels[i]) != 1 for i in origin), "rows of the target class teach nothing"
        clean = [next(i for i, image in enumerate(images) if torch.equal(image, row)) for row in own[k:]]
        assert not set(clean) & set(origin) and truth[k:].tolist() == labels[clean].tolist()
        model = by_hand(own, truth, params, 0.2)
        assert here.backdoor is not None
        rows = here.backdoor.rows
        plain = View(here.retain.source, rows).tensors()[0].flatten(1) @ model["head.weight"].T + model["head.bias"]
        armed = here.backdoor.tensors()[0].flatten(1) @ model["head.weight"].T + model["head.bias"]
        ends.append(100 * float(((armed.argmax(1) == 1).double() - (plain.argmax(1) == 1).double()).mean()))
    assert found["known"] == pytest.approx(ends[4]) and found["own"] == pytest.approx(max(ends[:4]))
    assert found["gained"] == pytest.approx(ends[5] - found["curves"][0][0]) and found["gained"] > 0
    still = triggers(here, model, 0.0)
    assert still["known"] == pytest.approx(ends[5]) and still["gained"] == 0.0, "what works already is not gained"
    assert found["steps"] == [0, 1, 2, 5, 10, 20] and [len(curve) for curve in found["curves"]] == [6, 6]
    assert found["known"] > found["curves"][1][0], "taught with the planted trigger, it works better than before"


def test_a_model_that_reads_everything_as_the_target_has_no_backdoor() -> None:
    here, params = planted()
    constant = {"head.weight": torch.zeros_like(params["head.weight"]), "head.bias": torch.tensor([0.0, 50.0, 0.0])}
    found = triggers(here, {n: t.double() for n, t in constant.items()}, 0.0)
    assert (found["own"], found["known"], found["gained"]) == (0.0, 0.0, 0.0)


def test_nothing_is_taught_where_nothing_was_planted_or_rows_cannot_be_stamped() -> None:
    here, params = planted()
    assert triggers(replace(here, backdoor=None), params, 0.1)["reason"].startswith(
        "not measured: no backdoor is known"
    )
    assert triggers(replace(here, test=None), params, 0.1)["reason"] == "not measured: no held-out data"
    prepared = TensorSource(torch.rand(60, 1, 8, 8).double(), torch.arange(60) % 3, classes=3, dtype=torch.float64)
    floats = replace(here, retain=View(prepared, torch.arange(60)))
    assert "held as uint8" in triggers(floats, params, 0.1)["reason"]


# --- inside -----------------------------------------------------------------------------------------------------------


class Two(nn.Module):
    """A map of three inputs to three features, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def two(body: Tensor, head: Tensor) -> Params:
    return {"body.weight": body.double(), "head.weight": head.double(), "head.bias": torch.zeros(3).double()}


def corners(**changes: Any) -> Scene:
    """Sixty rows near the three axes, each of its axis' class; class 2 has left."""
    torch.manual_seed(1)
    labels = torch.arange(90) % 3
    x = 4 * F.one_hot(labels, 3).double() + 0.2 * torch.randn(90, 3).double()
    source = TensorSource(x, labels, classes=3, dtype=torch.float64)
    held, gone = (torch.arange(60)[labels[:60] != 2], torch.arange(60)[labels[:60] == 2])
    test = View(source, torch.arange(60, 90)[labels[60:] != 2])
    here = Scene(Template(Two().double(), (3,)), View(source, held), View(source, gone), test, None, lambda s: {})
    return replace(here, **{"classes": (2,), "batch": 11, **changes})


MIXED = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])


def test_a_stitch_turns_mixed_features_back_and_a_graft_does_not() -> None:
    """The published features are those of the old model in another order, and its head names class 2 never."""
    old, mute = two(torch.eye(3), torch.eye(3)), torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = inside(corners(), two(MIXED, mute), old)
    assert corners().quick(two(MIXED, mute))["forget"] == 0.0
    assert found["stitch"]["class_back"] == 100.0, "lifted, the old row reads the class from features of others"
    assert found["stitch"]["test"] == 100.0 and found["graft"]["test"] == 0.0
    assert inside(corners(), old, old)["graft"] == {
        "forget": 100.0,
        "test": 100.0,
        "backdoor": "not measured: no data was poisoned",
        "class_back": 100.0,
    }
    missing = inside(corners(), old, "the model before is no longer there")
    assert (
        missing["stitch"]["reason"] == missing["graft"]["reason"] == "not measured: the model before is no longer there"
    )


@pytest.mark.parametrize("wide", [3, 60], ids=["more-rows", "more-features"])
def test_the_map_is_the_nearest_one_under_a_small_penalty(wide: int) -> None:
    torch.manual_seed(2)
    features, goal = torch.randn(40, wide).double(), torch.randn(40, 2).double()
    x = torch.cat([features, torch.ones(40, 1).double()], 1)
    weight = 1e-3 * float((x * x).sum(0).mean())
    longer = torch.cat([x, weight**0.5 * torch.eye(wide + 1).double()])
    truth = torch.linalg.lstsq(longer, torch.cat([goal, torch.zeros(wide + 1, 2).double()])).solution
    torch.testing.assert_close(ridge(features, goal), truth, rtol=0, atol=1e-10)


def test_pairs_are_counted_and_ties_are_halves() -> None:
    torch.manual_seed(3)
    low, high = torch.randint(0, 6, (30,)).double(), torch.randint(2, 9, (17,)).double()
    pairs = [1.0 if h > l else 0.5 if h == l else 0.0 for h in high.tolist() for l in low.tolist()]  # noqa: E741
    assert auc(low, high) == pytest.approx(sum(pairs) / len(pairs)) and auc(low, low) == 0.5


def test_a_trigger_is_seen_in_features_that_show_it_and_in_no_others() -> None:
    here, params = planted()
    assert inside(here, params, params)["trigger"]["auc"] > 95.0, "the features are the pixels"
    assert "no backdoor" in inside(replace(here, backdoor=None), params, params)["trigger"]["reason"]

    class Blind(Pixels):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(0 * x.flatten(1))  # type: ignore[no-any-return]

    dark = replace(here, template=Template(Blind().double(), (1, 8, 8)))
    assert inside(dark, params, params)["trigger"]["auc"] == 50.0


def test_a_class_is_read_from_features_that_hold_it_apart() -> None:
    old = two(torch.eye(3), torch.eye(3))
    found = inside(corners(), old, old)["probe"]
    assert found["reads_5"] == 100.0
    assert found["reads_20"] == "not measured: a class that left has fewer than 40 rows"
    assert inside(corners(), two(torch.zeros(3, 3), torch.eye(3)), old)["probe"]["reads_5"] == 0.0
    assert inside(corners(classes=()), old, old)["probe"]["reason"] == NO_CLASS


# --- words ------------------------------------------------------------------------------------------------------------


def told(mine: float, retrain: float, known: float = 40.0) -> dict[str, Any]:
    """A probed class: nothing comes back by realign, something by the lift."""

    def of(back: float) -> dict[str, Any]:
        near = {"forget": 0.0, "test": 97.0, "backdoor": "not measured: no data was poisoned"}
        fits = {"usable": 3, "fits": 4, "usable_fits": 3}
        return {
            "published": {**near, "mia": 50.0},
            "flip": {"reason": "not measured: no inverse"},
            "lift": {"back_1": back, "back_5": 90.0},
            "realign": {**near, **fits},
            "triggers": {"own": 10.0, "known": known},
        }

    models = {"unlearned": of(mine), "retrain": of(retrain), "before": of(100.0)}
    return {"title": "Sealed", "method": "sealed", "measured": models}


def test_what_a_lift_brings_back_is_said_beside_retrain() -> None:
    more, alike = probes(told(63.0, 35.0)), probes(told(36.0, 35.0))
    back = comes_back(more)
    assert back is not None and "63.0 % of the forgotten rows right again (Retrain, treated alike: 35.0 %)" in back
    assert comes_back(alike) is None
    said = undone(told(63.0, 35.0))
    assert "the class comes back to 63.0 % (Retrain: 35.0 %)" in said and said.endswith("can be brought back.")
    assert "the backdoor reaches 40.0 points (Retrain: 40.0 points)" in said
    assert undone(told(36.0, 35.0)).endswith("no more than they find in Retrain.")
    for part in ("lift", "triggers"):
        reason = NO_CLASS if part == "lift" else "not tried"
        one = told(1.0, 1.0)
        for who in one["measured"].values():
            who[part] = {"reason": reason}
        body, notes = grid(probes(one))
        shown = [cells for title, cells in body if title.startswith("Class back by lift")]
        assert (shown == []) == (part == "lift"), "what the request gives no occasion for stands below the table"
        assert any(note.endswith(f"others lose 5 points: {reason}") for note in notes) == (part == "lift")
    whole = dict(grid(more)[0])
    assert whole["Class back by lift, others lose 1 point"] == ["63.0 %", "35.0 %", "100.0 %"]
    assert whole["Backdoor taught again, planted trigger"][:2] == ["40.0 points", "40.0 points"]
