"""Who is who among the nodes of an app, and who of them leaves (a grid without them: subset.py).

    [3939…]                        node ids, as `flwr supernode ls` shows them: where SuperNodes have keys
    registered("north")            the name a key was registered under
    node_with(client="north")      what a node's config says: client, client_name, or partition_id with num_partitions;
                                   the client app must answer who it is (`introduce(app)`, one line)
    denied(RUN or FILE)            those who were forgotten before; need not be there (`deny=…` of SubsetGrid)
    of_class(3)                    no node: the rows of a class, which every client is asked to leave out (classes.py)

Leavers are looked for whenever the grid is asked, so a leaver that comes back under another id stays
out. An exclusion that matches no node is an error before the first message: with a typing error, all would train.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from unfed.errors import UnfedError, members
from unfed.flower.introduction import ALLOW, KEYS, PARTS
from unfed.flower.transport import SPEECH, Introductions
from unfed.folder.deny import on_list
from unfed.remote.directory import Directory
from unfed.remote.messages import Failure, Reply, said
from unfed.remote.rows import class_words
from unfed.remote.transport import Messenger

TOLD = "every client is asked to leave its rows out"
JUST_CONNECTED = "it has only just connected"
TIMEOUT = 300.0
"""Seconds that the question "who are you?" may take; every node starts a process for it."""
TRIES = 3
"""How often a node is asked that lets the question time out."""


class AppDirectory(Directory):
    """The nodes of an app that is not unfed's own: they say who they are, and nothing of their rows.

    A node is known by its id, its key, the name of that key, and what its config says. One that went away and is back
    is asked again, for its config may be another.
    """

    def __init__(self, grid: Grid, timeout: float = TIMEOUT, asks: bool = True) -> None:
        """`asks`: whether nodes are asked who they are; ids and registered names are known without."""
        super().__init__(Messenger(Introductions(grid), timeout), speech=SPEECH)
        self.grid, self._asks = grid, asks
        self.said: dict[int, dict[str, str]] = {}
        """What each node said of itself, under every id seen so far: KEYS alone."""
        self.stated: dict[int, Mapping[str, Any]] = {}
        """All that it said: of how many partitions it plays one, and what it allows."""
        self._tries: dict[int, int] = {}

    def see(self) -> None:
        """See who is connected now, and ask newcomers who they are."""
        self.look("")

    def doubt(self, node: int) -> str | None:
        """Why a node cannot be distinguished from a leaver; None where it can."""
        if node in self.failures or node in self._heard or node in self.expelled:
            return self.failures.get(node)
        return f"it did not answer within {self.messenger.timeout:g} s" if node in self._tries else JUST_CONNECTED

    def client(self, node: int) -> str:
        """What a node is called: as its config says, else as its key is registered, else by its id."""
        own = self.said.get(node, {})
        return next((own[key] for key in KEYS if key in own), self.registered.get(node) or by_id(node))

    def known_as(self, nodes: Iterable[int]) -> dict[str, set[str]]:
        """Every name that the clients of these nodes go by; an id only where there is no other."""
        found: dict[str, set[str]] = {}
        for node in nodes:
            names = self._own.get(node, set()) - {by_id(node)}
            found.setdefault(self.client(node), set()).update(names or {by_id(node)})
        return found

    @property
    def registered(self) -> Mapping[int, str]:
        """The names that keys are registered under, of every node seen so far."""
        transport = self.messenger.transport
        assert isinstance(transport, Introductions)
        return transport.registered

    @property
    def willing(self) -> Collection[int]:
        """Who gave leave, in its own node config, to be asked what a model is worth on its rows."""
        allowed = {node: str(words.get(ALLOW, "")).split(",") for node, words in self.stated.items()}
        return [node for node, words in allowed.items() if "forget" in map(str.strip, words)]

    def silent(self, nodes: Iterable[int]) -> None:
        late = [*nodes]
        self._tries |= {node: self._tries.get(node, 0) + 1 for node in late}
        super().silent(late)

    def _strange(self, node: int) -> bool:
        return self._asks and node not in self._heard and self._tries.get(node, 0) < TRIES

    def _forget_who_went(self, here: dict[int, str]) -> None:
        for node in [node for node, since in self._since.items() if here.get(node) != since]:
            self._tries.pop(node, None)
        super()._forget_who_went(here)

    def _goes_by(self, node: int, name: str | None, *names: str) -> bool:
        return super()._goes_by(node, name, by_id(node), *names)

    def _meet(self, node: int, found: Reply | Failure) -> None:
        if isinstance(found, Failure):
            self.failures[node] = found.reason
            return
        self.stated[node] = words = found.said
        self.said[node] = {key: str(words[key]) for key in KEYS if key in words}
        self._goes_by(node, self.client(node), *self.heard(node, words))


def by_id(node: int) -> str:
    """What a node is called that goes by no name."""
    return f"node-{node}"


@dataclass
class Leaver:
    """Whom an exclusion means, in words, and how they are found among the nodes that are connected."""

    words: str
    find: Callable[[AppDirectory], Collection[int]]
    doubt: Callable[[AppDirectory, int], str | None] = lambda nodes, node: None
    """Why a node cannot be distinguished from who is meant; it is left out too, for it might be the one."""
    remedy: Callable[[AppDirectory], str] = lambda nodes: "check it"
    names: Collection[str] = ()
    """What the leaver goes by, where it was said: a later run keeps it out by these."""
    needed: bool = True
    """Whether a node must be found; clients that were forgotten before need not be there."""
    asks: bool = False
    """Whether nodes are asked who they are to find it."""
    timeout: float = TIMEOUT
    absent: str = "it is not connected, and stays out if it comes back"
    """What the log says where no node is found and none need be."""
    classes: Collection[int] = ()
    """Classes whose rows every client leaves out; a leaver `needed` only for these is no node."""

    @property
    def is_node(self) -> bool:
        """Whether this is a client that must be found: not a class, and not earlier leavers."""
        return self.needed and not self.classes


Exclude = Collection[int | Leaver] | Leaver | int
"""Node ids and leavers, one or several."""


def registered(*given: str | int) -> Leaver:
    """The nodes that were registered under these names.

    They were if `flwr supernode register KEY FEDERATION --name NAME` was called for them.
    """
    names = tuple(map(str, given))

    def found(nodes: AppDirectory) -> Collection[int]:
        if nodes.registered and not any(nodes.registered.values()):
            raise UnfedError("No connected node has a registered name; exclude by node_with(…) or by node id.")
        return [node for node, name in nodes.registered.items() if name in names]

    words = " or ".join(repr(name) for name in names)
    return Leaver(
        f"a node registered as {words}",
        found,
        lambda nodes, node: None if node in nodes.registered else JUST_CONNECTED,
        lambda nodes: _one_of(nodes.registered.values()),
        names,
    )


def node_with(timeout: float = TIMEOUT, num_partitions: int | None = None, **config: str | int) -> Leaver:
    """Name a node by what its config says.

    `node_with(client="north")`, `node_with(partition_id=0, num_partitions=4)`.

    Args:
        timeout: Seconds that the question "who are you?" may take; every node starts a process for it.
        num_partitions: How many partitions the training had. With another number, rows are dealt otherwise: nodes that
            state another number are left out. Required with `partition_id` where nodes state a number.
        config: `client`, `client_name` or `partition_id`, as the node config has it.

    Returns:
        The leaver, for `exclude` of `Unlearn` and `SubsetGrid`.

    Raises:
        UnfedError: The keys are unknown, or there is no such partition.
    """
    wanted = {key.replace("_", "-"): str(value) for key, value in config.items()}
    odd = next((key for key in wanted if key not in KEYS), None)
    if odd is not None or not wanted:
        raise UnfedError(f"node_with takes {', '.join(k.replace('-', '_') for k in KEYS)}, not {odd or 'nothing'}.")
    if num_partitions is not None and "partition-id" not in wanted:
        raise UnfedError("num_partitions says of how many parts partition_id is one; name that too.")
    if num_partitions is not None and wanted["partition-id"] not in map(str, range(num_partitions)):
        raise UnfedError(
            f"There is no partition {said(wanted['partition-id'], 20)} of {num_partitions}: they are 0 to"
            f" {num_partitions - 1}; name another."
        )
    names, kin = [wanted[key] for key in KEYS if key in wanted], set[tuple[str, str]]()

    def doubt(nodes: AppDirectory, node: int) -> str | None:
        own = nodes.stated.get(node, {}).get(PARTS, "")
        if "partition-id" not in wanted or own in ("", str(num_partitions)):
            return nodes.doubt(node)
        if num_partitions is None:
            return f"it states num-partitions={said(own, 20)}, and num_partitions was not given to node_with"
        return (
            f"it has one of {said(own, 20)} parts, not of {num_partitions}: rows are dealt otherwise than in training,"
            " so take as many nodes as there were"
        )

    def found(nodes: AppDirectory) -> Collection[int]:
        stated = [words.get(PARTS, "") for words in nodes.stated.values()]
        if num_partitions is None and "partition-id" in wanted and stated and all(stated):
            raise UnfedError(
                f"Partition {said(wanted['partition-id'], 20)} of how many? The nodes state"
                f" num-partitions={said(stated[0], 20)}; pass the number that the training had:"
                " node_with(…, num_partitions=…)."
            )
        mine = {node for node, own in nodes.said.items() if wanted.items() <= own.items()}
        if mine and not kin:  # what it goes by beside its name, and no other node did: it may come back by that alone
            own, others = (
                {p for n in some for p in nodes.said[n].items()} for some in (mine, nodes.said.keys() - mine)
            )
            kin.update(own - others)
            names.extend(value for _, value in sorted(kin) if value not in names)
        return [node for node, own in nodes.said.items() if node in mine or kin & {*own.items()}]

    words = " and ".join(f"{key}={value}" for key, value in wanted.items())
    return Leaver(
        f"a node with {words}" + (f" of {num_partitions}" if num_partitions is not None else ""),
        found,
        doubt,
        lambda nodes: _one_of(" ".join(f"{key}={value}" for key, value in own.items()) for own in nodes.said.values()),
        names,
        asks=True,
        timeout=timeout,
    )


def of_class(*given: int | str) -> Leaver:
    """The rows of these classes, at every client: `of_class(3)`, `of_class(1, 2)`, `of_class("1,2")`.

    The last is how a run config has them, under a key of the app's own. Clients leave the rows out by `staying_rows`.
    """
    parts = [part.strip() for one in given for part in (one.split(",") if isinstance(one, str) else [str(one)])]
    odd = next((part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 10)), None)
    if odd is not None or not parts:
        raise UnfedError(
            "of_class takes class numbers as the labels have them, of_class(3), or with commas as in a run config,"
            f' forget-classes="1,2", not {said(odd, 40) if odd else "nothing"}.'
        )
    numbers = sorted({int(part) for part in parts})
    words = class_words(numbers)
    return Leaver(words, lambda nodes: (), absent=TOLD, classes=numbers)


def _one_of(names: Iterable[str]) -> str:
    """What to do about a leaver that no connected node is."""
    there = sorted({said(name, 60) for name in names if name})
    return f"name one of {members(there)}" if there else "let the nodes connect first"


def denied(path: str | Path, timeout: float = TIMEOUT) -> Leaver:
    """Those who were forgotten before.

    The clients on the deny list of a run folder or ledger, or in a file with one name per line. They are known by a
    registered name or by what their node config says; a node that has neither might be one of them, and is left out.
    Classes on the list are left out by every client, as those of `of_class` are.
    """
    there = on_list(path)
    if there.rows:
        raise UnfedError(
            f"The deny list of {path} has {len(there.rows)} single rows, which cannot be recognised at nodes; name a"
            " file of clients instead, one per line."
        )
    return gone_before(there.clients, there.classes, f"the deny list {path}", timeout)


def gone_before(clients: Collection[str], classes: Collection[int], where: str, timeout: float = TIMEOUT) -> Leaver:
    """The same of these clients and classes."""
    names = frozenset(clients)
    asks = any(not name.startswith(by_id(0)[:-1]) for name in names)

    def doubt(nodes: AppDirectory, node: int) -> str | None:
        return nodes.doubt(node) if asks and not nodes.registered.get(node) else None

    everything = ", ".join([*sorted(names), *(f"class {number}" for number in classes)]) or "which is empty"
    return Leaver(
        f"everyone on {where} ({everything})",
        lambda nodes: [node for node, name in nodes.expelled.items() if name in names],
        doubt,
        names=names,
        needed=False,
        asks=asks,
        timeout=timeout,
        absent=TOLD if classes and not names else Leaver.absent,
        classes=classes,
    )


def named(option: str, names: Collection[str], strict: bool = False) -> Sequence[Leaver]:
    """Nodes by plain names: the registered one, or client, client-name or partition-id of the config.

    `strict`: a node with a registered name goes by that alone, so that it cannot claim another's.
    """
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise UnfedError(f'{option} takes a list of node names, such as {option}=["north"], not {said(names, 60)}.')

    def goes_by(nodes: AppDirectory, node: int, strict: bool = strict) -> set[str]:
        key, own = nodes.registered.get(node), nodes.said.get(node, {}).values()
        return {key} if key and strict else {*own, *([key] if key else ())}

    def one(name: str) -> Leaver:
        return Leaver(
            f"the node {name!r}",
            lambda nodes: [node for node in nodes.connected if name in goes_by(nodes, node)],
            lambda nodes, node: None if nodes.registered.get(node) else nodes.doubt(node),
            lambda nodes: _one_of(own for node in nodes.connected for own in goes_by(nodes, node, True)),
            (name,),
            asks=True,
        )

    return tuple(map(one, names))


def leavers_of(exclude: Exclude) -> Sequence[Leaver]:
    """Each part of an exclusion by itself: each of them must match a node."""
    several = [exclude] if isinstance(exclude, Leaver | int | str) else exclude or ()
    found = tuple(one if isinstance(one, Leaver) else _node(one) for one in several)
    if not found:
        raise UnfedError("exclude is empty; name who leaves: node_with(…), an id, of_class(…), or denied(…).")
    return found


def _node(number: int) -> Leaver:
    if not isinstance(number, int):
        name = repr(str(number))
        raise UnfedError(
            f"exclude takes node ids as numbers, not {number!r}; a name is registered({name}) or"
            f" node_with(client={name}), a partition is node_with(partition_id=…)."
        )
    remedy = (
        "ids are drawn again in every run of Flower's simulator and for every SuperNode without a key, so name it by"
        " node_with(partition_id=…)"
    )
    absent = "no node is connected under this id; without a key it would come back under another one, and be asked"
    return Leaver(
        f"node {number}",
        lambda nodes: [node for node in nodes.connected if node == number],
        remedy=lambda nodes: remedy,
        names=(by_id(number),),
        absent=absent,
    )
