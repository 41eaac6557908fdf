"""What `--set a.b.c=value` changes in a config before it is read.

--set training.rounds=20      values["training"]["rounds"] = 20      the value is TOML, or else a string
"""

from __future__ import annotations

import tomllib
from typing import Any

from unfed.errors import UnfedError


def toml_value(text: str) -> Any:
    """A value as it is written in TOML; what is not valid TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text.lstrip()[:1] in ("[", "{"):
            raise UnfedError(
                f"{text!r} is no list or table of TOML: words in it need quotes, and the shell must leave them there,"
                " as in --set \"methods.run=['not','ft']\"."
            ) from error
        return text
    except (ValueError, RecursionError) as error:
        raise UnfedError(f"The value {text[:40]!r}… is too long or nested too deep; give a smaller one.") from error


def applied(values: dict[str, Any], change: str) -> None:
    """Write one `a.b.c=value` into the raw values. The value is TOML; what is not valid TOML is a string."""
    path, separator, text = change.partition("=")
    if not separator or not path.strip():
        raise UnfedError(f"--set takes key.path=value, not {change!r}; for example training.rounds=20.")
    value = toml_value(text)
    parts = [part.strip() for part in path.split(".")]
    table = values
    for part in parts[:-1]:
        inner = table.setdefault(part, {})
        if isinstance(inner, list) and len(inner) == 1:
            inner = inner[0]
        if not isinstance(inner, dict):
            raise UnfedError(f"--set {change}: {part!r} is a value, not a table.")
        table = inner
    table[parts[-1]] = value
