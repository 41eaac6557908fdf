"""Asks and answers as bytes: a safetensors file with the words in its metadata.

    {"__metadata__": {"unfed": JSON}, "0": …, "1": …}      the JSON lists the tensors' groups and names in their order

Nothing is unpickled, and reading takes no more memory than the bytes that came. The transport encrypts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch

from unfed.model.params import Params
from unfed.remote.messages import Answer, Ask, Failure, Packed, Reply, Unreadable, attempt, said

_TYPES = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{"U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"},
}
Arrays = dict[str, dict[str, Packed]]


def encode_ask(ask: Ask) -> bytes:
    """The bytes of a question."""
    return _encoded({"words": ask.words}, ask.tensors)


def decode_ask(data: bytes) -> Ask:
    """The question in some bytes, or the sentence that says why it cannot be read."""
    words, arrays = _decoded(data)
    asked = words.get("words")
    return Ask.of(asked if isinstance(asked, dict) else None, arrays)


def encode_answer(answer: Answer) -> bytes:
    """The bytes of an answer."""
    return _encoded({"words": dict(answer.words), "numbers": dict(answer.numbers)}, answer.tensors)


def decode_reply(data: bytes) -> Reply | Failure:
    """An answer as it came, none of its tensors read yet, or why it is none."""
    return attempt(lambda: _reply(*_decoded(data)))


def _reply(words: Mapping[str, Any], arrays: Arrays) -> Reply:
    numbers, shown = words.get("numbers"), words.get("words")
    if not isinstance(numbers, dict) or not all(isinstance(group, dict) for group in numbers.values()):
        raise Unreadable("the numbers of its answer are no table")
    return Reply(shown if isinstance(shown, dict) else None, numbers, arrays)


def _encoded(words: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
    every = [tensor for own in tensors.values() for tensor in own.values()]
    # Copies: a tensor that lies in another one's memory cannot be packed as it is.
    plain = {str(place): tensor.detach().cpu().contiguous().clone() for place, tensor in enumerate(every)}
    # safetensors has an order of its own, so the names are listed in ours.
    names = [[group, name] for group, own in tensors.items() for name in own]
    return safetensors.torch.save(plain, {"unfed": json.dumps({**words, "arrays": names})})


def _decoded(data: bytes) -> tuple[dict[str, Any], Arrays]:
    """The words in some bytes, and the tensors by their groups, none of them read."""
    try:
        parts = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        words = json.loads(header["__metadata__"]["unfed"])
        names = [(str(group), str(name)) for group, name in words["arrays"]]
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(f"it sent something that is no message of unfed's ({said(error, 80)})") from error
    if parts.keys() != {str(place) for place in range(len(names))}:
        raise Unreadable(f"its message names {len(names)} tensors and holds others")
    found: Arrays = {}
    for place, (group, name) in enumerate(names):
        part = parts[str(place)]
        kind = _TYPES.get(part["dtype"], part["dtype"])
        found.setdefault(group, {})[name] = Packed(kind, tuple(part["shape"]), bytes(part["data"]))
    return words, found
