"""Staying out: a node with a forgotten name, partition or key is not asked again, in any run.

A node is known by everything it goes by: its key, the name of that key, and `client`, `client-name` and `partition-id`
of its node config. One of them on the list is enough, under any node id. The log names each node that is found, and how
to keep it out for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from unfed.remote.transport import Speech


class Denied:
    """The names on a deny list, and the nodes that were found to go by one of them."""

    def __init__(self, names: Collection[str] = (), speech: Speech | None = None) -> None:
        self.names, self._speech = frozenset(names), speech or Speech()
        self._nodes: dict[int, str] = {}

    @property
    def nodes(self) -> Mapping[int, str]:
        """Who is refused, under every id seen so far, and by which name."""
        return self._nodes

    def refuses(self, node: int, goes_by: Iterable[str], left: Collection[str] = ()) -> bool:
        """Whether a node goes by a name on the list, or by one that has `left` since; the log names it once."""
        name = next((own for own in goes_by if own in self.names or own in left), None)
        if node in self._nodes or name is None:
            return node in self._nodes
        self._nodes[node] = name
        log, expel = self._speech.log, self._speech.expel.format(node=node)
        log.warning("unfed: node %s goes by %r, which was forgotten, so it is not asked; %s", node, name, expel)
        same = [str(other) for other, own in self._nodes.items() if own == name]
        if len(same) > 1:
            log.warning("unfed: %d nodes went by the forgotten name %r: %s", len(same), name, ", ".join(same))
        return True
