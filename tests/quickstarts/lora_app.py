"""LoRA: adapters under the strategy's key, a second record beside them that is a client's own affair."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from quickstarts.shared import note, server_app
from unfed.flower import introduce, negate_arrays


class Adapters(FedAvg):
    """Averages the adapters; the head's record stays what it is."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        kept = []
        for reply in replies:
            alone = RecordDict({"adapters": reply.content["adapters"], "metrics": reply.content["metrics"]})
            kept.append(Message(alone, reply_to=reply))
        return super().aggregate_train(server_round, kept)


def strategy() -> FedAvg:
    return Adapters(arrayrecord_key="adapters")


def start() -> ArrayRecord:
    first: Any = {"layer.lora_A": torch.randn(4, 2), "layer.lora_B": torch.zeros(2, 4)}
    return ArrayRecord(first)


def client_app() -> ClientApp:
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        note(context, "train")
        adapters = message.content.array_records["adapters"].to_torch_state_dict()
        torch.manual_seed(int(context.node_config["partition-id"]))
        moved: Any = {name: t + 0.01 * torch.randn_like(t) for name, t in adapters.items()}
        head: Any = {"head.weight": torch.full((2, 2), float("nan"))}  # nobody aggregates it, so nobody looks at it
        metrics = MetricRecord({"num-examples": 10})
        content = RecordDict({"adapters": ArrayRecord(moved), "head": ArrayRecord(head), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        note(context, "evaluate")
        norm = float(message.content.array_records["adapters"].to_torch_state_dict()["layer.lora_A"].norm())
        return Message(RecordDict({"metrics": MetricRecord({"norm": norm, "num-examples": 10})}), reply_to=message)

    return app


client = client_app()
server = server_app(start, strategy, negate_arrays("layer.lora_A"))
