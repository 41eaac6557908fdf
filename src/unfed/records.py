"""JSON becomes values with types, or one sentence that says what is wrong.

    class Line(JsonRecord):
        seed: Count
        method: str | None = None

    line = read(Line, raw, "Line 3 of handed-out.jsonl")

Files are damaged, edited and handed on, so everything that is read is checked first, strictly: a number is no text and
no yes. A field that a model does not know is kept, so that a later version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from unfed.errors import UnfedError

T = TypeVar("T")

Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
"""A whole number of 64 bits, with its sign or without one."""
Count = Annotated[int, Field(ge=0, lt=1 << 64)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def _percent(value: float) -> float:
    if value < -1e-6 or value > 100 + 1e-6:
        raise ValueError("no percentage")
    return value


def _file_name(value: str) -> str:
    if value in ("", ".", "..") or {*value} & {*"/\\\0"}:
        raise ValueError("no name of a file")
    return value


Percent = Annotated[float, AfterValidator(_percent)]
"""As something that was measured may be: off by rounding, or not a number."""
FileName = Annotated[str, AfterValidator(_file_name)]
"""It leads into no other folder."""
Plain = Mapping[str, Any]
"""A table whose fields its writer chooses."""
MOST_DIGITS = 300
"""What a float can hold: a longer whole number is JSON to Python, and ends what computes with it."""


class JsonRecord(BaseModel):
    """What one file, or one line of it, says."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_json(self, **more: Any) -> dict[str, Any]:
        """What was said, and nothing that was left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, **more)


class Edition(JsonRecord):
    """Which layout a file has."""

    number: Count = Field(alias="schema")


def parsed(data: str | bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """The value in a text of JSON, or ValueError; `constant` is asked about `NaN` and `Infinity`.

    UTF-8 and nothing else. What is named twice is refused, for another reader may take the other one.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, object_pairs_hook=_once, parse_int=_whole, parse_constant=constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names something twice")
    return found


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError("it holds a number that is too long")
    return int(text)


def like(kind: type[JsonRecord]) -> AfterValidator:
    """Checked as such a record, and kept as it was written: byte for byte, where a log vouches for it."""

    def same(raw: Plain) -> Plain:
        kind.model_validate_json(json.dumps(raw), strict=True)
        return raw

    return AfterValidator(same)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read(kind: Callable[..., T], raw: Any, where: str, remedy: str = "restore it from a copy") -> T:
    """The value that a piece of JSON stands for; else one sentence that names the file and the field."""
    try:
        found: T = _adapter(kind).validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        raise UnfedError(f"{where} {_wrong(error, raw)}; {remedy}.") from error
    except UnfedError as error:
        raise UnfedError(f"{where} is damaged ({str(error).removesuffix('.')}); {remedy}.") from error
    return found


def read_text(kind: Callable[..., T], text: str | bytes, where: str, remedy: str) -> T:
    """The value that a text of JSON stands for."""
    try:
        raw = parsed(text)
    except ValueError as error:
        raise UnfedError(f"{where} is no JSON ({error}); {remedy}.") from error
    return read(kind, raw, where, remedy)


def fits(kind: Any, raw: Any) -> bool:
    """Whether a piece of JSON stands for such a value."""
    try:
        _adapter(kind).validate_json(json.dumps(raw), strict=True)
    except (ValidationError, UnfedError):
        return False
    return True


def _wrong(error: ValidationError, raw: Any) -> str:
    first = error.errors(include_url=False)[0]
    why = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    names, held = [], raw
    for step in first["loc"]:
        inside = isinstance(held, list) and isinstance(step, int) and step < len(held)
        if not inside and not (isinstance(held, dict) and step in held):
            break  # a field that is missing, or the name of a type that was tried
        names.append(str(step))
        held = held[step]
    if first["type"] == "missing":
        names.append(str(first["loc"][-1]))
        return f"has no {'.'.join(names)}"
    if not names:
        return f"is damaged ({why})"
    return f"has {str(held)[:60]!r} as its {'.'.join(names)} ({why})"
