"""A grid without processes: messages go straight into the client app, and everything that crossed is noted."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from typer.testing import CliRunner

from hostile import Attacker
from unfed.cli.main import app as cli
from unfed.config.config import Config
from unfed.flower import introduce, transport, wire
from unfed.flower.client import app as client_app
from unfed.flower.transport import SPEECH, GridTransport, log
from unfed.folder.folder import RunFolder
from unfed.folder.job_notes import last_starts
from unfed.folder.layout import ClientList
from unfed.remote.client import answered, describe
from unfed.remote.directory import Directory
from unfed.remote.messages import Answer
from unfed.remote.server import Holdings
from unfed.remote.server import remote_world as built
from unfed.remote.transport import Messenger
from unfed.requests.entry import Job
from unfed.runs.world import World

Reply = Callable[[Message, Message], Message | None]
"""What becomes of a reply on its way: (question, reply) -> reply, or None where it is lost."""

EVERYTHING = "forget,gradients,samples"


class Clock:
    """The transport's clock, which a grid without processes sets forward instead of waiting for nothing."""

    ahead = 0.0
    sleep = staticmethod(time.sleep)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


CLOCK = transport.time = Clock()  # type: ignore[assignment,attr-defined]


class InProcessGrid(Grid):
    """Nodes with configs; node ids are 1000, 1001, … unless said otherwise, and connect or leave at will."""

    def __init__(self, configs: Iterable[Mapping[str, Any]], app: ClientApp = client_app, first: int = 1000) -> None:
        _as_in_a_running_server_app()
        self.app = app
        self.nodes: dict[int, dict[str, Any]] = {first + i: dict(c) for i, c in enumerate(configs)}
        self.names: dict[int, str] = {}
        self.keys: dict[int, bytes] = {}
        self.lives: dict[int, float] = {}
        self.since: dict[int, str] = {}
        self.contexts: dict[int, Context] = {}
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.waiting: list[Message] = []
        self.tamper: dict[int, Reply] = {}

    def set_run(self, run: Any) -> None:
        """Nothing to remember."""

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(
                node_id=node,
                name=self.names.get(node, ""),
                public_key=self.keys.get(node, b""),
                online_until=self.lives.get(node, 0.0),
                last_activated_at=self.since.get(node, ""),
            )
            for node in self.nodes
        ]

    def restart(self, node: int, **config: Any) -> None:
        """A node with a key ends and is back under its id before anybody looks, with another config."""
        self.nodes[node], self.since[node] = config, "a moment ago"
        self.contexts.pop(node, None)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list(messages)
        for place, message in enumerate(pushed):
            message.metadata.__dict__["_message_id"] = f"{len(self.sent)}-{place}"
        self.waiting += self.send_and_receive(pushed)
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        found = [reply for reply in self.waiting if reply.metadata.reply_to_message_id in asked]
        self.waiting = [reply for reply in self.waiting if reply.metadata.reply_to_message_id not in asked]
        CLOCK.ahead += 0 if found else 1e6  # every reply is there at once: what is not will never be
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        found = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append(message)
            reply = self._call(node, message) if node in self.nodes else None
            if node in self.tamper and reply is not None:
                reply = self.tamper[node](message, reply)
            if reply is not None:
                self.replies.append(reply)
                found.append(reply)
        # Answers come in any order: the last who was asked is the first who is done.
        return found[::-1]

    def _call(self, node: int, message: Message) -> Message:
        context = self.contexts.setdefault(node, Context(1, node, self.nodes[node], RecordDict(), {}))
        try:
            reply = self.app(message, context)
        except Exception as error:  # as Flower does: whatever a client app raises comes back as an error
            reply = Message(Error(2, str(error)), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    def asked(self, node: int, *kinds: str) -> list[Message]:
        """The messages a node got, of these kinds of Flower's."""
        mine = [m for m in self.sent if m.metadata.dst_node_id == node]
        return [m for m in mine if not kinds or m.metadata.message_type in kinds]


def _as_in_a_running_server_app() -> None:
    """Say which run and node this process is; an older Flower does not ask."""
    try:
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    except ModuleNotFoundError:
        return
    identity.run_id, identity.node_id, identity.task_id = 1, 1, 1


class Separate(InProcessGrid):
    """Nodes get copies, as they do over a wire: SecAgg+ empties the messages it reads."""

    def _call(self, node: int, message: Message) -> Message:
        copy = Message(deepcopy(message.content), node, message.metadata.message_type)
        copy.metadata.__dict__.update(deepcopy(message.metadata.__dict__))
        return super()._call(node, copy)


def echoing() -> ClientApp:
    """A foreign app whose clients send the arrays back as they came; they say who they are."""
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 2, "acc": 0.5})}), reply_to=message)

    return app


def hostile_app(partition: int, *attacks: str) -> ClientApp:
    """unfed's own client app with one hostile partition, which makes the n-th attack in the n-th round."""
    app = ClientApp()

    def replied(message: Message, context: Context) -> Message:
        def answer() -> Answer:
            return answered(lambda: wire.ask_of(message), dict(context.node_config), log)

        if context.node_config["partition-id"] == partition:
            for round, attack in enumerate(attacks, start=1):
                answer = partial(Attacker(attack, round, round).answer, wire.ask_of(message), answer)
        found = answer()
        return Message(wire.to_records(found.words, found.numbers, found.tensors), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(replied)
    return app


def foreign_grid(count: int = 4, app: ClientApp | None = None, **leavers_own: str) -> InProcessGrid:
    """Partitions 0, 1, … of a foreign app; node 1000 is the one that leaves."""
    return InProcessGrid([{"partition-id": k, **({} if k else leavers_own)} for k in range(count)], app or echoing())


def grid_of(config: Config, allow: str = EVERYTHING) -> InProcessGrid:
    """One node per client of a config; each plays its own part of the data set."""
    more = {"allow": allow} if allow else {}
    return InProcessGrid({"partition-id": k, "device": "cpu", **more} for k in range(config.partition.clients))


def directory_of(grid: Grid, timeout: float) -> Directory:
    """Who is who among the nodes of a grid."""
    return Directory(Messenger(GridTransport(grid), timeout), SPEECH)


def flower_world(config: Config, grid: Grid, timeout: float = 5.0, local: World | None = None, **more: Any) -> World:
    """A world over a grid; with a local one, the server holds its test data and the same public images."""
    directory = directory_of(grid, timeout)
    directory.look(describe(config, config.seed_list[0]))
    held = Holdings(None if local is None else local.dataset, more.pop("public", None))
    return built(config, config.seed_list[0], directory, held, ClientList(order=more.pop("order", ()), held={}))


def refuse(reason: str) -> Reply:
    """A node that always says no."""

    def changed(question: Message, reply: Message) -> Message:
        words = dict(reply.content.config_records["answer"])
        return Message(RecordDict({"answer": ConfigRecord({**words, "refused.all": reason})}), reply_to=question)

    return changed


def lost(question: Message, reply: Message) -> None:
    """A reply that never arrives."""


class ReadLedger:
    """What an app's ledger says of one of its requests; by default the last."""

    def __init__(self, folder: Path, request: str | None = None) -> None:
        self.folder = RunFolder(folder)
        self.entries = {entry.request.id: entry for entry in self.folder.book().entries}
        self.entry = self.entries[request or [*self.entries][-1]]
        own = [line for line in last_starts(self.folder.lines()) if line["request"] == self.entry.request.id]
        self.rounds = [line for line in own if line["method"] != "before"]
        self.before = next(line["app"] for line in own if line["method"] == "before")
        self.told = [line["app"] for line in self.rounds]
        state = self.folder.saved(Job(0, self.entry.request.id, self.entry.method))
        self.numbers = state.to_json() if state else {}

    @property
    def finished(self) -> Any:
        return self.numbers.get("finished")

    @property
    def asked(self) -> list[list[str]]:
        return [names for line in self.rounds for names in line["asked"].values()]

    def page(self) -> str:
        """Its report, as the command writes it."""
        done = CliRunner().invoke(cli, ["report", str(self.folder.path)])
        assert done.exit_code == 0, done.output
        return (self.folder.path / "report.html").read_text()
