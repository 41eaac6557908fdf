"""The page says what happened in one sentence, escapes what it shows, loads nothing, and hides no gap in the data."""

from __future__ import annotations

import hashlib
import html
import math
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import matplotlib
import pytest
import torch

from pages import officer_part, render, sentence, unfinished
from unfed import storage
from unfed.errors import UnfedError
from unfed.folder.info import InForce
from unfed.model import params as digest
from unfed.report import figures
from unfed.report.rules import rows, trajectories
from unfed.report.tables import is_smallest
from unfed.report.wording import HEADINGS, MEASURES, span_text
from unfed.requests.entry import Job

# method: (forget, backdoor and validation at round 0; their limits; rounds to get there)
SHAPES = {
    "not": ((18.0, 2.0, 12.0), (25.0, 4.2, 96.8), 4.0),
    "ft": ((99.1, 93.1, 97.0), (88.0, 71.0, 97.2), 9.0),
    "retrain": ((10.0, 1.0, 10.0), (24.0, 3.9, 96.9), 5.0),
}


def fake_line(seed: int, request: str, method: str, t: int, done: bool, wobble: float = 0.0) -> Any:
    """One evaluated round of a method that approaches its limit exponentially."""
    start, limit, pace = SHAPES.get(method, SHAPES["not"])
    fade = math.exp(-t / pace)
    ripple = 0.6 * math.sin(2.1 * t + 5 * seed) * (t > 0) + wobble
    forget, backdoor, validation = (b + (a - b) * fade + ripple for a, b in zip(start, limit, strict=True))
    return {
        "seed": seed, "request": request, "method": method, "round": t, "done": done, "model": True,
        "retain": validation + 0.6, "forget": forget, "test": validation + 0.4, "validation": validation,
        "validation_before": 97.0, "retain_loss": 0.1, "forget_loss": 2.0, "test_loss": 0.1, "loss_gap": 0.01,
        "mia": 50.5 + forget / 9 - 2.4, "backdoor": max(backdoor, 0.0), "comm_bytes": 355_000 * t,
        "wire_bytes": 356_200 * t, "flops": 1.7e9 * t, "stored_server_bytes": 0,
        "seconds": 0.4 * t, "asked": {str(t): [str(k) for k in range(1, 10)]} if t else {}, "refused": [],
    }  # fmt: skip


def fake_digest(method: str, tensor: str) -> str:
    return hashlib.sha256(f"{method} {tensor}".encode()).hexdigest()


def fake_job(seed: int, method: str, rounds: int, finished: str | None = "all rounds") -> Any:
    """A job of the run as `describe.jobs` tells it; NoT negates the first tensor."""
    names = ("conv1.weight", "conv1.bias", "head.weight")
    changes = {"not": {"conv1.weight": "negated"}, "retrain": dict.fromkeys(names, "changed")}.get(method, {})
    begun = {name: fake_digest(f"{method} begun {seed}", name) for name in changes}
    went_in = {name: fake_digest(f"train {seed}", name) for name in names}
    return {
        "seed": seed, "request": "r1", "method": method, "rounds": rounds, "finished": finished,
        "needs": ["forget", "retain"] if method == "pgd" else ["retain"],
        "file": f"models/{seed}/r1/{method}.safetensors",
        "beginning": {"shapes": {n: [4, 3] for n in names}, "went_in": went_in, "begun": begun, "changes": changes},
        "came_out": {name: fake_digest(f"{method} {seed}", name) for name in names} if finished else None,
    }  # fmt: skip


def fake_run(
    seeds: tuple[int, ...] = (0,), methods: tuple[str, ...] = ("not", "ft", "retrain"), rounds: int = 20
) -> tuple[dict[str, Any], list[Any]]:
    """A run folder's content, as `unfed demo` would leave it."""
    request = {"id": "r1", "kind": "client", "clients": ["0"], "classes": [], "samples": 0, "fraction": None}
    run = {
        "schema": 1, "name": "demo", "created": "2026-11-15T04:00:00Z",
        "config": {"data": {"name": "digits", "clients": 10}, "model": "cnn", "methods": list(methods)},
        "seeds": list(seeds), "clients": [str(k) for k in range(10)],
        "versions": {"unfed": "0.1.0", "torch": "2.13.0", "python": "3.11.9"}, "hardware": "2 cores",
        "device": "cpu", "engine": "batched", "parameters": 4938, "forward_flops": 251_000,
        "requests": [{**request, "forgotten_rows": 115}], "rounds": {"training": 60, "unlearning": rounds},
        "backdoor": {"target_class": 0}, "recovered_within": 0.5,
        "jobs": [fake_job(seed, method, rounds) for seed in seeds for method in methods],
        "influence": [
            {"request": "r1", "file": f"models/{seed}/train.safetensors", "what": "a model that was trained with it"}
            for seed in seeds
        ],
    }  # fmt: skip
    lines: list[Any] = []
    for seed in seeds:
        before = fake_line(seed, "r1", "before", 0, True)
        lines.append({**before, "retain": 98.2, "forget": 99.1, "test": 98.1, "mia": 61.0, "backdoor": 93.1})
        for method in methods:
            lines += [fake_line(seed, "r1", method, t, t == rounds, 0.3 * seed) for t in range(rounds + 1)]
    return run, lines


class Page(HTMLParser):
    """A strict reader: every element that opens must close in order; collects what the tests ask about."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.figures
def test_the_page_is_well_formed_and_its_identifiers_are_unique() -> None:
    page = Page(render(*fake_run()))
    identifiers = [value for _, name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers)) > 50
    known = set(identifiers)
    for _, name, value in page.attributes:
        for target in re.findall(r"#([\w.-]+)", value) if name in ("href", "clip-path") else []:
            assert target in known
        if name in ("for", "aria-labelledby", "aria-describedby", "popovertarget"):
            assert set(value.split()) <= known


@pytest.mark.figures
def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = render(*fake_run())
    page = Page(text)
    assert "://" not in text and "script" not in page.tags and "img" not in page.tags
    for _, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href"):
            assert value.startswith(("#", "data:"))


def test_the_sentence_for_a_poisoned_client() -> None:
    run, lines = fake_run()
    said = sentence(run["requests"][0], rows(lines, "last"))
    last = lines[21]
    assert last["method"] == "not" and last["round"] == 20
    assert said == (
        f"Client 0 was taken out by NoT in 20 rounds and 7.1 MB: the backdoor it planted fires on "
        f"{last['backdoor']:.1f} % of the test images instead of 93.1 %, "
        f"accuracy on test data 98.1 → {last['test']:.1f} %."
    )
    assert said.partition(":")[0] + "." in Page(render(run, lines, rule="last")).text, "bars show the numbers"


@pytest.mark.parametrize(
    ("request_", "opening"),
    [
        ({"id": "r", "kind": "client", "clients": ["0", "3", "4"]}, "Clients 0, 3 and 4 were taken out by NoT"),
        ({"id": "r", "kind": "client", "clients": [str(k) for k in range(9)]}, "9 clients were taken out"),
        ({"id": "r", "kind": "class", "classes": [3]}, "Class 3 was taken out by NoT"),
        ({"id": "r", "kind": "class", "classes": [3, 5]}, "Classes 3 and 5 were taken out"),
        (
            {"id": "r", "kind": "instance", "fraction": 0.1, "forgotten_rows": 115},
            "115 samples, 10 % of the data of every client, were taken out",
        ),
        ({"id": "r", "kind": "instance", "clients": ["7"], "samples": 1}, "1 sample of client 7 was taken out"),
    ],
)
def test_the_sentence_for_other_scopes(request_: dict[str, Any], opening: str) -> None:
    lines: list[Any] = [dict(line, backdoor="not measured: no backdoor in this run") for line in fake_run()[1]]
    said = sentence(request_, rows(lines, "last"))
    assert said.startswith(opening)
    assert "of the forgotten data instead of 99.1 %" in said and "backdoor" not in said


def test_the_sentence_does_not_flatter() -> None:
    run, lines = fake_run(methods=("ft", "retrain"))
    assert sentence(run["requests"][0], rows(lines, "last")).startswith("Client 0 was only partly taken out by FT")


def test_the_sentence_when_nothing_recovered_or_nothing_ran() -> None:
    run, lines = fake_run()
    request = run["requests"][0]
    said = sentence(request, rows(lines, "recovered", recovered_within=-9))
    assert said.startswith("Client 0: NoT has no result under the rule recovered (not recovered within 20 rounds (best")
    assert "no unlearning method has been evaluated yet" in sentence(request, rows(lines[:1]))


def test_one_shot_methods_take_one_step() -> None:
    run, lines = fake_run(methods=("retrain",))
    shot: Any = {**fake_line(0, "r1", "ssd", 0, True), "backdoor": 4.0}
    assert "by SSD in one step:" in sentence(run["requests"][0], rows([*lines, shot], "last"))


def test_strings_of_the_run_are_escaped_everywhere() -> None:
    run, lines = fake_run()
    evil = "<script>alert(1)</script>"
    run |= {"name": evil, "clients": [evil], "hardware": evil, "config": {evil: evil}, "versions": {evil: evil}}
    run["requests"] = [{"id": evil, "kind": "client", "clients": [evil], "forgotten_rows": 3}]
    hostile: list[Any] = [dict(line, request=evil, method=line["method"].replace("ft", evil)) for line in lines]
    hostile[5] |= {"mia": f"not measured: {evil}", "refused": [{"round": 5, "client": evil, "reason": evil}]}
    text = render(run, hostile)
    page = Page(text)
    assert "<script" not in text and "script" not in page.tags
    assert page.text.count(evil) > 8


def test_not_measured_is_carried_to_the_page() -> None:
    run, lines = fake_run()
    missing = "not measured: only 3 forget samples; the attack needs at least 10"
    text = Page(render(run, [cast(Any, {**line, "mia": missing}) for line in lines])).text
    # Each of three tables says it for Before, Retrain, NoT and FT and for three average gaps; the curve says it once.
    assert text.count(missing) >= 3 * 7 + 1


def test_a_run_without_retrain_says_so() -> None:
    run, lines = fake_run(methods=("not", "ft"))
    text = Page(render(run, lines)).text
    assert "not measured: no Retrain of this request" in text
    assert "There is no Retrain in this run" in text and "was compared with one that never saw" not in text
    assert "last round shown, for there is no Retrain to choose by" in text


def test_an_unfinished_run_shows_what_there_is() -> None:
    run, lines = fake_run()
    cut = [line for line in lines if line["method"] in ("before", "not") and line["round"] < 8]
    run["requests"].append({"id": "r2", "kind": "class", "classes": [3]})
    run["jobs"] = [fake_job(0, "not", 20, None)]
    assert unfinished(run, cut) == [
        "Request r2: nothing has been evaluated yet.",
        "NoT, request r1, seed 0: at round 7 of 20.",
    ]
    text = Page(render(run, cut)).text
    assert (
        "This run is not finished" in text
        and "Client 0 is being taken out by NoT, so far in 7 rounds and 2.5 MB" in text
    )
    assert "Class 3 is to be taken out; no unlearning method has been evaluated yet." in text
    assert unfinished(*fake_run()) == []


def test_a_run_that_has_only_just_begun_still_renders() -> None:
    run, _ = fake_run()
    assert "This run is not finished" in Page(render(run, [])).text
    assert "no unlearning request yet" in Page(render({}, [])).text


def test_several_seeds_show_their_spread() -> None:
    text = Page(render(*fake_run(seeds=(0, 1, 2)))).text
    assert "(means over 3 seeds)" in text and "3 models, one per seed" in text and " ± " in text


def test_all_three_rules_are_there_and_the_asked_one_is_in_front() -> None:
    run, lines = fake_run()
    for rule in ("best-gap", "recovered", "last"):
        text = render(run, lines, rule=rule)
        assert f'id="rule-0-{rule}" checked' in text and text.count(" checked") == 1
    with pytest.raises(UnfedError, match="no reporting rule"):
        render(run, lines, rule="oracle")


def test_the_limits_are_always_stated() -> None:
    text = Page(render(*fake_run())).text
    assert "What this does not prove" in text and "This is evidence, not proof" in text
    assert "may meet it at once" in text and "one attack" in text


def test_refused_updates_are_listed_once() -> None:
    run, lines = fake_run()
    for line in lines[3:6]:
        line["refused"] = [{"round": 3, "client": "7", "reason": "NaN in conv1.weight"}]
    text = Page(render(run, lines)).text
    assert text.count("round 3: client 7, NaN in conv1.weight") == 1


def test_whole_messages_stand_beside_the_tensors_where_there_were_messages() -> None:
    run, lines = fake_run()
    assert "Messages as packed" not in render(run, lines)
    for line in lines:
        line["serialised_bytes"] = 0  # as a simulation writes it
    assert "Messages as packed" not in render(run, lines)
    for line in lines:
        line["serialised_bytes"] = 0 if line["method"] == "ft" else 371_000 * line["round"]
    page = render(run, lines)
    heads = re.findall(r"<th scope=.col.>([^<]*)</th>", page)
    assert heads.index("Messages as packed") == heads.index("Bytes on the wire") + 1
    assert "7.4 MB" in page and "not measured: no messages in a simulation" in page  # 20 rounds of NoT; FT


@pytest.mark.figures
def test_the_same_run_gives_the_same_page() -> None:
    run, lines = fake_run(methods=("not",))
    assert render(run, lines, again=True) == render(run, lines, again=True)


@pytest.mark.figures
def test_figures_take_their_colours_from_the_page_and_describe_themselves() -> None:
    _, lines = fake_run()
    drawn = figures.curves(trajectories(lines)["r1"], "forget", name="f")
    assert drawn is not None
    svg = drawn.inline
    assert svg.startswith("<svg viewBox=")
    assert "currentColor" in svg and "var(--series-0)" in svg and "var(--reference)" in svg
    assert not re.search(r"#[0-9a-f]{6}\b", svg) and "font-family" not in svg and "<style" not in svg
    assert 'role="img"' in svg and '<title id="f-title">' in svg and "Retrain ends at" in svg


@pytest.mark.figures
def test_what_a_matplotlibrc_says_changes_no_figure_and_starts_no_program() -> None:
    """matplotlib reads one from the current folder; `text.usetex` would call LaTeX."""
    _, lines = fake_run()
    drawn: list[Callable[[], object]] = [lambda: figures.curves(trajectories(lines)["r1"], "forget", name="f")]
    drawn += [lambda: figures.cost_bars(rows(lines, "last"), "comm_bytes", name="c")]
    before = [draw() for draw in drawn]
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "lines.marker": "x", "axes.facecolor": "red"}):
        assert [draw() for draw in drawn] == before


@pytest.mark.figures
def test_figures_skip_what_is_no_model_and_what_was_not_measured() -> None:
    _, lines = fake_run(methods=("not",))
    blind: list[Any] = [dict(line, forget="not measured: x") for line in lines]
    assert figures.curves(trajectories(blind)["r1"], "forget", name="f") is None
    no_model: list[Any] = [dict(line, model=False) for line in lines]
    assert figures.curves(trajectories(no_model)["r1"], "forget", name="f") is None


@pytest.mark.figures
def test_of_many_requests_the_newest_have_their_curves_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unfed.report.html.PICTURED", 1)
    run, lines = fake_run(methods=("not",))
    run["requests"] = [{**run["requests"][0], "id": name, "created": f"2026-11-{day}"} for name, day in
                       (("old", 16), ("new", 18), ("middle", 17))]  # fmt: skip
    page = render(run, [dict(line, request=one["id"]) for one in run["requests"] for line in lines], again=True)
    assert 'id="curve-1-forget-title"' in page, "the newest"
    assert 'id="curve-0-forget-title"' not in page and 'id="curve-2-forget-title"' not in page
    assert page.count("Drawn for the newest requests only") == 2
    assert page.count('<details class="inline" open>') == 3, "without bars, the costs stand there as numbers"


@pytest.mark.figures
def test_cost_bars_show_every_method_but_before() -> None:
    found = rows(fake_run()[1], "last")
    drawn = figures.cost_bars(found, "comm_bytes", name="c")
    svg = drawn.inline if drawn else ""
    assert svg.count("7.1 MB</text>") == 3 and "Before" not in svg
    free: list[Any] = [dict(line, comm_bytes=0) for line in fake_run()[1]]
    assert figures.cost_bars(rows(free, "last"), "comm_bytes", name="c") is None
    alone = fake_run(methods=("not",))[1]
    assert figures.cost_bars(rows(alone, "last"), "comm_bytes", name="c") is None, "one bar compares nothing"


@pytest.mark.figures
def test_gap_against_cost_needs_two_methods_with_both() -> None:
    found = rows(fake_run()[1], "last")
    drawn = figures.gap_by_cost(found, "flops", name="g")
    svg = drawn.inline if drawn else ""
    assert all(name in svg for name in (">NoT<", ">FT<", ">Retrain<")) and ">Before<" not in svg
    assert not re.search(r"#[0-9a-f]{6}\b", svg)
    assert figures.gap_by_cost([row for row in found if row.method != "ft"], "flops", name="g") is None
    assert figures.gap_by_cost(rows(fake_run(methods=("not", "ft"))[1], "last"), "flops", name="g") is None


MANY = ("not", "ft", "pgd", "mode", "retrain")


def test_a_method_that_seeds_do_not_tell_from_the_nearest_shares_its_place() -> None:
    """Forget is 3 off Retrain's for NoT, 4 for MoDE, 30 for the others, give or take 2 over two seeds."""
    off = {"not": 3.0, "mode": 4.0, "ft": 30.0, "pgd": 31.0, "retrain": 0.0}
    lines: list[Any] = []
    for seed in (0, 1):
        for method, own in off.items():
            forget = 40 + own + (0 if method == "retrain" else 4 * seed - 2)
            last = {"retain": 90.0, "forget": forget, "test": 80.0, "mia": 50.0, "backdoor": 0.0}
            lines.append({**fake_line(seed, "r1", method, 20, True), **last})
    found = rows(lines, "last")
    assert [row.method for row in found if is_smallest(row, found)] == ["not", "mode"]


# --- for the officer --------------------------------------------------------------------------------------------------


def officer(run: dict[str, Any], lines: list[Any]) -> str:
    """The officer's part of the page, as it is read."""
    return Page(render(run, lines)).text.partition("What was asked, what was done")[2].partition("Can it be undone?")[0]


def test_the_officer_reads_what_the_method_did_to_the_model() -> None:
    run, lines = fake_run()
    assert (
        "At the start NoT itself changed conv1.weight (negated); the other 2 were left as in the old model."
        " All 3 tensors of the new model differ from the old one."
    ) in officer(run, lines)
    text = render(run, lines)
    for tensor in ("conv1.weight", "conv1.bias", "head.weight"):
        for model in ("train 0", "not 0"):
            assert text.count(fake_digest(model, tensor)) == 2, "once to hover over, once to copy"
    assert fake_digest("not begun 0", "conv1.weight") in text
    assert "Asked 15 November 2026, 04:00 UTC, with the run itself" in Page(text).text


def test_the_recipe_on_the_page_gives_the_checksums_on_the_page(tmp_path: Path) -> None:
    run, lines = fake_run()
    params = {"conv1.weight": torch.randn(4, 3), "b": torch.arange(3)}
    job = run["jobs"][0]
    job["came_out"] = digest.digests(params)
    storage.save(tmp_path / job["file"], params, {})
    text = render(run, lines)
    (recipe,) = re.findall(r"<pre[^>]*>(python -c .*?)</pre>", text, flags=re.DOTALL)
    command = html.unescape(recipe).replace("python -c", f"{sys.executable} -c")
    found = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert found == digest.listing(job["came_out"]) and html.escape(found) in text
    assert f"Model after {hashlib.sha256(found.encode()).hexdigest()}" in officer(run, lines)


def test_a_tensor_that_did_not_change_is_named() -> None:
    run, lines = fake_run()
    job = run["jobs"][0]
    job["came_out"]["head.weight"] = job["beginning"]["went_in"]["head.weight"]
    assert "1 of 3 tensors are bit for bit those of the old model: head.weight." in officer(run, lines)
    job["came_out"] = dict(job["beginning"]["went_in"])
    assert "bit for bit: nothing was taken out" in officer(run, lines)


def test_the_leaver_was_asked_by_nobody_and_the_page_says_so() -> None:
    run, lines = fake_run()
    said = "Client 0 was asked in none of the 20 rounds: nothing was trained on its data."
    assert f"{said} 9 other clients took part, in rounds 1 to 20." in officer(run, lines)
    first, second = officer_part(run, lines).clients[:2]
    assert first.leaver and first.text == "never" and set(first.cells) == {0.0} and len(first.cells) == 20
    assert second.text == "rounds 1 to 20" and set(second.cells) == {1.0}


def test_a_leaver_that_had_to_help_is_not_hidden() -> None:
    run, lines = fake_run(methods=("pgd", "retrain"))
    lines[1]["asked"] = {"0": ["0"]}
    said = "Client 0 was asked in round 0, because PGD works with the data that is to be forgotten"
    assert said in officer(run, lines)
    for job in run["jobs"]:
        job["needs"] = ["retain"]
    assert "Client 0 was asked in round 0, although it was to leave." in officer(run, lines)


def test_many_rounds_and_many_clients_stay_readable() -> None:
    run, lines = fake_run(rounds=200)
    run["clients"] = [str(k) for k in range(120)]
    assert len(officer_part(run, lines).clients[0].cells) <= 48
    page = render(run, lines)
    assert page.count('class="strip"') == 40 and "and 80 more clients" in page


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([], "no round"),
        ([3], "round 3"),
        ([1, 2], "rounds 1 and 2"),
        ([1, 2, 3, 5, 9, 9], "rounds 1 to 3, 5 and 9"),
        (list(range(0, 40, 2)), "20 rounds between 0 and 38"),
    ],
)
def test_rounds_in_words(rounds: list[int], said: str) -> None:
    assert span_text(rounds) == said


def test_what_still_carries_the_influence_is_listed_by_file() -> None:
    run, lines = fake_run()
    assert officer_part(run, lines).carriers == [("models/0/train.safetensors", "θ*, the model before unlearning")]
    text = Page(render(run, lines)).text
    assert "What still carries its influence" in text and "models/0/train.safetensors" in text


def test_a_run_of_an_older_version_says_what_it_did_not_record() -> None:
    run, lines = fake_run()
    del run["jobs"], run["influence"]
    text = Page(render(run, lines)).text
    assert "not recorded" in text and "this report was made without a look into the run folder" in text


def test_a_served_request_has_its_own_time_and_no_one_elses_backdoor() -> None:
    run, lines = fake_run()
    run["config"]["poison"] = {"client": "0", "target_class": 0}
    served = {"id": "r2", "kind": "client", "clients": ["3"], "created": "2026-11-16T10:30:00Z", "method": "not"}
    run["requests"].append(served)
    more: list[Any] = [dict(line, request="r2") for line in lines if line["method"] in ("before", "not")]
    text = Page(render(run, [*lines, *more])).text
    assert "Asked 16 November 2026, 10:30 UTC" in text
    assert "Client 3: after NoT in 20 rounds and 7.1 MB, the model is right on" in text
    assert "whether it is out was not measured, for this run has no Retrain of the request." in text
    assert "the backdoor it planted" not in text
    assert "There is no Retrain for Client 3, so nothing here measures" in text


def test_jobs_tell_what_is_missing_down_to_the_training() -> None:
    run, _ = fake_run(methods=("not", "ft"))
    train: dict[str, Any] = {"seed": 0, "request": None, "method": "train", "rounds": 60, "finished": None, "needs": []}
    for job in run["jobs"]:
        job |= {"finished": None, "beginning": None, "came_out": None}
    run["jobs"] = [train | {"file": "", "beginning": None, "came_out": None}, *run["jobs"]]
    trained: Any = {
        "seed": 0,
        "request": None,
        "method": "train",
        "round": 12,
        "done": False,
        "model": True,
        "test": 81.0,
    }
    assert unfinished(run, [trained]) == [
        "Request r1: nothing has been evaluated yet.",
        "Training, seed 0: at round 12 of 60.",
        "NoT, request r1, seed 0: not evaluated yet.",
        "FT, request r1, seed 0: not evaluated yet.",
    ]
    text = Page(render(run, [trained])).text
    assert "The training before it" in text and "Training ends at 81.0" in text
    assert "No client has been asked for anything yet." in text and "Nothing yet: NoT has not begun." in text


def test_a_request_that_did_not_recover_is_not_finished() -> None:
    run, lines = fake_run(methods=("not",))
    run["jobs"][0]["finished"] = None
    assert unfinished(run, lines) == ["NoT, request r1, seed 0: at round 20 of 20."]
    run["requests"][0]["until"] = "recovered"
    assert unfinished(run, lines) == ["NoT, request r1, seed 0: ended at round 20 without having recovered."]
    run["requests"][0]["until"] = "recovered,forgotten,20"
    (said,) = unfinished(run, lines)
    assert said.endswith("without having recovered and forgotten what is asked.")


# --- for everybody ----------------------------------------------------------------------------------------------------


def test_headings_come_in_order_and_tables_say_what_they_hold() -> None:
    run, lines = fake_run(methods=MANY)
    run["requests"].append({"id": "r2", "kind": "client", "clients": ["3"], "method": "not"})
    second: list[Any] = [{**line, "request": "r2"} for line in lines if line["method"] in ("before", "not")]
    for found in ([], second):
        page = Page(render(run, [*lines, *found]))
        levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels)), levels
        assert page.tags.count("table") == page.tags.count("caption") > 3
        scopes = [value for tag, name, value in page.attributes if (tag, name) == ("th", "scope")]
        assert len(scopes) == page.tags.count("th") and set(scopes) <= {"col", "row", "rowgroup"}
        assert page.tags.count("main") == page.tags.count("nav") == page.tags.count("header") == 1


def test_every_heading_of_the_results_explains_itself() -> None:
    header = {name for name in Page(render(*fake_run())).words}
    assert set(HEADINGS.values()) <= set(MEASURES) and set(HEADINGS) - {"Epochs"} <= header  # of one place
    text = Page(render(*fake_run())).text
    assert all(text.count(measure.text) >= 2 for measure in MEASURES.values()), "as a tooltip and in the list"


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("passed", "Client 0 was forgotten, by the check for forgetting, after NoT in 20 rounds"),
        ("failed", "Client 0 was not forgotten, by the check for forgetting, after NoT in 20 rounds"),
        ("not measured", "whether it is out was not measured"),
    ],
)
def test_without_retrain_the_check_for_forgetting_speaks(verdict: str, says: str) -> None:
    run, lines = fake_run()
    own = [line for line in lines if line["method"] in ("before", "not")]
    request = {**run["requests"][0], "gate": {"checks": [{"name": "forgotten", "verdict": verdict}]}}
    assert says in sentence(request, rows(own, "last"))


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("passed", "Client 0 was forgotten as far as its backdoor tells, the rest not measured, after NoT in 20"),
        ("failed", "Client 0 was not forgotten, by the check of its backdoor, after NoT in 20 rounds"),
    ],
)
def test_where_only_the_backdoor_could_be_checked_nothing_more_is_said(verdict: str, says: str) -> None:
    run, lines = fake_run()
    own = [line for line in lines if line["method"] in ("before", "not")]
    checks = [{"name": "forgotten", "verdict": "not measured"}, {"name": "backdoor", "verdict": verdict}]
    assert says in sentence({**run["requests"][0], "gate": {"checks": checks}}, rows(own, "last"))


def test_a_class_that_did_not_move_is_not_said_to_be_out() -> None:
    _, lines = fake_run()
    own = [line for line in lines if line["method"] in ("before", "not")]
    for line in own:
        line["forget"] = 93.1
        line["backdoor"] = "not measured: no client was poisoned"
    told = sentence({"id": "r", "kind": "class", "classes": [0]}, rows(own, "last"))
    assert "taken out" not in told and "right on 93.1 % of the forgotten data instead of 93.1 %" in told


def test_where_one_place_holds_all_data_epochs_are_spoken_of() -> None:
    run, lines = fake_run()
    run["config"]["setting"] = "central"
    text = Page(render(run, lines)).text
    assert "taken out by NoT in 20 epochs" in text and "Client 0 was asked" not in text


def test_the_sentence_speaks_of_the_last_round_whatever_table_is_in_front() -> None:
    run, lines = fake_run()
    last, best = (Page(render(run, lines, rule=rule)).text for rule in ("last", "best-gap"))
    first = last[: last.index("For the officer What was asked")]
    assert "in 20 rounds" in first and first in best


def test_the_model_in_force_is_named() -> None:
    run, lines = fake_run()
    current = InForce(Job(0, "r1", "not"), served=("r1",), owed=("r2",))
    assert (
        "In force: the model of request r1 by NoT; still in it: r2."
        in Page(render({**run, "in_force": [current]}, lines)).text
    )


ANSWERS = re.compile(r"<dt>([^<]*)</dt><dd class=\"lead[^\"]*\">(.*?)</dd>")


def test_the_first_screen_answers_three_questions_in_sixty_words() -> None:
    run, lines = fake_run()
    answers = dict(ANSWERS.findall(render(run, lines)))
    assert [*answers] == ["What happened", "Does it last?", "Can I trust it?"], "equally large"
    assert answers["What happened"].startswith("Client 0 was taken out by NoT in 20 rounds")
    assert answers["Does it last?"] == "Undoing was not tried; <code>unfed probe</code> tries it."
    assert answers["Can I trust it?"] == "This is evidence, not proof. It rests on one seed."
    assert len(" ".join([*answers, *answers.values()]).split()) <= 60
    assert "There is no Retrain to compare with" in render(*fake_run(methods=("not",)))


def test_where_one_place_holds_all_data_the_page_speaks_of_epochs_and_sends_nothing() -> None:
    run, lines = fake_run()
    text = Page(render({**run, "config": {**run["config"], "setting": "central"}}, lines)).text
    for word in ("Epoch by epoch", "Every evaluated epoch", "Retrain, last epoch", "Epochs"):
        assert word in text
    for word in ("Round by round", "Every evaluated round", "last evaluated round", "Bytes on the wire", "Kept by the"):
        assert word not in text
    assert "Round by round" in Page(render(run, lines)).text


def test_a_wide_table_says_on_a_phone_that_it_goes_on() -> None:
    page = render(*fake_run())
    assert page.count('scrolls" tabindex') == 6 and "The table goes on: scroll sideways" in page


def test_before_anything_is_measured_no_page_speaks_of_evidence() -> None:
    run, _ = fake_run()
    text = Page(render(run, [])).text
    assert "no unlearning method has been evaluated yet" in text
    assert "evidence" not in text.partition("For the officer")[2].partition("What was asked")[0]
    assert "What this does not prove" not in text and "as they lie in the folder" not in text


def test_what_attacks_brought_back_answers_whether_it_lasts() -> None:
    run, lines = fake_run()
    back = {who: {"flip": {"backdoor": on}} for who, on in (("unlearned", 84.5), ("retrain", 0.0))}
    back["unlearned"]["published"] = {"backdoor": 4.2}
    tried = {"request": run["requests"][0]["id"], "method": "not", "title": "NoT", "seed": 0, "measured": back}
    said = dict(ANSWERS.findall(render({**run, "undo": [tried]}, lines)))["Does it last?"]
    assert said.startswith("No: undone, the backdoor works on 84.5\u00a0% of stamped images again (Retrain, treated")
    other = {**tried, "method": "ft", "title": "FT"}
    said = dict(ANSWERS.findall(render({**run, "undo": [other]}, lines)))["Does it last?"]
    assert said == "The method in front was not attacked; <code>unfed probe</code> does it."
