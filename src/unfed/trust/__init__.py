"""Trust: signed deletion requests, a log of who took part, evidence that others can check.

    keys.py             who signs: Ed25519 keys in files
    canonical.py        the one way to write a JSON value (RFC 8785)
    envelope.py         what is signed, as DSSE has it
    merkle.py           trees of hashes and their proofs (RFC 9162)
    roster.py           whose key is whose, signed by the operator
    request.py          what a client asks for, in the words of the Data Rights Protocol
    acknowledgement.py  the operator's signed answer
    log.py              what happened, in order, append-only
    pseudonyms.py       clients under names that can be made meaningless
    participation.py    who took part in which round, and that somebody took part in none after
    findings.py         what a run folder says of a served request, as it may be handed out
    bundle.py           that, with proofs from the log, as one signed file
    verifier.py         checks a bundle; one file that needs nothing of this library
    verdict.py          what a checked bundle shows, in plain words
    page.py             a verified bundle as a page for the officer
    revocation.py       whoever asked takes a request back, signed
    desk.py             submit, follow, revoke, fetch: what can be done from outside
    guard.py            who gets in: sizes, hosts, tokens
    service.py          the desk on a network, and its page           listening.py   where it listens, and who works

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
