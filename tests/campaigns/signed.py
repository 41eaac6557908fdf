"""Signed requests, logs and proofs for both campaigns: what is drawn, what is killed, and what must be left."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from hypothesis import strategies as st

from unfed.errors import UnfedError
from unfed.runs.config import Config
from unfed.runs.run import Run
from unfed.trust import acknowledgement, envelope, intake, keys, participation, request, roster, story, watching
from unfed.trust.checking import faults_of
from unfed.trust.folder import TrustFolder
from unfed.trust.log import checkpoint_in
from unfed.trust.request import Opening

ANSWERED = "it is served once"
"""What a request that is handed in again is told, once it was answered."""

Damage = Callable[[bytes], st.SearchStrategy[bytes]]
Changed = Callable[[Any, random.Random, Any], Any]


# --- folders ----------------------------------------------------------------------------------------------------------


def logged(home: Path, clients: int = 2) -> Path:
    """A run that was trained under a log, everybody's keys, and a signed request of client 1."""
    home.mkdir(parents=True)
    for name in ("operator", "one", "stranger"):
        keys.new(home / name)
    run = Run.create(Config.parse({**common.TINY, "partition": {"clients": clients}}), home / "run")
    trust = TrustFolder.begin(home / "run", home / "operator.key")
    trust.enrol({"1": keys.public_key(home / "one.pub")})
    with watching.logged(run) as watch:
        run.execute(watch)
    value = request.value({"clients": ["1"]}, "1", trust.operator.id, name="leaves")
    (home / "leave.json").write_bytes(request.sign(value, keys.signing_key(home / "one.key")).to_bytes())
    return home


def templates(root: Path) -> None:
    """The folders that commands around signed requests begin in."""
    logged(root / "logged")
    shutil.copytree(root / "logged", root / "logged and served")
    with common.inside(root / "logged and served"):
        common.give("forget", "run", "--request", "leave.json", "--until", "1", "--quiet")


def outcome(path: Path, name: str) -> dict[str, Any]:
    """What of a trust folder must be the same after a stop: what was logged, who is behind it, what is answered."""
    if path.name == "log.jsonl":
        told = ("type", "request", "state", "reason", "round", "model", "participants", "commitment")
        leaves = [json.loads(line) for line in path.read_text().splitlines()]
        leaves = [leaf for leaf in leaves if leaf["type"] != "refusal"]  # of what was handed in twice
        return {name: sorted(json.dumps({key: leaf.get(key) for key in told}, sort_keys=True) for leaf in leaves)}
    if path.name == "participants.jsonl" or path.parent.name == "requests":
        return {name: path.read_bytes()}
    if path.name == "pseudonyms.json":
        return {name: json.loads(path.read_text())["secrets"]}
    if path.parent.name == "acknowledgements" or path.suffix == ".tmp":
        return {name: True}
    return {}


# --- many at once -----------------------------------------------------------------------------------------------------


def requests(home: Path, count: int) -> list[str]:
    """Signed requests of client 1, each for a sample of its own."""
    key, operator = keys.signing_key(home / "one.key"), keys.public_key(home / "operator.pub")
    (client,) = (client for client in Run.open(home / "run").world(0).clients if client.name == "1")
    names = []
    for number, place in enumerate(client.train[:count].tolist()):
        opening, name = Opening.drawn([("1", place)]), f"sample-{number}"
        value = request.value({"samples": opening.scope()}, "1", operator.id, name=name)
        (home / f"{name}.json").write_bytes(request.sign(value, key).to_bytes())
        (home / f"{name}.opening").write_bytes(intake.opening_bytes(opening))
        names.append(name)
    return names


def handing_in(name: str) -> tuple[str, ...]:
    """The command that hands one of them in."""
    return "forget", "run", "--request", f"{name}.json", "--opening", f"{name}.opening", "--method", "ft"


def lost(home: Path, names: list[str]) -> str | None:
    """What is wrong after all were handed in: each must be filed once, logged once, answered once."""
    run, trust = Run.open(home / "run"), TrustFolder(home / "run")
    filed = sorted(entry.request.id for entry in run.folder.requests())
    if filed != sorted(names):
        return f"{len(filed)} of {len(names)} are filed"
    for kind in ("request", "acknowledgement"):
        found = sorted(leaf["request"] for leaf in trust.log.leaves if leaf["type"] == kind)
        if found != sorted(names):
            return f"{len(found)} of {len(names)} have a leaf of the type {kind}"
    for name in names:
        answer = trust.acknowledgement(name)
        if answer is None or acknowledgement.verified(answer, [trust.operator]).expected_by == "":
            return f"{name} has no answer"
    return next(iter(faults_of(home / "run")), None)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@functools.cache
def _home(here: Path) -> Path:
    """A folder in which requests are handed in, made once for a campaign."""
    home = logged(here / "signed")
    run, trust = Run.open(home / "run"), TrustFolder(home / "run")
    intake.receive(run, (home / "leave.json").read_bytes(), None, intake.Handling(until="1"))
    with watching.logged(run) as watch:
        run.execute(watch)
    story.enter(run.folder, trust)
    shutil.copytree(home, here / "signed whole")
    return home


def _renewed(here: Path) -> Path:
    """The folder as it was made, where its log has grown long."""
    home = _home(here)
    if (home / "run/trust/log.jsonl").stat().st_size > 60_000:
        shutil.rmtree(home)
        shutil.copytree(here / "signed whole", home)
    return home


def hand_in(data: st.DataObject, here: Path, damage: Damage, changed: Changed, nested: Any) -> None:
    """A request with mistakes, in its bytes or in its words; signed by whoever; with an opening or without."""
    home = _renewed(here)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    good = (home / "leave.json").read_bytes()
    opening = None
    if data.draw(st.booleans()):
        sent = data.draw(damage(good))
    else:
        asked = envelope.shown(envelope.read(good)) | {"agent-request-id": f"f-{chance.randrange(10**9)}"}
        if data.draw(st.booleans()):
            opening = Opening.drawn([("1", chance.randrange(5))])
            asked |= {"scope": {"samples": opening.scope()}}
        who = data.draw(st.sampled_from(["one", "one", "operator", "stranger"]))
        value = changed(asked, chance, data.draw(nested))
        sent = envelope.sign(request.TYPE, value, keys.signing_key(home / f"{who}.key")).to_bytes()
    if data.draw(st.booleans()):
        raw = changed((opening or Opening.drawn([("1", 1)])).to_json(), chance, data.draw(nested))
        opening = Opening.from_json(raw)
    trust = TrustFolder(home / "run")
    before = len(trust.log.lines)
    try:
        intake.receive(Run.open(home / "run"), sent, opening, intake.Handling("ft", "1"))
    except UnfedError:
        assert len(trust.log.lines) == before + 1, "a refusal was not logged"
        raise


def believe(data: st.DataObject, here: Path, changed: Changed, nested: Any) -> None:
    """A proof, an answer, a checkpoint or a roster that was altered; nothing altered may be believed."""
    home = _home(here)
    trust = TrustFolder(home / "run")
    chance, new = random.Random(data.draw(st.integers(0, 2**32))), data.draw(nested)
    kind = data.draw(st.sampled_from(["proof", "answer", "checkpoint", "roster"]))
    if kind == "proof":
        place = next(n for n, leaf in enumerate(trust.log.leaves) if leaf["type"] == "request")
        proof = participation.prove_absence(trust.log, trust.participants, trust.pseudonyms.known("1"), place)
        other = changed(proof, chance, new)
        if other != proof and participation.verify_absence(other, [trust.operator]).rounds != 2:
            raise AssertionError("an altered proof was believed")
        return
    answer = trust.acknowledgement("leaves")
    assert answer is not None
    signed = {
        "answer": answer,
        "checkpoint": trust.log.latest(),
        "roster": envelope.read((trust.path / "roster.json").read_bytes()),
    }[kind]
    other = changed(signed.to_json(), chance, new)
    read = envelope.read(json.dumps(other).encode())
    if kind == "answer":
        acknowledgement.verified(read, [trust.operator])
    elif kind == "checkpoint":
        checkpoint_in(read, [trust.operator])
    else:
        roster.opened(read, trust.operator)
    if (read.payload, read.type) != (signed.payload, signed.type):
        raise AssertionError(f"an altered {kind} was believed")


def look_into(data: st.DataObject, here: Path, damage: Damage, changed: Changed, nested: Any) -> str | None:
    """A trust folder of which one file was edited, cut, emptied or deleted; looked at by the commands."""
    _home(here)
    home = here / "spoilt"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(here / "signed whole", home)
    files = sorted(path for path in (home / "run/trust").rglob("*.json*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    how = data.draw(st.sampled_from(["edit", "edit", "damage", "damage", "empty", "delete", "folder", "order"]))
    lines = file.read_text().splitlines()
    chance, new = random.Random(data.draw(st.integers(0, 2**32))), data.draw(nested)
    if how == "edit":
        at = chance.randrange(len(lines)) if file.suffix == ".jsonl" else 0
        rest = lines if file.suffix == ".jsonl" else ["\n".join(lines)]
        rest[at] = json.dumps(changed(json.loads(rest[at]), chance, new), separators=(",", ":"))
        file.write_text("\n".join(rest) + "\n")
    elif how == "order":
        chance.shuffle(lines)
        file.write_text("\n".join(lines) + "\n")
    elif how == "empty":
        file.write_bytes(b"")
    elif how in ("delete", "folder"):
        file.unlink()
        if how == "folder":
            file.mkdir()
    else:
        file.write_bytes(data.draw(damage(file.read_bytes())))
    run = str(home / "run")
    words = (["check", run], ["log", "check", run], ["log", "prove", run, "--client", "1", "-o", "proof.json"])
    more = (["request", "check", run, str(home / "leave.json")], ["resume", run, "--quiet"])
    return common.give(*data.draw(st.sampled_from((*words, *more)))).fault
