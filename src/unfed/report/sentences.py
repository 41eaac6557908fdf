"""What a page and the terminal say in sentences: what happened, whether the model forgot, what is missing.

Every number in a sentence comes from the same rows as the tables, so words and numbers cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from unfed.errors import counted, listed
from unfed.measures.evaluator import FEWEST
from unfed.measures.forgotten import Forgetting, remedy
from unfed.measures.metrics import FEWEST_APART, attack_error, reading
from unfed.measures.trajectory import Line
from unfed.report import ranking, undo, wording
from unfed.report.rules import Row, trajectories
from unfed.report.tables import name_of
from unfed.report.undo import brought_back
from unfed.report.wording import FEDERATED, Wording, bytes_text
from unfed.values import Value, is_measured

# Which method the opening sentence speaks of, if there are several: NoT, then whatever unlearns, then plain FT.
_LAST_CHOICE = ("ft", "before", "retrain")
ENDED = {"denied": "was denied", "expired": "expired before it was begun", "revoked": "was withdrawn"}
"""What became of requests that nobody served."""
OWED = ("denied", "expired")
_DENIED = {
    "gate": "its model did not pass the checks of the gate",
    "not recovered": "its rounds did not suffice",
    "refused": "it could not be served",
    "by the operator": "the operator refused it",
}


def gate_words(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the gate found of a request's model, check by check.

    Where it did not pass and is in force all the same, it also says who put it there.
    """
    gate = request.get("gate") or {}
    told = []
    for check in gate.get("checks") or []:
        value, text = check.get("value"), str(check.get("value"))
        if is_measured(value):
            decides = "" if check.get("decides") else "; shown only: it decides nothing here"
            bound = f"allowed: at most {check['bound']:.3g}{decides}"
            text = f"{check['verdict']}: {check['what']} is {round(value, 3):.3g} ({bound})"
        told.append((f"Gate, {check['name']}", text))
    if accepted := gate.get("accepted"):
        told.append(("Gate, accepted", f"put in force all the same by {accepted.get('by')}, {accepted.get('at')}"))
    return told


_CHECKS = {
    "utility": "how much of its accuracy on held-out data the model lost",
    "forgotten": "whether the model still treats the forgotten data otherwise than data that it never saw",
    "backdoor": "how often a backdoor still works that the leaver planted",
    "camouflage": "whether the departure armed a hidden backdoor: how many more images a small mark turns to one class",
}


def gate_meanings(request: Mapping[str, Any]) -> str:
    """What the checks of a request's gate look at, in words that need no knowledge of the field."""
    names = [str(check["name"]) for check in (request.get("gate") or {}).get("checks") or []]
    told = "; ".join(f"{name}: {_CHECKS[name]}" for name in names if name in _CHECKS)
    return f"The gate is what a new model must pass before it comes into force. It looks at {told}." if told else ""


def again_words(now: Mapping[str, Any], was: Any = None, whose: str = "the new model", tested: int = 0) -> str:
    """What a new model shows of a request that left earlier, beside what one that never saw it would.

    `tested`: how many test rows the attack had beside its rows, where that is known.
    """
    forget = now.get("forget")
    if not is_measured(forget):
        return str(forget)
    told = f"{whose} is right on {forget:.1f} % of its data"
    told += f", the old one on {was:.1f} %" if is_measured(was) else ""
    if "chance" in now:
        told += f"; chance is {now['chance']:.1f} %"
    if "expected" in now:
        usual, said = now["expected"], "a model that never saw it"
        told += f"; {said} would be on about {usual:.1f} %" if is_measured(usual) else f"; what {said} reads is {usual}"
    if "mia" in now:
        told += f"; MIA {now['mia']:.1f} %" if is_measured(now["mia"]) else f"; MIA {now['mia']}"
        if is_measured(now["mia"]) and now.get("rows") and tested:
            told += f", which chance alone moves by ± {attack_error(now['mia'], min(now['rows'], tested)):.1f} points"
    if is_measured(now.get("backdoor")):
        told += f"; its backdoor works on {now['backdoor']:.1f} %"
    rows = now.get("rows")
    if isinstance(rows, int) and rows < FEWEST:
        few = (
            "it is a single row"
            if rows == 1
            else f"these are {rows} rows, of which each counts {100 / rows:.3g} points"
        )
        told += f" ({few})"
    return told


def sentence(request: Mapping[str, Any], found: Sequence[Row], words: Wording = FEDERATED, undone: bool = False) -> str:
    """What happened, in one sentence that needs no knowledge of the field.

    "Taken out" is said only where something measured it: Retrain, or the check for forgetting. Without either the
    sentence says what moved, and that it was not measured. `undone`: somebody brought it back.
    """
    subject, plural = subject_of(request, words)
    row, before, retrain = headline(found, request), method_row(found, "before"), method_row(found, "retrain")
    if not_taken_out(request):
        verb = "were" if plural else "was"
        return f"{subject} {verb} not taken out: the request {not_taken_out(request)}."
    if request.get("left_by"):
        return f"{left_before(request, words)}."
    if row is None:
        return f"{subject} {'are' if plural else 'is'} to be taken out; no unlearning method has been evaluated yet."
    if row.verdict:
        none = f"{name_of(row.method)} has no result under the rule {row.rule}"
        return f"{subject.rstrip(',')}: {none} ({words.said(row.verdict)})."
    effort = f"{name_of(row.method)}{_effort(row, words)}"
    outcome = ", ".join((_forgetting(request, row, before, plural), _utility(row, before)))
    if not row.finished:
        return f"{subject} {'are' if plural else 'is'} being taken out by {effort}: {outcome}."
    shown = ranking.judged(row, before, retrain)
    verb = "were" if plural else "was"
    if row.is_reference:
        whom = "them" if plural else "it"
        anew = f"the new model was trained without {whom} from the beginning"
        return f"{subject} {verb} taken out by {effort}; {anew}: {outcome}."
    checked = _checked(request)
    if shown == "taken out" or (undone and (checked or "").startswith("forgotten")):
        how = "hidden, not taken out," if undone else "taken out"
        return f"{subject} {verb} {how} by {effort}: {outcome}."
    if shown == "partly":
        return f"{subject} {verb} only partly taken out by {effort}: {outcome}."
    if checked is not None:
        return f"{subject} {verb} {checked} {effort}: {outcome}."
    who = "they are" if plural else "it is"
    why = _not_shown(row, before, retrain)
    return f"{subject.rstrip(',')}: after {effort}, {outcome}; whether {who} out was not measured, for {why}."


def _not_shown(row: Row, before: Row | None, retrain: Row | None) -> str:
    """Why a comparison with Retrain says nothing."""
    if retrain is None:
        return "this run has no Retrain of the request"
    missing = [one.forgetting.mean for one in (row, before, retrain) if one and not is_measured(one.forgetting.mean)]
    if before is None or missing:
        return "one of the three models that are compared has no accuracy on it"
    if ranking.on_the_way(row, before, retrain):
        return "seeds and rows leave open on which side of the middle between the old model and Retrain it stands"
    if ranking.few_apart("forget", before, retrain):
        return f"Retrain and the old model differ there by fewer than {FEWEST_APART} rows, which chance may do"
    return "Retrain hardly differs from the old model there"


def left_before(request: Mapping[str, Any], words: Wording = FEDERATED) -> str:
    """What it means that nothing of a request was left in training, without a full stop."""
    (subject, plural), by = subject_of(request, words), several("request", [str(one) for one in request["left_by"]])[0]
    it = "them" if plural else "it"
    return (
        f"{subject.rstrip(',')} {'take' if plural else 'takes'} no further part, in training or validation; no new"
        f" model was made, for {by} had taken all of {it} out of training before, and nothing was left to unlearn"
    )


def _checked(request: Mapping[str, Any]) -> str | None:
    """What the checks for forgetting said of the model that is in force, and which of them, if any did."""
    checks = (request.get("gate") or {}).get("checks") or []
    verdicts = {check["name"]: check["verdict"] for check in checks}
    rows, backdoor = (verdicts.get(name, "not measured") for name in ("forgotten", "backdoor"))
    if rows == "failed":
        return "not forgotten, by the check for forgetting, after"
    if backdoor == "failed":
        return "not forgotten, by the check of its backdoor, after"
    if rows == "passed":
        return "forgotten, by the check for forgetting, after"
    return "forgotten as far as its backdoor tells, the rest not measured, after" if backdoor == "passed" else None


def not_taken_out(request: Mapping[str, Any]) -> str:
    """What became of a request that was served by nobody and that nobody works on; empty for any other."""
    ended, reason = ENDED.get(str(request.get("state")), ""), str(request.get("reason"))
    if request.get("superseded"):
        return f"was replaced by request {request['superseded']}"
    if request.get("state") == "denied":
        ended += f", for {_DENIED.get(reason, reason)}"
    return ended + ("; it stays owed, and no training uses its data" if request.get("state") in OWED else "")


def headline(found: Sequence[Row], request: Mapping[str, Any] | None = None) -> Row | None:
    """The row that the sentence and the bars show.

    Of a request that was served it is the method that served it.
    """
    if request is not None and (served := method_row(found, str(request.get("method")))) is not None:
        return served
    own = [row for row in found if not (row.is_before or row.is_reference)]
    order = sorted(own, key=lambda row: (row.method != "not", row.method in _LAST_CHOICE))
    return order[0] if order else None


def method_row(found: Sequence[Row], method: str) -> Row | None:
    """The row of a method, if it ran."""
    return next((row for row in found if row.method == method), None)


def subject_of(request: Mapping[str, Any], words: Wording = FEDERATED) -> tuple[str, bool]:
    """Who or what leaves, and whether that is plural."""
    clients, classes = ([str(item) for item in request.get(key) or []] for key in ("clients", "classes"))
    count = request.get("samples") or request.get("forgotten_rows")
    if request.get("kind") == "client" and clients:
        return several("Client", clients)
    if request.get("kind") == "class" and classes:
        subject, plural = several("Class", classes)
        return (subject + (f" of {several('client', clients)[0]}" if clients else "")), plural
    owner = f" of {several('client', clients)[0]}" if clients else ""
    fraction = request.get("fraction")
    if is_measured(fraction) and count:
        span = f"{count} to {request['most_rows']}" if request.get("most_rows") else count
        return f"{span} samples, {100 * fraction:g} % of the data{owner or words.whose},", True
    if not count:
        return f"Request {request.get('id')}", False
    return (f"{count} samples{owner}", True) if count != 1 else (f"1 sample{owner}", False)


def dealt_by_seed(methods: Mapping[str, Mapping[int, Sequence[Line]]]) -> dict[str, int]:
    """The fewest and the most rows that a request takes out, where each seed deals the data otherwise."""
    rows = {seed: line.get("rows", {}) for by_seed in methods.values() for seed, (line, *_) in by_seed.items()}
    found = {count for one in rows.values() if (count := one.get("own") or one.get("forget"))}
    return {"forgotten_rows": min(found), "most_rows": max(found)} if len(found) > 1 else {}


def rows_text(request: Mapping[str, Any]) -> str:
    """`1 training sample`, `46 to 61 training samples, by seed`; empty if it is not known."""
    count, most = request.get("forgotten_rows"), request.get("most_rows")
    if not count:
        return ""
    return f"{count:,} to {most:,} training samples, by seed" if most else counted(count, "training sample")


def about_the_backdoor(request: Mapping[str, Any]) -> bool:
    """Whether a measured backdoor says how well this request was served.

    It does only if whoever planted it leaves.
    """
    return bool(request.get("planted", True))


def several(noun: str, names: Sequence[str]) -> tuple[str, bool]:
    """`Client 3`, `Clients 0, 3 and 4`, `9 clients`; and whether that is plural."""
    if len(names) == 1:
        return f"{noun} {names[0]}", False
    many = noun + ("es" if noun.endswith("s") else "s")
    if len(names) > 6:
        return f"{len(names)} {many.lower()}", True
    return f"{many} {', '.join(names[:-1])} and {names[-1]}", True


def _effort(row: Row, words: Wording) -> str:
    rounds = sum(row.rounds) / len(row.rounds)
    text = " in one step" if rounds == 0 else f" in {words.several(rounds)}"
    if not row.finished:
        text = ", so far" + text
    sent = row.costs["comm_bytes"].mean
    if "comm_bytes" in words.columns and is_measured(sent) and sent > 0:
        text += f" and {bytes_text(sent)}"
    return text + (f" (means over {len(row.seeds)} seeds)" if len(row.seeds) > 1 else "")


def _percent(row: Row | None, metric: str) -> str | None:
    value = row.metrics[metric].mean if row else None
    return f"{value:.1f}" if is_measured(value) else None


def _forgetting(request: Mapping[str, Any], row: Row, before: Row | None, plural: bool) -> str:
    backdoor, earlier = _percent(row, "backdoor"), _percent(before, "backdoor")
    if backdoor is not None and about_the_backdoor(request):
        planted = f" {'they' if plural else 'it'} planted" if request.get("kind") == "client" else ""
        instead = f" instead of {earlier} %" if earlier is not None else ""
        return f"the backdoor{planted} fires on {backdoor} % of the test images{instead}"
    whose = "the forgotten data" if row.own is None else "their data" if plural else "its data"
    now, was = row.forgetting.mean, before.forgetting.mean if before else None
    if not is_measured(now):
        return f"accuracy on {whose} {now}"
    instead = f" instead of {was:.1f} %" if is_measured(was) else ""
    return f"the model is right on {now:.1f} % of {whose}{instead}"


def _utility(row: Row, before: Row | None) -> str:
    now, earlier = _percent(row, "test"), _percent(before, "test")
    if now is None:
        return f"accuracy on test data {row.metrics['test'].mean}"
    return f"accuracy on test data {earlier} → {now} %" if earlier is not None else f"accuracy on test data {now} %"


def date_text(text: str) -> str:
    """`15 November 2026, 04:00 UTC`; whatever is no ISO date is shown as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = f" {moment.tzname()}" if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M}{zone}"


def span_text(rounds: Sequence[int]) -> str:
    """Rounds as a reader would list them: `rounds 1 to 20`, `rounds 1 to 3, 5 and 9`, `no round`."""
    runs: list[list[int]] = []
    for t in sorted(set(rounds)):
        if runs and t == runs[-1][-1] + 1:
            runs[-1].append(t)
        else:
            runs.append([t])
    if not runs:
        return "no round"
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs]
    if len(parts) > 8:
        return f"{len(set(rounds))} rounds between {runs[0][0]} and {runs[-1][-1]}"
    noun = "round" if len(set(rounds)) == 1 else "rounds"
    return f"{noun} " + (" and ".join(parts) if len(parts) < 3 else ", ".join(parts[:-1]) + " and " + parts[-1])


# --- whether the model forgot, and what it lost -----------------------------------------------------------------------


POINTS = 5.0
"""A fall of more points than this is worth a sentence."""
USEFUL = 2 / 3
"""A model that kept a smaller share than this of its accuracy is hardly of use."""

TIMES, NATS = 2.0, 0.1
"""A test loss that is so many times what it was, and rose by so much, is worth a sentence."""


def forgetting(run: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, dict[int, Forgetting]]:
    """Whether each method's model forgot a request, by method and seed."""
    told: dict[str, dict[int, Forgetting]] = {}
    for job in run.get("jobs") or []:
        served = job["method"] == request.get("method")
        raw = ((request.get("gate") or {}).get("forgetting") if served else None) or job.get("forgetting")
        if job["request"] == request["id"] and (found := Forgetting.of(raw)) is not None:
            told.setdefault(str(job["method"]), {})[int(job["seed"])] = found
    retrain = told.pop("retrain", {})
    return {method: {seed: one.beside(retrain.get(seed)) for seed, one in own.items()} for method, own in told.items()}


def verdicts(run: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """One sentence for each method, and for each seed where they differ.

    Retrain never saw the rows and has none. "Forgotten" is followed by what an attack brought back.
    """
    said = []
    for method, own in forgetting(run, request).items():
        but = _undone(run, request["id"], method)
        sentences = {
            seed: one.sentence(remedy(method)) + (but if one.kind == "forgotten" else "") for seed, one in own.items()
        }
        if len({*sentences.values()}) == 1:
            sentences = {0: next(iter(sentences.values()))}
        for seed, sentence in sentences.items():
            said.append(f"{name_of(method)}{f', seed {seed}' if len(sentences) > 1 else ''}: {sentence}")
    return said


def _undone(run: Mapping[str, Any], request: str, method: str) -> str:
    """What an attack brought back, as it follows "Forgotten"; empty where nothing came back."""
    if not run.get("undo"):
        return ""
    from unfed.report.undo import brought_back  # draws with matplotlib, which takes a second to import

    back = brought_back(run, request, method)
    return f" But {back[0].lower()}{back[1:]}" if back else ""


def fell(before: Mapping[str, Any], after: Mapping[str, Any], remedy: str) -> str:
    """The sentence "Test fell by 10.2 points, …", or nothing where it did not.

    Where Test stands, only a Retain that is ruined counts: a model that fits its own rows less is no worse.
    """
    tested = is_measured(reading(before, "test")) and is_measured(reading(after, "test"))
    for name in ("test", "retain"):
        first, last = reading(before, name), reading(after, name)
        if is_measured(first) and is_measured(last):
            lost, ruined = float(first) - float(last), float(last) < USEFUL * float(first)
            if lost <= POINTS or (name == "retain" and tested and not ruined):
                continue
            said = f"{name.capitalize()} fell by {lost:.1f} points, from {float(first):.1f} to {float(last):.1f}"
            return f"{said}; {'this model is hardly of use:' if ruined else 'to win some of them back,'} try {remedy}."
    return _surer(before, after)


def _surer(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The sentence on a test loss that multiplied while accuracy stayed, or nothing."""
    first, last = reading(before, "test_loss"), reading(after, "test_loss")
    if not (is_measured(first) and is_measured(last)) or last < TIMES * first or last < first + NATS:
        return ""
    return f"The test loss rose from {first:.2g} to {last:.2g}: the model is surer of its errors; try fewer rounds."


def falls(found: Sequence[Row]) -> list[str]:
    """One sentence for each method of a run whose model lost too much.

    What Retrain loses as well is the price of the request, and no method's fault.
    """
    told = []
    for row in found:
        before, retrain = (
            next((r for r in found if r.request == row.request and r.method == name), None)
            for name in ("before", "retrain")
        )
        if row.method in ("before", "retrain") or row.verdict or before is None:
            continue
        other = ", other layers or sealed" if row.method == "not" else " or other layers"
        sentence = fell(_values(before), _values(row), f"more unlearning.rounds, another unlearning.lr{other}")
        if sentence and (retrain is None or fell(_values(retrain), _values(row), "")):
            told.append(f"{name_of(row.method)}: {sentence}")
    return told


def _values(row: Row) -> dict[str, Value]:
    return {name: row.metrics[name].mean for name in ("test", "retain", "test_loss") if name in row.metrics}


# --- the first sentence of a request ----------------------------------------------------------------------------------


def opening(run: Mapping[str, Any], request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """The first sentence about a request, from its rows after the last round."""
    row = headline(found, request)
    undone = row is not None and brought_back(run, request["id"], row.method) is not None
    said = sentence(request, found, wording.of(run), undone=undone)
    if any(request["id"] in model.get("only_compared", ()) for model in run.get("in_force") or []):
        return f"In a comparison, {said[0].lower()}{said[1:]}"
    return said


# --- what a page does not say -----------------------------------------------------------------------------------------


NOT_PROOF = "This is evidence, not proof: no measurement shows that no trace is left."
_NOT_TRIED = ((undo.NOT_PROBED,), (undo.PURGED, undo.PROBE_PURGED))


def caveats(views: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the sentences of a page do not say; nothing while nothing is measured."""
    views = [view for view in views if view["tables"]["last"]["body"]]
    if not views:
        return []
    said = [NOT_PROOF]
    if not any(view["retrain"] for view in views):
        said.append(
            "There is no Retrain to compare with, so how close this comes to never having seen the data is open."
        )
    undone = [view["undoing"] for view in views]
    untried, purged = ({_small(view): 1 for view in views if view["undoing"]["reason"] in why} for why in _NOT_TRIED)
    tried = any(one["reason"] is None for one in undone)
    if untried and not tried:
        said.append("Whether it can be undone was not tried.")
    elif tried and not any(one["fitted"] for one in undone):
        said.append("Of the ways to undo it, only the perturbation's public inverse was tried.")
    if any(one["weak"] for one in undone):
        said.append("Layers were fitted to bring it back, but too weakly to say anything.")
    if untried and tried:
        said.append(f"Nobody tried to undo it for {listed(untried, 'and')}.")
    if purged:
        said.append(f"Whether it can be undone for {listed(purged, 'and')} cannot be shown any more: it was purged.")
    whose = [f"{view['subject']}: " if len(views) > 1 else "" for view in views]
    back = [_within(who, told) for who, one in zip(whose, undone, strict=True) for told in one["back"]]
    return said + list(dict.fromkeys(back))


def _within(who: str, told: str) -> str:
    """A sentence about one request of several, after its name."""
    return who + (told[0].lower() + told[1:] if who else told)


def _small(view: Mapping[str, Any]) -> str:
    """What a request takes out, inside a sentence."""
    subject = str(view["subject"])
    return subject[0].lower() + subject[1:]


# --- what is missing --------------------------------------------------------------------------------------------------


def unfinished(run: Mapping[str, Any], lines: Sequence[Line]) -> list[str]:
    """What is missing for this run to be whole, one short sentence each."""
    grouped = trajectories(lines)
    seeds = [int(seed) for seed in run.get("seeds", [])]
    total = run.get("rounds", {}).get("unlearning")
    missing = [
        f"Request {item['id']}: nothing has been evaluated yet."
        for item in run.get("requests", [])
        if str(item["id"]) not in grouped and not not_taken_out(item)
    ]
    if run.get("jobs"):
        return missing + _open_jobs(run, lines, wording.of(run))
    for request, methods in grouped.items():
        for method, by_seed in methods.items():
            states: dict[str, list[str]] = {}
            for seed in sorted({*by_seed, *seeds}):
                state = _state(method, by_seed.get(seed), total, wording.of(run))
                states.setdefault(state, []).append(str(seed))
            for state, which in states.items():
                if state:
                    missing.append(f"{name_of(method)}, request {request}, {several('seed', which)[0]}: {state}.")
    return missing


def _open_jobs(run: Mapping[str, Any], lines: Sequence[Line], words: Wording) -> list[str]:
    """Every job that has not ended, with where it stands; seeds that stand alike share a line."""
    goals = {one["id"]: _goals(str(one.get("until") or "")) for one in run.get("requests", [])}
    let_go = {request["id"] for request in run.get("requests", []) if not_taken_out(request)}
    last = {(line["seed"], line.get("request"), line["method"]): line for line in lines}
    found: dict[tuple[str, str], list[str]] = {}
    for job in run["jobs"]:
        if job["finished"] or job["request"] in let_go:
            continue
        line = last.get((job["seed"], job["request"], job["method"]))
        if line is None:
            state = "not begun" if job["request"] is None else "not evaluated yet"
        elif (aim := goals.get(job["request"])) and int(line["round"]) >= int(job["rounds"]):
            state = f"ended at {words.unit} {line['round']} without having {aim}"
        else:
            state = f"at {words.unit} {line['round']} of {job['rounds']}"
        what = name_of(str(job["method"])) + ("" if job["request"] is None else f", request {job['request']}")
        found.setdefault((what, state), []).append(str(job["seed"]))
    return [f"{what}, {several('seed', which)[0]}: {state}." for (what, state), which in found.items()]


def _goals(until: str) -> str:
    """What a request's rounds were to reach, in words; empty where they are merely counted."""
    told = {"recovered": "recovered", "forgotten": "forgotten what is asked"}
    return " and ".join(told[word] for word in until.split(",") if word in told)


def _state(method: str, lines: Sequence[Line] | None, total: int | None, words: Wording) -> str:
    """Where an unfinished trajectory stands; nothing to say of a finished one."""
    if not lines:
        return "not evaluated yet"
    if method == "before" or lines[-1].get("done"):
        return ""
    return f"at {words.unit} {lines[-1]['round']}" + (f" of {total}" if total else "")
