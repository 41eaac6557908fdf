"""Signed requests and logs for both campaigns: the folders they begin in, what is killed, and what must be left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import common

from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.requests.options import RequestOptions
from unfed.runs.run import Run
from unfed.trust import bundle, intake, logbook, request, signing
from unfed.trust.folder import TrustFolder
from unfed.trust.logbook import faults_of
from unfed.trust.participation import OPERATOR
from unfed.trust.request import Opening

ANSWERED = "it is served once"
"""What a request that is handed in again is told, once it was answered."""


# --- folders ----------------------------------------------------------------------------------------------------------


def logged(home: Path, clients: int = 2) -> Path:
    """A run that was trained under a log, everybody's keys, and a signed request of client 1."""
    home.mkdir(parents=True)
    for name in ("operator", "one", "stranger"):
        signing.new_key(home / name)
    run = Run.create(Config.parse({**common.TINY, "partition": {"clients": clients}}), home / "run")
    trust = TrustFolder.begin(home / "run", home / "operator.key")
    trust.enrol({"1": signing.public_key(home / "one.pub")})
    with logbook.logged(run) as watch:
        run.execute(watch)
    value = request.value({"clients": ["1"]}, "1", trust.operator.id, name="leaves") | {"log": trust.log.origin}
    (home / "leave.json").write_bytes(request.sign(value, signing.signing_key(home / "one.key")).to_bytes())
    return home


def templates(root: Path) -> None:
    """The folders that commands around signed requests begin in."""
    logged(root / "logged")
    shutil.copytree(root / "logged", root / "logged and served")
    with common.inside(root / "logged and served"):
        common.give("forget", "run", "--request", "leave.json", "--until", "1", "--quiet")
    waiting_together(root)


def waiting_together(root: Path) -> None:
    """A folder in which two signed requests wait that are to share one recovery."""
    home = logged(root / "two wait", clients=3)
    run, operator = Run.open(home / "run"), signing.signing_key(home / "operator.key")
    asked = request.value({"clients": ["0"]}, OPERATOR, operator.public.id, name="goes")
    asked["log"] = TrustFolder(home / "run").log.origin
    handling = intake.Handling("not", "2", how=RequestOptions(together=True))
    for data in ((home / "leave.json").read_bytes(), request.sign(asked, operator).to_bytes()):
        intake.receive(run, data, None, handling)


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


def proven(path: Path) -> list[str]:
    """What a bundle proves, but for the moment at which it was signed; one that is not whole proves nothing."""
    try:
        return bundle.verify(path, [signing.public_key(path.parent / "operator.pub")]).proven[1:]
    except UnfedError as error:
        return [str(error)]


# --- many at once -----------------------------------------------------------------------------------------------------


def requests(home: Path, count: int) -> list[str]:
    """Signed requests of client 1, each for a sample of its own."""
    key, operator = signing.signing_key(home / "one.key"), signing.public_key(home / "operator.pub")
    (client,) = (client for client in Run.open(home / "run").world(0).clients if client.name == "1")
    names = []
    for number, place in enumerate(client.train[:count].tolist()):
        opening, name = Opening.drawn([("1", place)]), f"sample-{number}"
        value = request.value({"samples": opening.scope()}, "1", operator.id, name=name)
        value["log"] = TrustFolder(home / "run").log.origin
        (home / f"{name}.json").write_bytes(request.sign(value, key).to_bytes())
        (home / f"{name}.opening").write_bytes(opening.to_bytes())
        names.append(name)
    return names


def handing_in(name: str) -> tuple[str, ...]:
    """The command that hands one of them in."""
    return "forget", "run", "--request", f"{name}.json", "--opening", f"{name}.opening", "--method", "ft"


def lost(home: Path, names: list[str]) -> str | None:
    """What is wrong after all were handed in: each must be filed once, logged once, answered once."""
    run, trust = Run.open(home / "run"), TrustFolder(home / "run")
    filed = sorted(entry.request.id for entry in run.folder.book().entries)
    if filed != sorted(names):
        return f"{len(filed)} of {len(names)} are filed"
    for kind in ("request", "acknowledgement"):
        found = sorted(leaf["request"] for leaf in trust.log.leaves if leaf["type"] == kind)
        if found != sorted(names):
            return f"{len(found)} of {len(names)} have a leaf of the type {kind}"
    for name in names:
        answer = trust.kept("acknowledgement", name)
        if answer is None or request.acknowledged(answer, [trust.operator]).expected_by == "":
            return f"{name} has no answer"
    return next(iter(faults_of(home / "run")), None)
