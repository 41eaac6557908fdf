"""Where two configs are not the same, in words.

A config that was written down by an earlier version lacks the keys that were added since. Read again it has them at
their defaults, so configs are compared as what they mean, not by a digest of what was written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from unfed.config.config import Config


def differences(
    config: Mapping[str, Any], wanted: Mapping[str, Any], aside: Collection[str] = (), methods: Collection[str] = ()
) -> list[str]:
    """`training.rounds 150 instead of 300`: where a config that was kept is not the one that is wanted.

    Keys in `aside` are not looked at. A method that has a table in one of them only is no difference, unless it is one
    of `methods`.
    """
    return list(_differences(Config.kept(config).to_json(), Config.kept(wanted).to_json(), "", aside, methods))


def _differences(
    config: Mapping[str, Any], wanted: Mapping[str, Any], at: str, aside: Collection[str], methods: Collection[str]
) -> Iterator[str]:
    for name in sorted({*config, *wanted}):
        here, there, key = config.get(name), wanted.get(name), f"{at}{name}"
        if key in aside or (at == "methods." and None in (here, there) and name not in methods):
            continue
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            yield from _differences(here, there, f"{key}.", aside, methods)
        elif here != there:
            yield f"{key} {json.dumps(here)} instead of {json.dumps(there)}"
