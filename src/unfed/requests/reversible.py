"""Which models anyone who has them can turn back, and bring a leaver back with it.

    made by NoT, whose perturbation has a public inverse ─► later models ─► one whose method lasts: no further

Nothing is built for this: the request's file says which method made a model, and how, and of a method of one's own the
state says which tensors its `begin` negated. NoT draws from the run's seed and the request's name, so what it draws
has an inverse too, for anyone who knows or guesses these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from unfed.config.config import Config
from unfed.errors import UnfedWarning
from unfed.measures.undo.flip import INVERSES, REDRAWN
from unfed.methods import METHODS, NoT
from unfed.methods.sealed import Sealed, leaves_much
from unfed.requests.book import Book
from unfed.requests.entry import Entry, Job


def inverse_of(book: Book, entry: Entry) -> str | None:
    """What takes back what a request's method did, in words; None where no one knows an inverse."""
    return inverse_by(book, entry.how.on(book.config, entry.method), entry.job)


def inverse_by(book: Book, config: Config, job: Job) -> str | None:
    """The same of a method as a config has it."""
    if config.methods.name_of(job.label) != NoT.name:
        return MINUS if negated_by(book, job) else None
    perturbation = str(config.methods.said(job.label, "perturbation", NoT.perturbation))
    if perturbation in REDRAWN:
        return f"the same draw of {perturbation!r}, which follows from the run's seed and the request's name"
    if perturbation not in INVERSES:
        return None
    return MINUS if perturbation == "negate" else f"the inverse of {perturbation!r}"


def warn_of_way_back(what: str, instead: str) -> None:
    """Warn that what a method does can be undone, with what to use instead."""
    warnings.warn(f"{what} can be undone; use {instead} where that matters.", UnfedWarning, stacklevel=4)


def negated_by(book: Book, job: Job) -> tuple[str, ...]:
    """The tensors that a method's `begin` negated, whole or in part, whatever the method says of itself."""
    return tuple(name for name, how in _changes(book, job).items() if how.startswith("negated"))


def way_back(book: Book, entry: Entry) -> str:
    """What can be taken back of what was done for a request, and by what."""
    return what_was_done(book.config, entry.method, entry.request.id, str(inverse_of(book, entry)))


def what_was_done(config: Config, label: str, request: str, inverse: str) -> str:
    """The same for anyone who knows the inverse."""
    who = NoT.title if config.methods.name_of(label) == NoT.name else label
    return f"what {who} did for request {request!r}, by {inverse}"


def turned_back(book: Book, line: Sequence[Entry]) -> Iterator[Entry]:
    """The requests, from the first on, whose models can still be rid of the first one's perturbation."""
    if not line or inverse_of(book, line[0]) is None:
        return
    yield line[0]
    moved = set(_changes(book, line[0].job))
    for entry in line[1:]:
        kind = METHODS.get(book.config.methods.name_of(entry.method))
        if kind is None:  # a method of someone's own: what its `begin` left as it was is still there
            begun = _changes(book, entry.job)
            if moved <= {name for name, how in begun.items() if not how.startswith("negated")}:
                return
        elif kind.lineage == "anew" or (kind.lasts and not _does_less(book.config, entry)):
            return
        yield entry


def ways_back(book: Book, job: Job) -> list[str]:
    """What anyone with a job's model can take back, in words, the oldest first."""
    line = book.in_force(job.seed)
    # One more entry if this job's model is about to be written.
    line += [e for e in book.entries if e.request.id == job.request and e.waiting and e.job == job]
    if job in (entry.job for entry in line):
        jobs = ((one, [e.job for e in turned_back(book, line[place:])]) for place, one in enumerate(line))
        return [way_back(book, one) for one, turned in jobs if job in turned]
    own = next(
        (e.how.on(book.config, job.label) for e in book.entries if (e.seed, e.request.id) == (job.seed, job.request)),
        book.config,
    )
    inverse = inverse_by(book, own, job) if job.request else None
    return [what_was_done(own, job.label, str(job.request), inverse)] if inverse else []


MINUS = "one minus sign"
BY_DEFAULT = f"Using {NoT.title} (default). {NoT.title}"
"""How `warn_of_way_back` speaks of a method that was not asked for."""


def _changes(book: Book, job: Job) -> dict[str, str]:
    """What a method's `begin` did to which tensors, in words, as the state says."""
    saved = book.state(job)
    return {} if saved is None or saved.diary.beginning is None else dict(saved.diary.beginning.changes)


def _does_less(config: Config, entry: Entry) -> bool:
    """Whether Sealed was set to leave layers, or most of them, as they were."""
    own, label = entry.how.on(config, entry.method).methods, entry.method
    if own.name_of(label) != Sealed.name:
        return False
    how = own.said(label, "perturbation", Sealed.perturbation)
    little = leaves_much(how, float(own.said(label, "keep", Sealed.keep)))
    layers = own.said(label, "layers", Sealed.layers)
    return little or not {"hidden", "*"} & {*map(str, [layers] if isinstance(layers, str) else layers)}
