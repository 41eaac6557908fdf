"""How unfed speaks where Flower carries the messages: Flower's words, in Flower's log."""

from __future__ import annotations

import logging

from unfed.remote.transport import Speech

log = logging.getLogger("flwr")
"""What is logged here is what `flwr log` and `flwr run --stream` show, and a node's own record of what it was asked."""

SPEECH = Speech(
    engine="flower",
    nodes="SuperNodes",
    naming="its own client=… in --node-config",
    or_else=", or register their keys with --name",
    expel="take its key out for good with `flwr supernode unregister {node} FEDERATION`",
    log=log,
)
