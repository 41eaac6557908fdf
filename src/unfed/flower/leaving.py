"""Who leaves, and how they are found among the nodes (a grid without them: subset.py).

    [3939…]                        node ids, as `flwr supernode ls` shows them: where SuperNodes have keys
    registered("north")            the name a key was registered under
    node_with(client="north")      what a node's config says: client, client_name, or partition_id with num_partitions;
                                   the client app must answer who it is (`introduce(app)`, one line)
    denied(RUN or FILE)            whoever was forgotten before; need not be there (`deny=…` of Unlearn and SubsetGrid)
    of_class(3)                    no node: the rows of a class, which every client is told to leave out (classes.py)

Whoever is meant is looked for whenever somebody looks at the grid, so a leaver that comes back under another id stays
out. An exclusion that matches nobody is an error before the first message: a typing error would else train everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.serverapp import Grid

from unfed.errors import UnfedError, listed, members
from unfed.flower.connected import connected, tells_names
from unfed.flower.roll import JUST_CONNECTED, Roll
from unfed.flower.speech import SPEECH
from unfed.folder.deny import on_list
from unfed.remote.messages import NAMED_BY
from unfed.remote.nodes import Denied
from unfed.remote.replies import said

TOLD = "every client is told to leave its rows out"
Find = Callable[[Grid], Collection[int]]


@dataclass
class Leaver:
    """Whom an exclusion means, in words, and how they are found among the nodes that are connected."""

    words: str
    find: Find
    doubt: Callable[[int], str | None] = lambda node: None
    """Why a node cannot be told apart from who is meant; it is left out too, for it might be the one."""
    remedy: Callable[[], str] = lambda: "check it"
    names: Collection[str] = ()
    """What the leaver goes by, where it was said: a later run keeps it out by these."""
    needed: bool = True
    """Whether somebody must be found: of those who were forgotten before, nobody need be there."""
    willing: Callable[[], Collection[int]] = frozenset
    """Who of them gave leave, in its own node config, to be asked what a model is worth on its rows."""
    absent: str = "nobody is connected, and if it comes back it stays out"
    """What the log says where nobody is found and nobody need be."""
    classes: Collection[int] = ()
    """Classes whose rows every client leaves out; whoever is `needed` only for these is no node."""

    def __call__(self, grid: Grid) -> Collection[int]:
        return self.find(grid)

    @property
    def mark(self) -> str:
        """What makes two exclusions the same; where a deny list lies does not matter."""
        return self.words if self.needed else f"denied: {sorted([*self.names, *map(class_words, self.classes)])}"

    @property
    def is_node(self) -> bool:
        """Whether this is somebody, who must be found: not a class, and not whoever left before."""
        return self.needed and not self.classes


def class_words(number: int) -> str:
    return f"class {number}"


Exclude = Collection[int | Leaver] | Leaver | Find | int
"""Node ids and leavers, one or several, or a function that finds ids among those connected, whenever somebody looks."""


def registered(*given: str | int) -> Leaver:
    """The nodes that were registered under these names.

    They were if `flwr supernode register KEY FEDERATION --name NAME` was called for them.
    """
    names, listed = tuple(map(str, given)), dict[int, str]()

    def found(grid: Grid) -> Collection[int]:
        nodes = connected(grid, "exclude by node_with(partition_id=…) or by node id")
        if nodes and not any(node.name for node in nodes):
            raise UnfedError(
                "No connected node has a registered name, so the leaver cannot be told apart; register the nodes' keys"
                " with --name, or exclude by node_with(partition_id=…) or by node id."
            )
        listed.update((node.node_id, node.name) for node in nodes)
        return [node.node_id for node in nodes if node.name in names]

    def doubt(node: int) -> str | None:
        return None if node in listed else JUST_CONNECTED

    words = " or ".join(repr(name) for name in names)
    return Leaver(f"a node registered as {words}", found, doubt, lambda: _one_of(listed.values()), names)


def node_with(timeout: float = 300.0, num_partitions: int | None = None, **config: str | int) -> Leaver:
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
    odd = next((key for key in wanted if key not in NAMED_BY), None)
    if odd is not None or not wanted:
        raise UnfedError(f"node_with takes {', '.join(k.replace('-', '_') for k in NAMED_BY)}, not {odd or 'nothing'}.")
    if num_partitions is not None and "partition-id" not in wanted:
        raise UnfedError("num_partitions says of how many parts partition_id is one; name that too.")
    if num_partitions is not None and wanted["partition-id"] not in map(str, range(num_partitions)):
        raise UnfedError(
            f"There is no partition {said(wanted['partition-id'], 20)} of {num_partitions}: they are 0 to"
            f" {num_partitions - 1}; name another."
        )
    roll, names, kin = Roll(timeout), [*wanted.values()], set[tuple[str, str]]()

    def doubt(node: int) -> str | None:
        own = roll.parts.get(node, "")
        if "partition-id" not in wanted or own in ("", str(num_partitions)):
            return roll.doubt(node)
        if num_partitions is None:
            return f"it states num-partitions={said(own, 20)}, and num_partitions was not given to node_with"
        return (
            f"it has one of {said(own, 20)} parts, not of {num_partitions}: rows are dealt otherwise than in training,"
            " so take as many nodes as there were"
        )

    def found(grid: Grid) -> Collection[int]:
        roll.look(grid)
        stated = [roll.parts[node] for node in roll.known]
        if num_partitions is None and "partition-id" in wanted and stated and all(stated):
            raise UnfedError(
                f"Partition {said(wanted['partition-id'], 20)} of how many? The nodes state"
                f" num-partitions={said(stated[0], 20)}; pass the number that the training had:"
                " node_with(…, num_partitions=…)."
            )
        mine = {node for node, own in roll.known.items() if wanted.items() <= own.items()}
        if mine and not kin:  # what it goes by beside its name, and no other node did: it may come back by that alone
            own, others = (
                {p for n in some for p in roll.known[n].items()} for some in (mine, roll.known.keys() - mine)
            )
            kin.update(own - others)
            names.extend(value for _, value in sorted(kin) if value not in names)
        return [node for node, own in roll.known.items() if node in mine or kin & {*own.items()}]

    def willing() -> Collection[int]:
        return [node for node in roll.willing if wanted.items() <= roll.known[node].items()]

    words = " and ".join(f"{key}={value}" for key, value in wanted.items())
    return Leaver(
        f"a node with {words}" + (f" of {num_partitions}" if num_partitions is not None else ""),
        found,
        doubt,
        lambda: _one_of(" ".join(f"{key}={value}" for key, value in own.items()) for own in roll.known.values()),
        names,
        willing=willing,
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
    words = listed(map(class_words, numbers), "and")
    return Leaver(words, lambda grid: (), absent=TOLD, classes=numbers)


def _one_of(names: Iterable[str]) -> str:
    """What to do about a leaver whom nobody there is."""
    there = sorted({said(name, 60) for name in names if name})
    return f"name one of {members(there)}" if there else "let the nodes connect first"


def denied(path: str | Path, timeout: float = 300.0) -> Leaver:
    """Whoever was forgotten before.

    The clients on the deny list of a run or evidence folder, or in a file with one name per line. They are known by a
    registered name or by what their node config says; a node that has neither might be one of them, and is left out.
    Classes on the list are left out by every client, as those of `of_class` are.
    """
    there = on_list(path)
    if there.rows:
        raise UnfedError(
            f"The deny list of {path} has {len(there.rows)} single rows, and rows that lie at nodes cannot be"
            " recognised here; write the clients that must stay out into a file, one per line, and name that."
        )
    left, roll = Denied(there.clients, SPEECH), Roll(timeout)
    named: set[int] = set()

    def found(grid: Grid) -> Collection[int]:
        if not left.names:
            return ()
        for info in grid.get_nodes() if tells_names(grid) else ():
            if info.name:
                named.add(info.node_id)
                left.refuses(info.node_id, [info.name])
        roll.look(grid, left.nodes)
        for node, own in roll.known.items():
            left.refuses(node, own.values())
        return left.nodes.keys()

    def doubt(node: int) -> str | None:
        return None if not left.names or node in named else roll.doubt(node)

    whoever = ", ".join([*sorted(left.names), *map(class_words, there.classes)])
    words = f"whoever is on the deny list {path} ({whoever or 'which is empty'})"
    absent = TOLD if there.classes and not left.names else Leaver.absent
    return Leaver(words, found, doubt, names=left.names, needed=False, absent=absent, classes=there.classes)


def leavers_of(exclude: Exclude) -> Sequence[Leaver]:
    """Each part of an exclusion by itself: each of them must match somebody."""
    if callable(exclude) and not isinstance(exclude, Leaver):
        return (Leaver("whoever the given function finds", exclude),)
    several = [exclude] if isinstance(exclude, Leaver | int | str) else exclude or ()
    found = tuple(one if isinstance(one, Leaver) else _node(one) for one in several)
    if not found:
        raise UnfedError(
            "exclude names nobody, so nobody would be left out; name who leaves, by node_with(…) or an id, a class by"
            " of_class(…), or who left before, by deny=…."
        )
    return found


def _node(number: int) -> Leaver:
    if not isinstance(number, int):
        name = repr(str(number))
        raise UnfedError(
            f"exclude takes node ids as numbers, not {number!r}; a name is registered({name}) or"
            f" node_with(client={name}), a partition is node_with(partition_id=…)."
        )
    remedy: Callable[[], str] = lambda: (  # noqa: E731
        "ids are drawn anew in every run of Flower's simulator and for every SuperNode without a key, so name it by"
        " node_with(partition_id=…)"
    )
    absent = "nobody is connected under this id; without a key it would come back under another one, and be asked"
    found: Find = lambda grid: [n for n in grid.get_node_ids() if n == number]  # noqa: E731
    return Leaver(f"node {number}", found, remedy=remedy, absent=absent)
