"""What a verified bundle shows, in plain words: what is proven, what is measured, what is neither.

`verifier.py` checks and says what is proven; here the rest of the bundle, which is the operator's word, is read out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed.trust import verifier
from unfed.trust.verifier import MALFORMED, NotVerified


@dataclass(frozen=True)
class Verdict:
    """What a bundle shows, in sentences."""

    proven: list[str]
    measured: list[str]
    neither: list[str]
    statement: dict[str, Any]


def verdict(data: bytes, keys: Sequence[str], log: bytes | None = None, model: Path | None = None) -> Verdict:
    """What a bundle shows under the operator's public keys (PEM); NotVerified where something fails."""
    proven, statement = verifier.verify(data, keys, log, model)
    try:
        said = statement["predicate"]
        return Verdict(proven, [*_measured(said["findings"])], [*_neither(said)], statement)
    except MALFORMED as error:
        raise NotVerified("This is no bundle of evidence, or it is damaged; ask for it again.") from error


def _measured(found: Any) -> Iterator[str]:
    """What the operator says he measured; what he could not measure is said with what is neither."""
    for one in found["measured"].values():
        if not isinstance(one["value"], str):
            spread = one["interval"]
            between = ""
            if isinstance(spread, list):
                between = f", 95 % interval {spread[0]:.2f} to {spread[1]:.2f} over {one['rows']} rows"
            what = str(one["what"])
            yield f"{what[:1].upper()}{what[1:]}: {_number(one['value'])}{between}."
    for one in found["gate"].get("checks", []):
        if not isinstance(one["value"], str):
            value = f"{one['what']}: {_number(one['value'])}, bound {_number(one['bound'])}"
            weight = "" if one.get("decides", True) else ", which was not to decide"
            yield f"Gate, {one['name']}: {one['verdict']}{weight} ({value})."
    if (by := found["gate"].get("accepted")) is not None:
        yield f"The model did not pass its gate and was put in force all the same, by {by['by']} on {by['at']}."


def _neither(said: Any) -> Iterator[str]:
    found, proofs = said["findings"], said["participation"] or []
    yield from (str(one) for one in found["neither"])
    if said["acknowledgement"] is None:
        yield "That the leaver signed the request: no signed answer is here, for it came unsigned, or was purged."
    if any(proof.get("before") is None for proof in proofs):
        yield "That the pseudonym is one that ever took part: the log has no round of it before the request."
    about_rows = found["request"]["kind"] != "client"
    if not proofs and not (about_rows and "about rows" in str(said["no_participation"])):
        yield f"Who took part in the rounds: {said['no_participation']}."
    if about_rows:
        yield "Which rows were read: the log says who took part in a round, and nothing about rows."
    yield from (f"Not measured: {one}." for one in found["not_measured"])


def _number(value: Any) -> str:
    return f"{round(value, 4):.4g}" if isinstance(value, (int, float)) else str(value)


def told(verdict: Verdict) -> str:
    """A verdict in plain words; control characters that somebody signed do not reach a terminal."""
    parts = {"Proven": verdict.proven, "Measured, on the operator's word": verdict.measured}
    parts |= {"Neither proven nor measured": verdict.neither}
    text = "\n\n".join("\n".join([f"{title}:", *(f"  - {one}" for one in said)]) for title, said in parts.items())
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)
