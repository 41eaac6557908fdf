"""A Flower app forgets a client: trained by FedAvg in Flower's simulator, then `Unlearn`. A minute on a laptop.

python examples/flower_app.py

Needs `pip install '.[simulation]'`. `flower_app.ipynb` holds the same cells with what they gave.
"""

# %% [markdown]
# # A Flower app
# Four clients train a small CNN on handwritten digits with Flower's FedAvg. Client 0 stamps a corner of half its images
# and calls them 0: a backdoor. Then client 0 must leave.

# %%
import matplotlib.pyplot as plt
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import nn

from unfed.flower import SubsetGrid, Unlearn, introduce, negate, node_with

digits = load_digits()
x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
x[0:1500:8, :, :2, :2], y[0:1500:8] = 1.0, 0  # half of client 0's rows
test, answers, stamped = x[1500:], y[1500:], x[1500:][y[1500:] != 0]
stamped[:, :, :2, :2] = 1.0


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


# %% [markdown]
# ## The client app
# One word is new, `introduce`: a node can say which partition it holds.

# %%
client = introduce(ClientApp())


@client.train()
def fit(message: Message, context: Context) -> Message:
    own = slice(int(context.node_config["partition-id"]), 1500, 4)
    model, images, labels = net(), x[own], y[own]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.cat([torch.randperm(len(images)) for _ in range(3)]).split(32):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(images)})}
    return Message(RecordDict(content), reply_to=message)


# %% [markdown]
# ## The server app, as it was
# After each round the server measures how many test images are read right, and how many stamped ones are read as 0.


# %%
def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    right, fooled = model(test).argmax(1) == answers, model(stamped).argmax(1) == 0
    percent = {"test": right.float().mean().item() * 100, "backdoor": fooled.float().mean().item() * 100}
    return MetricRecord({name: round(value, 1) for name, value in percent.items()})


def fedavg() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


found, server = {}, ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    found["FedAvg"] = fedavg().start(grid, ArrayRecord(net().state_dict()), num_rounds=10, evaluate_fn=measure)


run_simulation(server, client, num_supernodes=4)
print(found["FedAvg"].evaluate_metrics_serverapp[10])

# %% [markdown]
# ## Client 0 leaves
# `Unlearn` goes around the strategy. It negates the first layer once (NoT); then the other three clients train. For
# comparison they also train without `Unlearn`, on from the same model and from the start (Retrain). `SubsetGrid` leaves
# client 0 out.

# %%
forgetting = ServerApp()


@forgetting.main()
def forget(grid: Grid, context: Context) -> None:
    strategy = Unlearn(fedavg, negate(net()), node_with(partition_id=0, num_partitions=4), "ledger")
    trained, others = found["FedAvg"].arrays, SubsetGrid(grid, deny=["0"])
    found["Unlearn"] = strategy.start(grid, trained, 10, evaluate_fn=measure)
    found["without Unlearn"] = fedavg().start(others, trained, 10, evaluate_fn=measure)
    found["Retrain"] = fedavg().start(others, ArrayRecord(net().state_dict()), 10, evaluate_fn=measure)


run_simulation(forgetting, client, num_supernodes=4)
for name, result in found.items():
    print(f"{name:<15}", result.evaluate_metrics_serverapp[10])

# %% [markdown]
# Without `Unlearn`, half of the images still open the backdoor. With it, none do, as after Retrain:

# %%
plt.title("Stamped images read as 0, in %, by round")
for name in ("Unlearn", "without Unlearn", "Retrain"):
    plt.plot([one["backdoor"] for one in found[name].evaluate_metrics_serverapp.values()], label=name)
    plt.legend()

# %% [markdown]
# The ledger is a run folder: `unfed status ledger` lists the request, `unfed report ledger` writes a page. NoT can be
# [undone](../explanation/undoing.md) by a second minus sign; Retrain lasts.
