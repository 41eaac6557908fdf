"""A PyTorch app in the shape of Flower's quickstart, under every strategy and wrapper that people put around it.

One run trains with everybody; a later one, with other node ids, forgets partition 0. The leaver is asked to train zero
times and to measure zero times; both are counted, and so is that everybody else is asked in every round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
    Krum,
    Strategy,
)
from sklearn.datasets import load_digits

from flower_grid import InProcessGrid, ReadLedger, Separate
from quickstarts import torch_app
from quickstarts.shared import NODES
from quickstarts.torch_app import Net, rows, step
from unfed.errors import UnfedError
from unfed.flower import Unlearn, introduce_mod, negate, node_with

ROUNDS, LEAVER = 2, 61000
STAYING = NODES - 1


def later_run(app: ClientApp, kind: type[InProcessGrid] = InProcessGrid) -> InProcessGrid:
    """The federation as another run sees it, with other node ids."""
    return kind([{"partition-id": k, "num-partitions": NODES} for k in range(NODES)], app, LEAVER)


def asked(grid: InProcessGrid, node: int) -> Counter[str]:
    return Counter(message.metadata.message_type.split(".")[0] for message in grid.asked(node))


NOISE = 1e-6
STRATEGIES: dict[str, tuple[Callable[[int], Strategy], list[Any]]] = {
    "FedAvg": (lambda n: FedAvg(), []),
    "FedAdam": (lambda n: FedAdam(), []),
    "FedProx": (lambda n: FedProx(proximal_mu=0.1), []),
    "FedMedian": (lambda n: FedMedian(), []),
    "Krum": (lambda n: Krum(num_malicious_nodes=0), []),
    "DP, server side, fixed": (lambda n: DifferentialPrivacyServerSideFixedClipping(FedAvg(), NOISE, 10.0, n), []),
    "DP, server side, adaptive": (
        lambda n: DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), NOISE, n, clipped_count_stddev=0.1),
        [],
    ),
    "DP, client side, fixed": (
        lambda n: DifferentialPrivacyClientSideFixedClipping(FedAvg(), NOISE, 10.0, n),
        [fixedclipping_mod],
    ),
    "DP, client side, adaptive": (
        lambda n: DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), NOISE, n, clipped_count_stddev=0.1),
        [adaptiveclipping_mod],
    ),
}


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_the_leaver_is_asked_to_train_zero_times(name: str) -> None:
    strategy, mods = STRATEGIES[name]
    torch.manual_seed(0)
    app, start = torch_app.client_app(*mods), ArrayRecord(Net().state_dict())
    before = InProcessGrid([{"partition-id": k, "num-partitions": NODES} for k in range(NODES)], app)
    trained = strategy(NODES).start(before, start, num_rounds=1).arrays
    grid = later_run(app)
    unlearn = Unlearn(
        lambda: strategy(STAYING), negate(Net()), node_with(partition_id=0, num_partitions=4), wait=0, ledger=None
    )
    found = unlearn.start(grid, trained, num_rounds=ROUNDS).arrays.to_torch_state_dict()
    assert asked(grid, LEAVER) == {"query": 1}  # who it is; not to train, not to measure
    assert {t.dtype for t in found.values()} == {torch.float32}  # FedAdam had made float64 of them
    for node in range(LEAVER + 1, LEAVER + NODES):
        assert asked(grid, node) == {"query": 1, "train": ROUNDS, "evaluate": ROUNDS}
    assert unlearn.refusals == [] and all(bool(t.isfinite().all()) for t in found.values())
    sent = grid.asked(LEAVER + 1, "train")[0].content.array_records["arrays"].to_torch_state_dict()
    old = trained.to_torch_state_dict()
    assert bool((sent["first.weight"] == -old["first.weight"]).all())
    assert not bool((found["first.weight"] == sent["first.weight"]).all())  # those who stay did train it


# --- the older API: SecAgg+ -------------------------------------------------------------------------------------------


class Trainer(NumPyClient):
    """The same step, as a client of the older API."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def fit(self, parameters: Any, config: Any) -> Any:
        net = Net()
        net.load_state_dict(dict(zip(net.state_dict(), map(torch.tensor, parameters), strict=True)))
        step(net, self.x, self.y)
        return [t.numpy() for t in net.state_dict().values()], len(self.x), {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.0, len(self.x), {}


# --- the recipes of the page ------------------------------------------------------------------------------------------

PAGE = "\n".join(
    (Path(__file__).parents[2] / "docs" / "flower" / name).read_text(encoding="utf-8")
    for name in ("recipes.md", "choose-nodes.md")
)


def follow(recipe: str, grid: InProcessGrid, *instead: str, **more: Any) -> dict[str, Any]:
    """Do what a recipe of the page says, or this in the place of that, in a server app that has a trained model."""
    (text,) = re.findall(rf"<!-- recipe: {recipe} -->\n```python\n(.*?)```", PAGE, re.S)
    if instead:
        assert instead[0] in text
        text = text.replace(*instead)
    torch.manual_seed(0)
    own: dict[str, Any] = {
        "grid": grid,
        "context": Context(1, 1, {}, RecordDict(), {}),
        "trained": dict(Net().state_dict()),
    }
    own |= {"Net": Net, "ArrayRecord": ArrayRecord, "STAYING": STAYING, "ROUNDS": ROUNDS}
    known: dict[str, Any] = {**own, **more}
    exec(compile(text, "docs/flower", "exec"), known)
    return known


def test_the_pages_recipe_for_differential_privacy_asks_the_leaver_to_train_zero_times(tmp_path: Path) -> None:
    grid = later_run(torch_app.client_app())
    known = follow("differential privacy", grid, LEDGER=tmp_path / "ledger")
    assert asked(grid, LEAVER) == {"query": 1} and known["strategy"].refusals == []
    assert asked(grid, LEAVER + 1) == {"query": 1, "train": ROUNDS, "evaluate": 1 + ROUNDS}


def test_the_pages_recipe_for_secure_aggregation_asks_the_leaver_to_train_zero_times() -> None:
    app = ClientApp(lambda context: Trainer(*rows(context)).to_client(), mods=[introduce_mod, secaggplus_mod])
    grid = later_run(app, Separate)
    follow("secure aggregation", grid)
    assert asked(grid, LEAVER) == {"query": 1}
    stages = 4  # of every round: set up, share keys, collect masked vectors, unmask
    for node in range(LEAVER + 1, LEAVER + NODES):
        assert asked(grid, node) == {"query": 1, "train": stages * ROUNDS, "evaluate": ROUNDS}


def test_the_same_recipe_serves_any_strategy_of_the_older_api() -> None:
    assert "Without SecAgg+, use a plain `DefaultWorkflow()`" in PAGE
    secure = "DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=STAYING, reconstruction_threshold=2))"
    grid = later_run(ClientApp(lambda context: Trainer(*rows(context)).to_client(), mods=[introduce_mod]), Separate)
    follow("secure aggregation", grid, secure, "DefaultWorkflow()")
    assert asked(grid, LEAVER) == {"query": 1}
    assert asked(grid, LEAVER + 1) == {"query": 1, "train": ROUNDS, "evaluate": ROUNDS}


def test_the_pages_recipe_for_a_class_asks_everybody_and_a_second_request_keeps_it_out(tmp_path: Path) -> None:
    app = torch_app.client_app()
    context = Context(1, 1, {}, RecordDict(), {"forget-classes": "3"})
    names: dict[str, Any] = {"FedAvg": FedAvg, "context": context, "LEDGER": tmp_path / "first"}
    grid = later_run(app)
    left = follow("a class", grid, **names)["result"].arrays
    for node in range(LEAVER, LEAVER + NODES):
        assert asked(grid, node) == {"train": ROUNDS, "evaluate": 1 + ROUNDS}, "nobody leaves, so nobody is asked who"
    rows_of_3 = int((load_digits().target == 3).sum())
    told = ReadLedger(tmp_path / "first").told[-1]["left_out"]
    assert sum(one["rows"]["3"] for one in told.values()) == rows_of_3
    again, other = later_run(app), negate(Net(), layers=["second"])
    with pytest.raises(UnfedError, match="turns that back, and brings class 3 back"):
        Unlearn(FedAvg, negate(Net()), leaver := node_with(partition_id=0, num_partitions=4), tmp_path / "first").start(
            again, left
        )
    second = Unlearn(FedAvg, other, leaver, tmp_path / "first", wait=0)
    second.start(again, left, num_rounds=1)
    assert asked(again, LEAVER) == {"query": 1} and second.refusals == []


def test_the_pages_recipe_for_a_second_request_keeps_both_out_and_refuses_the_same_layer(tmp_path: Path) -> None:
    names = {"FedAvg": FedAvg, "negate": negate, "node_with": node_with, "Unlearn": Unlearn}
    names |= {"LEDGER": tmp_path / "one"}
    grid = later_run(torch_app.client_app())
    follow("a second request", grid, **names)
    trained = {node: asked(grid, node).get("train", 0) for node in range(LEAVER, LEAVER + NODES)}
    assert trained == {LEAVER: 0, LEAVER + 1: ROUNDS, LEAVER + 2: 2 * ROUNDS, LEAVER + 3: 2 * ROUNDS}
    again = later_run(torch_app.client_app())
    names |= {"LEDGER": tmp_path / "two"}
    with pytest.raises(UnfedError, match="turns that back, and brings 0 back"):
        follow("a second request", again, 'negate(Net(), layers=["second"])', "negate(Net())", **names)


def test_the_pages_recipe_for_choosing_nodes_asks_all_but_one() -> None:
    grid, names = later_run(torch_app.client_app()), ("north", "south", "east", "west")
    for config, name in zip(grid.nodes.values(), names, strict=True):
        config["client"] = name
    known = follow("choose nodes", grid, strategy=FedAvg(), arrays=ArrayRecord(Net().state_dict()))
    assert [len(grid.asked(node, "train")) for node in grid.nodes] == [ROUNDS, ROUNDS, 0, ROUNDS]
    assert list(known["some"].get_node_ids()) == [*grid.nodes][:2]


@pytest.mark.parametrize(("said", "gone"), [((), set()), ((3,), {3}), ((3, 5), {3, 5})])
def test_the_pages_lines_for_a_class_leave_its_rows_out_and_no_others(said: tuple[int, ...], gone: set[int]) -> None:
    x, y = rows(Context(1, 1, {"partition-id": 0}, RecordDict(), {}))
    grid = later_run(torch_app.client_app())
    config = ConfigRecord({"unfed-forget-classes": [*said]} if said else {})
    message = Message(RecordDict({"config": config}), LEAVER, "train")
    known = follow("a class, at a client", grid, message=message, x=x, y=y)
    stays = [place for place, label in enumerate(y.tolist()) if label not in gone]
    assert known["y"].tolist() == y[stays].tolist() and bool((known["x"] == x[stays]).all())
