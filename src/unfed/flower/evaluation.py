"""What a model is worth to those who stay, to the server, and to leavers who gave leave.

Leave is given in the node's own config (`allow="forget"`), which the node states when it says who it is. With it, and
with a ledger, the leaver gets the app's own evaluation of the model before and of the one after. It is never asked
to train.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from unfed.flower.judging import setting
from unfed.flower.subset import SubsetGrid
from unfed.measures.trajectory import OfApp
from unfed.remote.ledger import plain


class Evaluations:
    """Asks for evaluations as the strategy does, of arrays that are not a round's."""

    def __init__(self, strategy: Strategy, subset: SubsetGrid, given: Mapping[str, Any], central: Any) -> None:
        """`given`: what `start` was called with · `central`: the server's own evaluation, if the app has one."""
        self._strategy, self._subset, self._central = strategy, subset, central
        self.config = given.get("evaluate_config") or ConfigRecord()
        self.timeout = given.get("timeout", 3600.0)
        self._asked: Message | None = None

    def seen(self, messages: Iterable[Message]) -> list[Message]:
        """The same messages, of which the first is remembered: a leaver is asked in the same words."""
        found = list(messages)
        self._asked = found[0] if found else self._asked
        return found

    def before(self, arrays: ArrayRecord) -> OfApp:
        """What the model before is worth to all who may be asked."""
        asked, metrics = self.to_the_staying(arrays)
        found: OfApp = {"evaluated": asked}
        if metrics is not None:
            found["evaluate"] = plain(metrics)
        if (central := self.to_the_server(arrays)) is not None:
            found["server"] = plain(central)
        if told := self.to_leavers(arrays, 0):
            found["leaver"] = told
        return found

    def to_the_staying(self, arrays: ArrayRecord) -> tuple[list[str], MetricRecord | None]:
        """Who was asked, and the strategy's sum of what they say."""
        messages = self.seen(self._strategy.configure_evaluate(0, arrays, self.config, self._subset))
        if not messages:
            return [], None
        asked = sorted({self._subset.nodes.client(message.metadata.dst_node_id) for message in messages})
        replies = self._subset.send_and_receive(messages, timeout=self.timeout)
        return asked, self._strategy.aggregate_evaluate(0, replies)

    def to_the_server(self, arrays: ArrayRecord) -> MetricRecord | None:
        found: MetricRecord | None = None if self._central is None else self._central(0, arrays)
        return found

    def to_leavers(self, arrays: ArrayRecord, server_round: int) -> dict[str, Any]:
        """Of each who gave leave its metrics, or why there are none; the others get no message."""
        nodes = self._subset.nodes
        named = [one for one in self._subset.leavers if one.is_node and one.asks]
        willing = sorted({*nodes.willing} & {*nodes.connected} & {node for one in named for node in one.find(nodes)})
        if not willing:
            return {}
        if self._asked is None:
            self.seen(self._strategy.configure_evaluate(server_round, arrays, self.config, self._subset))
        if self._asked is None:
            return {nodes.client(node): "the strategy asks no client to evaluate" for node in willing}
        kind, content = self._asked.metadata.message_type, self._question(self._asked.content, arrays, server_round)
        found = _answers(self._subset.whole, [Message(content, node, kind) for node in willing], self.timeout)
        return {nodes.client(node): answer for node, answer in found.items()}

    def _question(self, asked: RecordDict, arrays: ArrayRecord, server_round: int) -> RecordDict:
        """What the strategy asks those who stay, about other arrays."""
        found, key = RecordDict(dict(asked.items())), setting(self._strategy, "arrayrecord_key")
        for name in [key] if key in asked.array_records else [*asked.array_records]:
            found[str(name)] = arrays
        for name, config in asked.config_records.items():
            known = "server-round" in config
            found[name] = ConfigRecord({**config, "server-round": server_round} if known else {**config})
        return found


def _answers(grid: Grid, messages: Sequence[Message], timeout: float) -> dict[int, dict[str, Any] | str]:
    told: dict[int, dict[str, Any] | str] = {m.metadata.dst_node_id: "it did not answer" for m in messages}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        node = reply.metadata.src_node_id
        if node in told and reply.has_error():
            told[node] = "its evaluation failed"
        elif node in told:
            told[node] = {n: v for one in reply.content.metric_records.values() for n, v in plain(one).items()}
    return told
