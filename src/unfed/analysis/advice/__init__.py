"""Which layer to perturb, and how.

order      which layers use what which others answer
probing    what a perturbation does, without a Retrain
rules      the advice, its reasons and its doubts
"""

from __future__ import annotations

from unfed.analysis.advice.order import Order, order_of
from unfed.analysis.advice.probing import Probe, Prober, Sample
from unfed.analysis.advice.rules import Advice, Candidate, advise

__all__ = ["Advice", "Candidate", "Order", "Probe", "Prober", "Sample", "advise", "order_of"]
