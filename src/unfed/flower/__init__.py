"""Flower: the same unlearning on real, separate machines.

    unfed flower init DIR; flwr run DIR        unfed's own app: train, unlearn, evaluate, resume (server.py, client.py)
    Unlearn(factory, perturb, exclude)         forget a client in an app you already have (existing.py)
    unfed.engines.flower.Flower                the engine contract over Flower's grid

Needs `pip install unfed[flower]`.
"""

from __future__ import annotations
