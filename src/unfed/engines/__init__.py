"""Engines run plans; methods do not know which.

    train(plan, params, clients, context)  ->  blocks of updates
    measure(what, params, clients)         ->  sums per client

An update block is stacked, [C, …]: one engine gives blocks of one client, another gives a thousand at once.
"""

from unfed.engines.base import Block, Engine, PerClient, Refusal
from unfed.engines.batched import Batched
from unfed.engines.sequential import Sequential

__all__ = ["Batched", "Block", "Engine", "PerClient", "Refusal", "Sequential"]
