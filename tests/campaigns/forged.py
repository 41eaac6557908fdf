"""Signed requests, proofs, answers and logs with mistakes, as Hypothesis draws them: none may be believed."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import signed
from hypothesis import strategies as st

from unfed.errors import UnfedError
from unfed.runs.run import Run
from unfed.trust import intake, logbook, participation, request, signing
from unfed.trust.folder import TrustFolder
from unfed.trust.log import checkpoint_in
from unfed.trust.request import Opening

Damage = Callable[[bytes], st.SearchStrategy[bytes]]
Changed = Callable[[Any, random.Random, Any], Any]


@functools.cache
def home_of(here: Path) -> Path:
    """A folder in which requests are handed in, made once for a campaign."""
    home = signed.logged(here / "signed")
    run, trust = Run.open(home / "run"), TrustFolder(home / "run")
    intake.receive(run, (home / "leave.json").read_bytes(), None, intake.Handling(until="1"))
    with logbook.logged(run) as watch:
        run.execute(watch)
    logbook.enter(run.folder, trust)
    shutil.copytree(home, here / "signed whole")
    return home


def renewed(here: Path) -> Path:
    """The folder as it was made, where its log has grown long."""
    home = home_of(here)
    if (home / "run/trust/log.jsonl").stat().st_size > 60_000:
        shutil.rmtree(home)
        shutil.copytree(here / "signed whole", home)
    return home


def hand_in(data: st.DataObject, here: Path, damage: Damage, changed: Changed, nested: Any) -> None:
    """A request with mistakes, in its bytes or in its words; signed by whoever; with an opening or without."""
    home = renewed(here)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    good = (home / "leave.json").read_bytes()
    opening = None
    if data.draw(st.booleans()):
        sent = data.draw(damage(good))
    else:
        asked = signing.shown(signing.read(good)) | {"agent-request-id": f"f-{chance.randrange(10**9)}"}
        if data.draw(st.booleans()):
            opening = Opening.drawn([("1", chance.randrange(5))])
            asked |= {"scope": {"samples": opening.scope()}}
        who = data.draw(st.sampled_from(["one", "one", "operator", "stranger"]))
        value = changed(asked, chance, data.draw(nested))
        sent = signing.sign(request.TYPE, value, signing.signing_key(home / f"{who}.key")).to_bytes()
    if data.draw(st.booleans()):
        raw = changed((opening or Opening.drawn([("1", 1)])).to_json(), chance, data.draw(nested))
        opening = Opening.from_json(raw)
    trust = TrustFolder(home / "run")
    before = _refusals_counted(trust)
    try:
        intake.receive(Run.open(home / "run"), sent, opening, intake.Handling("ft", "1"))
    except UnfedError:
        assert _refusals_counted(trust) == before + 1, "a refusal was not counted"
        raise


def _refusals_counted(trust: TrustFolder) -> int:
    """How many refusals stand in the file that counts them by hour; an hour that is over may be in the log."""
    path = trust.path / logbook.REFUSED
    return sum(sum(own.values()) for own in json.loads(path.read_text()).values()) if path.exists() else 0


def believe(data: st.DataObject, here: Path, changed: Changed, nested: Any) -> None:
    """An answer, a checkpoint or a roster that was altered; nothing altered may be believed."""
    home = home_of(here)
    trust = TrustFolder(home / "run")
    chance, new = random.Random(data.draw(st.integers(0, 2**32))), data.draw(nested)
    kind = data.draw(st.sampled_from(["answer", "checkpoint", "roster"]))
    answer = trust.kept("acknowledgement", "leaves")
    assert answer is not None
    whole = {
        "answer": answer,
        "checkpoint": trust.log.latest(),
        "roster": signing.read((trust.path / "roster.json").read_bytes()),
    }[kind]
    other = changed(whole.to_json(), chance, new)
    read = signing.read(json.dumps(other).encode())
    if kind == "answer":
        request.acknowledged(read, [trust.operator])
    elif kind == "checkpoint":
        checkpoint_in(read, [trust.operator])
    else:
        participation.opened_roster(read, trust.operator)
    if (read.payload, read.type) != (whole.payload, whole.type):
        raise AssertionError(f"an altered {kind} was believed")


def look_into(data: st.DataObject, here: Path, damage: Damage, changed: Changed, nested: Any) -> str | None:
    """A trust folder of which one file was edited, cut, emptied or deleted; looked at by the commands."""
    home_of(here)
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
