"""After: the same app, which takes one client out of the trained model; what is new is marked."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import Net
from unfed.flower import Unlearn, negate, node_with  # new

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Read the trained model, forget, and keep the new one."""
    arrays = ArrayRecord(torch.load(str(context.run_config["model"]), weights_only=True))  # new
    leaver = node_with(partition_id=int(context.run_config["forget-partition"]), num_partitions=4)  # new
    strategy = Unlearn(FedAvg, negate(Net()), exclude=leaver, ledger=str(context.run_config["ledger"]))  # new
    result = strategy.start(grid, arrays, num_rounds=int(context.run_config["rounds"]))
    torch.save(result.arrays.to_torch_state_dict(), str(context.run_config["model"]) + ".unlearned")  # new
