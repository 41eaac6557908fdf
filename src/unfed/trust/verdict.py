"""What a verified bundle shows: a decision in four lines, a checklist, and what stands behind them.

`verifier.py` checks and says what is proven and what no bundle shows. Here the rest of the bundle, which is the
operator's word, is read out, and a recommendation is made: accept, ask for something, or reject.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from unfed.report.sentences import gate_words
from unfed.report.wording import date_text
from unfed.requests.entry import GateSaid
from unfed.trust import verifier
from unfed.trust.verifier import MALFORMED, NotVerified, Shown, taken_out
from unfed.values import is_measured

FALL = 2.0
"""Points of test accuracy that a model may lose before an officer should ask why."""


@dataclass(frozen=True)
class Verdict:
    """What a bundle shows, in sentences."""

    decision: list[tuple[str, str]]
    """Who asked, absent since, forgotten, copies: each with its answer."""
    recommendation: str
    checklist: list[tuple[bool, str]]
    """What a lawyer asks, and whether this evidence answers it."""
    proven: list[str]
    measured: list[str]
    neither: list[str]
    statement: dict[str, Any]


def verdict(data: bytes, keys: Sequence[str], log: bytes | None = None, model: Path | None = None) -> Verdict:
    """What a bundle shows under the operator's public keys (PEM); NotVerified where something fails."""
    shown = verifier.verify(data, keys, log, model)
    try:
        found = shown.statement["predicate"]["findings"]
        neither = [*shown.not_shown, *(f"Not measured: {one}." for one in found["not_measured"])]
        told = (_decision(shown, found), _recommendation(shown, found), [*_checklist(shown, found)])
        return Verdict(*told, shown.proven, [*_measured(found)], neither, shown.statement)
    except MALFORMED as error:
        raise NotVerified("This is no bundle of evidence, or it is damaged; ask for it again.") from error


# --- the decision -----------------------------------------------------------------------------------------------------


def _decision(shown: Shown, found: Any) -> list[tuple[str, str]]:
    """The four lines; what is proven was recomputed, the rest is the operator's word."""
    forget, test, held = found["measured"]["forget"], found["measured"]["test"], _held(found)
    values = [_percent(forget.get("before")), _percent(forget["value"]), _percent(test["value"])]
    forgotten = "{} of its rows right before → {} after → {} of rows the model never saw".format(*values)
    copies = f"{held} {'file' if held == 1 else 'files'} in the run folder" if held else "none in the run folder"
    return [
        ("Who asked", f"{_mark(shown.asked[0])}: {shown.asked[1]}"),
        ("Absent from every later round", f"{_mark(shown.absent[0])}: {shown.absent[1]}"),
        ("Forgotten", f"{forgotten} (measured by the operator)"),
        ("Copies still held", f"{copies} (as the operator lists them)"),
    ]


def _recommendation(shown: Shown, found: Any) -> str:
    """Reject what the operator's own checks speak against; ask for what is missing; else accept.

    A purge takes proofs and numbers along with the data; the evidence made before it has them.
    """
    checks = {one["name"]: one["verdict"] for one in found["gate"].get("checks", [])}
    forget, test = found["measured"]["forget"], found["measured"]["test"]
    if checks.get("forgotten") == "failed":
        return "Reject: the operator's own check says that the data is not forgotten."
    if found["gate"].get("accepted") is not None:
        return "Reject: the model failed the operator's own checks and was put in force all the same."
    purged = shown.asked[1] == verifier.REQUEST_PURGED or shown.absent[1] == verifier.PROOF_PURGED
    asks = [] if shown.asked[0] or purged else ["a request that the client signed"]
    if found["request"]["kind"] == "client" and not (shown.absent[0] or purged):
        asks.append("proof that the client trained in no later round")
    if not all(is_measured(one) for one in (forget.get("before"), forget["value"], test.get("before"), test["value"])):
        asks += [] if purged else ["accuracy before, after and on unseen rows"]
    else:
        low, high = (
            one["interval"] if isinstance(one["interval"], list) else [one["value"]] * 2 for one in (forget, test)
        )
        if checks.get("forgotten") != "passed" and found["request"]["kind"] != "class" and low[0] > high[1]:
            asks.append("the reason why the model still knows the data that left better than unseen rows")
        if test["before"] - test["value"] > FALL:
            asks.append(f"more recovery: test accuracy fell from {test['before']:.1f} to {test['value']:.1f} %")
    if held := _held(found):
        asks.append(f"deletion of the {held} {'file' if held == 1 else 'files'} that still carry the data")
    if asks:
        return f"Ask for {'; '.join(asks)}."
    return "Accept, if the evidence made before the purge asked for deletion only." if purged else "Accept."


def _checklist(shown: Shown, found: Any) -> Iterator[tuple[bool, str]]:
    """The questions of a lawyer, each with what this evidence answers."""
    dates, held = {name: date_text(at) for name, at in shown.dates.items()}, _held(found)
    yield shown.asked[0], f"The request came from the person it concerns (GDPR Art. 12(6)): {shown.asked[1]}."
    if "refused" in dates:
        yield True, f"The operator first refused, and signed the reason, on {dates['refused']} (Art. 12(4))."
    if "received" in dates:
        in_time = shown.dates["in force"] <= shown.dates["expected_by"]
        said = f"received {dates['received']}, due {dates['expected_by']}, in force {dates['in force']}"
        yield in_time, f"It was answered within one month (Art. 12(3)): {said}."
    else:
        yield False, "It was answered within one month (Art. 12(3)): no signed receipt says when it came."
    made = f"in force since {dates['in force']}" if "in force" in dates else "only the operator says so"
    yield "in force" in dates, f"A model made after the request replaced the old one (Art. 17(1)): {made}."
    yield shown.absent[0], f"The client's data took no part in training since: {shown.absent[1]}."
    tested = [
        one for one in found["gate"].get("checks", []) if one["name"] == "forgotten" and is_measured(one["value"])
    ]
    yield bool(tested), "Whether the new model still knows the data was tested by an attack, beside rows it never saw."
    yield not held, f"Nothing in the run folder carries the data any more (Art. 17(1)): {held or 'no'} files do."
    yield False, "Everyone who received the old model was informed (Art. 19): no evidence shows this; ask the operator."


def _held(found: Any) -> int:
    return sum(int(one["files"]) for one in found["still_carries"])


def _mark(proven: bool) -> str:
    return "proven" if proven else "not proven"


def _percent(value: Any) -> str:
    return f"{value:.1f} %" if is_measured(value) else "not measured"


# --- what stands behind it --------------------------------------------------------------------------------------------


def _measured(found: Any) -> Iterator[str]:
    """What the operator says he measured; what he could not measure stands with what is not shown."""
    for one in found["measured"].values():
        if not isinstance(one["value"], str):
            spread = one["interval"]
            between = f" (before: {_number(one['before'])})" if is_measured(one.get("before")) else ""
            if isinstance(spread, list):
                between += f", 95 % interval {spread[0]:.2f} to {spread[1]:.2f} over {one['rows']} rows"
            what = str(one["what"])
            yield f"{what[:1].upper()}{what[1:]}: {_number(one['value'])}{between}."
    measured = [one for one in found["gate"].get("checks", []) if not isinstance(one["value"], str)]
    gate = GateSaid.model_validate({**found["gate"], "checks": measured})
    yield from (f"{title}: {text}." for title, text in gate_words(gate))


def _number(value: Any) -> str:
    return f"{round(value, 4):.4g}" if isinstance(value, (int, float)) else str(value)


def told(verdict: Verdict) -> str:
    """A verdict in plain words; control characters do not reach a terminal."""
    lines = [f"{title}: {answer}." for title, answer in verdict.decision]
    parts = {"Checklist": [f"[{'x' if yes else ' '}] {one}" for yes, one in verdict.checklist]}
    parts |= {"Proven": verdict.proven, "Measured, on the operator's word": verdict.measured}
    parts |= {"Not shown": verdict.neither}
    lists = ("\n".join([f"{title}:", *(f"  - {one}" for one in said)]) for title, said in parts.items())
    text = "\n\n".join(["\n".join([*lines, f"Recommendation: {verdict.recommendation}"]), *lists])
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


# --- the officer's page -----------------------------------------------------------------------------------------------


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def page(verdict: Verdict, keys: list[str]) -> str:
    """The page about a bundle that was verified under the keys with these ids."""
    values = {
        **vars(verdict),
        "keys": keys,
        "subject": taken_out(verdict.statement["predicate"]["findings"]["request"]),
    }
    return environment().get_template("evidence.html.j2").render(**values)


def plain(sentence: str) -> str:
    """A sentence as an officer reads it: moments as dates, commands without their marks."""
    return _MOMENT.sub(lambda found: date_text(found.group()), sentence).replace("`", "")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Where the pages of this room are rendered; a name without a value is a bug, not a blank."""

    def source(name: str) -> str:
        return files("unfed.trust").joinpath(name).read_text(encoding="utf-8")

    made = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"plain": plain, "date": date_text}
    return made
