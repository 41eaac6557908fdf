"""Apps that were not written for unfed, in the shape of Flower's quickstarts: one run trains, another one forgets.

The two runs share nothing but the arrays; node ids are drawn anew in between, as Flower's simulator does. The leaver is
asked to train zero times and to measure zero times; who it is it is asked once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg, Strategy
from sklearn.datasets import load_digits

from flower_grid import InProcessGrid, Separate
from quickstarts import lora_app, sklearn_app
from quickstarts.shared import NODES, part
from unfed.errors import UnfedError
from unfed.flower import SubsetGrid, Unlearn, introduce_mod, negate, negate_arrays, node_with


def run(app: ClientApp, first: int) -> InProcessGrid:
    """The federation as another run sees it."""
    return InProcessGrid([{"partition-id": k, "num-partitions": NODES} for k in range(NODES)], app, first)


def asked(grid: InProcessGrid, node: int) -> Counter[str]:
    return Counter(message.metadata.message_type for message in grid.asked(node))


def forgotten(app: ClientApp, strategy: Callable[[], Strategy], arrays: ArrayRecord, perturb: Any) -> ArrayRecord:
    """What two separate runs end with: one with everybody, one without partition 0."""
    trained = strategy().start(run(app, 1000), arrays, num_rounds=2).arrays
    later = run(app, 52000)
    unlearn = Unlearn(strategy, perturb, node_with(partition_id=0, num_partitions=4), wait=0, ledger=None)
    result = unlearn.start(later, trained, num_rounds=2)
    assert asked(later, 52000) == {"query.unfed": 1}
    assert asked(later, 52001) == {"query.unfed": 1, "train": 2, "evaluate": 2}
    assert unlearn.refusals == []
    return result.arrays


# --- NumPy and scikit-learn: arrays without names, '0' and '1' --------------------------------------------------------


def test_a_scikit_learn_app_forgets_by_the_names_of_its_arrays() -> None:
    found = forgotten(sklearn_app.client, FedAvg, sklearn_app.start(), negate_arrays("0"))
    assert list(found) == ["0", "1"] and found["0"].dtype == "float64"
    x, y = load_digits(return_X_y=True)
    coef, intercept = found.to_numpy_ndarrays()
    assert float(((x / 16 @ coef.T + intercept).argmax(1) == y).mean()) > 0.8


def test_numbered_arrays_are_taken_for_the_modules_own_if_they_fit() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    numbered = {str(k): t.clone() for k, t in enumerate(module.state_dict().values())}
    changed = negate(module)(numbered)
    assert bool((changed["0"] == -numbered["0"]).all()) and bool((changed["1"] == numbered["1"]).all())
    with pytest.raises(UnfedError, match=r"not of this model; .* name the arrays to negate: negate_arrays\('0'\)"):
        negate(module)(dict(list(numbered.items())[:3]))
    with pytest.raises(UnfedError, match="There is no array '7' to negate; there are '0', '1', '2', '3'"):
        negate_arrays("7")(numbered)
    with pytest.raises(UnfedError, match="negate_arrays takes the names of the arrays to negate"):
        negate_arrays()


# --- LoRA: adapters under the strategy's key, a second record beside them ---------------------------------------------


def test_a_second_record_that_the_strategy_does_not_aggregate_is_not_judged() -> None:
    found = forgotten(lora_app.client, lora_app.strategy, lora_app.start(), negate_arrays("layer.lora_A"))
    assert list(found) == ["layer.lora_A", "layer.lora_B"]


# --- the older API: a client function, SecAgg+ ------------------------------------------------------------------------


class Softmax(NumPyClient):
    """One step of softmax regression."""

    def __init__(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        self.x, self.y = x, y

    def fit(self, parameters: Any, config: Any) -> Any:
        (weights,) = parameters
        scores = np.exp(self.x @ weights)
        wrong = scores / scores.sum(1, keepdims=True) - np.eye(10)[self.y]
        return [weights - self.x.T @ wrong / len(self.x)], len(self.x), {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.0, len(self.x), {}


def client_fn(context: Context) -> Any:
    return Softmax(*part(context)).to_client()


def secagg(grid: Any, weights: np.ndarray[Any, Any], rounds: int) -> list[np.ndarray[Any, Any]]:
    """Rounds of FedAvg whose server sees sums only."""
    ends: list[Any] = []

    def seen(server_round: int, parameters: Any, config: Any) -> None:
        ends.append(parameters)

    strategy = LegacyFedAvg(
        min_available_clients=3,
        min_fit_clients=3,
        min_evaluate_clients=3,
        initial_parameters=ndarrays_to_parameters([weights]),
        evaluate_fn=seen,
    )
    context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=rounds), strategy)
    workflow = DefaultWorkflow(
        fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, clipping_range=8.0, max_weight=500)
    )
    workflow(grid, context)
    found: list[np.ndarray[Any, Any]] = parameters_to_ndarrays(ends[-1]) if not isinstance(ends[-1], list) else ends[-1]
    return found


def test_secure_aggregation_goes_on_over_a_grid_without_the_leaver() -> None:
    configs = [{"partition-id": k} for k in range(NODES)]
    grid = Separate(configs, ClientApp(client_fn, mods=[introduce_mod, secaggplus_mod]), 9000)
    (weights,) = secagg(SubsetGrid(grid, node_with(partition_id=0), least=3, wait=0), np.zeros((64, 10)), 2)
    assert asked(grid, 9000) == {"query.unfed": 1}
    assert asked(grid, 9001)["train"] > 0
    plain: Any = np.zeros((64, 10))
    staying = [Softmax(*part(Context(1, k, {"partition-id": k}, RecordDict(), {}))) for k in (1, 2, 3)]
    for _ in range(2):
        updates = [client.fit([plain], {}) for client in staying]
        plain = sum(n * w[0] for w, n, _ in updates) / sum(n for _, n, _ in updates)
    assert float(np.abs(weights - plain).max()) < 1e-2  # up to the rounding of its whole numbers
