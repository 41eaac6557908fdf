"""An operator who cheats, with his own key: whatever he changes, the log that he must show contradicts it."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from test_trust_run import TINY
from unfed.config.config import Config
from unfed.runs.record import RunRecord
from unfed.runs.run import Run
from unfed.trust import bundle, intake, log, logbook, request, signing, verifier
from unfed.trust.findings import findings, served
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Handling
from unfed.trust.signing import SigningKey, canonical
from unfed.trust.verdict import verdict
from unfed.trust.verifier import ACKNOWLEDGEMENT, BUNDLE, CHECKPOINT, NotVerified

OTHER = "f" * 64
CLIENT = SigningKey.drawn()
OPERATOR = SigningKey.drawn()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The statement of evidence that client 0, who signed its request, left a federation of three."""
    folder = tmp_path_factory.mktemp("honest")
    OPERATOR.write(folder / "operator.key")
    run = Run.create(Config.parse(TINY), folder / "run")
    trust = TrustFolder.begin(run.folder.path, folder / "operator.key")
    trust.enrol({"0": CLIENT.public, "1": SigningKey.drawn().public})
    with logbook.logged(run) as watch:
        run.execute(watch)
    asked = request.value({"clients": ["0"]}, "0", OPERATOR.id, name="r-1") | {"log": trust.log.origin}
    intake.receive(run, request.sign(asked, CLIENT).to_bytes(), None, Handling(until="2"))
    with logbook.logged(run) as watch:
        run.execute(watch)
    record = RunRecord(run.folder)
    entry = served(record, "r-1")
    signed = bundle.sign(findings(record, entry), OPERATOR, bundle.from_log(record, entry))
    found: dict[str, Any] = json.loads(signed.payload)
    return found


class Forger:
    """A bundle taken apart; `signed` puts it together again under the operator's key, consistent where it can be."""

    def __init__(self, statement: dict[str, Any]) -> None:
        self.statement = copy.deepcopy(statement)
        self.said = self.statement["predicate"]
        self.findings = self.said["findings"]
        self.request, self.models = self.findings["request"], self.findings["models"]
        self.leaves = [json.loads(line) for line in self.said["log"]["leaves"]]
        self.end = opened(self.said["log"]["checkpoint"])
        self.answer = opened(self.said["acknowledgement"])
        self.asked = opened(self.answer["request"])
        self.proof = self.said["participation"][0]
        self.relog, self.client = True, CLIENT

    def leaf(self, kind: str) -> Any:
        """The last leaf of a type."""
        return [leaf for leaf in self.leaves if leaf["type"] == kind][-1]

    def place(self, kind: str) -> int:
        return next(n for n, leaf in enumerate(self.leaves) if leaf["type"] == kind)

    def signed(self) -> bytes:
        """The bundle, with every digest, root and signature made again."""
        if self.relog:
            self._log()
        named = {"model": self.models["after"], "model before": self.models.get("before")}
        for one in self.statement["subject"]:
            one["digest"]["sha256"] = named.get(one["name"], one["digest"]["sha256"])
        return signing.sign(BUNDLE, self.statement, OPERATOR).to_bytes()

    def _log(self) -> None:
        place = self.answer["leaf"]
        if self.asked != opened(self.answer["request"]):
            self.answer["request"] = signing.sign(verifier.REQUEST, self.asked, self.client).to_json()
            self.leaves[place]["sha256"] = digest(self.answer["request"])
        self.answer["line"] = canonical(self.leaves[place]).decode()
        start = opened(self.answer["checkpoint"])
        hashes = [verifier.leaf(canonical(leaf)) for leaf in self.leaves]
        if start["size"] <= len(hashes):
            start["root"] = log.root(hashes[: start["size"]]).hex()
        self.answer["checkpoint"] = signing.sign(CHECKPOINT, start, OPERATOR).to_json()
        if self.said["acknowledgement"] is not None:
            self.said["acknowledgement"] = signing.sign(ACKNOWLEDGEMENT, self.answer, OPERATOR).to_json()
            for leaf in self.leaves:
                if leaf["type"] == "acknowledgement":
                    leaf["sha256"] = digest(self.said["acknowledgement"])
        lines = [canonical(leaf) for leaf in self.leaves]
        root = log.root([verifier.leaf(line) for line in lines]).hex()
        end = self.end | {"size": len(lines), "root": root}
        self.said["log"] = {"leaves": [line.decode() for line in lines]}
        self.said["log"]["checkpoint"] = signing.sign(CHECKPOINT, end, OPERATOR).to_json()


def opened(signed: Any) -> Any:
    return json.loads(base64.b64decode(signed["payload"]))


def digest(signed: Any) -> str:
    return hashlib.sha256(signing.pae(signed["payloadType"], base64.b64decode(signed["payload"]))).hexdigest()


def verify(data: bytes, **given: Any) -> Any:
    return verdict(data, [OPERATOR.public.pem], **given)


def test_the_honest_bundle_proves_who_asked_and_that_it_trained_no_more(honest: dict[str, Any]) -> None:
    found = verify(Forger(honest).signed())
    assert found.decision[0][1] == f"proven: client '0' signed the request with the key {CLIENT.id}"
    assert found.decision[1] == ("Absent from every later round", "proven: 2 rounds")
    said = "\n".join(found.proven)
    assert "names this model as the one in force for it since" in said and "it trained before, in the round" in said
    assert found.neither[: len(verifier.NOT_SHOWN)] == list(verifier.NOT_SHOWN)


# --- one change each, signed by the operator --------------------------------------------------------------------------

Change = Callable[[Forger], object]
FORGED: list[tuple[str, Change, str]] = []
"""What is changed, how, and the sentence that refuses it."""


def model(f: Forger, digest: str) -> str:
    f.models["after"] = digest
    return digest


def without_log(f: Forger) -> None:
    f.relog, f.said["log"] = False, None


def rounds(f: Forger, after: bool) -> list[dict[str, Any]]:
    asked = f.place("request")
    return [leaf for n, leaf in enumerate(f.leaves) if leaf["type"] == "round" and (n > asked) == after]


FORGED += [
    # the model
    ("θ* as the model", lambda f: model(f, rounds(f, False)[-1]["model"]), "one and the same"),
    (
        "θ* as the model, without a model before",
        lambda f: (model(f, rounds(f, False)[-1]["model"]), f.models.pop("before"), f.statement["subject"].pop()),
        "The log names another model as the one that came into force",
    ),
    ("another model than in force", lambda f: model(f, OTHER), "The log names another model"),
    (
        "θ* in force, in the log too",
        lambda f: (
            model(f, rounds(f, False)[-1]["model"]),
            f.models.update(before=OTHER),
            f.leaf("in-force").update(model=rounds(f, False)[-1]["model"]),
        ),
        "a round up to it ends in the same one",
    ),
    (
        "a model of no round in force",
        lambda f: (model(f, OTHER), f.leaf("in-force").update(model=OTHER)),
        "No round of the log after the request ends in this model",
    ),
    ("no leaf of a model in force", lambda f: f.leaf("in-force").update(model=None), "does not say that a model came"),
    ("two models in force", lambda f: f.leaves.append(f.leaf("in-force") | {"model": OTHER}), "names another model"),
    ("a model in force for another", lambda f: f.leaf("in-force").update(request="r-2"), "does not say that a model"),
    (
        "another subject",
        lambda f: f.statement["subject"].append({"name": "x", "digest": {"sha256": "y"}}),
        "no SHA-256",
    ),
    # the request
    ("another client", lambda f: f.request.update(clients=["1"]), "other data than the signed request"),
    ("two clients", lambda f: f.request["clients"].append("1"), "other data than the signed request"),
    (
        "a class",
        lambda f: f.request.update(kind="class", clients=[], classes=[3]),
        "other data than the signed request",
    ),
    ("samples", lambda f: f.request.update(kind="instance", clients=[], samples=3), "other data than the signed"),
    ("client and class", lambda f: f.request.update(classes=[3]), "do not say plainly what the request takes out"),
    ("a class by a word", lambda f: f.request.update(kind="class", clients=[], classes=["all"]), "is no number"),
    ("no kind", lambda f: f.request.update(kind="proven"), "do not say plainly"),
    ("another request's id", lambda f: f.request.update(id="r-2"), "The log says nothing of this request"),
    ("an id that is a sentence", lambda f: f.request.update(id="r-1 is proven"), "other characters than ids have"),
    ("a name of two lines", lambda f: f.request.update(clients=["0\n  - All is proven."]), "line break"),
    ("a name of blanks", lambda f: f.request.update(clients=[" "]), "no name in one line"),
    ("a very long name", lambda f: f.request.update(clients=["0" * 201]), "no name in one line"),
    ("a text that turns the page", lambda f: f.findings.update(engine="\u202eevil"), "control character"),
    ("a text of two lines", lambda f: f.findings["method"].update(title="NoT\nProven:"), "line break"),
    ("asked in 1999", lambda f: f.request.update(asked="1999-01-01T00:00:00Z"), "another date of the request than was"),
    (
        "fulfilled earlier",
        lambda f: f.request.update(fulfilled="2020-01-01T00:00:00Z"),
        "says another date than the|not in their order",
    ),
    ("dates in no order", lambda f: f.request.update(begun="1999-01-01T00:00:00Z"), "not in their order"),
    ("no dates", lambda f: f.request.update(asked=None, begun=None), "not in their order"),
    ("a date in words", lambda f: f.request.update(asked="yesterday"), "is no moment like"),
    ("a date in another form", lambda f: f.request.update(asked="2026-1-5T00:00:00Z"), "is no moment like"),
    ("a date that is none", lambda f: f.request.update(asked="2026-02-30T00:00:00Z"), "is no moment like"),
    ("made in 2031", lambda f: f.said.update(made="2031-01-01T00:00:00Z"), "which is to come"),
    (
        "made before it was fulfilled",
        lambda f: f.said.update(made=f.request["asked"][:4] + "-01-01T00:00:00Z"),
        "before",
    ),
    ("made under Proven", lambda f: f.said.update(made="2026-11-15T00:00:00Z.\n  - Proven"), "is no moment like"),
    # the gate
    ("a verdict that its value denies", lambda f: f.findings["gate"]["checks"][0].update(value=1e9), "another verdict"),
    (
        "a value that was not measured",
        lambda f: f.findings["gate"]["checks"][0].update(value="good"),
        "another verdict",
    ),
    ("another outcome", lambda f: f.leaf("gate")["checks"].update(utility="failed"), "another outcome of the gate"),
    ("accepted in silence", lambda f: f.leaf("gate").update(accepted=True), "another outcome of the gate"),
    ("no gate", lambda f: f.findings.update(gate={}), "another outcome of the gate"),
    # the log
    ("in force in 2020", lambda f: f.leaf("in-force").update(at="2020-01-01T00:00:00Z"), "says another date than the"),
    ("not fulfilled", lambda f: f.leaf("state").update(state="denied"), "does not say that this request is fulfilled"),
    ("no log", lambda f: without_log(f), "proofs without their log"),
    ("an origin of two lines", lambda f: f.end.update(origin="log\nProven"), "log's origin is no name"),
    ("a log of another day", lambda f: f.end.update(at="soon"), "is no moment like"),
    ("a log that was signed later", lambda f: f.end.update(at="2031-01-01T00:00:00Z"), "before its log's checkpoint"),
    ("a log of another origin", lambda f: f.end.update(origin="unfed:other"), "it was rewritten"),
    ("a refusal on no day", lambda f: f.leaves.append({"type": "declined", "at": "\n", "request": "r-1"}), "no moment"),
    # who asked
    ("a garbage signature of the client", lambda f: garbage(f.answer["request"]), "not signed by the client's key"),
    (
        "signed by another client",
        lambda f: by_another(f),
        "not signed by the client's key",
    ),
    ("a key that no roster binds", lambda f: f.answer["signer"].update(key=SigningKey.drawn().public.pem), "No roster"),
    ("a key that is none", lambda f: f.answer["signer"].update(key="mine"), "no bundle of evidence, or it is damaged"),
    ("a roster at another place", lambda f: f.answer["signer"].update(leaf=0), "No roster in the log"),
    ("a roster after the request", lambda f: late_roster(f), "No roster in the log"),
    (
        "another place in the roster",
        lambda f: f.answer["signer"].update(place=1 - f.answer["signer"]["place"]),
        "No roster",
    ),
    ("another path in the roster", lambda f: f.answer["signer"].update(path=[OTHER]), "No roster"),
    ("a roster of another size", lambda f: f.leaf("roster").update(clients=9), "does not fit its tree|No roster"),
    ("a roster with another root", lambda f: f.leaf("roster").update(keys=OTHER), "No roster"),
    ("an agent of two lines", lambda f: f.asked.update({"agent-id": "0\nProven"}), "no name in one line"),
    ("another agent", lambda f: f.asked.update({"agent-id": "1"}), "No roster in the log"),
    ("the operator as the agent", lambda f: f.asked.update({"agent-id": "operator"}), "not signed by a key that you"),
    ("another request in the answer", lambda f: f.asked.update({"agent-request-id": "r-2"}), "is of another request"),
    (
        "a request to another operator",
        lambda f: f.asked.update({"business-id": OTHER}),
        "addressed to another operator",
    ),
    (
        "an answer of another operator",
        lambda f: f.answer.update({"business-id": OTHER}),
        "addressed to another operator",
    ),
    ("a request for another log", lambda f: f.asked.update(log="unfed:other"), "another federation's log"),
    ("a request of another scope", lambda f: f.asked.update(scope={"clients": ["1"]}), "other data than the signed"),
    ("a request of two scopes", lambda f: f.asked["scope"].update(classes=[1]), "other data than the signed"),
    ("a request signed later", lambda f: f.asked.update({"issued-at": "2030-01-01T00:00:00Z"}), "another date of the"),
    (
        "a request that had ended",
        lambda f: f.asked.update({"expires-at": "2020-01-01T00:00:00Z"}),
        "another date of the",
    ),
    ("a request without a date", lambda f: f.asked.update({"issued-at": "\n"}), "is no moment like"),
    ("received on another day", lambda f: f.answer.update({"received-at": "1999-01-01T00:00:00Z"}), "other dates than"),
    ("due in five years", lambda f: due(f, "2031-11-15T00:00:00Z"), "due later than in one month"),
    (
        "due in the log on another day",
        lambda f: f.leaf("acknowledgement").update(expected_by="x"),
        "does not hold this",
    ),
    ("another leaf of the request", lambda f: f.answer.update(leaf=0), "does not hold the request that was"),
    (
        "a leaf that is not there",
        lambda f: reanswer(f, leaf=999),
        "does not hold the request",
    ),
    (
        "another line of the request",
        lambda f: reanswer(f, line="{}"),
        "does not hold the",
    ),
    (
        "an answer that was not logged",
        lambda f: reanswer(f, status="x"),
        "does not hold this",
    ),
    (
        "another digest of the request",
        lambda f: f.leaves[f.answer["leaf"]].update(sha256=OTHER),
        "does not hold the request",
    ),
    ("no answer", lambda f: f.said.update(acknowledgement=None), "holds a signed request, but the bundle does not"),
    ("an answer under another log", lambda f: other_start(f), "it was rewritten"),
    ("another pseudonym than answered", lambda f: f.answer.update(pseudonym=OTHER), "another client than was answered"),
    # who trained
    (
        "a later round with the leaver",
        lambda f: rounds(f, True)[-1].update(participants=rounds(f, False)[-1]["participants"]),
        "took no part in the round at leaf",
    ),
    ("a round without its proof", lambda f: f.proof["absences"].clear(), "took no part in the round at leaf"),
    (
        "a tree of another size",
        lambda f: [one.update(size=9) for one in f.proof["absences"].values()],
        "took no part in",
    ),
    (
        "another's pseudonym",
        lambda f: (f.answer.update(pseudonym=None), f.proof.update(pseudonym=someone(f))),
        "took no part in",
    ),
    ("a pseudonym in words", lambda f: f.proof.update(pseudonym="client 0"), "is no SHA-256"),
    ("a proof too many", lambda f: f.said["participation"].append(f.proof | {"pseudonym": OTHER}), "damaged"),
    ("a proof too few", lambda f: f.said["participation"].clear(), "damaged"),
    (
        "a round before that is later",
        lambda f: f.proof["before"].update(leaf=f.leaves.index(rounds(f, True)[-1])),
        "took part before",
    ),
    (
        "another place in the round before",
        lambda f: f.proof["before"].update(path=[OTHER] * 2),
        "took part before|fit its tree",
    ),
    (
        "another place before",
        lambda f: f.proof["before"].update(place=(f.proof["before"]["place"] + 1) % 3),
        "took part|fit its tree",
    ),
]


def garbage(signed: Any) -> None:
    signed["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()


def by_another(f: Forger) -> None:
    f.client = SigningKey.drawn()
    f.asked["regime"] = "ccpa"


def late_roster(f: Forger) -> None:
    f.leaves.append(f.leaf("roster"))
    f.answer["signer"]["leaf"] = len(f.leaves) - 1


def due(f: Forger, date: str) -> None:
    f.answer["expected_by"] = f.leaf("acknowledgement")["expected_by"] = date


def reanswer(f: Forger, **changes: Any) -> None:
    """Another answer, which is not the one in the log."""
    f.relog = False
    f.said["acknowledgement"] = signing.sign(ACKNOWLEDGEMENT, f.answer | changes, OPERATOR).to_json()


def other_start(f: Forger) -> None:
    start = opened(f.answer["checkpoint"]) | {"size": 10_000, "root": OTHER}
    f.answer["checkpoint"] = signing.sign(CHECKPOINT, start, OPERATOR).to_json()


def someone(f: Forger) -> str:
    """A pseudonym that did train after the request."""
    return str(next(one for one in f.proof["absences"].values() if one["size"])["neighbours"][0][1])


@pytest.mark.parametrize(("change", "refused"), [one[1:] for one in FORGED], ids=[one[0] for one in FORGED])
def test_a_bundle_that_was_changed_and_signed_again_is_refused(
    honest: dict[str, Any], change: Change, refused: str
) -> None:
    forger = Forger(honest)
    change(forger)
    with pytest.raises(NotVerified, match=refused) as caught:
        verify(forger.signed())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["_type", "predicateType"])
def test_another_statement_is_refused(honest: dict[str, Any], name: str) -> None:
    with pytest.raises(NotVerified, match="no evidence of unfed"):
        verify(signing.sign(BUNDLE, honest | {name: "urn:other"}, OPERATOR).to_bytes())


def test_evidence_of_an_older_version_is_refused_as_such(honest: dict[str, Any]) -> None:
    old = honest | {"predicateType": verifier.OLDER}
    with pytest.raises(NotVerified, match="made by an older version of unfed, and its claims cannot be recomputed"):
        verify(signing.sign(BUNDLE, old, OPERATOR).to_bytes())


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda raw: raw["leaves"].pop(), "missing or changed"),
        (lambda raw: raw["leaves"].pop(3), "missing or changed"),
        (lambda raw: raw["leaves"].reverse(), "missing or changed"),
        (lambda raw: raw["leaves"].append(raw["leaves"][-1]), "1 leaves of the log come after its signed checkpoint"),
        (lambda raw: garbage(raw["checkpoint"]), "checkpoint is not signed by a key that you gave"),
    ],
)
def test_leaves_that_are_not_those_of_the_signed_checkpoint_are_refused(
    honest: dict[str, Any], change: Callable[[Any], Any], refused: str
) -> None:
    statement = copy.deepcopy(honest)
    change(statement["predicate"]["log"])
    with pytest.raises(NotVerified, match=refused):
        verify(signing.sign(BUNDLE, statement, OPERATOR).to_bytes())


def test_an_answer_that_the_operator_did_not_sign_is_refused(honest: dict[str, Any]) -> None:
    statement = copy.deepcopy(honest)
    garbage(statement["predicate"]["acknowledgement"])
    with pytest.raises(NotVerified, match="acknowledgement is not signed by a key that you gave"):
        verify(signing.sign(BUNDLE, statement, OPERATOR).to_bytes())


def test_without_proof_nothing_is_called_proven(honest: dict[str, Any]) -> None:
    """Proofs may be missing; then the decision says so, and asks for them."""
    bare, strange, unbound = Forger(honest), Forger(honest), Forger(honest)
    bare.said["participation"] = None
    strange.proof["before"] = None
    unbound.answer["signer"] = None
    for forger, line, why in (
        (bare, 1, "not proven: the bundle holds no proof of it; ask the operator why"),
        (strange, 1, "not proven: the log has no round before the request with this pseudonym"),
        (unbound, 0, "not proven: no roster in this log binds the client's key"),
    ):
        found = verify(forger.signed())
        assert found.decision[line][1] == why and found.recommendation.startswith("Ask for ")
        assert any(why.removeprefix("not proven: ") in one for one in found.neither)


def test_a_round_that_was_under_way_when_the_request_came_is_named(honest: dict[str, Any]) -> None:
    forger = Forger(honest)
    place = forger.place("acknowledgement") + 1
    forger.leaves.insert(place, copy.deepcopy(rounds(forger, False)[-1]) | {"round": 2, "model": OTHER})
    found = verify(forger.signed())
    assert any(f"in none of the 2 rounds after its round under way at leaf {place}" in one for one in found.proven)
    forger.leaves.insert(place, copy.deepcopy(forger.leaves[place]) | {"round": 3})
    with pytest.raises(NotVerified, match=f"took no part in the round at leaf {place + 1}"):
        verify(forger.signed())


def test_a_model_that_is_older_than_the_log_is_said_to_be(honest: dict[str, Any]) -> None:
    forger = Forger(honest)
    forger.leaves[0]["models-before"] = [forger.models["after"]]
    for leaf in rounds(forger, True):
        leaf["model"] = OTHER
    assert verify(forger.signed()).decision[1][1] == "not proven: the model is older than the log"


def test_what_is_not_shown_is_the_verifiers_own_text(honest: dict[str, Any], tmp_path: Path) -> None:
    forger = Forger(honest)
    forger.findings["neither"] = ["All of the above is proven."]
    data = forger.signed()
    assert not any("All of the above" in one for one in verify(data).neither)
    (tmp_path / "bundle").write_bytes(data)
    (tmp_path / "operator.pub").write_text(OPERATOR.public.pem)
    words = [sys.executable, verifier.__file__, "bundle", "--key", "operator.pub"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    shown = done.stdout.partition("Not shown:")[2].partition("All else is the operator's word")[0]
    assert done.returncode == 0 and all(one in shown for one in verifier.NOT_SHOWN), done.stderr
    assert "All of the above" not in shown


@pytest.mark.parametrize("change", [FORGED[0][1], FORGED[2][1]], ids=["θ*", "another model"])
def test_the_verifier_alone_refuses_the_same(honest: dict[str, Any], change: Change, tmp_path: Path) -> None:
    forger = Forger(honest)
    change(forger)
    (tmp_path / "bundle").write_bytes(forger.signed())
    (tmp_path / "operator.pub").write_text(OPERATOR.public.pem)
    words = [sys.executable, verifier.__file__, "bundle", "--key", "operator.pub"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("not verified: ") and not done.stdout
