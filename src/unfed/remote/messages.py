"""What crosses between a server and its clients: small words and numbers, and groups of tensors.

    Ask      words      kind, shard (which data and model), client, scope, gone, body (a plan or measures), digest,
                        drawn (the seeds of context models that a client can draw for itself)
             tensors    "params", "optimiser", "context.NAME"
    Answer   words      client, digest of what was asked, and "refused" with the reason where it said no
             numbers    counts and sums
             tensors    "params", "optimiser", or what was measured
    Reply    an answer as it came: its tensors are not read before they were checked

An answer repeats the digest of its question: a node that ran something else is found out. Every ask holds the whole
forget specification, so a client needs no memory, may restart at any time, and marks the same rows however often it is
asked. Names of other clients and positions of other clients' samples are left out of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unfed.data import Request
from unfed.errors import UnfedError
from unfed.model.params import Params
from unfed.remote.replies import Packed, unpacked

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
    """JSON: which data and which model, see `node_data.py`."""
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
        requests = [_plain(self.scope), _plain(self.gone)]
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
            "scope": json.dumps(_plain(self.scope)),
            "gone": json.dumps(_plain(self.gone)),
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


def _plain(requests: Sequence[Request]) -> list[dict[str, Any]]:
    return [request.to_json() for request in requests]


def _requests(text: str) -> tuple[Request, ...]:
    return tuple(Request.from_json(raw) for raw in json.loads(text))
