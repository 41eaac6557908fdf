"""Trust: signed deletion requests, a log of who took part, evidence that others can check.

    signing.py        canonical JSON (RFC 8785), Ed25519 keys in files, DSSE envelopes
    log.py            what happened, in order, append-only: a tree of hashes with proofs from it (RFC 9162)
    participation.py  who may ask, under which pseudonyms, and who took part in which round
    request.py        what a client asks for and takes back, and the operator's signed answer
    folder.py         what a run keeps of all this
    logbook.py        what happens in a run, as leaves of its log; does the log say what the run folder says?
    findings.py       what a run folder says of a served request, as it may be handed out
    bundle.py         that, with proofs from the log, as one signed file
    verifier.py       checks a bundle; one file that needs nothing of this library
    verdict.py        what a checked bundle shows, in plain words and as a page for the officer
    intake.py         submit, follow, revoke, refuse, fetch: what can be done from outside
    service.py        the intake on a network, and its page

All of it is evidence, not a guarantee: a server that never writes a round into the log is outside what this can show.
Needs the extra `trust`: `cryptography` for Ed25519 and `rfc8785` for canonical JSON, the smallest honest pair.
DSSE itself is one line over bytes, so no library is taken for it. The core imports nothing from here.
"""

from __future__ import annotations

import importlib.util

from unfed.errors import UnfedError, extra

for _needed in ("cryptography", "rfc8785"):
    if importlib.util.find_spec(_needed) is None:
        raise UnfedError(
            f"Signed requests, logs and evidence need the package {_needed!r}, which is not installed; install it with"
            f" {extra('trust')}."
        )
