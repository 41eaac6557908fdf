"""Can it be undone?

This section shows, beside Retrain, how much of what was forgotten comes back.

    undo/SEED/REQUEST/METHOD.json ─► a sentence per method, a picture, a table

The words claim nothing that was not measured: "comes back" is a number beside Retrain's under the same attacks, and
where nobody probed, the section says which command would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from unfed.errors import listed
from unfed.measures.metrics import mean_std
from unfed.measures.undo import NOT_TRIED
from unfed.report.drawing import PAPER, REFERENCE, SERIES, STYLE
from unfed.report.figures import styles
from unfed.report.picture import Picture, Point
from unfed.report.picture import picture as made
from unfed.report.undo_table import COLUMNS, Found, grid, value
from unfed.values import Value, is_measured, not_measured

NOT_PROBED = not_measured("nobody tried to undo it, `unfed probe` would")
PURGED = not_measured("its data was purged, and with it what was tried before, if anything")
PROBE_PURGED = not_measured("what was tried was purged with other data, `unfed probe` tries again")
ABOVE = 5.0
"""Points above Retrain from which on the words say that something comes back."""

TOO_WEAK = (
    "No model whose layers were fitted is usable, so the fits say nothing: `unfed probe` with more `--rows` and"
    " `--steps`, or lower `--rates`, may find what these did not."
)
SHOWS = {"backdoor": "the backdoor works on", "forget": "the model reads"}
REST = {"backdoor": "of stamped images", "forget": "of the forgotten rows right"}
PICTURES = {"backdoor": "Backdoor success (%)", "forget": "Accuracy on the forgotten data (%)"}


def view(found: Sequence[Found], name: str, nothing: str = "", untried: str = NOT_PROBED) -> dict[str, Any]:
    """Everything the page shows of one request; nothing but the reason where there is no probe.

    `nothing`: why there is nothing to undo, where there is not; `untried`: why there is no probe.
    """
    methods: dict[str, list[Found]] = {}
    for one in found:
        methods.setdefault(str(one["method"]), []).append(one)
    if not methods:
        reason = f"nothing to undo: {nothing}" if nothing else untried
        return {
            "reason": reason,
            "fitted": False,
            "weak": False,
            "back": [],
            "sentences": [],
            "pictures": [],
            "tables": [],
        }
    drawn = [picture(methods, metric, name=f"{name}-{metric}") for metric in PICTURES]
    return {
        "reason": None,
        "fitted": any(fitted(ones) for ones in methods.values()),
        "weak": any(weak(ones) for ones in methods.values()),
        "back": [told for ones in methods.values() if (told := comes_back(ones)) is not None],
        "sentences": [sentence(ones) for ones in methods.values()],
        "pictures": [one.view() for one in drawn if one is not None],
        "tables": [table(ones) for ones in methods.values()],
    }


def table(found: Sequence[Found]) -> dict[str, Any]:
    """One method as the template shows it."""
    body, notes = grid(found)
    title = str(found[0]["title"])
    return {
        "title": title,
        "header": [name.format(title=title) for name in COLUMNS.values()],
        "body": body,
        "notes": notes,
    }


def fitted(found: Sequence[Found]) -> bool:
    """Whether more was tried than to turn the perturbation back."""
    return all(value(one, "unlearned", ("realign", "forget")) != NOT_TRIED for one in found)


def weak(found: Sequence[Found]) -> bool:
    """Whether layers were fitted and none of these models is usable.

    A longer fit may bring back what these did not.
    """
    fits, usable = (_mean(found, "unlearned", "realign", name) for name in ("fits", "usable_fits"))
    return is_measured(fits) and is_measured(usable) and fits > usable == 0


def worst(found: Sequence[Found], who: str, metric: str) -> Value:
    """The most that a usable attack brought back: as published, or after realign.

    It is the mean over repetitions.
    """
    values = []
    for one in found:
        pair = [value(one, who, (part, metric)) for part in ("published", "realign")]
        numbers = [number for number in pair if is_measured(number)]
        values.append(max(numbers) if len(numbers) == 2 else pair[0] if len(numbers) == 0 else numbers[0])
    return mean_std(values).mean


def metric_of(found: Sequence[Found]) -> str:
    """What a leaver is known by: its backdoor, where one was planted, else accuracy on its rows."""
    return "backdoor" if is_measured(worst(found, "unlearned", "backdoor")) else "forget"


def _mean(found: Sequence[Found], who: str, *path: str) -> Value:
    return mean_std([value(one, who, path) for one in found]).mean


def sentence(found: Sequence[Found]) -> str:
    """What was measured of one method, beside Retrain, in plain words, and of whom."""
    over = found[0].get("over")
    if not over:
        return _sentence(found)
    return f"{_sentence(found)} Forget is over all that had left by then: {listed(over).replace(' or ', ' and ')}."


def _sentence(found: Sequence[Found]) -> str:
    title, metric = str(found[0]["title"]), metric_of(found)
    what, rest = SHOWS[metric], REST[metric]
    published, back, theirs = (
        _mean(found, "unlearned", "published", metric),
        worst(found, "unlearned", metric),
        worst(found, "retrain", metric),
    )
    if not (is_measured(published) and is_measured(back)):
        return f"{title}: {back if not is_measured(back) else published}."
    if not fitted(found):
        return f"{title}: as published {what} {published:.1f} % {rest}.{_turned_words(found, metric, rest)}"
    told = f"{title}: as published {what} {published:.1f} % {rest}; after undoing, in a model that is still usable,"
    told += f" on up to {back:.1f} %." if metric == "backdoor" else f" up to {back:.1f} %."
    told += _flip_words(found, metric, rest)
    if not is_measured(theirs):
        return f"{told} Retrain under the same attacks is {theirs}.{_beside_retrain(found)}"
    told += f" Retrain under the same attacks: {theirs:.1f} %.{_beside_retrain(found)}"
    if published > theirs + ABOVE:
        return f"{told} It was not forgotten to begin with."
    if back > theirs + ABOVE or comes_back(found):
        return f"{told} What was forgotten can be brought back."
    if weak(found):
        return f"{told} {TOO_WEAK}"
    return f"{told} These attacks bring back no more than they find in Retrain."


def comes_back(found: Sequence[Found]) -> str | None:
    """One sentence for the top of the page, where more comes back than in Retrain treated alike."""
    title, metric = str(found[0]["title"]), metric_of(found)
    published = _mean(found, "unlearned", "published", metric)
    pairs = [
        [_mean(found, who, "flip", metric) for who in ("unlearned", "retrain")],
        [worst(found, who, metric) for who in ("unlearned", "retrain")],
        [_mean(found, who, "lift", "back_1") for who in ("unlearned", "retrain") if metric == "forget"] or ["", ""],
    ]
    known = [(mine, theirs) for mine, theirs in pairs if is_measured(mine) and is_measured(theirs)]
    more = [pair for pair in known if is_measured(published) and pair[0] > max(pair[1], published) + ABOVE]
    if not more:
        return None
    mine, theirs = max(more)
    again = f"undone, {SHOWS[metric]} {mine:.1f} % {REST[metric]} again (Retrain, treated alike: {theirs:.1f} %)"
    return f"What {title} forgot is still in its model: {again}."


def brought_back(run: Mapping[str, Any], request: str, method: str) -> str | None:
    """The sentence of `comes_back` on a method's models of one request; None where none was undone."""
    tried = [one for one in run.get("undo") or [] if (one["request"], one["method"]) == (request, method)]
    return comes_back(tried) if tried else None


def _beside_retrain(found: Sequence[Found]) -> str:
    """The attacks that no other sentence names: a lifted class, a backdoor taught again."""
    told = ""
    for part, name, what, unit in (
        ("lift", "back_1", "With its bias raised until the other classes lose 1 point, the class comes back to", " %"),
        ("triggers", "known", "Taught again by five stamped rows in 20 steps, the backdoor reaches", " points"),
    ):
        mine, theirs = (_mean(found, who, part, name) for who in ("unlearned", "retrain"))
        if is_measured(mine):
            beside = f"{theirs:.1f}{unit}" if is_measured(theirs) else theirs
            told += f" {what} {mine:.1f}{unit} (Retrain: {beside})."
    return told


def _turned_words(found: Sequence[Found], metric: str, rest: str) -> str:
    """What is said where only the inverse was tried: how good a model that leaves, and what is open."""
    turned, theirs = (_mean(found, who, "flip", metric) for who in ("unlearned", "retrain"))
    test, was = (_mean(found, "unlearned", part, "test") for part in ("flip", "published"))
    if not is_measured(turned):
        return f" Turning it back is {turned}; nothing else was tried."
    told = _flip_words(found, metric, rest)
    if is_measured(test) and is_measured(was):
        told += f" That model is right on {test:.1f} % of the test data (as published {was:.1f} %)."
    told += (
        f" Retrain, treated alike: {theirs:.1f} %." if is_measured(theirs) else f" Retrain, treated alike, is {theirs}."
    )
    if is_measured(theirs) and turned > theirs + ABOVE:
        told += " What was forgotten is still in the model."
    return f"{told} Whether it comes back in a model as good as the published one was not tried."


def _flip_words(found: Sequence[Found], metric: str, rest: str) -> str:
    flipped = _mean(found, "unlearned", "flip", metric)
    if not is_measured(flipped):
        return ""
    works = {"backdoor": "works on", "forget": "reads"}[metric]
    return f" Turned back by the public inverse alone, without any data, it {works} {flipped:.1f} % {rest}."


def picture(methods: Mapping[str, Sequence[Found]], metric: str, *, name: str) -> Picture | None:
    """One line per model.

    It shows the model as published (hollow), the worst usable one after undoing (filled), and flipped (cross).
    """
    numbers = styles(list(methods))
    rows: list[tuple[str, str, Sequence[Found], str]] = [
        (str(found[0]["title"]), SERIES[numbers.get(label, 0) % len(SERIES)], found, "unlearned")
        for label, found in methods.items()
    ]
    everybody = [one for found in methods.values() for one in found]
    rows += [("Retrain", REFERENCE, everybody, "retrain"), ("before", REFERENCE, everybody, "before")]
    placed: list[tuple[str, str, float, Value, Value]] = []
    for title, colour, found, who in rows:
        published, flipped = _mean(found, who, "published", metric), _highest(found, who, ("flip", metric))
        tried = [one for one in found if fitted([one])]
        back = worst(tried, who, metric) if tried else not_measured("no layer was fitted")
        if is_measured(published):
            placed.append((title, colour, published, back, flipped))
    if not placed:
        return None
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure = Figure(figsize=(4.4, 0.75 + 0.36 * len(placed)), layout="constrained")
        axes = figure.add_subplot()
        for place, (_, colour, published, back, flipped) in enumerate(placed):
            axes.plot([published], [place], "o", color=colour, markerfacecolor=PAPER, markersize=8, zorder=3)
            if is_measured(back):
                axes.plot([published, back], [place, place], color=colour, linewidth=2.4, zorder=2)
                axes.plot([back], [place], "o", color=colour, markersize=5, zorder=4)
            if is_measured(flipped):
                axes.plot([flipped], [place], "x", color=colour, markersize=7, markeredgewidth=2, zorder=5)
        axes.set_yticks(range(len(placed)), [title for title, *_ in placed])
        axes.set_ylim(len(placed) - 0.4, -0.6)
        axes.set_xlim(-3, 103)
        whens = ("as published", "after undoing", "after the inverse alone")
        shown = [
            Point(x, place, f"{title}: {x:.1f} {what}", (title, what, x))
            for place, (title, _, *values) in enumerate(placed)
            for x, what in zip(values, whens, strict=True)
            if is_measured(x)
        ]
        told = "; ".join(
            f"{title} " + ", ".join(f"{x:.1f} {what}" for x, what in zip(values, whens, strict=True) if is_measured(x))
            for title, _, *values in placed
        )
        caption = PICTURES[metric]
        title = f"{caption}, as published and after undoing"
        return made(figure, name, title, told + ".", ("model", "when", metric), shown, caption)


def _highest(found: Sequence[Found], who: str, path: Sequence[str]) -> Value:
    """The largest over methods: each has an inverse of its own, and a model that has none meets them all."""
    numbers = [number for one in found if is_measured(number := value(one, who, path))]
    return max(numbers) if numbers else not_measured("there is no inverse")
