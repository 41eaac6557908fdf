"""Questions and answers as Flower's records, and arrays out of them.

Arrays are read in numpy's format, never as a pickle or an archive.

ask      ConfigRecord "ask"       its words         ArrayRecords   its groups of tensors
answer   ConfigRecord "answer"    its words         ArrayRecords   its groups of tensors
         MetricRecords            its numbers
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy

from unfed.errors import UnfedError
from unfed.model.params import Params
from unfed.remote.messages import (
    CENSUS,
    MEASURE,
    SCORES,
    TRAIN,
    TYPES,
    Ask,
    Numbers,
    Packed,
    Reply,
    Unreadable,
    said,
    unknown_type,
    unpacked,
    wrong_size,
)

MESSAGE_TYPES = {TRAIN: "train", MEASURE: "evaluate", SCORES: "evaluate", CENSUS: "query"}
"""Which of Flower's kinds of message carries which kind of ask."""


def ask_records(ask: Ask, shared: dict[int, ArrayRecord]) -> RecordDict:
    """The records of a question; `shared` keeps groups that several questions hold, each packed once."""
    records: dict[str, Any] = {"ask": ConfigRecord(ask.words)}
    for name, group in ask.tensors.items():
        if id(group) not in shared:
            shared[id(group)] = to_arrays(group)
        records[name] = shared[id(group)]
    return RecordDict(records)


def ask_of(message: Message) -> Ask:
    """The question in a message, or the sentence that says why it cannot be read."""
    records = message.content
    words = records.config_records.get("ask")
    arrays = {name: packed(record) for name, record in records.array_records.items()}
    ask = Ask.of(None if words is None else dict(words), arrays)
    carried = message.metadata.message_type.partition(".")[0]
    if MESSAGE_TYPES.get(ask.kind, carried) != carried:
        raise UnfedError(f"it is asked for {ask.kind} by a message of the kind {carried!r}; update the server")
    return ask


def to_records(words: Mapping[str, str], numbers: Numbers, tensors: Mapping[str, Params]) -> RecordDict:
    """The records of an answer."""
    records: dict[str, Any] = {"answer": ConfigRecord(dict(words))}
    records |= {name: MetricRecord(dict(values)) for name, values in numbers.items()}
    records |= {name: to_arrays(group) for name, group in tensors.items()}
    return RecordDict(records)


def reply_of(records: RecordDict) -> Reply:
    """An answer as it came; no tensor of it is read yet."""
    words = records.config_records.get("answer")
    numbers = {name: dict(record) for name, record in records.metric_records.items()}
    arrays = {name: packed(record) for name, record in records.array_records.items()}
    return Reply(None if words is None else dict(words), numbers, arrays)


def to_arrays(tensors: Params) -> ArrayRecord:
    return ArrayRecord(OrderedDict((n, t.detach().cpu().contiguous()) for n, t in tensors.items()))


def from_arrays(record: ArrayRecord) -> Params:
    """Tensors back, each as its record declares it, or the sentence that says which one is damaged."""
    return unpacked(packed(record))


def whole(arrays: ArrayRecord) -> Params:
    """The tensors of a record, if training can continue from them."""
    if not isinstance(arrays, ArrayRecord):
        raise UnfedError(f"start takes an ArrayRecord, not a {type(arrays).__name__}; make one by ArrayRecord(…).")
    found = from_arrays(arrays)
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UnfedError(f"The arrays have NaN or infinite values in {name!r}; begin with an earlier round's.")
    return found


def serialised_bytes_of(records: RecordDict) -> int:
    """The bytes of all records as Flower packs them, array headers, keys and words included."""
    words = [*records.metric_records.values(), *records.config_records.values()]
    arrays = sum(record.count_bytes() for record in records.array_records.values())
    return arrays + sum(len(record.deflate()) for record in words)


# --- arrays as they came ----------------------------------------------------------------------------------------------

_HEADER = 4096


def packed(record: ArrayRecord) -> dict[str, Packed]:
    """The arrays of a record, none of them read yet."""
    return {name: _packed(array) for name, array in record.items()}


def _packed(array: Array) -> Packed:
    read = _numpy if array.stype == "numpy.ndarray" else _foreign
    return Packed(array.dtype, tuple(array.shape), array.data, read)


def _foreign(name: str, array: Packed) -> np.ndarray[Any, Any]:
    raise unknown_type(name, array)


def _numpy(name: str, array: Packed) -> np.ndarray[Any, Any]:
    """An array in numpy's format; it never takes more memory than the bytes that came."""
    if array.dtype not in TYPES:
        raise unknown_type(name, array)
    size, data = array.size, array.data
    if size is None or not size <= len(data) <= size + _HEADER:
        raise wrong_size(name, array)
    stream = io.BytesIO(bytes(data[:_HEADER]))
    try:
        version = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        inside, fortran, stored = header(stream, max_header_size=_HEADER)
    except Exception as error:
        raise Unreadable(f"its {name!r} cannot be read ({said(error, 80)})") from error
    if inside != array.shape or stored != np.dtype(array.dtype) or len(data) - stream.tell() != size:
        raise Unreadable(f"its {name!r} holds another array than it declares")
    return np.frombuffer(data, stored, offset=stream.tell()).reshape(array.shape, order="F" if fortran else "C")
