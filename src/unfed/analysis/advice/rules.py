"""Which layer to perturb, and how: by rules, and with data by a score without a Retrain.

    never a maximal element      a last layer's perturbation turns the answers; nothing behind it has to move
    never a convolution and its norm's scale together, which cancels: one weight is named, never a scale
    first that trains            everything that learnt uses its answers, so everything must move
    frozen layers                are left out: no training brings them back

With data, every candidate is perturbed in two ways and given one round (`probing`); the score is the product of

    behind          the share of the other weights that use its answers
    broken          min(1, loss / log C) · min(1, 4 · drop): is what the head knew gone?
    back            does one round bring the loss down again?

The product was chosen on the ablations of a CNN, an MLP, a ViT and a ResNet, and tried on others
(`docs/explanation/ablations.md` says how often its pick was within half a point of the best).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from unfed.analysis.advice.order import Order, order_of
from unfed.analysis.advice.probing import Probe, Prober
from unfed.errors import UnfedError, listed
from unfed.model.layers import choose
from unfed.model.params import Params
from unfed.model.perturb import perturb
from unfed.model.tensor_table import REPARAMETRISED, WEIGHTS, table_of

HOWS = ("reinit", "orthogonal")
"""Draws, which nobody can take back. Not `negate`, which one more minus sign undoes: on CIFAR-10 it scored best, and in
the ablation it ended 16 points farther from Retrain than a layer drawn anew. Nor `zero`: a ResNet did not survive."""
MOST = 24
"""Layers that are probed at most, those with most behind them first."""
CLOSE = 0.1
"""Two layers whose scores differ by less than this share are not told apart."""
LITTLE = 0.3
"""Below this share of the loss that one round takes away again, recovery is in doubt."""
BROKEN = 0.25
"""A drop of CKA at the head from which on what it knew counts as gone."""

Fresh = Callable[[int], Params]


@dataclass(frozen=True)
class Candidate:
    """One layer, one perturbation, and what speaks for them."""

    layer: str
    perturbation: str
    behind: float
    probe: Probe | None = None

    @property
    def score(self) -> float | None:
        """Between 0 and about 1; None without data."""
        if self.probe is None:
            return None
        broken = min(1.0, self.probe.loss) * min(1.0, max(0.0, self.probe.drop) / BROKEN)
        return self.behind * broken * min(1.0, max(0.0, self.probe.back))

    def to_json(self) -> dict[str, Any]:
        seen = {} if self.probe is None else vars(self.probe)
        return {
            "layer": self.layer,
            "perturbation": self.perturbation,
            "behind": self.behind,
            "score": self.score,
            **seen,
        }


@dataclass(frozen=True)
class Advice:
    """The layer and the perturbation to take, why, and what is in doubt."""

    layer: str
    perturbation: str
    why: tuple[str, ...]
    doubts: tuple[str, ...]
    ranked: tuple[Candidate, ...]

    @property
    def sure(self) -> bool:
        return not self.doubts

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "perturbation": self.perturbation,
            "sure": self.sure,
            "why": list(self.why),
            "doubts": list(self.doubts),
            "ranked": [candidate.to_json() for candidate in self.ranked],
        }


def advise(
    module: nn.Module,
    *,
    example: Tensor | None = None,
    prober: Prober | None = None,
    fresh: Fresh | None = None,
    seed: int = 0,
) -> Advice:
    """Layer and perturbation for a module; with a `prober` also by what was seen on data."""
    order = order_of(module, example)
    layers, why, doubts = _admitted(module, order)
    if order.doubt:
        doubts.append(order.doubt + ".")
    first, how = next(iter(layers)), "reinit" if fresh is not None else "orthogonal"
    if prober is None:
        doubts.append("There was no data, so this follows from rules alone; give data of a trained model for a score.")
        why.append(
            f"{how} rather than negate: on most small networks tried, a first layer that was drawn ended nearer to"
            " Retrain than a negated one; to last, a draw must be one that nobody can make again."
        )
        ranked = tuple(Candidate(name, how, behind) for name, behind in layers.items())
        return Advice(first, how, tuple(why), tuple(doubts), ranked)
    probed = sorted(layers, key=lambda name: -layers[name])[:MOST]
    if len(probed) < len(layers):
        doubts.append(f"Of {len(layers)} layers only the {MOST} with most behind them were probed.")
    found = [
        Candidate(name, how, layers[name], prober(after))
        for name in probed
        for how, after in _perturbations(module, prober, name, fresh, seed)
    ]
    ranked = tuple(sorted(found, key=lambda one: -(one.score or 0.0)))
    if (ranked[0].layer, ranked[0].perturbation) != (first, how):
        doubts.append(f"The rules would take {first} and {how}; where the two differ, both ended about equally near.")
    return _judged(ranked, prober, why, doubts)


def _admitted(module: nn.Module, order: Order) -> tuple[dict[str, float], list[str], list[str]]:
    """The layers that may be perturbed with the share of the others behind them, reasons and doubts."""
    table, why, doubts = table_of(module), list[str](), list[str]()
    learnt = [t.name for t in table.tensors.values() if t.kind in WEIGHTS and not t.frozen and t.name in order.before]
    if any(t.kind == REPARAMETRISED for t in table.tensors.values()):
        doubts.append("Some weights are re-parametrised and were left out; remove the parametrisation to have them in.")
    if frozen := sum(t.frozen for t in table.tensors.values() if t.kind in WEIGHTS):
        some = "1 frozen layer is" if frozen == 1 else f"{frozen} frozen layers are"
        why.append(f"{some} left out: no training would bring back what was perturbed there.")
    last, head = set(order.last), table.head or frozenset()
    kept = [name for name in learnt if name not in last and name not in head]
    if not kept:
        advice = "or take the parametrisation off its other layers" if doubts else "or unfreeze an earlier layer"
        raise UnfedError(
            "No layer that trains has another behind it, and perturbing a last layer makes nothing before it forget;"
            f" unlearn this model with `retrain`, {advice}."
        )
    if shared := [name for name in learnt if name in last and any(name in order.before[other] for other in kept)]:
        why.append(f"{listed(shared)}: left out, because a last layer shares the weight.")
    others = max(1, len(order.before) - 1)
    behind = {name: sum(name in earlier for earlier in order.before.values()) / others for name in kept}
    first = [name for name in kept if not order.before[name] & set(kept)]
    beginning = first[0] if first else kept[0]
    why.append(
        f"{beginning} is the first layer that trains: {behind[beginning]:.0%} of the other layers use its answers."
    )
    if len(first) > 1:
        doubts.append(
            f"{listed(first)} stand first side by side, so what one of them leaves out goes around it; perturb all of"
            " them, or ask with data."
        )
    in_order = {beginning: behind[beginning], **{name: behind[name] for name in kept}}
    return in_order, why, doubts


def _perturbations(
    module: nn.Module, prober: Prober, name: str, fresh: Fresh | None, seed: int
) -> list[tuple[str, Mapping[str, Tensor]]]:
    chosen = choose(module, (name,))
    hows = [how for how in HOWS if how != "reinit" or fresh is not None]
    return [(how, perturb(prober.params, chosen, how, seed=seed, fresh=fresh)) for how in hows]


def _judged(ranked: Sequence[Candidate], prober: Prober, why: list[str], doubts: list[str]) -> Advice:
    best = ranked[0]
    assert best.probe is not None and best.score is not None
    guess = 100 / prober.before.shape[1]
    if prober.accuracy < 2 * guess:
        doubts.append(
            f"The model reads {prober.accuracy:.0f} % of these rows, hardly more than a guess; train it first."
        )
    rival = next((one for one in ranked if one.layer != best.layer), None)
    if rival is not None and (rival.score or 0.0) >= (1 - CLOSE) * best.score:
        doubts.append(f"{rival.layer} ({rival.perturbation}) scores nearly as high.")
    if best.probe.back < LITTLE:
        some = f"only {best.probe.back:.0%}" if best.probe.back > 0 else "none"
        doubts.append(f"One round took back {some} of the loss; recovery may be slow.")
    taken = f"{min(1.0, best.probe.back):.0%}" if best.probe.back > 0 else "nothing"
    why.append(
        f"Perturbed by {best.perturbation}, {best.layer} breaks what the head knew (CKA down by {best.probe.drop:.2f},"
        f" loss {best.probe.loss:.1f} times a guess's), and one round takes away {taken} of that loss."
    )
    return Advice(best.layer, best.perturbation, tuple(why), tuple(doubts), tuple(ranked))
