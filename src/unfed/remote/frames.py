"""Frames on a byte stream: a short head, words as JSON, tensors as safetensors; never a pickle.

    unf1 │ bytes of JSON (4) │ bytes of tensors (8) │ JSON │ safetensors

Lengths are compared with what is allowed before anything is taken, and memory grows only with bytes that came. Both
ends show that they know the token before either believes a word: each proves it over what the other has drawn, so the
token itself never crosses. Frames are not encrypted: they are for processes of one machine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch

from unfed.model.params import Params
from unfed.remote.messages import Answer, Ask, Reply
from unfed.remote.packed import Packed
from unfed.remote.replies import Unreadable, said

MOST_WORDS = 1 << 26
"""Bytes of JSON in one frame."""
MOST_TENSORS = 1 << 33
"""Bytes of tensors in one frame."""
_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"unf1"
_CHUNK = 1 << 20
_TYPES = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{"U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"},
}

Take = Callable[[int], bytes]
"""Gives at most so many bytes of a stream; none once it has ended."""


class Ended(EOFError):
    """The stream ended where a frame might begin, or in the middle of one."""


@dataclass(frozen=True)
class Limits:
    """The longest frame that is taken."""

    words: int = MOST_WORDS
    tensors: int = MOST_TENSORS


USUAL = Limits()
BEFORE_IT_IS_KNOWN = Limits(4096, 0)
"""What is taken of somebody who has not shown the token yet."""


@dataclass(frozen=True)
class Frame:
    """One frame as it came."""

    words: Mapping[str, Any]
    body: bytes
    size: int
    """Its bytes, the head included."""


def frame(words: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    plain = json.dumps(words).encode()
    return _HEAD.pack(_MAGIC, len(plain), len(body)) + plain + body


def read(take: Take, limits: Limits) -> Frame:
    """The next frame, or the sentence that says why there is none."""
    magic, words, body = _HEAD.unpack(_exactly(take, _HEAD.size))
    if magic != _MAGIC:
        raise Unreadable("it sent something that is no frame of unfed's")
    if words > limits.words or body > limits.tensors:
        raise Unreadable(
            f"it announced {words} bytes of words and {body} of tensors; at most {limits.words} and {limits.tensors}"
            " are taken"
        )
    try:
        found = json.loads(_exactly(take, words))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the words of its frame cannot be read ({said(error, 80)})") from error
    if not isinstance(found, dict):
        raise Unreadable("the words of its frame are no table")
    return Frame(found, _exactly(take, body), _HEAD.size + words + body)


def _exactly(take: Take, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = take(min(_CHUNK, size - len(found)))
        if not part:
            raise Ended
        found += part
    return bytes(found)


# --- what is in them --------------------------------------------------------------------------------------------------


def ask_frame(ask: Ask, number: int, bodies: dict[tuple[int, ...], bytes]) -> bytes:
    """A question; `bodies` keeps the tensors that several questions have in common, packed once."""
    key = tuple(map(id, ask.tensors.values()))
    if key not in bodies:
        bodies[key] = _packed(ask.tensors)
    return frame({"number": number, "words": ask.words, "arrays": _names(ask.tensors)}, bodies[key])


def ask_of(came: Frame) -> Ask:
    """The question in a frame, or the sentence that says why it cannot be read."""
    asked = came.words.get("words")
    return Ask.of(asked if isinstance(asked, dict) else None, _arrays(came))


def answer_frame(answer: Answer, number: int) -> bytes:
    """An answer to the question of that number."""
    words = {"number": number, "words": dict(answer.words), "numbers": dict(answer.numbers)}
    return frame({**words, "arrays": _names(answer.tensors)}, _packed(answer.tensors))


def reply_of(came: Frame) -> Reply:
    """An answer as it came; of its tensors no number is read yet."""
    numbers, told = came.words.get("numbers"), came.words.get("words")
    if not isinstance(numbers, dict) or not all(isinstance(group, dict) for group in numbers.values()):
        raise Unreadable("the numbers of its answer are no table")
    return Reply(told if isinstance(told, dict) else None, numbers, _arrays(came))


def _names(tensors: Mapping[str, Params]) -> list[list[str]]:
    """The group and the name of every tensor, in their order: that of safetensors is its own."""
    return [[group, name] for group, own in tensors.items() for name in own]


def _packed(tensors: Mapping[str, Params]) -> bytes:
    every = [tensor for own in tensors.values() for tensor in own.values()]
    # Copies: a tensor that lies in another one's memory cannot be packed as it is.
    plain = {str(place): tensor.detach().cpu().contiguous().clone() for place, tensor in enumerate(every)}
    return safetensors.torch.save(plain) if plain else b""


def _arrays(came: Frame) -> dict[str, dict[str, Packed]]:
    names = came.words.get("arrays")
    if not isinstance(names, list) or any(not _is_name(name) for name in names):
        raise Unreadable("the tensors of its frame have no names")
    try:
        parts = dict(safetensors.deserialize(came.body)) if came.body else {}  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise Unreadable(f"the tensors of its frame cannot be read ({said(error, 80)})") from error
    if parts.keys() != {str(place) for place in range(len(names))}:
        raise Unreadable(f"its frame names {len(names)} tensors and holds others")
    found: dict[str, dict[str, Packed]] = {}
    for place, (group, name) in enumerate(names):
        part = parts[str(place)]
        kind = _TYPES.get(part["dtype"], part["dtype"])
        found.setdefault(group, {})[name] = Packed(kind, tuple(part["shape"]), bytes(part["data"]))
    return found


def _is_name(name: object) -> bool:
    return isinstance(name, list) and len(name) == 2 and all(isinstance(word, str) for word in name)


# --- who is at the other end ------------------------------------------------------------------------------------------


def nonce() -> str:
    """What the other end is to prove the token over."""
    return secrets.token_hex(16)


def proof(token: str, who: str, drawn: Sequence[str]) -> str:
    """What only who knows the token can say, for these draws and this end of the line."""
    return hmac.new(token.encode(), json.dumps([who, *drawn]).encode(), hashlib.sha256).hexdigest()


def proves(said_so: object, token: str, who: str, drawn: Sequence[str]) -> bool:
    """Whether somebody knows the token."""
    return isinstance(said_so, str) and hmac.compare_digest(
        said_so.encode(errors="replace"), proof(token, who, drawn).encode()
    )
