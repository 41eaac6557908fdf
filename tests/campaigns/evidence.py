"""Evidence bundles and what is sent to the service, with mistakes: each must end in one sentence."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import forged
from forged import Changed, Damage
from hypothesis import strategies as st

from unfed.errors import UnfedError
from unfed.runs.run import Run
from unfed.trust import bundle, request, signing
from unfed.trust.findings import findings, served
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Intake
from unfed.trust.signing import SigningKey
from unfed.trust.verdict import told, verdict
from unfed.trust.verifier import BUNDLE, NotVerified


@functools.cache
def _bundle(here: Path) -> tuple[bytes, SigningKey]:
    """A whole bundle, and the key that signed it."""
    home = forged.home_of(here)
    run, key = Run.open(home / "run"), signing.signing_key(home / "operator.key")
    entry = served(run, "leaves")
    return bundle.sign(findings(run, entry), key, bundle.from_log(run, entry)).to_bytes(), key


def verify(data: st.DataObject, here: Path, damage: Damage, changed: Changed, nested: Any) -> None:
    """A bundle damaged by a stranger, which is never believed, or changed by whoever has the key; any model file."""
    whole, key = _bundle(here)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    model = here / "model.safetensors" if data.draw(st.booleans()) else None
    log = whole if data.draw(st.integers(0, 9)) == 0 else None
    mine = data.draw(st.booleans())
    if mine:
        statement = changed(json.loads(signing.read(whole).payload), chance, data.draw(nested))
        sent = signing.sign(BUNDLE, statement, key).to_bytes()
    else:
        sent = data.draw(damage(whole))
    try:
        found = verdict(sent, [key.public.pem], log, model)
        told(found)
    except NotVerified as error:
        if not str(error).strip() or "\n" in str(error):
            raise AssertionError("a refusal that is no sentence") from error
        return
    if not mine and signing.read(sent).payload != signing.read(whole).payload:
        raise AssertionError("an altered bundle was believed")


@functools.cache
def _desk(here: Path) -> Intake:
    return Intake(Run.open(forged.home_of(here) / "run"))


def send(data: st.DataObject, here: Path, damage: Damage, changed: Changed, nested: Any) -> None:
    """What somebody sends to the service: a revocation or a request with mistakes."""
    home = forged.renewed(here)
    desk, trust = _desk(here), TrustFolder(home / "run")
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    one = signing.signing_key(home / "one.key")
    if data.draw(st.booleans()):
        whole = request.revoke("leaves", "1", trust.operator.id, one)
        value = changed(json.loads(whole.payload), chance, data.draw(nested))
        sent = signing.sign(request.REVOCATION, value, one).to_bytes()
        desk.revoke(data.draw(damage(sent)) if data.draw(st.booleans()) else sent)
        raise AssertionError("what is fulfilled was revoked")
    body = {"request": json.loads((home / "leave.json").read_bytes()), "opening": None}
    desk.submit(json.dumps(changed(body, chance, data.draw(nested))).encode())
    raise UnfedError("It was new, and taken.")
