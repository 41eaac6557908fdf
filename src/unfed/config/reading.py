"""How raw values become a config: `--set`, names that become files, a mistake as one sentence.

--set training.rounds=20      values["training"]["rounds"] = 20      the value is TOML, or else a string
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from unfed.errors import UnfedError, listed, nearest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_FOLDER = re.compile(r"\w[\w .,;=+@()\[\]-]{0,79}")
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_KINDS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "model_type": "a table",
    "dict_type": "a table",
}


def toml_value(text: str) -> Any:
    """A value as it is written in TOML; what is not valid TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text.lstrip()[:1] in ("[", "{"):
            example = "--set \"methods.run=['not','ft']\""
            raise UnfedError(f"{text!r} is not a TOML list or table; quote its words, as in {example}.") from error
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


# --- names that become files ----------------------------------------------------------------------------------------


def check_id(name: object, what: str) -> str:
    """A name that can be a file's: letters, digits, dots, underscores and dashes."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = name if isinstance(name, str) and len(name) <= 100 else f"{str(name)[:100]}…"
        raise UnfedError(f"The {what} {shown!r} is no file name; use up to 80 letters, digits, dots, dashes.")
    return name


def check_folder(name: str) -> str:
    """The name of a run, which is also its folder's: any words, as long as they stay in their place."""
    if not _FOLDER.fullmatch(name):
        raise UnfedError(f"The name {name[:100]!r} is no folder name; use up to 80 letters, digits and spaces.")
    return name


def check_label(label: object, what: str = "method name") -> str:
    """A method's label, which may be `package.module:Class`: its file has a dot for the colon."""
    check_id(label.replace(":", ".") if isinstance(label, str) else label, what)
    return str(label)


# --- a mistake as one sentence: the key, what is allowed there, the nearest match ------------------------------------


def explained(error: ValidationError, config: type[BaseModel]) -> str:
    """The first mistake, and how many there are after it."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
    path = _key(first["loc"])
    others = len({_key(one["loc"]) for one in error.errors()}) - 1  # a key of two types is wrong twice, and one mistake
    more = f" ({others} more after it)" if others else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(config, location[:-1])
        inside = ".".join(location[:-1]) or "the config"
        return f"{path} is not known; {inside} has {listed(known)}.{nearest(location[-1], known)}{more}"
    if first["type"] == "literal_error":
        allowed = str(first.get("ctx", {}).get("expected", ""))
        close = nearest(str(first["input"]), allowed.split("'")[1::2])
        return f"{path} = {first['input']!r} is not allowed; use {allowed}.{close}{more}"
    if first["type"] == "string_pattern_mismatch" and path == "device":
        return f"device = {first['input']!r} is not known; use auto, cpu, cuda, cuda:N or mps.{more}"
    if bound := _BOUNDS.get(first["type"]):
        word, name = bound
        return f"{path} must be {word} {first['ctx'][name]:g}, not {first['input']!r}.{more}"
    if kind := _KINDS.get(first["type"]):
        return f"{path} takes {kind}, not {first['input']!r}.{more}"
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "value_error" and path == "config":
        key = message.split()[0] in config.model_fields  # a key is written as it is written there
        return f"{message if key else message[0].upper() + message[1:]}.{more}"
    given = f", not {first['input']!r}" if first["type"] != "value_error" else ""
    return f"{path}: {message[0].lower() + message[1:]}{given}.{more}"


def _key(location: Sequence[int | str]) -> str:
    """A place as it is written in a config, without the types that were tried there."""
    parts = [str(part) for part in location if not str(part).startswith("function-")]
    return ".".join(part for part in parts if part not in ("int", "tuple[int, ...]")) or "config"


def _fields_at(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys allowed in the table at a place, followed through tuples and optional tables."""
    for part in location:
        if part.isdigit():
            continue
        model = table_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def table_in(annotation: Any) -> type[BaseModel] | None:
    """The table that a field holds, through tuples and optional ones."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    if get_origin(annotation) in (Union, types.UnionType, tuple, Annotated):
        for inner in get_args(annotation):
            found = table_in(inner) if inner is not Ellipsis else None
            if found:
                return found
    return None
