"""Deletion requests on data: which samples must leave, sample lists, and the deny list.

    request   client    D_u^k = D^k                            for the named clients
              class     D_u^k = {i : y_i^k ∈ classes}          for every client, by the label as the client holds it
              instance  D_u^k = the named positions, the named rows of the data set, or a random ⌊fraction · n_train⌋
                        of every client's training rows

    views     retain = train - D_u     forget = train ∩ D_u     all = train     val = val - D_u

D^k = D_r^k ⊎ D_u^k is kept as one bool per position of each client. Marks of several requests are united, so marking
twice is marking once, and the order of requests does not matter. A validation row that matches is left out as well: a
model that forgot a class must not be asked for it.

A sample list is a CSV file with the header `client,position` or `row`. A position counts in the client's own order; a
row is the number that the data set gives. The text is kept with its SHA-256, so that a request means the same rows
after the file is gone.

The deny list keeps what was forgotten out of later trainings: clients by name, classes by number, rows by
HMAC-SHA256(key, pixels). Without the key the list says nothing of a row. A row is known by its content alone: no
matter which client offers it, under which label, it is refused.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from unfed import rng, storage
from unfed.data.partition import portion
from unfed.data.source import Source, TensorSource
from unfed.errors import UnfedError, listed, members, nearest

# --- which samples must leave: D^k = D_r^k ⊎ D_u^k, one bool per position of each client ------------------------------


Kind = Literal["client", "class", "instance"]
View = Literal["retain", "forget", "all", "val"]
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True)
class Request:
    """One deletion request: some clients, some classes, or some samples.

    Give exactly one of `clients`, `classes`, `samples`, `rows` and `fraction`.

    Args:
        id: The request's name; its random draws depend on it.
        clients: Names of the clients that leave.
        classes: Numbers of the classes to forget, at every client.
        samples: Single rows, as (client, position).
        fraction: A random share of every client's rows.
        deleted: Whether the owners have deleted the data already.
        listed: SHA-256 of the file that listed the samples.
        rows: Single rows by their number in the data set, from 0 on.
        purged: Whether a run has purged the request.

    Raises:
        UnfedError: Nothing is named, two things are named, or a value has the wrong type.

    Examples:
        >>> unfed.Request("bye", clients=("3",)).subject
        'client 3'
    """

    id: str
    clients: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    samples: tuple[tuple[str, int], ...] = ()
    fraction: float | None = None
    deleted: bool = False
    """Whether its owners have deleted the data already: then nothing can be asked of it any more."""
    listed: str | None = field(default=None, compare=False)
    """SHA-256 of the file that listed its samples, where one did; what is asked for are the samples."""
    rows: tuple[int, ...] = ()
    """Single samples by their numbers in the data set as it was given, from 0 on, no matter who holds them."""
    purged: bool = field(default=False, compare=False)
    """Whether a run has purged it: no value of a single row of it is written again. No part of what is asked for."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise UnfedError("A request needs an id, a non-empty string; its random draws depend on it.")
        for name in LISTS:
            object.__setattr__(self, name, _typed(name, getattr(self, name)))
        for name, (fits, what) in FIELDS.items():
            if not fits(value := getattr(self, name)):
                raise UnfedError(f"A request's {name} must be {what}, not {repr(value)[:100]}.")
        exactly_one(self.id, {name: getattr(self, name) for name in (*LISTS, "fraction")})
        if self.fraction is not None and not 0.0 < self.fraction < 1.0:
            raise UnfedError(f"Request {self.id!r} has the fraction {self.fraction}; it must lie between 0 and 1.")

    def __hash__(self) -> int:  # equal requests have one id; tables of a thousand requests ask for this a lot
        return hash(self.id)

    @property
    def kind(self) -> Kind:
        """The scope: client, class or instance."""
        return "client" if self.clients else "class" if self.classes else "instance"

    @property
    def named(self) -> int:
        """How many single samples are named."""
        return len(self.samples or self.rows)

    @property
    def subject(self) -> str:
        """Who or what leaves, in words."""
        if self.kind != "instance":
            return f"{self.kind} " + ", ".join(str(one) for one in self.clients or self.classes)
        return f"{self.named} samples" if self.named else "a share of every client's samples"

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary: the id and the one thing that is asked for."""
        lists = {name: [list(one) if name == "samples" else one for one in getattr(self, name)] for name in LISTS}
        more = {"fraction": self.fraction, "listed": self.listed if self.named else None}
        said = {"deleted": self.deleted, **lists, **more}
        return {"id": self.id, **{name: value for name, value in said.items() if value}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Request:
        """The request that `to_json` wrote, or the sentence that says which part is malformed."""
        if not isinstance(data, Mapping):
            raise UnfedError(f"A request is a table with an id and what is to leave, not a {type(data).__name__}.")
        known = [own.name for own in fields(Request) if own.name != "purged"]
        for name in data:
            if name not in known:
                raise UnfedError(f"A request has no field {name!r}; it has {', '.join(known)}.{nearest(name, known)}")
        return Request(**{"id": "", **data})


def exactly_one(id: str, asked: Mapping[str, Any]) -> None:
    """Refuse a request that asks for nothing, or for several things; `asked` has all that it may."""
    given = [name for name, value in asked.items() if value is not None and value != ()]
    if len(given) != 1:
        what = f"gives {listed(given, 'and')}" if given else "names nothing to forget"
        raise UnfedError(f"Request {id!r} {what}; give exactly one of {listed(asked)}.")


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_index(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _is_sample(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and _is_name(value[0]) and _is_index(value[1])


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_digest(value: Any) -> bool:
    return value is None or (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None)


LISTS: dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]] = {
    "clients": (_is_name, "client names", str),
    "classes": (_is_index, "class numbers from 0 on", int),
    "samples": (_is_sample, "pairs [client, position]", lambda one: (one[0], int(one[1]))),
    "rows": (_is_index, "row numbers from 0 on", int),
}
"""What a request may list: which members fit, what they are, and how they are kept."""
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "fraction": (_is_number, "a number between 0 and 1"),
    "deleted": (lambda value: isinstance(value, bool), "true or false"),
    "listed": (_is_digest, "the SHA-256 of a file in 64 hex digits"),
}
"""What else it may say: which values fit, and what they are."""


def _typed(name: str, values: Any) -> tuple[Any, ...]:
    fits, what, kept = LISTS[name]
    if not isinstance(values, (list, tuple, range)) or not all(fits(value) for value in values):
        raise UnfedError(f"A request's {name} must be a list of {what}, not {repr(values)[:100]}.")
    return tuple(kept(value) for value in values)


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds: rows of a source in its own order, the 80:20 split, and the marks of D_u."""

    name: str
    source: Source
    rows: Tensor
    train: Tensor
    val: Tensor
    forget: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    numbers: Tensor | None = None
    """The numbers of its rows in the data set as it was given, where it was dealt one."""
    _views: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    """What was asked for already: a client is asked for the same view in every round."""

    def __post_init__(self) -> None:
        views = {"all": self.train}
        if self.forget.numel() == 0:  # no marks given: nothing is to be forgotten
            object.__setattr__(self, "forget", torch.zeros_like(self.rows, dtype=torch.bool))
            views |= {"retain": self.train, "forget": self.train[:0]}
        object.__setattr__(self, "_views", views)
        if self.forget.shape != self.rows.shape or self.forget.dtype != torch.bool:
            raise UnfedError(f"Client {self.name!r} needs {len(self.rows)} boolean forget marks, one per row.")

    @property
    def labels(self) -> Tensor:
        """The labels of the client's rows, in its own order, as the client holds them."""
        return self.source.labels[self.rows.to(self.source.labels.device)].to(self.rows.device)

    def holds(self, view: str) -> bool:
        """Whether there is a row in a view."""
        if view in ("all", "val"):
            return len(self.train if view == "all" else self.val) > 0
        return len(self.view(view)) > 0

    def view(self, name: str) -> Tensor:
        """The positions of a view: retain, forget, all or val."""
        if name not in self._views:
            if name not in VIEWS:
                raise UnfedError(f"There is no view {name!r}; the views are {listed(VIEWS)}.{nearest(name, VIEWS)}")
            positions = self.val if name == "val" else self.train
            marked = self.forget[positions]
            self._views[name] = positions[marked if name == "forget" else ~marked]
        return self._views[name]


Marks = dict[int, Tensor]
"""The rows that a request names, by the client's place."""


def mark(
    clients: Sequence[ClientData], requests: Sequence[Request], seed: int, known: dict[Request, Marks] | None = None
) -> tuple[ClientData, ...]:
    """The clients with the D_u of all requests united (Algorithm 1, lines 3 to 6).

    Clients that no request concerns are returned as they are. `known` keeps what each request names, for the next call
    with the same clients and seed.
    """
    known = {} if known is None else known
    united: dict[int, list[Tensor]] = {}
    for request in requests:
        for k, marks in _marks(clients, request, seed, known).items():
            united.setdefault(k, [clients[k].forget]).append(marks)
    own = {k: torch.stack(marks).any(0) for k, marks in united.items()}
    marked = [replace(c, forget=own[k]) if k in own else c for k, c in enumerate(clients)]
    if requests and not any(len(client.view("retain")) for client in marked):
        raise UnfedError("The requests would remove every training row of every client; ask for less.")
    return tuple(marked)


def rows_named(clients: Sequence[ClientData], request: Request, seed: int, known: dict[Request, Marks]) -> Tensor:
    """The training rows that a request names, client by client; `known` as for `mark`."""
    found = _marks(clients, request, seed, known)
    rows = [clients[k].rows[clients[k].train[found[k][clients[k].train]]] for k in sorted(found)]
    return torch.cat(rows) if rows else clients[0].rows[:0]


def _marks(clients: Sequence[ClientData], request: Request, seed: int, known: dict[Request, Marks]) -> Marks:
    if request not in known:
        names = {client.name: k for k, client in enumerate(clients)}
        known[request] = _named(clients, names, request, seed)
    return known[request]


def _named(clients: Sequence[ClientData], names: Mapping[str, int], request: Request, seed: int) -> Marks:
    """The rows that a request names, of the clients that hold any; refused if none of them is trained on.

    They are drawn from the clients' rows alone, never from earlier marks: that is what makes marking idempotent.
    """
    found = {k: marks for k, marks in _SCOPES[request.kind](clients, names, request, seed).items() if marks.any()}
    if any(bool(marks[clients[k].train].any()) for k, marks in found.items()):
        return found
    if request.fraction is not None:
        most = max((len(client.train) for client in clients), default=0)
        raise UnfedError(
            f"Request {request.id!r} asks for {request.fraction:g} of every client's rows, which is less than one of"
            f" {most}; ask for a larger fraction."
        )
    raise UnfedError(
        f"Request {request.id!r} names no training row, so its forget set is empty and there is nothing to unlearn;"
        " check what it asks for."
    )


def own_marks(client: ClientData, requests: Sequence[Request], seed: int) -> Tensor:
    """The D_u of all requests as one client alone can tell: what it does not hold is no error here."""
    marks = torch.zeros_like(client.forget)
    for request in requests:
        if request.clients:
            marks |= client.name in request.clients
        elif request.classes:
            labels = client.labels
            marks |= torch.isin(labels, torch.tensor(request.classes, device=labels.device))
        else:
            own = tuple(sample for sample in request.samples if sample[0] == client.name)
            if own or request.rows or (request.fraction is not None and len(client.train)):
                mine = replace(request, samples=own)
                marks |= _instance_scope([client], {client.name: 0}, mine, seed)[0]
    return marks


def _client_scope(
    clients: Sequence[ClientData], names: Mapping[str, int], request: Request, seed: int
) -> dict[int, Tensor]:
    found = [_find(names, name, request) for name in request.clients]
    return {k: torch.ones_like(clients[k].forget) for k in found}


def _class_scope(
    clients: Sequence[ClientData], names: Mapping[str, int], request: Request, seed: int
) -> dict[int, Tensor]:
    concerned: dict[int, Tensor] = {}
    held: set[int] = set()
    for k, client in enumerate(clients):
        labels = client.labels
        marks = torch.isin(labels, torch.tensor(request.classes, device=labels.device))
        present = set(labels[marks].tolist())
        if present:
            held.update(present)
            concerned[k] = marks
    missing = [c for c in request.classes if c not in held]
    if missing:
        raise UnfedError(
            f"Request {request.id!r} names class {missing[0]}, which none of the {len(clients)} clients holds;"
            " check the class numbers."
        )
    return concerned


def _instance_scope(
    clients: Sequence[ClientData], names: Mapping[str, int], request: Request, seed: int
) -> dict[int, Tensor]:
    if request.fraction is not None:
        return {k: _random_marks(c, request.id, request.fraction, seed) for k, c in enumerate(clients) if len(c.train)}
    if request.rows:
        return _numbered(clients, request)
    concerned: dict[int, list[int]] = {}
    for name, position in request.samples:
        k = _find(names, name, request)
        if not 0 <= position < len(clients[k].rows):
            raise UnfedError(
                f"Request {request.id!r} names position {position} of client {name!r}, which holds"
                f" {len(clients[k].rows)} rows; positions count from 0 in the client's own order."
            )
        concerned.setdefault(k, []).append(position)
    return {k: _marks_at(clients[k], torch.tensor(positions)) for k, positions in concerned.items()}


def _numbered(clients: Sequence[ClientData], request: Request) -> dict[int, Tensor]:
    """The rows of a data set that a request names by their numbers, at the clients that hold them."""
    wanted, concerned, found = torch.tensor(request.rows), {}, set()
    for k, client in enumerate(clients):
        if client.numbers is None:
            raise no_numbers(request)
        marks = torch.isin(client.numbers, wanted)
        found.update(client.numbers[marks].tolist())
        if bool(marks.any()):
            concerned[k] = marks.to(client.forget.device)
    if missing := [row for row in request.rows if row not in found]:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UnfedError(
            f"Request {request.id!r} names row {missing[0]}{more}, which is no training row (rows count from 0; some"
            " are held out); take it out of the list."
        )
    return concerned


def no_numbers(request: Request) -> UnfedError:
    """Why rows cannot be looked up at clients who keep their data with them."""
    return UnfedError(
        f"Request {request.id!r} names rows of a data set, and the clients of this run are elsewhere and number their"
        " rows themselves; list client,position."
    )


_SCOPES = {"client": _client_scope, "class": _class_scope, "instance": _instance_scope}


def _find(names: Mapping[str, int], name: str, request: Request) -> int:
    if name not in names:
        raise UnfedError(
            f"Request {request.id!r} names client {name!r}, which is not among the {len(names)} clients"
            f" of this federation: {members(names)}."
        )
    return names[name]


def _random_marks(client: ClientData, request_id: str, fraction: float, seed: int) -> Tensor:
    """A random ⌊fraction · n_train⌋ of a client's training rows: none, where the client holds too few."""
    key = rng.as_key(rng.key(seed, "request", request_id, client.name), client.train.device)
    count = portion(fraction, len(client.train))
    return _marks_at(client, client.train[rng.order(key, len(client.train))[:count]])


def _marks_at(client: ClientData, positions: Tensor) -> Tensor:
    marks = torch.zeros_like(client.forget)
    marks[positions.to(marks.device)] = True
    return marks


# --- images at the server ---------------------------------------------------------------------------------------------


class Unlabelled:
    """A source whose labels say nothing."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.labels = torch.zeros_like(source.labels)
        self.resident, self.augments = source.resident, source.augments
        self.classes, self.shape, self.inputs = source.classes, source.shape, source.inputs

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The images of `rows`, each with the label 0."""
        x, y = self._source.fetch(rows, draws)
        return x, torch.zeros_like(y)


def public(clients: Mapping[str, ClientData]) -> ClientData | None:
    """The server as one more client, or None where no client that stays holds a validation row.

    A simulation has no public data beside the clients' own, so the held-out rows of those who stay stand for it. They
    are never trained on by others, never test rows and never the leaver's, and their labels are zeros.
    """
    staying = [c for c in clients.values() if len(c.view("retain")) and len(c.view("val"))]
    if not staying:
        return None
    rows = torch.cat([c.rows[c.view("val")] for c in staying])
    places = torch.arange(len(rows), device=rows.device)
    return ClientData("server", Unlabelled(staying[0].source), rows, places, places[:0])


# --- A list of single samples -----------------------------------------------------------------------------------------


Samples = tuple[tuple[str, int], ...]

MOST_BYTES = 64 * 2**20
MOST_ROWS = 1_000_000
_DIGITS = 15  # more than any client holds rows
_HEADERS = (["client", "position"], ["row"])
_KNOWN = "`row` or `client,position`"
_NO_CLIENT = ""  # for a row that is named by its number


@dataclass(frozen=True)
class SampleList:
    """The text of a list, byte for byte, and where it was read."""

    source: str
    text: str

    @staticmethod
    def read(path: str | Path) -> SampleList:
        try:
            return SampleList(str(path), storage.content(Path(path), MOST_BYTES).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def asked(self) -> dict[str, Any]:
        """What a request says that takes out the samples of this list."""
        named = {"rows": self.rows} if self.rows else {"samples": self.samples}
        return {**named, "listed": self.sha256}

    @property
    def samples(self) -> Samples:
        """(client, position) of every line; a mistake is named with its line."""
        if self.rows:
            raise UnfedError(
                f"The sample list {self.source} names rows of the data set, which only a run with its data here can"
                " look up; write client,position."
            )
        return _parsed(self.text, self.source)

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the training set, where the list names these, and else none."""
        found = _parsed(self.text, self.source)
        return tuple(row for _, row in found) if found[0][0] == _NO_CLIENT else ()


def drawn_order(what: str) -> UnfedError:
    """Why positions mean nothing to a user where one place holds a whole data set."""
    return UnfedError(
        f"One place holds all data here, in a drawn order, so positions in {what} mislead; name rows: a list with the"
        " header row, or Request(id, rows=…)."
    )


def _unreadable(path: str | Path, error: Exception) -> UnfedError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UnfedError(f"The sample list {path} cannot be read ({reason}); give a CSV file in UTF-8.")


@lru_cache(maxsize=8)  # a run asks for its requests again and again
def _parsed(text: str, path: str) -> Samples:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    header: list[str] = []
    first: dict[tuple[str, int], int] = {}
    try:
        for cells in reader:
            if not any(cells):
                continue
            cells, where = [cell.strip() for cell in cells], f"Line {reader.line_num} of {path}"
            if not header:
                header = cells
                if header not in _HEADERS:
                    raise UnfedError(f"{where} is {','.join(header)[:100]!r}; write the header {_KNOWN} there.")
                continue
            if len(cells) != len(header) or not cells[0]:
                what = " and ".join(f"a {name}" for name in header)
                raise UnfedError(f"{where} must hold {what}, not {','.join(cells)[:100]!r}.")
            number = cells[-1]
            if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS):
                raise UnfedError(f"{where} has the {header[-1]} {number[:100]!r}; it must be an integer from 0 on.")
            sample = (cells[0] if len(cells) == 2 else _NO_CLIENT, int(number))
            if sample in first:
                raise UnfedError(f"{where} repeats line {first[sample]}; remove one of them.")
            first[sample] = reader.line_num
            if len(first) > MOST_ROWS:
                raise UnfedError(
                    f"The sample list {path} has more than {MOST_ROWS:,} samples; ask for them in several requests."
                )
    except csv.Error as error:
        raise _unreadable(path, error) from error
    if not header:
        raise UnfedError(f"The sample list {path} is empty; write the header {_KNOWN}, then one line per sample.")
    if not first:
        raise UnfedError(f"The sample list {path} has a header and no sample; add one line per sample.")
    return tuple(first)


# --- the deny list ----------------------------------------------------------------------------------------------------


KEY_BYTES = 32


@dataclass(frozen=True)
class DenyList:
    """Clients, classes and rows that no training may take in."""

    clients: frozenset[str] = frozenset()
    classes: frozenset[int] = frozenset()
    rows: frozenset[str] = frozenset()
    key: bytes | None = None
    """Without it rows cannot be recognised."""

    def refuses(self, client: ClientData) -> Tensor:
        """For each position of a client whether it is on the list."""
        if client.name in self.clients:
            return torch.ones_like(client.forget)
        refused = torch.isin(client.labels.cpu(), torch.tensor(sorted(self.classes), dtype=torch.int64))
        if self.rows:
            if self.key is None:
                raise UnfedError("The deny list has rows, but its key is not there; restore deny.key beside run.json.")
            if not recognisable(client.source, client.rows):
                raise UnfedError(
                    "The deny list has rows, but this data set's random transforms hide them; remove the transforms,"
                    " or deny clients by a file of names."
                )
            own = row_digests(self.key, client.source, client.rows)
            refused |= torch.tensor([digest in self.rows for digest in own], dtype=torch.bool)
        return refused.to(client.forget.device)


def keep_out(clients: Sequence[ClientData], denied: DenyList) -> tuple[ClientData, ...]:
    """The clients without what is on the list, in training rows and held-out ones."""
    if not (denied.clients or denied.classes or denied.rows):
        return tuple(clients)
    left = []
    for client in clients:
        stays = ~denied.refuses(client)
        left.append(replace(client, train=client.train[stays[client.train]], val=client.val[stays[client.val]]))
    if not any(len(client.train) for client in left):
        raise UnfedError("Every training row is on the deny list, so nothing is left to learn from; check deny.run.")
    return tuple(left)


def recognisable(source: Source, rows: Tensor) -> bool:
    """Whether a row has the same content whenever it is asked for: a user's own data set may draw."""
    if isinstance(source, TensorSource):
        return True
    few = rows[:32]
    return list(_contents(source, few)) == list(_contents(source, few))


def row_digests(key: bytes, source: Source, rows: Tensor) -> list[str]:
    """One keyed hash per row, of its pixels as they are stored."""
    return [hmac.new(key, content, hashlib.sha256).hexdigest() for content in _contents(source, rows)]


def _contents(source: Source, rows: Tensor) -> Iterable[bytes]:
    if isinstance(source, TensorSource):
        pixels = source.images.index_select(0, rows.to(source.images.device)).cpu()
        pixels = pixels if pixels.dtype == torch.uint8 else pixels.float()
        yield from (image.contiguous().numpy().tobytes() for image in pixels)
        return
    for row in rows.tolist():  # one at a time: such a source reads files
        yield source.fetch(torch.tensor([row]), None)[0][0].float().cpu().contiguous().numpy().tobytes()
