"""What crosses between a server and its clients, and how it is checked.

    Ask      words      kind, shard (which data and model), client, scope, gone, body (a plan or measures), digest,
                        drawn (the seeds of context models that a client can draw for itself)
             tensors    "params", "optimiser", "context.NAME"
    Answer   words      client, digest of what was asked, and "refused" with the reason where it said no
             numbers    counts and sums
             tensors    "params", "optimiser", or what was measured
    Reply    an answer as it came: its tensors are not read before they were checked

An answer repeats the digest of its question, so a node that ran something else is found out. Every ask holds the
client's whole forget specification: it needs no memory, and learns nothing of other clients. A reply is checked
before it is believed: names, shapes and types as declared, then sizes, then counts. Whatever goes wrong is the sender's
refusal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unfed.data import Request
from unfed.errors import UnfedError
from unfed.model.params import Params

# --- checking what was sent -------------------------------------------------------------------------------------------


T = TypeVar("T")

MOST_ROWS = 1_000_000
"""Of one client, unless the run config's max-rows says otherwise: the server keeps a place for each of them."""
MOST_CLASSES = 100_000
USUAL_CLASSES = 1_000
"""More than these, and than ten times the median of all clients, one client cannot make of the model's classes."""
MOST_PIXELS = 100_000_000
"""Numbers in one sample."""
_WORDS = 500


@dataclass(frozen=True)
class Failure:
    """No usable answer, and why."""

    reason: str


class Unreadable(UnfedError):
    """Something sent that is not what it must be; the sentence goes on after 'client 3: '."""


def attempt(read: Callable[[], T]) -> T | Failure:
    """What a reader finds, or the sender's refusal.

    It is a refusal too where reading runs out of memory, or fails in a way that was not foreseen.
    """
    try:
        return read()
    except Unreadable as error:
        return Failure(said(error))
    except Exception as error:
        return Failure(f"its answer cannot be read ({said(repr(error))})")


def said(words: object, most: int = _WORDS) -> str:
    """Words that came from a client, cut to one printable line for a log and a terminal."""
    text = " ".join(str(words).split())
    text = "".join(sign if sign.isprintable() else "?" for sign in text[: most + 1])
    return text if len(text) <= most else text[:most] + "…"


def name_of(words: object) -> str:
    """A client's name as it gives it.

    It must be short and printable, so that it can stand in a file, a table and a log.
    """
    name = str(words)
    if len(name) > 100 or not name.isprintable():
        raise Unreadable("the name it gives is longer than 100 characters, or cannot be printed")
    return name


def count(values: Mapping[str, Any], key: str, most: int | None = None) -> int:
    """A count, at most so many."""
    if key not in values:
        raise Unreadable(f"its answer cannot be read (the count {key!r} is missing)")
    value = values[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Unreadable(f"its answer cannot be read ({key!r} is {said(repr(value), 40)}, which is no count)")
    if most is not None and value > most:
        raise Exceeds(f"it counts {value} rows as {key!r}, where by its census there are at most {most}")
    return value


class Exceeds(Unreadable):
    """A count above what the census says: the sender's data has grown, or the count is forged."""


def finite(found: Mapping[str, Tensor], what: str = "update") -> Mapping[str, Tensor]:
    """The same tensors, if none of them has a NaN or an infinity in it."""
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Unreadable(f"its {what} has NaN or infinite values in {name!r}")
    return found


Declared = tuple[tuple[int, ...], str]
"""A tensor's shape and the name of its type."""

TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
"""What can be read here, by its name."""


@dataclass(frozen=True)
class Packed:
    """One tensor as it came."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    unpack: Callable[[str, Packed], np.ndarray[Any, Any]] | None = None
    """How the bytes are read, for a name to put into sentences; without one they are the numbers themselves."""

    @property
    def size(self) -> int | None:
        """The bytes that it has by its shape and type; None where either makes no sense."""
        kind = TYPES.get(self.dtype)
        if kind is None or any(not isinstance(size, int) or size < 0 for size in self.shape):
            return None
        return math.prod(self.shape) * int(torch.empty(0, dtype=kind).element_size())

    @property
    def counted(self) -> int:
        """The bytes of the tensor alone: shape times type, but never more than really came."""
        return len(self.data) if self.size is None else min(self.size, len(self.data))

    def in_place(self, name: str) -> np.ndarray[Any, Any]:
        """Its numbers where they lie, in the stated shape and type; or the sentence on what is wrong."""
        return (self.unpack or _plain)(name, self)

    def read(self, name: str) -> Tensor:
        """The same as a tensor: in place where the numbers lie in a spool's file, else as a copy."""
        values = self.in_place(name)
        spooled = values.flags.writeable and values.flags.c_contiguous
        return torch.from_numpy(values if spooled else values.copy(order="C"))


def unpacked(group: Mapping[str, Packed]) -> Params:
    """Tensors back, each as it is declared, or the sentence that says which one is damaged."""
    return {name: packed.read(name) for name, packed in group.items()}


def declared(like: Mapping[str, Tensor]) -> dict[str, Declared]:
    """Shapes and types of tensors that are known here."""
    return {name: (tuple(t.shape), _name(t)) for name, t in like.items()}


def tensors(group: Mapping[str, Packed], known: Mapping[str, Declared], what: str = "update") -> dict[str, Tensor]:
    """The tensors of a group that must hold exactly these, in their order."""
    return unpacked(as_declared(group, known, what))


def as_declared(group: Mapping[str, Packed], known: Mapping[str, Declared], what: str = "update") -> dict[str, Packed]:
    """The group in the order of what it must hold, if it states exactly that; nothing is read."""
    if set(group) != known.keys():
        odd = sorted(set(group) ^ known.keys())[0]
        raise Unreadable(f"its {what} {'lacks the' if odd in known else 'has an unknown'} tensor {said(repr(odd), 80)}")
    for name, (shape, kind) in known.items():
        packed = group[name]
        if tuple(packed.shape) != shape:
            raise Unreadable(f"its {name!r} has shape {said(tuple(packed.shape), 80)}, not {shape}")
        if packed.dtype != kind:
            raise Unreadable(f"its {name!r} is {said(packed.dtype, 40)}, not {kind}")
    return {name: group[name] for name in known}


def wrong_size(name: str, packed: Packed) -> Unreadable:
    """The sentence on bytes that are not as many as such a tensor has."""
    shape = said(packed.shape, 80)
    return Unreadable(f"its {name!r} has {len(packed.data)} bytes, which is not the size of {shape} {packed.dtype}")


def unknown_type(name: str, packed: Packed) -> Unreadable:
    """The sentence on a type that is not among those known."""
    return Unreadable(f"its {name!r} is of the type {said(packed.dtype, 40)}, which is not read here")


def _plain(name: str, packed: Packed) -> np.ndarray[Any, Any]:
    """The numbers themselves; never more memory than the bytes that came."""
    if packed.dtype not in TYPES:
        raise unknown_type(name, packed)
    if packed.size != len(packed.data):
        raise wrong_size(name, packed)
    return np.frombuffer(packed.data, np.dtype(packed.dtype)).reshape(packed.shape)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# --- asks and answers -------------------------------------------------------------------------------------------------


FORMAT = 3
TRAIN, MEASURE, SCORES, CENSUS = "train", "measure", "scores", "census"
KINDS = ("forget", "gradients", "samples")
"""What a node config can allow beyond the usual questions, see `client.py`."""
NAMED_BY = ("client", "client-name", "partition-id")
"""The keys of a node config that say what the node is called; NVFlare's bridge writes the second."""

Numbers = Mapping[str, Mapping[str, int | float | list[int] | list[float]]]
"""Groups of counts and sums."""

COUNTED = ("count", "correct", "loss", "batches")
"""The single numbers in a measure's sums; whatever else is in them is a tensor by parameter name."""

_CONTEXT = "context."


@dataclass(frozen=True)
class Ask:
    """One question to one client."""

    kind: str
    client: str
    """Its name: every draw of a visit is addressed with it."""
    shard: str
    """JSON: which data and which model, see `client.py`."""
    scope: tuple[Request, ...] = ()
    """The requests in force, as far as they concern this client."""
    gone: tuple[Request, ...] = ()
    """Those of them that were served before: of their rows nothing is left at all."""
    body: str = ""
    """A plan, or a list of measures, as JSON."""
    tensors: Mapping[str, Params] = field(default_factory=dict)
    """Groups of tensors: params, optimiser, and the context by name."""
    drawn: str = "{}"
    """JSON: context models that travel as a seed, see `drawn_models`."""
    group: str = ""
    """Which questions belong together, for a transport that shows it: the round."""

    @property
    def digest(self) -> str:
        """What was asked, in one word; tensors are not part of it."""
        requests = [_as_words(self.scope), _as_words(self.gone)]
        text = json.dumps([FORMAT, self.kind, self.client, self.shard, *requests, self.body, self.drawn])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def context(self) -> dict[str, Params]:
        return {n.removeprefix(_CONTEXT): t for n, t in self.tensors.items() if n.startswith(_CONTEXT)}

    @property
    def words(self) -> dict[str, Any]:
        """All of it but the tensors."""
        words: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "client": self.client,
            "shard": self.shard,
            "scope": json.dumps(_as_words(self.scope)),
            "gone": json.dumps(_as_words(self.gone)),
            "body": self.body,
            "drawn": self.drawn,
            "digest": self.digest,
        }
        return spoken(words)

    @staticmethod
    def of(words: Mapping[str, Any] | None, arrays: Mapping[str, Mapping[str, Packed]]) -> Ask:
        """The question that words and tensors make, or the sentence that says why it cannot be read."""
        if words is None:
            raise UnfedError("This message was not sent by unfed; run the server with unfed's own app.")
        if words.get("format") != FORMAT:
            raise UnfedError(
                f"The server speaks format {words.get('format')!r}, this client format {FORMAT}; install the same"
                " version of unfed on both."
            )
        try:
            ask = Ask(
                str(words["kind"]),
                str(words.get("client", "")),
                str(words.get("shard", "")),
                _requests(str(words["scope"])),
                _requests(str(words["gone"])),
                str(words.get("body", "")),
                drawn=str(words["drawn"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise UnfedError(f"The server's question cannot be read ({error!r}).") from error
        return replace(ask, tensors={name: unpacked(group) for name, group in arrays.items()})


@dataclass(frozen=True)
class Answer:
    """What a client says, as it says it."""

    words: Mapping[str, str]
    numbers: Numbers = field(default_factory=dict)
    tensors: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a client said, as it came: nothing in it is believed yet."""

    words: Mapping[str, Any] | None
    """None where the answer was not made by unfed."""
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Packed]] = field(default_factory=dict)

    @property
    def said(self) -> Mapping[str, Any]:
        """Its words, where it is known to have any."""
        return self.words or {}

    @property
    def tensor_bytes(self) -> int:
        """The bytes of its tensors alone."""
        return sum(packed.counted for group in self.arrays.values() for packed in group.values())


def own_part(requests: Sequence[Request], client: str) -> tuple[Request, ...]:
    """What a client must know of the requests: nothing of other clients, nothing of their samples."""
    found = []
    for request in requests:
        if request.clients:
            found += [replace(request, clients=(client,))] if client in request.clients else []
        elif request.samples:
            mine = tuple(sample for sample in request.samples if sample[0] == client)
            found += [replace(request, samples=mine, listed=None)] if mine else []
        else:
            found.append(request)
    return tuple(found)


def context_names(context: Mapping[str, Params]) -> dict[str, Params]:
    """The context as groups of an ask."""
    return {_CONTEXT + name: tensors for name, tensors in context.items()}


def seeds_of(models: Mapping[str, Params], seeds: Mapping[str, int]) -> str:
    """Context models as seeds, each with its size, by which a client sees that it drew the same model."""
    return json.dumps({name: [seed, _size(models[name])] for name, seed in seeds.items()})


def drawn_models(text: str, fresh: Callable[[int], Params]) -> dict[str, Params]:
    """The context models that came as seeds, drawn here."""
    found: dict[str, Params] = {}
    for name, (seed, size) in json.loads(text).items():
        found[name] = fresh(seed)
        if not math.isclose(_size(found[name]), size, rel_tol=1e-6):
            raise UnfedError(f"the random model {name!r} came out other than at the server; install the same PyTorch")
    return found


def _size(params: Params) -> float:
    """The sum of the squares: equal up to rounding for equal draws, whatever the machine."""
    return sum(float(t.detach().double().square().sum()) for t in params.values())


def answer(
    ask: Ask,
    tensors: Mapping[str, Params] | None = None,
    numbers: Numbers | None = None,
    refused: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
) -> Answer:
    """The answer to a question. `refused` gives a reason: under "all", or under one of several measures."""
    said = {"client": ask.client, "digest": ask.digest, **(words or {})}
    said |= {f"refused.{part}": reason for part, reason in (refused or {}).items()}
    return Answer(spoken(said), numbers or {}, tensors or {})


def spoken(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words without the empty ones, which some transports cannot count (Flower's `message_size_mod`)."""
    return {name: word for name, word in words.items() if word != ""}


def _as_words(requests: Sequence[Request]) -> list[dict[str, Any]]:
    return [request.to_json() for request in requests]


def _requests(text: str) -> tuple[Request, ...]:
    return tuple(Request.from_json(raw) for raw in json.loads(text))
