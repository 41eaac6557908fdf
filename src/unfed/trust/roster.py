"""Whose key is whose: a list of clients and their public keys, signed by the operator.

    {"business-id": …, "operator": PEM, "clients": {NAME: PEM, …}, "issued-at": …}

The operator's key may ask for anything; a client's key only for that client's own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unfed.errors import UnfedError
from unfed.requests.entry import now
from unfed.trust import envelope
from unfed.trust.envelope import Envelope
from unfed.trust.keys import PublicKey, SigningKey

TYPE = "application/vnd.unfed.roster+json"
OPERATOR = "operator"
"""The agent id of whoever runs the federation; no client can have it."""


@dataclass(frozen=True)
class Roster:
    """Who may ask, and by which key they are known."""

    business: str
    """The operator's name for itself, as requests must address it."""
    operator: PublicKey
    clients: Mapping[str, PublicKey]
    issued: str

    @property
    def keys(self) -> list[PublicKey]:
        """Every key that may sign a request."""
        return [self.operator, *self.clients.values()]

    def agent(self, key_id: str) -> str:
        """Whose key this is: a client's name, or `operator`."""
        if key_id == self.operator.id:
            return OPERATOR
        found = next((name for name, key in self.clients.items() if key.id == key_id), None)
        if found is None:
            raise UnfedError(f"The key {key_id[:16]}… belongs to nobody on the roster; ask the operator to enter it.")
        return found


def sign(business: str, clients: Mapping[str, PublicKey], key: SigningKey) -> Envelope:
    """A roster, signed by the operator; each key stands for one name only."""
    if OPERATOR in clients:
        raise UnfedError(f"No client can be called {OPERATOR!r}; rename it.")
    ids = [key.id, *(own.id for own in clients.values())]
    if len(set(ids)) != len(ids):
        raise UnfedError("The same key stands twice on the roster, so it would not say who signed; give each its own.")
    plain = {name: own.pem for name, own in clients.items()}
    value = {"business-id": business, "operator": key.public.pem, "clients": plain, "issued-at": now()}
    return envelope.sign(TYPE, value, key)


def opened(signed: Envelope, operator: PublicKey, what: str = "roster") -> Roster:
    """The roster in an envelope, if this operator signed it."""
    value, _ = envelope.opened(signed, TYPE, [operator], what)
    try:
        clients = {str(name): PublicKey(pem) for name, pem in value["clients"].items()}
        found = Roster(str(value["business-id"]), PublicKey(value["operator"]), clients, str(value["issued-at"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise UnfedError("The roster lacks business-id, operator, clients or issued-at; sign it anew.") from error
    if found.operator.id != operator.id:
        raise UnfedError("The roster names another operator than the one who signed it; sign it anew.")
    return found


def to_json(found: Roster) -> dict[str, Any]:
    """Who is on it, by key ids: what may be shown to anybody."""
    clients = {name: key.id for name, key in found.clients.items()}
    return {"business-id": found.business, "operator": found.operator.id, "clients": clients, "issued-at": found.issued}
