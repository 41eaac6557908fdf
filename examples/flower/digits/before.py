"""Before: FedAvg from scratch; the trained model is kept in a file."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and keep the model."""
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg()
    result = strategy.start(grid, arrays, num_rounds=int(context.run_config["rounds"]))
    torch.save(result.arrays.to_torch_state_dict(), str(context.run_config["model"]))
