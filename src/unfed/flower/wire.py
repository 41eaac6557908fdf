"""What crosses between a Flower server and its clients, as records.

    ask      ConfigRecord   kind, shard (which data and model), client, scope, gone, body (a plan or measures), digest,
                            drawn (the seeds of context models that a client can draw for itself)
             ArrayRecords   "params", "optimiser", "context.NAME"
    answer   ConfigRecord   client, digest of what was asked, and "refused" with the reason where it said no
             MetricRecord   counts and sums;  ArrayRecords  "params", "optimiser", or what was measured

An answer repeats the digest of its question: a node that ran something else is found out. Every ask holds the whole
forget specification, so a client needs no memory, may restart at any time, and marks the same rows however often it is
asked. Names of other clients and positions of other clients' samples are left out of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from unfed.data import Request
from unfed.errors import UnfedError
from unfed.flower.replies import decoded, tensor_bytes
from unfed.model.params import Params

FORMAT = 3
TRAIN, MEASURE, SCORES, CENSUS = "train", "measure", "scores", "census"
MESSAGE_TYPES = {TRAIN: "train", MEASURE: "evaluate", SCORES: "evaluate", CENSUS: "query"}
"""Which of Flower's kinds of message carries which kind of ask."""

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
    """JSON: which data and which model, see `shard.py`."""
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

    @property
    def digest(self) -> str:
        """What was asked, in one word; tensors are not part of it."""
        requests = [_plain(self.scope), _plain(self.gone)]
        text = json.dumps([FORMAT, self.kind, self.client, self.shard, *requests, self.body, self.drawn])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def context(self) -> dict[str, Params]:
        return {n.removeprefix(_CONTEXT): t for n, t in self.tensors.items() if n.startswith(_CONTEXT)}

    def content(self, packed: Mapping[str, ArrayRecord] | None = None) -> RecordDict:
        """The records of a message; arrays that several messages share may come packed already."""
        arrays = dict(packed or {}) | {n: to_arrays(t) for n, t in self.tensors.items() if n not in (packed or {})}
        words: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "client": self.client,
            "shard": self.shard,
            "scope": json.dumps(_plain(self.scope)),
            "gone": json.dumps(_plain(self.gone)),
            "body": self.body,
            "drawn": self.drawn,
            "digest": self.digest,
        }
        return RecordDict({"ask": ConfigRecord(_said(words)), **arrays})

    @staticmethod
    def of(message: Message) -> Ask:
        """The question in a message, or the sentence that says why it cannot be read."""
        records = message.content
        if "ask" not in records.config_records:
            raise UnfedError("This message was not sent by unfed; run the server with unfed's own app.")
        words = dict(records.config_records["ask"])
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
        return replace(ask, tensors={n: from_arrays(r) for n, r in records.array_records.items()})


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
            raise UnfedError(
                f"the random model {name!r} came out other than at the server; install the same versions of PyTorch and"
                " unfed on both"
            )
    return found


def _size(params: Params) -> float:
    """The sum of the squares: equal up to rounding for equal draws, whatever the machine."""
    return sum(float(t.detach().double().square().sum()) for t in params.values())


def answer(
    ask: Ask,
    tensors: Mapping[str, Params] | None = None,
    numbers: Mapping[str, Mapping[str, int | float | list[int] | list[float]]] | None = None,
    refused: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
) -> RecordDict:
    """The records of an answer. `refused` gives a reason: under "all", or under one of several measures."""
    said = {"client": ask.client, "digest": ask.digest, **(words or {})}
    said |= {f"refused.{part}": reason for part, reason in (refused or {}).items()}
    records: dict[str, Any] = {"answer": ConfigRecord(_said(said))}
    records |= {name: MetricRecord(dict(values)) for name, values in (numbers or {}).items()}
    records |= {name: to_arrays(group) for name, group in (tensors or {}).items()}
    return RecordDict(records)


def _said(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words without the empty ones: Flower's own mods (`message_size_mod`) cannot count those."""
    return {name: word for name, word in words.items() if word != ""}


def to_arrays(tensors: Params) -> ArrayRecord:
    return ArrayRecord(OrderedDict((n, t.detach().cpu().contiguous()) for n, t in tensors.items()))


def from_arrays(record: ArrayRecord) -> Params:
    """Tensors back, each as its record declares it, or the sentence that says which one is damaged."""
    return {name: decoded(name, array) for name, array in record.items()}


def tensor_bytes_of(records: RecordDict) -> int:
    """The bytes of the tensors alone: shape times type, but never more than really came."""
    arrays = [array for record in records.array_records.values() for array in record.values()]
    stated = [(tensor_bytes(array), len(array.data)) for array in arrays]
    return sum(came if size is None else min(size, came) for size, came in stated)


def serialised_bytes_of(records: RecordDict) -> int:
    """The bytes of all records as Flower packs them, array headers, keys and words included."""
    words = [*records.metric_records.values(), *records.config_records.values()]
    arrays = sum(record.count_bytes() for record in records.array_records.values())
    return arrays + sum(len(record.deflate()) for record in words)


def _plain(requests: Sequence[Request]) -> list[dict[str, Any]]:
    return [request.to_json() for request in requests]


def _requests(text: str) -> tuple[Request, ...]:
    return tuple(Request.from_json(raw) for raw in json.loads(text))
