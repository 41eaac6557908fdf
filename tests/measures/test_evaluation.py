"""What is measured, against plain counting; and what cannot be measured says why."""

from typing import Any

import pytest
import torch
from torch import Tensor

from unfed.client.scores import score
from unfed.data import Request, Source, triggered
from unfed.errors import UnfedError
from unfed.measures.evaluator import Scorer
from unfed.model.params import Params
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import Small


@pytest.fixture
def world(small: Small) -> World:
    return simulated(small("poison.client=0"), 0)


def predicted(world: World, params: Params, source: Source, rows: Tensor) -> tuple[Tensor, Tensor]:
    x, y = source.fetch(rows, None)
    logits = world.template.bind(params)(x)
    return logits, y


def evaluator(world: World, *requests: Any) -> Scorer:
    return world.evaluator(requests)


def test_accuracies_are_plain_counts(world: World) -> None:
    request = Request("r", clients=("0",))
    clients, params = world.scoped([request]), world.fresh(1)
    seen = world.evaluator([request])(params).numbers
    source = clients["0"].source
    for name, view in (("retain", "retain"), ("forget", "forget")):
        rows = torch.cat([c.rows[c.view(view)] for c in clients.values()])
        logits, y = predicted(world, params, source, rows)
        assert seen[name] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))
        loss = torch.nn.functional.cross_entropy(logits, y)
        assert seen[f"{name}_loss"] == pytest.approx(float(loss), rel=1e-4)
    assert seen["loss_gap"] == pytest.approx(abs(float(seen["retain_loss"]) - float(seen["forget_loss"])))


def test_an_evaluation_says_of_how_many_rows_its_numbers_are(world: World) -> None:
    request, later = Request("r", clients=("0",)), Request("s", classes=(3,))
    clients, params = world.scoped([request]), world.fresh(1)
    seen, labels = evaluator(world, request)(params).rows, world.dataset.test.labels
    for view in ("retain", "forget"):
        assert seen[view] == sum(len(c.view(view)) for c in clients.values())
    assert seen["test"] == len(labels) and seen["backdoor"] == int((labels != 0).sum()) and "own" not in seen
    both = evaluator(world, request, later)(params).rows
    assert both["test"] == int((labels != 3).sum()) and both["forget"] == seen["forget"] + both["own"]
    assert "forget" not in evaluator(world)(params).rows


def test_validation_is_the_mean_over_the_clients_that_stay(world: World) -> None:
    request = Request("r", clients=("0",))
    clients, params = world.scoped([request]), world.fresh(1)
    each = []
    for name in ("1", "2", "3"):
        client = clients[name]
        logits, y = predicted(world, params, client.source, client.rows[client.view("val")])
        each.append(100 * float((logits.argmax(1) == y).double().mean()))
    found = evaluator(world, request)
    assert found(params).numbers["validation"] == pytest.approx(sum(each) / 3)
    assert found.validation(params) == pytest.approx(sum(each) / 3)


def test_a_forgotten_class_is_taken_out_of_test_and_validation(world: World) -> None:
    params = world.fresh(1)
    seen = evaluator(world, Request("r", classes=(3,)))(params)
    labels = world.dataset.test.labels
    assert len(seen.samples["test/loss"]) == int((labels != 3).sum())
    clients = world.scoped([Request("r", classes=(3,))])
    for client in clients.values():
        assert not (client.labels[client.view("val")] == 3).any()


def test_forgetting_every_class_is_refused(world: World) -> None:
    with pytest.raises(UnfedError, match="every training row of every client; ask for less"):
        evaluator(world, Request("r", classes=tuple(range(10))))


def test_before_a_request_nothing_is_forgotten_and_that_is_said(world: World) -> None:
    seen = evaluator(world)(world.fresh(1)).numbers
    assert seen["forget"] == seen["mia"] == "not measured: nothing was forgotten yet"


def test_without_a_poisoned_client_there_is_no_backdoor(small: Small) -> None:
    seen = evaluator(simulated(small(), 0))(simulated(small(), 0).fresh(1)).numbers
    assert seen["backdoor"] == "not measured: no client was poisoned"


def test_without_validation_rows_it_is_said(small: Small) -> None:
    world = simulated(small("partition.validation=0.0"), 0)
    assert evaluator(world)(world.fresh(1)).numbers["validation"] == "not measured: no validation rows are held out"


def test_the_attack_can_be_left_out(small: Small) -> None:
    world = simulated(small("evaluation.attack=false"), 0)
    seen = evaluator(world, Request("r", clients=("0",)))(world.fresh(1)).numbers
    assert seen["mia"] == "not measured: evaluation.attack is off"


def test_the_backdoor_counts_stamped_images_of_other_classes_read_as_the_target(world: World) -> None:
    params = world.fresh(1)
    test: Any = world.dataset.test
    rows = (test.labels != 0).nonzero().flatten()
    x, _ = test.fetch(rows, None)
    mean, std = test.transform.mean[0], test.transform.std[0]
    for r, c in ((6, 6), (5, 5), (6, 4), (4, 6)):
        x[:, :, r, c] = (1 - mean) / std
    hits = world.template.bind(params)(x).argmax(1) == 0
    assert evaluator(world)(params).numbers["backdoor"] == pytest.approx(100 * float(hits.double().mean()))


def test_the_backdoor_is_not_tried_on_a_forgotten_class(world: World) -> None:
    params, test = world.fresh(5), world.dataset.test  # a start that reads some of them as the target class
    rows, source = triggered(test, 0)
    asked = rows[test.labels[rows] != 3]
    expected, other = (score(world.template, params, source, some).accuracy for some in (asked, rows))
    assert 0 < len(asked) < len(rows) and expected != pytest.approx(other)
    found = evaluator(world, Request("r", classes=(3,)))(params).numbers["backdoor"]
    assert found == pytest.approx(expected)


def test_samples_are_kept_per_row(world: World) -> None:
    request = Request("r", clients=("0",))
    seen = evaluator(world, request)(world.fresh(1))
    rows = len(world.scoped([request])["0"].view("forget"))
    assert set(seen.samples) == {
        f"{p}/{c}" for p in ("forget", "test") for c in ("loss", "correct", "confidence", "entropy")
    }
    assert all(len(seen.samples[f"forget/{c}"]) == rows for c in ("loss", "correct", "confidence", "entropy"))


def test_scores_do_not_depend_on_the_batch_size(world: World) -> None:
    rows, params = torch.arange(50), world.fresh(1)
    a, b = (score(world.template, params, world.dataset.test, rows, batch) for batch in (7, 50))
    assert torch.equal(a.predicted, b.predicted) and torch.allclose(a.loss, b.loss, atol=1e-5)
    assert bool((a.entropy >= -1e-6).all()) and bool((a.confidence <= 1.0).all())
