"""Classes that leave: every client leaves their rows out of what it trains on.

    of_class(3) ─► told: messages name class 3 ─► staying_rows at the client ─► heeded: a silent client is refused

The server sees no rows. A reply to train says how many rows of each class were left out, of how many. A reply that says
nothing, or whose weight is still that of all rows, is refused and named; if all are, the run ends. A client that lies
about both is not found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict

from unfed.errors import Refused, listed
from unfed.flower.introduction import NOTE, is_training
from unfed.flower.leaving import Leaver
from unfed.remote.messages import Failure, Unreadable, attempt
from unfed.remote.rows import ALL_ROWS, ASKED, LEFT_OUT, class_words, unheeded

NOT_LEFT_OUT = 4100
"""The code of the error that stands in the place of a reply which is refused for its rows."""


@dataclass
class Classes:
    """The classes whose rows are left out, and what clients say of them."""

    now: tuple[int, ...] = ()
    """Those that this request takes out."""
    before: tuple[int, ...] = ()
    """Those that had left before."""
    weight: str | None = "num-examples"
    """Under which name a reply has its weight."""
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each node said last: how many rows of each class it left out, of how many."""
    heard: bool = False
    """Whether any client has said it."""
    seen: set[int] = field(default_factory=set)
    """The classes of which a client has left rows out."""

    @staticmethod
    def of(leavers: Iterable[Leaver]) -> Classes:
        now, before = set[int](), set[int]()
        for one in leavers:
            (now if one.needed else before).update(one.classes)
        return Classes(tuple(sorted(now)), tuple(sorted(before - now)))

    @property
    def all(self) -> list[int]:
        return sorted({*self.now, *self.before})

    @property
    def words(self) -> str:
        return class_words(self.all)

    def told(self, message: Message) -> Message:
        """The message, whose config names the classes.

        Each has a config of its own, for clients add to it. Where there is one the classes go in there: clipping mods
        take messages with one config alone.
        """
        if self.all:
            records = dict(message.content.items())
            name = next(iter(message.content.config_records), "config")
            records[name] = ConfigRecord({**message.content.config_records.get(name, {}), ASKED: self.all})
            message.content = RecordDict(records)
        return message

    def heeded(self, replies: Sequence[Message], all_of_them: bool) -> list[Message]:
        """The replies; those to train that say nothing of the classes are errors, with the reason.

        It raises where these are all that were asked for and no client has said anything yet.
        """
        trained = [reply for reply in replies if self.all and is_training(reply) and reply.has_content()]
        reasons = {reply.metadata.src_node_id: why for reply in trained if (why := self._unheeded(reply)) is not None}
        if all_of_them and reasons and not self.heard:
            node, why = next(iter(sorted(reasons.items())))
            raise Refused(
                f"No client says that it left {self.words} out of what it trains on. Of the first, node {node}: {why}."
            )
        for reply in trained:
            if (found := reasons.get(reply.metadata.src_node_id)) is not None:
                reply.content = None  # type: ignore[assignment]
                reply.error = Error(NOT_LEFT_OUT, found)
        return list(replies)

    def _unheeded(self, reply: Message) -> str | None:
        """Why it is not to be believed that a client left the rows out, if it is not."""
        found = attempt(lambda: self._read(reply))
        return found.reason if isinstance(found, Failure) else None

    def _read(self, reply: Message) -> None:
        note = reply.content.config_records.get(NOTE)
        if note is None:
            raise Unreadable(
                f"its client app does not say that it left {self.words} out; make it with introduce(ClientApp()), and"
                " let it train on the rows of staying_rows(message, labels) alone"
            )
        metrics = reply.content.metric_records.values()
        weights = [own[self.weight] for own in metrics if self.weight is not None and self.weight in own]
        if why := unheeded(note, self.all, weights, str(self.weight)):
            raise Unreadable(why)
        counts: Any = note[LEFT_OUT]
        rows: Any = note[ALL_ROWS]
        own = dict(zip(map(str, self.all), counts, strict=True))
        self.rows[reply.metadata.src_node_id], self.heard = {"rows": own, "of": rows}, True
        self.seen |= {number for number, count in zip(self.all, counts, strict=True) if count}

    def of_round(self, name: Callable[[int], str]) -> dict[str, Any]:
        """What clients said since this was last called, by their names; of refused updates too."""
        found, self.rows = self.rows, {}
        return {name(node): found[node] for node in sorted(found)}

    def check_seen(self, rounds: int) -> None:
        """Refuse classes of which no client had a row: a typing error would be called forgotten."""
        if missing := [number for number in self.now if number not in self.seen]:
            words = listed([f"class {number}" for number in missing])
            raise Refused(
                f"No client that trained in {rounds} {'round' if rounds == 1 else 'rounds'} had a row of {words}; name"
                " classes by their label numbers, or pass gone=True if they are gone."
            )
