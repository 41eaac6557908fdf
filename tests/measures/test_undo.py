"""Undoing as measurements: each number by hand on a few weights, and stacked fits equal to the readable ones."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unfed.client.plan import Optimiser
from unfed.data.source import TensorSource
from unfed.measures.undo.flip import Knowledge, flipped
from unfed.measures.undo.flip import flip as flip_of
from unfed.measures.undo.measure import (
    MEASUREMENTS,
    UNTRIED,
    Effort,
    Found,
    Going,
    ProbedModels,
    Shared,
    perturbed_before,
    undo,
)
from unfed.measures.undo.refits import (
    Grid,
    Try,
    area,
    beginnings,
    judged,
    layer_sets,
    mixed,
    orthogonality,
    rise,
    rounds_of,
    rounds_until,
    unmixing,
)
from unfed.measures.undo.refits import realign as realign_of
from unfed.measures.undo.refits import relearn as relearn_of
from unfed.measures.undo.scene import Budget, FitTask, Problem, Scene, View, batches, fit, one_by_one, stacked
from unfed.measures.undo.traces import between, cosine, histogram, path, peak, variation
from unfed.measures.undo.traces import difference as difference_of
from unfed.model.functional import Net, Template
from unfed.model.layers import Choice
from unfed.model.params import Params, params_of
from unfed.model.perturb import PERTURBATIONS, Perturbed, perturb
from unfed.values import is_measured


class Two(nn.Module):
    """Two dense layers and a head, without a nonlinearity in the way of a hand count."""

    head_name = "head"

    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))  # type: ignore[no-any-return]


def fresh(seed: int, module: type[nn.Module] = Two) -> Params:
    torch.manual_seed(seed)
    return {name: t.double() if t.is_floating_point() else t for name, t in params_of(module()).items()}


def scene(rows: int = 60, **changes: Any) -> Scene:
    torch.manual_seed(0)
    x = torch.randn(rows, 4, dtype=torch.float64)
    source = TensorSource(x, x[:, :3].argmax(1), classes=3, dtype=torch.float64)
    cut = rows // 3
    views = [View(source, part) for part in torch.split(torch.arange(rows), cut)]
    template = Template(Two().double(), (4,))
    return replace(Scene(template, views[0], views[1], views[2], None, fresh, seed=3), **changes)


NEGATED = Knowledge("NoT", Perturbed("negate", (Choice("first.weight", None, ""),)))


# --- flip -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["negate", "flip-width", "flip-height", "flip-both", "rotate-90", "rotate-180", "rotate-270"]
)
def test_what_has_a_public_inverse_is_taken_back_to_the_bit(how: str) -> None:
    params = {"conv.weight": torch.randn(4, 3, 3, 3), "head.weight": torch.randn(2, 4)}
    chosen = (Choice("conv.weight", None, ""),)
    known = Knowledge("somebody", Perturbed(how, chosen))
    assert known.inverse is not None
    perturbed = PERTURBATIONS[how](params, chosen)
    assert not torch.equal(perturbed["conv.weight"], params["conv.weight"])
    assert torch.equal(flipped(perturbed, chosen, known.inverse)["conv.weight"], params["conv.weight"])


@pytest.mark.parametrize("how, within", [("orthogonal", 1e-12), ("noise", 0.05)])
def test_a_draw_that_follows_from_the_requests_seed_is_drawn_again_and_taken_back(how: str, within: float) -> None:
    """Of noise the size is taken from the noisy tensor, so what comes back is near, not equal."""
    torch.manual_seed(0)
    params = {name: torch.randn(40, 30, dtype=torch.float64) for name in ("first.weight", "second.weight")}
    chosen, other = Choice("first.weight", None, ""), Choice("second.weight", None, "")
    moved = perturb(params, [chosen], how, seed=7)
    known, blind = (Knowledge("NoT", Perturbed(how, (chosen,), seeded=True), seed) for seed in (7, 8))
    assert known.inverse is not None and blind.inverse is not None
    back = flipped(moved, [chosen, other], known.inverse)
    assert (back["first.weight"] - params["first.weight"]).norm() <= within * params["first.weight"].norm()
    assert torch.equal(back["second.weight"], -params["second.weight"]), "nothing was drawn for it: the usual guess"
    wrong = flipped(moved, [chosen], blind.inverse)["first.weight"]
    assert (wrong - params["first.weight"]).norm() > 0.5 * params["first.weight"].norm()
    again = perturbed_before(params, known)
    assert not isinstance(again, str) and torch.equal(again["first.weight"], moved["first.weight"])


def test_flipping_a_negated_linear_layer_gives_the_original_back() -> None:
    here, theta = scene(), fresh(1)
    unlearned = theta | {"first.weight": -theta["first.weight"]}
    found = flip_of(here, unlearned, NEGATED)
    assert found["layers"] == ["first.weight"]
    assert {n: found[n] for n in ("forget", "test", "retain")} == {
        n: v for n, v in here.numbers(theta).items() if n in ("forget", "test", "retain")
    }


@pytest.mark.parametrize("how", ["orthogonal", "reinit", "noise", "zero", "sealed-of-tomorrow"])
def test_a_draw_that_was_thrown_away_has_no_inverse(how: str) -> None:
    known = Knowledge("X", Perturbed(how, (Choice("first.weight", None, ""),)))
    assert "has no public inverse" in flip_of(scene(), fresh(1), known)["reason"]


def test_a_method_without_layers_says_so() -> None:
    assert flip_of(scene(), fresh(1), Knowledge("Mine"))["reason"] == (
        "not measured: Mine names no layers that it perturbs, so there is nothing to invert"
    )


# --- fitting ----------------------------------------------------------------------------------------------------------


class Normed(Two):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.second(torch.relu(self.first(x))))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [Two, Normed])
@pytest.mark.parametrize("rule", [Optimiser(rule="adam", lr=0.02, decay=0.0), Optimiser(lr=0.01)])
def test_a_stack_of_fits_equals_the_fits_one_by_one(module: type[nn.Module], rule: Optimiser) -> None:
    here, template = scene(), Template(module().double(), (4,))
    pool, starts = here.retain.tensors(), [fresh(k, module) for k in range(3)]
    names = ("first.weight", "second.weight")
    tasks = [FitTask(p, {n: p[n] for n in names}, torch.arange(20 - k)) for k, p in enumerate(starts)]
    budget = Budget(stops=(3, 7), optimiser=rule, batch=8)
    slow = list(one_by_one(Problem(template), tasks, pool, budget))
    fast = list(stacked(Problem(template), tasks, pool, budget))
    assert [steps for steps, _ in slow] == [steps for steps, _ in fast] == [3, 7]
    for (_, some), (_, others) in zip(slow, fast, strict=True):
        for a, b in zip(some, others, strict=True):
            for name in a:
                torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-12)


def test_fits_of_fewer_rows_than_a_batch_holds_are_made_though_no_two_have_the_same_number() -> None:
    here, theta = scene(), fresh(1)
    tasks = [FitTask(theta, {"first.weight": theta["first.weight"]}, torch.arange(k)) for k in (20, 19)]
    pool, budget = here.retain.tensors(), Budget(stops=(2,), batch=64)
    ((_, found),) = fit(Problem(here.template, stack=True), tasks, pool, budget)
    ((_, wanted),) = one_by_one(Problem(here.template), tasks, pool, budget)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a["first.weight"], b["first.weight"])


def test_stacked_mixing_equals_mixing_one_by_one() -> None:
    here, theta, names = scene(), fresh(1), ("first.weight", "second.weight")
    for side in ("output", "input"):
        tasks = [FitTask(theta, free, torch.arange(20)) for free in beginnings(theta, names, side, 3, seed=1)]
        problem, budget = unmixing(here.template, names, side), Budget(stops=(4,), batch=8)
        ((_, slow),) = one_by_one(problem, tasks, here.retain.tensors(), budget)
        ((_, fast),) = stacked(problem, tasks, here.retain.tensors(), budget)
        for a, b in zip(slow, fast, strict=True):
            # Adam divides a gradient of next to nothing by itself, so the last digits grow.
            torch.testing.assert_close(a["second.weight"], b["second.weight"], rtol=1e-6, atol=1e-9)


def test_only_the_free_tensors_move() -> None:
    here, theta = scene(), fresh(1)
    task = FitTask(theta, {"second.weight": theta["second.weight"]}, torch.arange(20))
    ((_, (after,)),) = one_by_one(Problem(here.template), [task], here.retain.tensors(), Budget(stops=(5,)))
    assert [n for n in theta if not torch.equal(theta[n], after[n])] == ["second.weight"]


def test_one_step_of_a_fit_by_hand() -> None:
    """SGD without momentum: w − η ∇, the gradient by autograd of the plain module."""
    here, theta = scene(), fresh(1)
    x, y = here.retain.tensors()
    module = Two().double()
    module.load_state_dict(theta)
    nn.functional.cross_entropy(module(x), y).backward()
    rule = Optimiser(lr=0.5, momentum=0.0, decay=0.0)
    task = FitTask(theta, {"first.weight": theta["first.weight"]}, torch.arange(20))
    ((_, (after,)),) = one_by_one(Problem(here.template), [task], (x, y), Budget((1,), rule, batch=20))
    grad = module.first.weight.grad
    assert grad is not None
    torch.testing.assert_close(after["first.weight"], theta["first.weight"] - 0.5 * grad)


def test_batches_take_every_row_once_a_pass() -> None:
    found = batches(torch.arange(10, 16), Budget(stops=(6,), batch=4))
    assert found.shape == (6, 4)
    passes = found.flatten().reshape(4, 6).sort(dim=1).values
    assert torch.equal(passes, torch.arange(10, 16).expand(4, 6))


# --- mixing -----------------------------------------------------------------------------------------------------------


def test_the_right_matrix_takes_a_mixing_back() -> None:
    weight = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    for side in ("output", "input"):
        q = beginnings({"w": weight}, ("w",), side, 2, seed=1)[1]["w"]
        torch.testing.assert_close(mixed(mixed(weight, q, side), q.T, side), weight)
        assert float(orthogonality({"w": q})) < 1e-20
    assert float(orthogonality({"w": 2 * torch.eye(3)})) == 9.0  # ‖4I − I‖² / 3 = 27 / 3


def test_the_mixing_attack_finds_a_mixing_that_hides_the_labels() -> None:
    """A layer whose outputs were swapped: from the identity on, the fit brings the accuracy back."""
    here = scene(90)
    theta = fresh(1)
    tasks = [FitTask(theta, {n: theta[n] for n in here.template.trainable}, torch.arange(30))]
    ((_, (good,)),) = one_by_one(Problem(here.template), tasks, here.retain.tensors(), Budget(stops=(300,), batch=30))
    q = beginnings(good, ("first.weight",), "output", 2, seed=5)[1]["first.weight"]
    hidden = good | {"first.weight": mixed(good["first.weight"], q, "output")}
    problem, begun = (
        unmixing(here.template, ("first.weight",), "output"),
        beginnings(good, ("first.weight",), "output", 4, 9),
    )
    looks = one_by_one(
        problem, [FitTask(hidden, b, torch.arange(30)) for b in begun], here.retain.tensors(), Budget((300,))
    )
    best = max(float(here.numbers(model)["retain"]) for _, models in looks for model in models)
    assert float(here.numbers(hidden)["retain"]) < 70 < 90 <= best


# --- realign ----------------------------------------------------------------------------------------------------------


def test_only_usable_results_count() -> None:
    tries = [
        Try("flip", ("a",), 0, 0, 0.0, {"test": 50.0, "forget": 99.0, "backdoor": 98.0}),
        Try("flip", ("a",), 100, 50, 0.02, {"test": 91.0, "forget": 60.0, "backdoor": 20.0}),
        Try("redraw", ("b",), 100, 50, 0.02, {"test": 95.0, "forget": 40.0, "backdoor": 70.0}),
    ]
    found = judged(tries, published=96.0)
    assert (found["usable"], found["bound"], found["forget"], found["backdoor"]) == (2, 91.0, 60.0, 70.0)
    assert (found["fits"], found["usable_fits"]) == (2, 2)
    assert found["backdoor_at"]["start"] == "redraw"
    assert (
        judged(tries[:1], published=96.0)["forget"] == "not measured: no result came within 5 points of the published"
    )
    alone = judged([*tries[:2], replace(tries[0], numbers={"test": 95.0, "forget": 9.0, "backdoor": 9.0})], 97.0)
    assert (alone["usable"], alone["fits"], alone["usable_fits"]) == (1, 1, 0), "turned, not fitted: says little"


def test_layer_sets_are_the_single_the_perturbed_and_the_hidden_layers() -> None:
    head_too = Knowledge("X", Perturbed("negate", (Choice("second.weight", None, ""), Choice("head.weight", None, ""))))
    sets = [tuple(c.name for c in one) for one in layer_sets(scene(), head_too, singles=8)]
    first, second = ("first.weight",), ("second.weight",)
    assert sets == [first, second, (*second, "head.weight"), (*first, *second)]
    assert [tuple(c.name for c in s) for s in layer_sets(scene(), NEGATED, 8)] == [first, second, (*first, *second)]


def test_the_grid_takes_at_most_half_of_the_retained_rows() -> None:
    assert Grid().counts(40_000) == (100, 1000)
    assert Grid().counts(1034) == (100, 517)
    assert Grid().counts(90) == (45,)


SHORT = Grid(rows=(10,), budget=Budget(stops=(2, 4), batch=8), rates=(0.02,), restarts=2)


def test_realign_tries_every_set_with_both_starts_and_both_sides() -> None:
    found = realign_of(scene(), fresh(1), NEGATED, SHORT)
    tried = {(t["start"].split()[0], tuple(t["layers"]), t["n"], t["steps"]) for t in found["tries"]}
    first, second = ("first.weight",), ("second.weight",)
    for layers in (first, second, first + second):
        assert {("flip", layers, 0, 0), ("flip", layers, 10, 4), ("redraw", layers, 10, 2)} <= tried
    assert found["tried"] == 3 * (1 + 2 * 2) + 2 * 2 * 2  # sets × (flip + starts × stops) + sides × restarts × stops
    assert realign_of(scene(stack=True), fresh(1), NEGATED, SHORT)["forget"] == found["forget"]


def test_every_fit_is_made_at_every_rate() -> None:
    """One rate tears a network apart that another one fits: both are tried, on every model alike."""
    one, two = (realign_of(scene(), fresh(1), NEGATED, replace(SHORT, rates=r)) for r in ((0.02,), (0.02, 0.002)))
    assert Counter(t["rate"] for t in two["tries"]) == {0.0: 3, 0.02: one["tried"] - 3, 0.002: one["tried"] - 3}
    assert [t for t in two["tries"] if t["rate"] != 0.002] == one["tries"]


def test_a_rate_that_is_too_large_is_made_up_for_by_a_smaller_one() -> None:
    here = scene(90)
    task = FitTask(fresh(1), {n: fresh(1)[n] for n in here.template.trainable}, torch.arange(30))
    ((_, (good,)),) = one_by_one(Problem(here.template), [task], here.retain.tensors(), Budget((300,), batch=30))
    torn = replace(SHORT, rows=(30,), budget=Budget(stops=(60,)), rates=(30.0,))
    assert realign_of(here, good, NEGATED, torn)["usable"] == 0
    assert realign_of(here, good, NEGATED, replace(torn, rates=(30.0, 0.02)))["usable"] > 0


# --- resurface, relearn -----------------------------------------------------------------------------------------------


def test_rounds_are_passes_and_a_rise_is_above_the_beginning() -> None:
    assert rounds_of(130, 64, 3) == (3, 6, 9)
    assert rise([30.0, 20.0, 55.0]) == 25.0
    assert rise([30.0, 20.0]) == 0.0
    assert rise(["not measured: no", "not measured: no"]) == "not measured: no"


def test_the_area_under_a_relearning_curve_by_hand() -> None:
    assert area([0.0, 100.0]) == 50.0
    assert area([0.0, 100.0, 100.0]) == 75.0
    assert area([40.0]) == 40.0
    assert rounds_until([10.0, 80.0, 95.0], 90.0) == 2.0
    assert rounds_until([10.0, 80.0], 90.0) == "not measured: not back within 1 rounds"


def test_relearning_takes_as_many_forgotten_rows_as_there_are() -> None:
    found = relearn_of(scene(), fresh(1), 90.0, 0.01, rounds=2)
    assert found["rows"] == [0, 1, 5, 10, 20]
    assert [len(curve) for curve in found["forget"]] == [3] * 5


def test_without_a_forgotten_row_nothing_can_be_relearnt() -> None:
    here = scene()
    here = replace(here, forget=View(here.forget.source, here.forget.rows[:0]))
    assert relearn_of(here, fresh(1), 90.0, 0.01)["area"].startswith("not measured: no forgotten row")
    assert difference_of(here, fresh(1), fresh(2), "no")["cosine"].startswith("not measured: no forgotten row")


# --- path, difference -------------------------------------------------------------------------------------------------


def test_the_peak_of_a_quadratic_between_two_minima() -> None:
    """L(w) = (w² − 1)² from −1 to 1: both ends are 0, the middle is 1, and a point lies on it."""
    height, losses = peak(lambda p: float((p["w"] ** 2 - 1) ** 2), {"w": torch.tensor(-1.0)}, {"w": torch.tensor(1.0)})
    assert height == pytest.approx(1.0)
    assert len(losses) == 21 and losses[10] == pytest.approx(1.0)
    down, _ = peak(lambda p: float(p["w"] ** 2), {"w": torch.tensor(-2.0)}, {"w": torch.tensor(1.0)})
    assert down == 0.0  # a valley between the ends is no peak


def test_distance_and_angle_by_hand() -> None:
    here, theta = scene(), fresh(1)
    found = path(here, {n: 3 * t for n, t in theta.items()}, theta)
    assert found["relative_l2"] == pytest.approx(2.0) and found["cosine"] == pytest.approx(1.0)
    assert cosine({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([1.0, 1.0])}) == pytest.approx(0.5**0.5)
    assert cosine({"w": torch.zeros(2)}, {"w": torch.ones(2)}) == 0.0
    half = between({"w": torch.tensor(0.0), "n": torch.tensor(3)}, {"w": torch.tensor(1.0), "n": torch.tensor(9)}, 0.5)
    assert (float(half["w"]), int(half["n"])) == (0.5, 3)


def test_the_label_histogram_is_read_from_a_hand_made_head() -> None:
    """D_u: two rows of class 0, one of class 1. Without them, row c of the head sinks by n_c times the features."""
    before = {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}
    features = torch.tensor([1.0, 0.0, 2.0, 1.0])
    after = {
        "head.weight": -torch.outer(torch.tensor([2.0, 1.0, 0.0]), features),
        "head.bias": -torch.tensor([2.0, 1.0, 0.0]),
    }
    read = histogram(after, before, "head.weight", "head.bias")
    torch.testing.assert_close(read, torch.tensor([2 / 3, 1 / 3, 0.0], dtype=torch.float64))
    assert variation(read, torch.tensor([2 / 3, 1 / 3, 0.0])) == pytest.approx(0.0, abs=1e-6)
    assert variation(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == 1.0
    torch.testing.assert_close(
        histogram(before, before, "head.weight", None), torch.full((3,), 1 / 3, dtype=torch.float64)
    )


def test_a_step_up_the_leavers_gradient_is_seen_in_the_difference() -> None:
    here, theta = scene(), fresh(1)
    gradient = here.gradient(theta, here.forget)
    away = theta | {n: theta[n] + 0.1 * g for n, g in gradient.items()}
    found = difference_of(here, away, theta, theta)
    assert found["cosine"] == pytest.approx(1.0) and found["cosine_perturbed"] == pytest.approx(1.0)
    assert sum(found["true"]) == pytest.approx(1.0) and sum(found["read"]) == pytest.approx(1.0)


def test_the_gradient_does_not_depend_on_the_batch() -> None:
    here, theta = scene(), fresh(1)
    whole, parts = here.gradient(theta, here.forget), replace(here, batch=7).gradient(theta, here.forget)
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name])


# --- all of it --------------------------------------------------------------------------------------------------------

EFFORT = Effort(rounds=2, batch=16, grid=SHORT)


def test_every_measurement_stands_beside_retrain_and_the_model_before() -> None:
    found = undo(scene(), ProbedModels(fresh(1), fresh(2), fresh(3)), NEGATED, EFFORT)
    assert list(found) == ["unlearned", "retrain", "before"]
    for who in found.values():
        assert list(who) == ["published", *MEASUREMENTS]
        usable = [one["forget"] for one in who["realign"]["tries"] if one["test"] >= who["realign"]["bound"]]
        assert who["realign"]["forget"] == max(usable), "the most that a usable model reads right"
    assert set(found["unlearned"]["path"]) == {"before", "perturbed", "retrain"}
    assert "the model itself" in found["before"]["difference"]["reason"]


def test_a_missing_retrain_says_so_in_every_place() -> None:
    found = undo(scene(), ProbedModels(fresh(1), fresh(2), "this run has no Retrain"), NEGATED, EFFORT)
    assert {m["reason"] for m in found["retrain"].values()} == {"not measured: this run has no Retrain"}
    assert found["unlearned"]["path"]["retrain"]["reason"] == "not measured: this run has no Retrain"
    assert is_measured(found["unlearned"]["relearn"]["area"])


def test_without_the_model_before_the_rest_is_still_measured() -> None:
    found = undo(scene(), ProbedModels(fresh(1), "it was purged", fresh(3)), NEGATED, EFFORT)
    assert found["unlearned"]["difference"]["reason"] == "not measured: it was purged"
    assert found["unlearned"]["relearn"]["rounds_until_back"] == ["not measured: it was purged"] * 5
    assert is_measured(found["unlearned"]["flip"]["forget"]) and is_measured(found["unlearned"]["relearn"]["area"])


def test_what_methods_share_is_measured_once() -> None:
    shared, before, retrain = Shared(), fresh(2), fresh(3)
    for title in ("NoT", "NoT again"):
        models = ProbedModels(fresh(1), before, retrain)
        found = undo(scene(), models, replace(NEGATED, title=title), EFFORT, shared)
    again = undo(scene(), models, NEGATED, EFFORT, shared)
    assert found["retrain"]["realign"] is again["retrain"]["realign"]
    other = Knowledge(
        "X", Perturbed("negate", (Choice("head.weight", None, ""),))
    )  # other attacks, so nothing of realign is shared
    assert undo(scene(), models, other, EFFORT, shared)["retrain"]["realign"] is not found["retrain"]["realign"]


def test_a_measuring_that_was_stopped_goes_on_with_the_piece_it_was_at() -> None:
    models = ProbedModels(fresh(1), fresh(2), fresh(3))
    kept: list[Found] = []
    said: list[tuple[str, str, int, int]] = []

    def keep(found: Found) -> None:
        kept.append(deepcopy(found))
        if len(kept) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        undo(scene(), models, NEGATED, EFFORT, going=Going(kept=keep))
    assert all(is_measured(kept[0][who]["flip"]["forget"]) for who in kept[0]), "the cheapest attack comes first"
    assert kept[-1]["unlearned"]["difference"] == kept[-1]["before"]["realign"] == UNTRIED
    shared = Shared()
    going = Going(said=lambda *step: said.append(step), known=kept[-1])
    assert undo(scene(), models, NEGATED, EFFORT, shared, going) == undo(scene(), models, NEGATED, EFFORT)
    assert said[0] == ("unlearned", "path", 7, 24) and len(said) == 18
    known = undo(scene(), models, NEGATED, EFFORT, shared)["unlearned"]["realign"]
    assert known == kept[-1]["unlearned"]["realign"], "what was known is shared with the methods that follow"


def test_looks_are_made_the_way_that_the_scene_says() -> None:
    seen: list[int] = []

    def way(net: Net, x: Tensor) -> Tensor:
        seen.append(len(x))
        return net(x).flip(-1)

    params, ours, theirs = fresh(1), scene(way=way), scene()
    numbers = ours.numbers(params)
    assert seen == [20, 20, 20] and numbers != theirs.numbers(params)
    assert ours.retain_loss(params) != theirs.retain_loss(params) and len(seen) == 4


@pytest.mark.own_process
def test_a_network_that_trains_in_bf16_is_fitted_in_it() -> None:
    template = Template(Two(), (4,))
    template.autocast = torch.bfloat16
    params = {name: t.float() for name, t in fresh(1).items()}
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    value, _ = Problem(template).loss(params, {}, x, y, torch.zeros((), dtype=torch.int64))
    with torch.autocast("cpu", torch.bfloat16):
        halves = template.bind(params)(x)
    assert halves.dtype == torch.bfloat16 and value.dtype == torch.float32
    assert torch.equal(value, torch.nn.functional.cross_entropy(halves.float(), y))
    template.autocast = None
    assert not torch.equal(value, Problem(template).loss(params, {}, x, y, torch.zeros((), dtype=torch.int64))[0])
