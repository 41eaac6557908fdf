"""Sentences of pages, cards and the terminal: what happened, does it last, what is missing.

    "Client 0 was taken out by …"                  a model without it is in force, and no attack brought it back
    "Client 0 was hidden, not taken out, by …"     undone, more of it comes back than in Retrain treated alike
    "In a comparison, client 0 …"                  methods were compared; it is still in the model in force

Every number comes from the rows of the tables, so words and numbers cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from unfed.errors import counted
from unfed.folder.info import RequestInfo, RunInfo
from unfed.measures.evaluator import FEWEST
from unfed.measures.forgotten import remedy
from unfed.measures.metrics import FEWEST_APART, attack_error, reading
from unfed.measures.trajectory import Line
from unfed.report import tables, undo
from unfed.report.rules import Row
from unfed.report.tables import name_of
from unfed.report.undo import UndoSection, brought_back
from unfed.report.wording import FEDERATED, Wording, bytes_text, several, words_of
from unfed.requests.entry import GateSaid
from unfed.values import PREFIX, Value, is_measured

ENDED = {"denied": "was denied", "expired": "expired before it was begun", "revoked": "was withdrawn"}
"""What became of requests that were not served."""
_DENIED = {
    "gate": "its model did not pass the checks of the gate",
    "not recovered": "its rounds did not suffice",
    "refused": "it could not be served",
    "by the operator": "the operator refused it",
}


# --- who leaves -------------------------------------------------------------------------------------------------------


def subject_of(request: RequestInfo, words: Wording = FEDERATED) -> tuple[str, bool]:
    """Who or what leaves, and whether that is plural."""
    owner = f" of {several('client', request.clients)[0]}" if request.clients else ""
    count = request.samples or request.forgotten_rows
    if request.kind == "client" and request.clients:
        return several("Client", request.clients)
    if request.kind == "class" and request.classes:
        subject, plural = several("Class", request.classes)
        return subject + owner, plural
    if request.fraction is not None and count:
        span = f"{count} to {request.most_rows}" if request.most_rows else count
        whose = owner or ("" if words.setting == "central" else " of every client")
        return f"{span} samples, {100 * request.fraction:g} % of the data{whose},", True
    if not count:
        return f"Request {request.id}", False
    return (f"{count} samples{owner}", True) if count != 1 else (f"1 sample{owner}", False)


def subject_text(request: RequestInfo, words: Wording = FEDERATED) -> str:
    """Who or what leaves, alone."""
    return subject_of(request, words)[0].rstrip(",")


def rows_text(request: RequestInfo) -> str:
    """`1 training sample`, `46 to 61 training samples, by seed`; empty if it is not known."""
    count, most = request.forgotten_rows, request.most_rows
    if not count:
        return ""
    return f"{count:,} to {most:,} training samples, by seed" if most else counted(count, "training sample")


def not_taken_out(request: RequestInfo) -> str:
    """What became of a request that was not served and that no job works on; empty for any other."""
    if request.superseded:
        return f"was replaced by request {request.superseded}"
    ended = ENDED.get(request.state or "", "")
    if request.state == "denied":
        ended += f", for {_DENIED.get(request.reason or '', request.reason)}"
    return ended + ("; it stays owed, and no training uses its data" if request.state in ("denied", "expired") else "")


def headline(found: Sequence[Row], request: RequestInfo | None = None) -> Row | None:
    """The row that the sentence and the bars show: the method that served, else NoT, else any but FT."""
    if request is not None and request.method and (served := method_row(found, request.method)) is not None:
        return served
    own = [row for row in found if not (row.is_before or row.is_reference)]
    return min(own, key=lambda row: (row.method != "not", row.method == "ft"), default=None)


def method_row(found: Sequence[Row], method: str) -> Row | None:
    """The row of a method, if it ran."""
    return next((row for row in found if row.method == method), None)


# --- what happened ----------------------------------------------------------------------------------------------------


def first_sentence(run: RunInfo, request: RequestInfo, found: Sequence[Row], numbers: bool = True) -> str:
    """The first sentence about a request, from its rows after the last round."""
    row = headline(found, request)
    undone = row is not None and brought_back(run, request.id, row.method) is not None
    said = sentence(request, found, words_of(run), undone=undone, numbers=numbers)
    if any(request.id in model.only_compared for model in run.in_force):
        return f"In a comparison, {said[0].lower()}{said[1:]}"
    return said


def sentence(
    request: RequestInfo,
    found: Sequence[Row],
    words: Wording = FEDERATED,
    undone: bool = False,
    numbers: bool = True,
) -> str:
    """What happened, in one sentence that needs no knowledge of the field.

    "Taken out" is said only where something measured it: Retrain, or the check for forgetting. Without either the
    sentence says what moved, and that it was not measured. `undone`: an attack brought it back. Without `numbers`, what
    bars show beside it is left out.
    """
    subject, plural = subject_of(request, words)
    row, before, retrain = headline(found, request), method_row(found, "before"), method_row(found, "retrain")
    verb, is_ = ("were", "are") if plural else ("was", "is")
    if not_taken_out(request):
        return f"{subject} {verb} not taken out: the request {not_taken_out(request)}."
    if request.left_by:
        return f"{left_before(request, words)}."
    if row is None:
        return f"{subject} {is_} to be taken out; no unlearning method has been evaluated yet."
    if row.verdict:
        none = f"{name_of(row.method)} has no result under the rule {row.rule}"
        return f"{subject.rstrip(',')}: {none} ({words.said(row.verdict)})."
    effort = f"{name_of(row.method)}{_effort(row, words)}"
    outcome = f"{_forgetting(request, row, before, plural)}, {_utility(row, before)}"
    if not row.finished:
        return f"{subject} {is_} being taken out by {effort}: {outcome}."
    if row.is_reference:
        whom = "them" if plural else "it"
        return (
            f"{subject} {verb} taken out by {effort}; the new model was trained without {whom} from the beginning"
            + (f": {outcome}." if numbers else ".")
        )
    shown, checked = tables.judged(row, before, retrain), _checked(request)
    if shown == "partly":
        how = "only partly taken out by"
    elif undone and (shown == "taken out" or not (checked or "").startswith("not")):
        how = "hidden, not taken out, by"
    elif shown == "taken out":
        how = "taken out by"
    elif checked is not None:
        how = checked
    else:
        out = (
            f"whether {'they are' if plural else 'it is'} out was not measured, for {_not_shown(row, before, retrain)}"
        )
        return f"{subject.rstrip(',')}: after {effort}, {outcome}; {out}."
    return f"{subject} {verb} {how} {effort}" + (f": {outcome}." if numbers else ".")


def left_before(request: RequestInfo, words: Wording = FEDERATED) -> str:
    """What it means that nothing of a request was left in training, without a full stop."""
    plural, by = subject_of(request, words)[1], several("request", request.left_by)[0]
    return (
        f"{subject_text(request, words)} {'take' if plural else 'takes'} no further part, in training or validation; no"
        f" new model was made, because {by} had taken all of {'them' if plural else 'it'} out before"
    )


def _not_shown(row: Row, before: Row | None, retrain: Row | None) -> str:
    """Why a comparison with Retrain says nothing."""
    if retrain is None:
        return "this run has no Retrain of the request"
    if before is None or not all(is_measured(one.forgetting.mean) for one in (row, before, retrain)):
        return "one of the three models that are compared has no accuracy on it"
    if tables.on_the_way(row, before, retrain):
        return "seeds and rows leave open on which side of the middle between the old model and Retrain it stands"
    if tables.few_apart("forget", before, retrain):
        return f"Retrain and the old model differ there by fewer than {FEWEST_APART} rows, which chance may do"
    return "Retrain hardly differs from the old model there"


def _checked(request: RequestInfo) -> str | None:
    """What the checks for forgetting said of the model that is in force, and which of them, if any did."""
    verdicts = {check.name: check.verdict for check in request.checks}
    rows, backdoor = (verdicts.get(name, "not measured") for name in ("forgotten", "backdoor"))
    if "failed" in (rows, backdoor):
        by = "for forgetting" if rows == "failed" else "of its backdoor"
        return f"not forgotten, by the check {by}, after"
    if rows == "passed":
        return "forgotten, by the check for forgetting, after"
    return "forgotten as far as its backdoor tells, the rest not measured, after" if backdoor == "passed" else None


def _effort(row: Row, words: Wording) -> str:
    rounds, sent = sum(row.rounds) / len(row.rounds), row.costs["comm_bytes"].mean
    text = "" if row.finished else ", so far"
    text += " in one step" if rounds == 0 else f" in {words.several(rounds)}"
    if "comm_bytes" in words.columns and is_measured(sent) and sent > 0:
        text += f" and {bytes_text(sent)}"
    return text + (f" (means over {len(row.seeds)} seeds)" if len(row.seeds) > 1 else "")


def _forgetting(request: RequestInfo, row: Row, before: Row | None, plural: bool) -> str:
    backdoor, was = row.metrics["backdoor"].mean, before.metrics["backdoor"].mean if before else None
    if is_measured(backdoor) and request.planted:
        planted = f" {'they' if plural else 'it'} planted" if request.kind == "client" else ""
        instead = f" instead of {was:.1f} %" if is_measured(was) else ""
        return f"the backdoor{planted} fires on {backdoor:.1f} % of the test images{instead}"
    whose = "the forgotten data" if row.own is None else "their data" if plural else "its data"
    now, was = row.forgetting.mean, before.forgetting.mean if before else None
    if not is_measured(now):
        return f"accuracy on {whose} {now}"
    instead = f" instead of {was:.1f} %" if is_measured(was) else ""
    return f"the model is right on {now:.1f} % of {whose}{instead}"


def _utility(row: Row, before: Row | None) -> str:
    now, was = row.metrics["test"].mean, before.metrics["test"].mean if before else None
    if not is_measured(now):
        return f"accuracy on test data {now}"
    return f"accuracy on test data {f'{was:.1f} → ' if is_measured(was) else ''}{now:.1f} %"


# --- the gate, and what left earlier ----------------------------------------------------------------------------------


def gate_words(gate: GateSaid | None) -> list[tuple[str, str]]:
    """What the gate found of a request's model, check by check, and who put it in force though it failed."""
    found = []
    for check in gate.checks if gate else ():
        text = str(check.value)
        if is_measured(check.value):
            decides = "" if check.decides else "; shown only: it decides nothing here"
            bound = f"allowed: at most {check.bound:.3g}{decides}"
            text = f"{check.verdict}: {check.what} is {round(check.value, 3):.3g} ({bound})"
        found.append((f"Gate, {check.name}", text))
    if gate and (by := gate.accepted):
        found.append(("Gate, accepted", f"put in force all the same by {by.get('by')}, {by.get('at')}"))
    return found


def again_words(
    now: Mapping[str, int | Value], was: Value | None = None, whose: str = "the new model", tested: int = 0
) -> str:
    """What a new model shows of an earlier request, beside what one that never saw it would.

    `tested`: how many test rows the attack had beside its rows, where that is known.
    """
    forget, chance, expected, mia, backdoor = map(now.get, ("forget", "chance", "expected", "mia", "backdoor"))
    if not is_measured(forget):
        return str(forget)
    said = [f"{whose} is right on {forget:.1f} % of its data"]
    said[0] += f", the old one on {was:.1f} %" if is_measured(was) else ""
    if is_measured(chance):
        said.append(f"chance is {chance:.1f} %")
    if expected is not None:
        value = f"would be on about {expected:.1f} %" if is_measured(expected) else f"is {expected}"
        said.append(f"a model that never saw it {value}")
    count = rows if isinstance(rows := now.get("rows"), int) else None
    if is_measured(mia):
        error = attack_error(mia, min(count, tested)) if count and tested else None
        said.append(f"MIA {mia:.1f} %" + (f", which chance alone moves by ± {error:.1f} points" if error else ""))
    elif mia is not None:
        said.append(f"MIA {mia}")
    if is_measured(backdoor):
        said.append(f"its backdoor works on {backdoor:.1f} %")
    few = f" (of {counted(count, 'row')})" if count is not None and count < FEWEST else ""
    return "; ".join(said) + few


MOST = 20
"""So many earlier requests are spoken of one by one."""


def earlier_words(
    request: RequestInfo,
    before: Mapping[str, Any] | None,
    last: Mapping[str, Any] | None,
    with_it: Collection[str] = (),
) -> list[tuple[str, str]]:
    """What the models before and after a request show of the first earlier ones, each behind its heading.

    Requests that were served together with it are only counted: each has a part of its own.
    """
    was: Mapping[str, Value] = (before.get("earlier") if before else None) or {}
    now: Mapping[str, Value] = (last.get("earlier") if last else None) or {}
    whose = "the model that was tried" if not_taken_out(request) else "the new model"
    if request.left_by:  # there is no new model: what was in force stays so
        now, was, whose = now or was, {}, "the model in force"
    line, names = last or before, [name for name in now if name not in with_it]
    tested = ((line.get("rows") if line else None) or {}).get("test", 0)
    said = [("Taken out with it", counted(len(with_it), "other request"))] if with_it else []
    for name in names[:MOST]:
        shows = {"forget": now[name], **request.again.get(name, {})}
        said.append((f"Earlier request {name}", again_words(shows, was.get(name), whose, tested)))
    if len(names) > MOST:
        said.append((f"{len(names) - MOST} more earlier requests", "`trajectory.jsonl` has them"))
    return said


# --- whether the model forgot, and what it lost -----------------------------------------------------------------------


POINTS = 5.0
"""A fall of more points than this is worth a sentence."""
USEFUL = 2 / 3
"""A model that kept a smaller share than this of its accuracy is hardly of use."""
TIMES, NATS = 2.0, 0.1
"""A test loss that is so many times what it was, and rose by so much, is worth a sentence."""


def verdicts(run: RunInfo, request: str) -> list[str]:
    """One sentence for each method, and for each seed where they differ.

    Retrain never saw the rows and has none. "Forgotten" is followed by what an attack brought back.
    """
    said = []
    for method, own in run.forgetting(request).items():
        back = brought_back(run, request, method)
        but = f" But {back[0].lower()}{back[1:]}" if back else ""
        each = {
            seed: one.sentence(remedy(method)) + (but if one.kind == "forgotten" else "") for seed, one in own.items()
        }
        if len({*each.values()}) == 1:
            said.append(f"{name_of(method)}: {next(iter(each.values()))}")
        else:
            said += [f"{name_of(method)}, seed {seed}: {sentence}" for seed, sentence in each.items()]
    return said


def fell(before: Mapping[str, Any], after: Mapping[str, Any], remedy: str) -> str:
    """The sentence "Test fell by 10.2 points, …", or nothing where it did not.

    Where Test stands, only a Retain that is ruined counts: a model that fits its own rows less is no worse.
    """
    tested = is_measured(reading(before, "test")) and is_measured(reading(after, "test"))
    for name in ("test", "retain"):
        first, last = reading(before, name), reading(after, name)
        if is_measured(first) and is_measured(last):
            ruined = last < USEFUL * first
            if first - last <= POINTS or (name == "retain" and tested and not ruined):
                continue
            said = f"{name.capitalize()} fell by {first - last:.1f} points, from {first:.1f} to {last:.1f}"
            return f"{said}; {'this model is hardly of use:' if ruined else 'to win some of them back,'} try {remedy}."
    first, last = reading(before, "test_loss"), reading(after, "test_loss")
    if not (is_measured(first) and is_measured(last)) or last < TIMES * first or last < first + NATS:
        return ""
    return f"The test loss rose from {first:.2g} to {last:.2g}: the model is surer of its errors; try fewer rounds."


def falls(found: Sequence[Row]) -> list[str]:
    """One sentence for each method of a run whose model lost too much.

    What Retrain loses as well is the price of the request, and no method's fault.
    """
    said = []
    for row in found:
        own = [one for one in found if one.request == row.request]
        before, retrain = method_row(own, "before"), method_row(own, "retrain")
        if row.is_before or row.is_reference or row.verdict or before is None:
            continue
        other = ", other layers or sealed" if row.method == "not" else " or other layers"
        sentence = fell(_values(before), _values(row), f"more unlearning.rounds, another unlearning.lr{other}")
        if sentence and (retrain is None or fell(_values(retrain), _values(row), "")):
            said.append(f"{name_of(row.method)}: {sentence}")
    return said


def _values(row: Row) -> dict[str, Value]:
    return {name: row.metrics[name].mean for name in ("test", "retain", "test_loss") if name in row.metrics}


# --- what a page does not say, and what is missing --------------------------------------------------------------------


NOT_PROOF = "This is evidence, not proof."


def lasting(section: UndoSection, row: Row | None) -> str:
    """Does it last? What attacks brought back of the method in front, or that none was tried."""
    if section.reason is not None:
        reason = section.reason.removeprefix(PREFIX)
        return f"{reason[0].upper()}{reason[1:]}."
    found = next((own for own in section.methods if row is not None and own[0].method == row.method), None)
    if found is None:
        return "The method in front was not attacked; `unfed probe` does it."
    again = undo.comes_back(found)
    return f"No: {again}." if again else undo.conclusion(found) or "It was attacked, but no Retrain beside it."


def trust(seeds: int, retrain: bool) -> list[str]:
    """Can I trust it? What the page's numbers rest on."""
    said = [NOT_PROOF, f"It rests on {'one seed' if seeds == 1 else f'{seeds} seeds'}."]
    return said if retrain else [*said, "There is no Retrain to compare with."]


def unfinished(run: RunInfo, lines: Sequence[Line]) -> list[str]:
    """Every request and job that has not ended; seeds that stand alike share a sentence."""
    evaluated = {line.get("request") for line in lines}
    let_go = {request.id for request in run.requests if not_taken_out(request)}
    missing = [request.id for request in run.requests if request.id not in evaluated and request.id not in let_go]
    goals = {request.id: _goals(request.until or "") for request in run.requests}
    last = {(line["seed"], line.get("request"), line["method"]): line for line in lines}
    found: dict[tuple[str, str], list[str]] = {}
    for job in run.jobs:
        if job.finished or job.request in let_go:
            continue
        line = last.get((job.seed, job.request, job.method))
        if line is None:
            state = "not begun" if job.request is None else "not evaluated yet"
        elif (aim := goals.get(job.request or "")) and line["round"] >= job.rounds:
            state = f"ended at {words_of(run).unit} {line['round']} without having {aim}"
        else:
            state = f"at {words_of(run).unit} {line['round']} of {job.rounds}"
        what = name_of(job.method) + ("" if job.request is None else f", request {job.request}")
        found.setdefault((what, state), []).append(str(job.seed))
    return [f"Request {name}: nothing has been evaluated yet." for name in missing] + [
        f"{what}, {several('seed', which)[0]}: {state}." for (what, state), which in found.items()
    ]


def _goals(until: str) -> str:
    """What a request's rounds were to reach, in words; empty where they are merely counted."""
    goals = {"recovered": "recovered", "forgotten": "forgotten what is asked"}
    return " and ".join(goals[word] for word in until.split(",") if word in goals)
