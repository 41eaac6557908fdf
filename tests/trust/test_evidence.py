"""The evidence bundle: what it says, what it never says, and that whoever changes it is found out."""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import called
from conftest import SMALL
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.runs.record import RunRecord
from unfed.runs.run import Run
from unfed.trust import bundle, signing, verifier
from unfed.trust import log as merkle
from unfed.trust.findings import findings, interval, served
from unfed.trust.folder import TrustFolder
from unfed.trust.log import Log
from unfed.trust.participation import Participants
from unfed.trust.signing import Envelope, SigningKey
from unfed.trust.verdict import Verdict, page, told, verdict
from unfed.trust.verifier import BUNDLE, NotVerified

KEY = SigningKey.drawn()
SERVED: dict[str, Any] = {**SMALL, "request": [], "methods": {"run": []}, "training": {"rounds": 2, "batch": 64}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run under a log that has served a client and then single samples, both asked without a signature."""
    folder = tmp_path_factory.mktemp("evidence")
    KEY.write(folder / "operator.key")
    made = Run.create(Config.parse(SERVED), folder / "run")
    TrustFolder.begin(made.folder.path, folder / "operator.key")
    made.execute()
    made.forget(Request("leaves", clients=("1",)), "not", 2)
    made.forget(Request("rows", samples=(("2", 3), ("2", 41))), "ft", 1)
    return made


@pytest.fixture(scope="module")
def log(run: Run) -> Log:
    return TrustFolder(run.folder.path).log


def of(run: Run, name: str) -> Envelope:
    entry = served(run, name)
    return bundle.sign(findings(run, entry), KEY, bundle.from_log(run, entry))


@pytest.fixture(scope="module")
def signed(run: Run) -> Envelope:
    return of(run, "leaves")


def verify(signed: Envelope | bytes, **given: Any) -> Verdict:
    data = signed if isinstance(signed, bytes) else signed.to_bytes()
    return verdict(data, [KEY.public.pem], **given)


def statement(signed: Envelope) -> Any:
    return json.loads(signed.payload)


def resigned(signed: Envelope, change: Any) -> Envelope:
    """The same bundle, changed by whoever has the operator's key."""
    changed = statement(signed)
    change(changed["predicate"])
    return signing.sign(BUNDLE, changed, KEY)


def test_a_bundle_says_what_is_proven_measured_and_neither(signed: Envelope) -> None:
    found = verify(signed)
    said = "\n".join(found.proven)
    assert "trained in none of the 3 rounds after its request (leaf " in said, "2 of its own, 1 of the later request"
    assert "names this model as the one in force for it since 20" in said and "it trained before, in the round" in said
    assert any(one.startswith("Accuracy on the data that leaves, in percent: ") for one in found.measured)
    assert any(one.startswith("Gate, utility: passed") for one in found.measured)
    assert any("wrote every round into the log" in one for one in found.neither)
    assert "Who asked: it came unsigned." in found.neither
    assert "a guarantee" not in said


def test_the_decision_stands_in_four_lines_and_is_that_of_its_numbers(signed: Envelope) -> None:
    found = verify(signed)
    measured = statement(signed)["predicate"]["findings"]["measured"]
    before, after, unseen = measured["forget"]["before"], measured["forget"]["value"], measured["test"]["value"]
    assert [title for title, _ in found.decision] == [
        "Who asked",
        "Absent from every later round",
        "Forgotten",
        "Copies still held",
    ]
    assert found.decision[0][1] == "not proven: it came unsigned" and found.decision[1][1] == "proven: 3 rounds"
    numbers = (
        f"{before:.1f} % of its rows right before → {after:.1f} % after → {unseen:.1f} % of rows the model never saw"
    )
    assert found.decision[2][1] == f"{numbers} (measured by the operator)"
    assert "files in the run folder" in found.decision[3][1]
    text = told(found)
    assert text.startswith("Who asked: not proven: it came unsigned.\nAbsent from every later round: proven")
    assert text.splitlines()[4].startswith("Recommendation: Ask for a request that the client signed; ")
    assert "\n\nChecklist:\n  - [ ] The request came from the person it concerns (GDPR Art. 12(6)): it came" in text


def _good(predicate: Any) -> None:
    """Numbers that speak for the operator, and nothing held any more."""
    found = predicate["findings"]
    for name in ("forget", "test"):
        found["measured"][name] |= {"before": 95.0, "value": 94.0, "interval": [90.0, 97.0], "rows": 100}
    found["still_carries"] = []


@pytest.mark.parametrize(
    ("change", "recommended"),
    [
        ({}, "Ask for a request that the client signed."),
        (
            {"test": {"value": 73.1}},
            "Ask for a request that the client signed; more recovery: test accuracy fell from 95.0 to 73.1 %.",
        ),
        ({"test": {"value": 93.0}}, "Ask for a request that the client signed."),
        (
            {"forget": {"before": "not measured: purged"}},
            "Ask for a request that the client signed; accuracy before, after and on unseen rows.",
        ),
        (
            {"forget": {"value": 99.9, "interval": [98.0, 100.0]}},
            "Ask for a request that the client signed; the reason why the model still knows the data that left better"
            " than unseen rows.",
        ),
        (
            {"carries": [{"what": "models", "files": 2}]},
            "Ask for a request that the client signed; deletion of the 2 files that still carry the data.",
        ),
    ],
)
def test_what_is_missing_is_asked_for(signed: Envelope, change: dict[str, Any], recommended: str) -> None:
    def changed(predicate: Any) -> None:
        _good(predicate)
        for name in ("forget", "test"):
            predicate["findings"]["measured"][name] |= change.get(name, {})
        predicate["findings"]["still_carries"] = change.get("carries", [])

    assert verify(resigned(signed, changed)).recommendation == recommended


def test_what_the_operators_own_checks_speak_against_is_to_be_rejected(run: Run) -> None:
    """Without a log, so that the gate can be another than the log's."""
    entry = served(run, "leaves")
    for name, accepted, why in (
        ("forgotten", None, "is not forgotten"),
        ("utility", {"by": "me", "at": "x"}, "failed"),
    ):
        told = json.loads(json.dumps(findings(run, entry)))
        check = {"name": name, "what": "x", "value": 2.0, "bound": 1.0, "verdict": "failed", "decides": True}
        told["gate"] = {"checks": [check], "passed": False, "accepted": accepted}
        found = verify(bundle.sign(told, KEY))
        assert found.recommendation.startswith("Reject: ") and why in found.recommendation


def test_what_a_request_takes_out_is_named_where_its_evidence_is_verified(run: Run, signed: Envelope) -> None:
    classes = json.loads(json.dumps(findings(run, served(run, "leaves"))))
    classes["request"] |= {"id": "r-7", "kind": "class", "clients": [], "classes": [3, 5]}
    said = "The operator signed this evidence of request {}, on "
    for found, about in (
        (verify(signed), "'leaves', which takes out client 1"),
        (verify(bundle.sign(classes, KEY)), "'r-7', which takes out class 3, 5"),
        (verify(of(run, "rows")), "'rows', which takes out single samples"),
    ):
        assert found.proven[0].startswith(said.format(about))


def test_single_samples_and_classes_prove_nothing_about_rows(run: Run) -> None:
    found = verify(of(run, "rows"))
    assert found.decision[1][1] == (
        "not proven: the request is about rows, and the log says who trained, not on which rows"
    )
    bare = verify(bundle.sign(findings(run, served(run, "rows")), KEY))
    assert bare.decision[1][1] == "not proven: this bundle holds no log"
    assert len(bare.proven) == 1, "only that it was signed"


def test_a_check_that_did_not_decide_and_whoever_overruled_the_gate_are_said(run: Run) -> None:
    told = json.loads(json.dumps(findings(run, served(run, "leaves"))))
    one = {**told["gate"]["checks"][0], "decides": False, "value": 3.0, "bound": 2.0, "verdict": "failed"}
    told["gate"] = {"checks": [one], "passed": False, "accepted": {"by": "the operator", "at": "2026-11-15T00:00:00Z"}}
    said = verify(bundle.sign(told, KEY)).measured
    shown = "Gate, utility: failed: the drop of validation accuracy in points is 3"
    assert f"{shown} (allowed: at most 2; shown only: it decides nothing here)." in said
    assert any("put in force all the same by the operator, 2026-11-15" in one for one in said)


def test_no_tensor_no_sample_id_no_difference_no_path_leaves_the_folder(run: Run, tmp_path: Path) -> None:
    said = findings(run, served(run, "rows"))
    text = json.dumps(said)
    assert said["request"]["samples"] == 2 and said["request"]["clients"] == []
    assert "41" not in [str(v) for v in said["request"].values()] and '[["2"' not in text
    assert "difference" not in text and "cosine" not in text
    assert str(run.folder.path) not in text and ".safetensors" not in text
    assert not {"request", "deny", "poison"} & set(said["config"])


def test_undo_numbers_are_in_it_and_the_difference_of_the_models_is_not(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder.path, tmp_path / "run")
    record = RunRecord(Run.open(tmp_path / "run").folder)
    entry = served(record, "leaves")
    assert findings(record, entry)["undo"].startswith("not measured: undoing was not tried")
    purged = findings(record, entry.buried("2026-11-16T12:00:00Z"))["undo"]
    assert purged == "not measured: what was tried, if anything, was purged with the data that left"
    own: dict[str, Any] = {
        "flip": {"forget": 1.0, "layers": ["conv1"]},
        "difference": {"read": [1, 2], "cosine": 0.5},
        "path": {"x": 1},
        "triggers": {"own": 1.0, "gained": 2.0, "curve": [1]},
        "inside": {
            "stitch": {"forget": 3.0, "backdoor": 4.0},
            "graft": {"test": 5.0},
            "trigger": {"auc": 6.0, "rows": 7},
            "probe": {"reads_20": 8.0},
        },
    }
    after = findings(record, entry)["models"]["after"]
    told = {"schema": 1, "seed": 0, "request": "leaves", "method": "not", "title": "NoT"}
    (tmp_path / "run/undo/0/leaves").mkdir(parents=True)
    measured = {"unlearned": own, "retrain": {}, "before": {}}
    (tmp_path / "run/undo/0/leaves/not.json").write_text(
        json.dumps({**told, "models": {"unlearned": after}, "measured": measured})
    )
    whole = findings(RunRecord(Run.open(tmp_path / "run").folder), entry)
    undone = whole["undo"]
    assert undone["unlearned"]["flip"] == {"forget": 1.0}
    assert undone["unlearned"]["triggers"] == {"own": 1.0, "gained": 2.0}
    assert {part: undone["unlearned"][part] for part in own["inside"]} == own["inside"]
    assert all(undone["retrain"][part] == {} for part in own["inside"])
    statement = {"subject": [], "predicate": {"made": "2026-01-01T00:00:00Z", "findings": whole}}
    shown = page(Verdict([], "Accept.", [], [], [], [], statement), [])
    assert all(f"<td>{value}</td>" in shown for value in ("2.0", "3.0", "6.0", "8.0", "not measured"))
    assert "difference" not in json.dumps(undone) and "path" not in json.dumps(undone)


def test_an_interval_is_clopper_and_pearsons() -> None:
    assert interval(0, 10) == pytest.approx([0.0, 30.8497], abs=1e-3)
    assert interval(10, 10) == pytest.approx([69.1503, 100.0], abs=1e-3)
    assert interval(5, 10) == pytest.approx([18.7086, 81.2914], abs=1e-3)


def test_the_model_is_known_by_its_fingerprint(run: Run, signed: Envelope, tmp_path: Path) -> None:
    models = run.folder.path / "models" / "0"
    assert any(
        "is the model that this evidence is about" in one
        for one in verify(signed, model=models / "leaves/not.safetensors").proven
    )
    with pytest.raises(NotVerified, match="is the model before the request, which still carries"):
        verify(signed, model=models / "train.safetensors")
    with pytest.raises(NotVerified, match="is another model"):
        verify(signed, model=models / "rows/ft.safetensors")
    (tmp_path / "cut").write_bytes((models / "leaves/not.safetensors").read_bytes()[:-7])
    with pytest.raises(NotVerified, match="cannot be read as safetensors"):
        verify(signed, model=tmp_path / "cut")


def test_a_model_whose_types_or_shapes_were_changed_is_found_although_its_bytes_are_the_same(
    run: Run, signed: Envelope, tmp_path: Path
) -> None:
    data = (run.folder.path / "models/0/leaves/not.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])

    def changed(**how: Any) -> Path:
        new = json.dumps({**header, "conv1.weight": {**header["conv1.weight"], **how}}).encode()
        (tmp_path / "model").write_bytes(len(new).to_bytes(8, "little") + new + data[8 + size :])
        return tmp_path / "model"

    assert verify(signed, model=changed()).proven[-1].endswith(").")
    turned = header["conv1.weight"]["shape"][::-1]
    for how in ({"dtype": "I32"}, {"shape": turned}):
        with pytest.raises(NotVerified, match="with other types or shapes: changed"):
            verify(signed, model=changed(**how))


def test_evidence_from_before_it_named_types_and_shapes_says_that_it_does_not(run: Run) -> None:
    entry = next(one for one in run.folder.book().entries if one.request.id == "leaves")
    told = findings(RunRecord(run.folder), entry)
    told["models"].pop("form")
    model = run.folder.path / "models/0/leaves/not.safetensors"
    last = verify(bundle.sign(told, KEY), model=model).proven[-1]
    assert last.endswith("of its types and shapes this evidence says nothing.")


def test_no_evidence_is_signed_for_a_model_file_that_is_not_the_one_that_came_out(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder.path, tmp_path / "run")
    record = RunRecord(Run.open(tmp_path / "run").folder)
    entry = next(one for one in record.folder.book().entries if one.request.id == "leaves")
    models = tmp_path / "run/models/0"
    for bad in ((models / "train.safetensors").read_bytes(), b"nothing"):
        (models / "leaves/not.safetensors").write_bytes(bad)
        with pytest.raises(UnfedError, match="restore it from a copy"):
            findings(record, entry)
    (models / "leaves/not.safetensors").unlink()
    assert "form" not in findings(record, entry)["models"], "nobody can be given it either"


def test_a_checkpoint_that_somebody_keeps_finds_a_log_that_was_rewritten(
    log: Log, signed: Envelope, tmp_path: Path
) -> None:
    first, *_, newest = (one.to_bytes() for one in log.checkpoints())
    for kept in (first, newest):
        assert any("has grown from your checkpoint" in one for one in verify(signed, log=kept).proven)
    for origin, leaves in ((log.origin, 2), ("another", 2), (log.origin, 10_000)):
        other = Log(tmp_path / f"{origin}-{leaves}".replace(":", "-"), origin)
        other.append(*({"type": "a", "at": str(number)} for number in range(leaves)))
        with pytest.raises(NotVerified, match="your checkpoint was signed over: it was rewritten"):
            verify(signed, log=other.sign(KEY).to_bytes())
    with pytest.raises(NotVerified, match="not signed by a key that you gave"):
        verify(signed, log=_forged(newest))
    with pytest.raises(NotVerified, match="holds no log, so no checkpoint"):
        verify(resigned(signed, lambda said: said.update(log=None, participation=None)), log=newest)


def _forged(checkpoint: bytes) -> bytes:
    raw = json.loads(checkpoint)
    value = json.loads(base64.b64decode(raw["payload"]))
    return signing.sign(raw["payloadType"], value, SigningKey.drawn()).to_bytes()


def test_somebody_who_took_part_cannot_be_hidden_between_two_who_do_not_stand_side_by_side(
    run: Run, log: Log, signed: Envelope
) -> None:
    participants = Participants(log.folder)
    last = [leaf for leaf in log.leaves if leaf["type"] == "round"][-1]
    members = participants.of(last["participants"]["root"])
    assert len(members) == 3
    hashes = [verifier.leaf(one) for one in members]
    sides = [[place, members[place].hex(), merkle.hexed(merkle.inclusion(hashes, place))] for place in (0, 2)]

    def hidden(predicate: Any) -> None:
        proof = predicate["participation"][0]
        proof["pseudonym"] = members[1].hex()
        proof["absences"] = {
            root: {**one, "neighbours": sides if one["size"] else []} for root, one in proof["absences"].items()
        }

    with pytest.raises(NotVerified, match="took no part in the round at leaf"):
        verify(resigned(signed, hidden))


def test_what_somebody_signed_does_not_steer_a_terminal(signed: Envelope, run: Run) -> None:
    found = verify(signed)
    found.measured.append("\x1b[2J\x07gone")
    said = told(found)
    assert "\x1b" not in said and "\x07" not in said and "gone" in said


def test_a_member_is_not_absent_beside_its_own_neighbours() -> None:
    members = [bytes([number]) * 32 for number in (2, 4, 6)]
    hashes = [verifier.leaf(one) for one in members]
    tree = {"size": 3, "root": merkle.root(hashes).hex()}
    sides = [[place, members[place].hex(), merkle.hexed(merkle.inclusion(hashes, place))] for place in range(3)]
    between, first, last = sides[:2], sides[:1], sides[2:]
    for stranger, beside, is_absent in (
        (3, between, True),
        (2, between, False),
        (4, between, False),
        (5, between, False),
    ):
        assert verifier.absent(bytes([stranger]) * 32, {"size": 3, "neighbours": beside}, tree) == is_absent
    for stranger, beside, is_absent in ((1, first, True), (2, first, False), (7, last, True), (6, last, False)):
        assert verifier.absent(bytes([stranger]) * 32, {"size": 3, "neighbours": beside}, tree) == is_absent
    assert not verifier.absent(bytes([3]) * 32, {"size": 3, "neighbours": [sides[1]]}, tree), "neither first nor last"


@pytest.mark.parametrize("size", range(1, 18))
def test_the_verifier_climbs_every_tree_to_its_root(size: int) -> None:
    leaves = [bytes([number]) for number in range(size)]
    hashes = [verifier.leaf(one) for one in leaves]
    for place in range(size):
        path = merkle.hexed(merkle.inclusion(hashes, place))
        assert verifier.climbed(verifier.leaf(leaves[place]), place, size, path) == merkle.root(hashes)
        for wrong in (path[:-1], [*path, "00" * 32]):
            if wrong != path:
                with pytest.raises(NotVerified, match="does not fit its tree"):
                    verifier.climbed(verifier.leaf(leaves[place]), place, size, wrong)


def test_another_key_and_another_statement_are_refused(signed: Envelope, run: Run) -> None:
    with pytest.raises(NotVerified, match="not signed by a key that you gave"):
        verdict(signed.to_bytes(), [SigningKey.drawn().public.pem])
    with pytest.raises(NotVerified, match="is of the type"):
        verify(signing.sign("text/plain", {}, KEY))
    with pytest.raises(NotVerified, match="no evidence of unfed"):
        verify(signing.sign(BUNDLE, {"_type": "x", "predicateType": "y"}, KEY))

    def other_model(predicate: Any) -> None:
        predicate["findings"]["models"]["after"] = "0" * 64

    with pytest.raises(NotVerified, match="speaks of other models"):
        verify(resigned(signed, other_model))


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, own in value.items():
            yield from leaves_of(own, (*path, name))
    elif isinstance(value, list):
        for place, own in enumerate(value):
            yield from leaves_of(own, (*path, place))
    else:
        yield path


def test_whoever_changes_any_one_value_without_the_key_is_found(signed: Envelope) -> None:
    whole = statement(signed)
    paths = list(leaves_of(whole))
    assert len(paths) > 100
    for path in random.Random(0).sample(paths, 40):
        changed = statement(signed)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = "something else"
        forged = Envelope(json.dumps(changed).encode(), signed.type, signed.signatures)
        with pytest.raises(NotVerified, match="changed after it was signed"):
            verify(forged)


@settings(max_examples=60)
@given(data=st.binary(max_size=200))
def test_any_bytes_end_in_one_sentence(data: bytes) -> None:
    with pytest.raises(NotVerified) as caught:
        verify(data)
    assert "\n" not in str(caught.value)


def test_a_damaged_bundle_ends_in_one_sentence_even_if_the_key_signed_it(signed: Envelope) -> None:
    """Whatever single value is replaced by something of another kind, by whoever has the key."""
    paths = [path for path in leaves_of(statement(signed)) if path[0] == "predicate"]
    for place, path in enumerate(random.Random(1).sample(paths, 60)):
        changed = statement(signed)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = [None, [], {}, "x", -1, 1e300][place % 6]
        try:
            verify(signing.sign(BUNDLE, changed, KEY))
        except NotVerified as error:
            assert "\n" not in str(error)


def test_the_verifier_is_one_file_that_needs_no_unfed(signed: Envelope, tmp_path: Path) -> None:
    shutil.copy(verifier.__file__, tmp_path / "verifier.py")
    (tmp_path / "bundle").write_bytes(signed.to_bytes())
    (tmp_path / "operator.pub").write_text(KEY.public.pem)
    (tmp_path / "alone.py").write_text(
        "import sys, runpy\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('unfed', 'torch', 'numpy', 'rfc8785'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "sys.argv = ['verifier.py', 'bundle', '--key', 'operator.pub']\n"
        "runpy.run_path('verifier.py', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-I", "alone.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Proven:" in done.stdout and "trained in none of the 3 rounds" in done.stdout


def test_the_officers_page_says_the_same_and_loads_nothing(signed: Envelope) -> None:
    verdict = verify(signed)
    html = page(verdict, [KEY.id[:16]])
    assert "Evidence, not a guarantee" in html and "<script" not in html and "http://" not in html
    parts = ("The decision", "Recommendation: Ask for", "Checklist", "Proven", "Measured", "Not shown", "client 1")
    assert all(part in html for part in parts)
    assert "<title>Evidence that client 1 was taken out</title>" in html
    assert re.search(r"in force for it since \d+ \w+ 20\d\d, \d\d:\d\d UTC", html)
    assert not re.search(r"\d{4}-\d\d-\d\dT", html) and "`" not in html
    assert "src=" not in html and 'href="http' not in html


def test_only_what_was_fulfilled_has_evidence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="This run has no request 'x'; it has leaves or rows"):
        served(run, "x")
    shutil.copytree(run.folder.path, tmp_path / "run")
    opened = Run.open(tmp_path / "run")
    opened.queue.file(Request("later", clients=("3",)), "ft", "2", 0)
    with pytest.raises(UnfedError, match="Request 'later' is open, so there is no evidence"):
        served(opened, "later")


def test_where_several_were_served_evidence_asks_which(run: Run) -> None:
    with pytest.raises(UnfedError, match=r"Say which request with --request; .* has served leaves or rows\."):
        served(run)


# --- by commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def unfed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Gives a command in this process: exit code, stdout, stderr."""

    def give(*words: object) -> tuple[int, str, str]:
        return called([*map(str, words)], monkeypatch, capsys)

    return give


def test_made_and_verified_by_commands(run: Run, tmp_path: Path, unfed: Callable[..., tuple[int, str, str]]) -> None:
    folder, out, public = run.folder.path, tmp_path / "bundle.json", tmp_path / "op.pub"
    unfed("keys", "new", tmp_path / "op")
    bare = Run.create(Config.parse({**SERVED, "training": {"rounds": 1, "batch": 256}}), tmp_path / "bare")
    bare.execute()
    bare.forget(Request("leaves", clients=("1",)), "ft", 1)
    code, _, err = unfed("bundle", tmp_path / "bare", "-o", out)
    assert code == 2 and "keeps no log, so no key is known" in err and not out.exists()
    assert unfed("bundle", tmp_path / "bare", "--key", tmp_path / "op.key", "-o", tmp_path / "bare.json")[0] == 0
    code, _, err = unfed("bundle", folder, "--request", "leaves", "--key", tmp_path / "op.key", "-o", out)
    assert code == 2 and "is signed by another key" in err and not out.exists()
    public.write_text(KEY.public.pem)
    words = ("bundle", folder, "--request", "leaves", "-o", out)
    code, said, err = unfed(*words, "--page", tmp_path / "page.html")
    assert code == 0 and "unfed verify" in said, err
    assert "Evidence that client 1 was taken out" in (tmp_path / "page.html").read_text()
    model = folder / "models/0/leaves/not.safetensors"
    code, said, err = unfed("verify", out, "--key", public, "--model", model)
    assert code == 0 and "Proven:" in said and "is the model that this evidence is about" in said.replace("\n", " "), (
        err
    )
    code, said, _ = unfed("verify", out, "--key", public, "--json")
    assert code == 0 and json.loads(said).keys() == {
        "decision",
        "recommendation",
        "checklist",
        "proven",
        "measured",
        "neither",
    }
    raw = json.loads(out.read_text())
    payload = base64.b64decode(raw["payload"]).replace(b'"leaves"', b'"lleaves"')
    out.write_text(json.dumps({**raw, "payload": base64.b64encode(payload).decode()}))
    code, _, err = unfed("verify", out, "--key", public)
    assert code == 2 and "changed after it was signed" in err.replace("\n", " ")
    assert unfed("verify", tmp_path / "nothing", "--key", public)[0] == 2


def test_the_pages_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfed: Callable[..., tuple[int, str, str]]
) -> None:
    before, page = (
        (Path(__file__).parents[2] / "docs/how-to" / name).read_text(encoding="utf-8")
        for name in ("trust.md", "evidence.md")
    )
    commands, alone, serves = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (config,) = re.findall(r"```toml\n(.*?)```", before, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("federation.toml").write_text(config)
    shutil.copy(verifier.__file__, "verifier.py")
    for line in "".join([*re.findall(r"```sh\n(.*?)```", before, re.DOTALL), commands]).splitlines():
        code, said, err = unfed(*line.partition("#")[0].split()[1:])
        assert code == 0, (line, err)
    told = " ".join(said.split())
    assert "trained in none of the 8 rounds" in told and "is the model that this evidence is about" in told
    assert "Evidence, not a guarantee" in Path("evidence.html").read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, *alone.split()[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    alone_told, proven = (
        " ".join(done.stdout.split()),
        told.partition("Measured, on")[0].partition("Proven:")[2].strip(),
    )
    assert alone_told.startswith(f"Proven: {proven} Not shown: - {verifier.NOT_SHOWN[0]}"), "what is proven is the same"
    assert serves.split() == ["unfed", "serve", "runs/federation", "--work"]


def test_what_is_measured_of_a_later_request_is_measured_on_its_own_rows(run: Run) -> None:
    told = findings(run, served(run, "rows"))
    line = [one for one in run.lines() if one["request"] == "rows"][-1]
    assert told["request"]["rows"] == told["measured"]["forget"]["rows"] == 2, (
        "client 1, who left before, is not counted"
    )
    assert told["measured"]["forget"]["value"] == line["own"] and told["earlier"] == list(line["earlier"].values())
