"""What clients are called: the keys of a node config that say it, tables of names, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable

from unfed.errors import UnfedError

KEYS = ("client", "client-name", "partition-id")
"""What the one who runs a node may call it by, in its config; NVFlare's bridge writes the second."""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names sorted as a person would: numbers in them by their value."""

    def key(name: str) -> list[tuple[int, int, str]]:
        parts = re.findall(r"\d+|\D+", name)
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]

    return tuple(sorted(names, key=key))


def parse_bound(text: str) -> dict[str, int]:
    """`name=node id` pairs, separated by commas or spaces."""
    found: dict[str, int] = {}
    for pair in re.split(r"[,\s]+", text.strip()):
        name, separator, node = pair.partition("=")
        if not pair:
            continue
        if not separator or not name or not node.isdigit():
            raise UnfedError(f"nodes takes name=node-id pairs such as '0=123,1=456', not {pair!r}.")
        if name in found or int(node) in found.values():
            raise UnfedError(f"nodes names {pair!r} twice; give every client its own node.")
        found[name] = int(node)
    return found
