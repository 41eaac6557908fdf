"""Which models whoever has them can turn back, and bring a leaver back with it.

    made by NoT, whose perturbation has a public inverse ─► later models ─► one whose method lasts: no further

Nothing is built to tell: the request's file says which method made a model, and how.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unfed.measures.undo import INVERSES
from unfed.methods import METHODS, NoT
from unfed.methods.sealed import Sealed, leaves_much
from unfed.runs.config import Config
from unfed.runs.requests import Entry


def inverse_of(config: Config, entry: Entry) -> str | None:
    """What takes back what a request's method did, in words; None where nobody knows an inverse."""
    return inverse_by(entry.how.on(config, entry.method), entry.method)


def inverse_by(config: Config, label: str) -> str | None:
    """The same of a method as a config has it."""
    if config.methods.name_of(label) != NoT.name:
        return None
    perturbation = config.methods.said(label, "perturbation", NoT.perturbation)
    if perturbation not in INVERSES:
        return None
    return "one minus sign" if perturbation == "negate" else f"the inverse of {perturbation!r}"


def turned_back(config: Config, line: Sequence[Entry]) -> Iterator[Entry]:
    """The requests, from the first on, whose models can still be rid of the first one's perturbation."""
    if not line or inverse_of(config, line[0]) is None:
        return
    yield line[0]
    for entry in line[1:]:
        kind = METHODS.get(config.methods.name_of(entry.method))
        if kind is None or kind.lineage == "anew" or (kind.lasts and not _does_less(config, entry)):
            return
        yield entry


def _does_less(config: Config, entry: Entry) -> bool:
    """Whether Sealed was told to leave layers, or most of them, as they were."""
    own, label = entry.how.on(config, entry.method).methods, entry.method
    if own.name_of(label) != Sealed.name:
        return False
    how = own.said(label, "perturbation", Sealed.perturbation)
    little = leaves_much(how, float(own.said(label, "keep", Sealed.keep)))
    layers = own.said(label, "layers", Sealed.layers)
    return little or not {"hidden", "*"} & {*map(str, [layers] if isinstance(layers, str) else layers)}
