"""Questions and answers as bytes: words as JSON, tensors as safetensors.

    unf1 │ bytes of JSON (4) │ JSON │ safetensors

This is for a transport that carries bytes. Nothing is unpickled, and reading takes no more memory than the bytes that
came. Bytes are not encrypted here; that is the transport's part.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch

from unfed.model.params import Params
from unfed.remote.messages import Answer, Ask, Failure, Packed, Reply, Unreadable, attempt, said

_HEAD = struct.Struct("<4sI")
_MAGIC = b"unf1"
_TYPES = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{"U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"},
}


def encode_ask(ask: Ask) -> bytes:
    """The bytes of a question."""
    return _encoded({"words": ask.words}, ask.tensors)


def decode_ask(data: bytes) -> Ask:
    """The question in some bytes, or the sentence that says why it cannot be read."""
    words, body = _decoded(data)
    asked = words.get("words")
    return Ask.of(asked if isinstance(asked, dict) else None, _arrays(words, body))


def encode_answer(answer: Answer) -> bytes:
    """The bytes of an answer."""
    return _encoded({"words": dict(answer.words), "numbers": dict(answer.numbers)}, answer.tensors)


def decode_reply(data: bytes) -> Reply | Failure:
    """An answer as it came, none of its tensors read yet, or why it is none."""
    return attempt(lambda: _reply(*_decoded(data)))


def _reply(words: Mapping[str, Any], body: bytes) -> Reply:
    numbers, shown = words.get("numbers"), words.get("words")
    if not isinstance(numbers, dict) or not all(isinstance(group, dict) for group in numbers.values()):
        raise Unreadable("the numbers of its answer are no table")
    return Reply(shown if isinstance(shown, dict) else None, numbers, _arrays(words, body))


def _encoded(words: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
    every = [tensor for own in tensors.values() for tensor in own.values()]
    # Copies: a tensor that lies in another one's memory cannot be packed as it is.
    plain = {str(place): tensor.detach().cpu().contiguous().clone() for place, tensor in enumerate(every)}
    # safetensors has an order of its own, so the names are listed in ours.
    names = [[group, name] for group, own in tensors.items() for name in own]
    text = json.dumps({**words, "arrays": names}).encode()
    return _HEAD.pack(_MAGIC, len(text)) + text + (safetensors.torch.save(plain) if plain else b"")


def _decoded(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The words in some bytes, and the bytes of the tensors."""
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise Unreadable("it sent something that is no message of unfed's")
    end = _HEAD.size + _HEAD.unpack_from(data)[1]
    if end > len(data):
        raise Unreadable(f"its message ends after {len(data)} bytes, within its words")
    try:
        words = json.loads(data[_HEAD.size : end])
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the words of its message cannot be read ({said(error, 80)})") from error
    if not isinstance(words, dict):
        raise Unreadable("the words of its message are no table")
    return words, data[end:]


def _arrays(words: Mapping[str, Any], body: bytes) -> dict[str, dict[str, Packed]]:
    names = words.get("arrays")
    if not isinstance(names, list) or any(not _is_name(name) for name in names):
        raise Unreadable("the tensors of its message have no names")
    try:
        parts = dict(safetensors.deserialize(body)) if body else {}  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise Unreadable(f"the tensors of its message cannot be read ({said(error, 80)})") from error
    if parts.keys() != {str(place) for place in range(len(names))}:
        raise Unreadable(f"its message names {len(names)} tensors and holds others")
    found: dict[str, dict[str, Packed]] = {}
    for place, (group, name) in enumerate(names):
        part = parts[str(place)]
        kind = _TYPES.get(part["dtype"], part["dtype"])
        found.setdefault(group, {})[name] = Packed(kind, tuple(part["shape"]), bytes(part["data"]))
    return found


def _is_name(name: object) -> bool:
    return isinstance(name, list) and len(name) == 2 and all(isinstance(word, str) for word in name)
