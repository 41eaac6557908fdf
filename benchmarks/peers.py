"""The same rounds in other simulators. A peer that is not installed raises ImportError and is skipped and named.

pfl runs in this process, one client after another, its data on the device, shuffled and augmented as a whole when a
client is asked. Flower's ray simulation starts actors of its own, so it cannot take turns: it is timed end to end for
all rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from unfed.model.params import Params
from workload import Workload


def pfl(work: Workload, autocast: torch.dtype | None = None) -> Callable[[], Params]:
    """Apple's pfl-research 0.6.0: FederatedAveraging on its SimulatedBackend."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    module: Any = work.fresh().to(work.device)

    def loss(x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
        with torch.autocast(work.device.type, autocast, enabled=autocast is not None):
            return F.cross_entropy(module.train()(x), y)

    module.loss = loss
    module.metrics = lambda x, y, **_: {"loss": Weighted(0.0, len(y))}
    data = {name: work.batches(client) for name, client in work.clients.items()}

    def dataset(name: str) -> Any:
        # pfl goes through a user's data in its stored order: shuffled here, as every other contestant does.
        batches = data[name]
        return PyTorchTensorDataset(batches(torch.randperm(len(batches), device=work.device)), user_id=name)

    users = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(data)))
    model = PyTorchModel(
        model=module,
        local_optimizer_create=lambda p, **o: torch.optim.SGD(p, lr=work.lr, momentum=0.9, weight_decay=5e-4),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    backend = SimulatedBackend(training_data=users, val_data=None)
    train = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch, local_max_grad_norm=None
    )
    algorithm, iteration = FederatedAveraging(), 1
    algorithm._current_central_iteration = 1  # iteration 0 would be evaluated, which no other contestant does

    def one() -> Params:
        nonlocal iteration
        iteration += 1
        upto = NNAlgorithmParams(
            central_num_iterations=iteration,
            evaluation_frequency=10**9,
            train_cohort_size=len(data),
            val_cohort_size=0,
        )
        algorithm.run(upto, backend, model, train, None, [], send_metrics_to_platform=False)
        return {n: t.detach().clone() for n, t in module.state_dict().items()}

    return one


def flower(work: Workload, rounds: int) -> tuple[float, Params]:
    """Flower's ray simulation: seconds for all rounds, end to end, and the last model."""
    import ray  # noqa: F401  (flwr only says so when it is too late)
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, found = ClientApp(), ServerApp(), {}
    shards = {}
    for name, client in work.clients.items():
        batches = work.batches(client)
        x, y = batches(torch.arange(len(batches), device=work.device))
        shards[int(name)] = (x.cpu(), y.cpu())
    model, batch, lr = work.fresh(), work.batch, work.lr

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        x, y = shards[int(context.node_config["partition-id"])]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        order = torch.randperm(len(y))
        for begin in range(0, len(y), batch):
            rows = order[begin : begin + batch]
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(answer), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=len(shards))
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(work.fresh().state_dict()), num_rounds=rounds)
        found.update(result.arrays.to_torch_state_dict())

    started = time.perf_counter()
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, len(shards), backend_config=resources)
    return time.perf_counter() - started, dict(found)


PEERS: dict[str, Callable[[Workload], Callable[[], Params]]] = {"pfl 0.6.0": pfl}
END_TO_END: dict[str, Callable[[Workload, int], tuple[float, Params]]] = {"Flower 1.41 on ray": flower}
