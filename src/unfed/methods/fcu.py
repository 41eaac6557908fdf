"""FCU: the leaver pulls features of D_u towards a model that never saw them.

    begin, at the leaver:   L = −log( e^{2 s_d} / (e^{2 s_d} + e^{2 s_p}) )      s_d = cos(f_θ(x), f_ψ(x))
                            by Adam on D_u inputs, labels unread                  s_p = cos(f_θ(x), f_θ*(x))
        every I_f steps:    each convolution and dense weight's FFT keeps its own phase and high band;
                            its low-band amplitude (fraction ρ) becomes θ*'s      memory preservation
    round: FedAvg over D_r

ψ is one fixed random initialisation and travels as a seed; θ* is what the leaver downloads anyway. ⌊iters / I_f⌋ · I_f
steps are made, and the learning rate falls when the mean loss of an I_f-stretch stops falling. θ* gives the low-band
amplitude, as the text says; the published code swaps the two, and so resets biases, norms and running statistics to
θ*'s. Several leavers run the phase each, and are averaged.
The loss is `client/objectives.py:contrast`, the fusion `model/perturb.py:fuse`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from unfed import rng
from unfed.client.plan import Phase, term
from unfed.engines.base import Drawn
from unfed.errors import UnfedError
from unfed.federation.protocol import Server
from unfed.federation.state import State, Transfer
from unfed.methods.base import CLIENT, Lineage, Method, option, register
from unfed.model.layers import weights_of
from unfed.model.networks import head_of


@register
@dataclass(frozen=True)
class FCU(Method):
    """Model-contrastive unlearning with frequency-guided memory preservation."""

    name: ClassVar[str] = "fcu"
    title: ClassVar[str] = "FCU"
    cite: ClassVar[str] = "Deng, Luo, Chen, Enable the Right to be Forgotten with Federated Client Unlearning, 2024"
    needs: ClassVar[frozenset[str]] = frozenset({"retain", "forget", "init"})
    lineage: ClassVar[Lineage] = "moved"
    federation_only: ClassVar[bool] = True
    scopes: ClassVar[frozenset[str]] = frozenset({CLIENT})
    paper: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cnn": {"iterations": 20, "fuse_every": 10, "rho": 0.9},
        "resnet18": {"iterations": 10, "fuse_every": 10, "rho": 0.7},
        "vit-b-16": {"iterations": 2000, "fuse_every": 9, "rho": 0.7},
    }

    iterations: int | None = option(None, "iters: mini-batches of the leaver's phase", "paper")
    fuse_every: int | None = option(None, "I_f: steps between two fusions", "paper")
    rho: float | None = option(None, "ρ: the low band's share of each axis", "paper")
    lr: float = option(0.01, "learning rate of Adam (the paper also says 0.1)", "paper")
    beta2: float = option(0.99, "Adam's second decay; the first is 0.9", "paper")
    decay: float = option(5e-4, "weight decay", "original")
    temperature: float = option(0.5, "of the contrast", "original")
    factor: float = option(0.1, "how the learning rate falls on a plateau", "paper")
    patience: int = option(2, "fusions without progress before it falls", "paper")
    minimum_lr: float = option(1e-7, "where it stops falling", "paper")
    any_scope: bool = option(False, "also for classes and samples; unpublished", "ours")

    def __post_init__(self) -> None:
        if self.rho is not None and not 0 <= self.rho <= 1:
            raise UnfedError(f"FCU's ρ is a fraction between 0 and 1, not {self.rho}; the paper uses 0.7 and 0.9.")
        if self.fuse_every is not None and self.fuse_every < 1:
            raise UnfedError(f"FCU fuses every I_f steps, so fuse_every must be at least 1, not {self.fuse_every}.")
        if self.iterations is not None and self.iterations < 0:
            raise UnfedError(f"FCU's iterations must not be negative, but they are {self.iterations}.")
        if not self.temperature > 0:
            raise UnfedError(f"FCU's temperature must be positive, not {self.temperature}; 0.5 is the original's.")

    def serves(self, scope: str) -> bool:
        return self.any_scope or scope in self.scopes

    def begin(self, server: Server) -> State:
        if not server.owners:
            raise UnfedError("No client holds these rows any more, so none can unlearn them; use not or ft.")
        seed = rng.key(server.seed, "downgraded model")
        updates = server.train(
            server.plan(0, self.contrast(server.base, weights_of(server.template.module))),
            server.params,
            server.owners,
            Drawn({"downgraded": server.fresh(seed)}, seeds={"downgraded": seed}),
            transfer=Transfer(seeded=("downgraded",)),
            patient=True,
        )
        return State(server.average(server.params, updates))

    def check(self, module: nn.Module) -> None:
        head = head_of(module) + "."
        if not any(p.requires_grad for name, p in module.named_parameters() if not name.startswith(head)):
            raise UnfedError(
                f"FCU moves the features that enter {head[:-1]!r}, and nothing before it can be trained; unfreeze"
                " layers there, or use not, ft."
            )

    def contrast(self, base: Phase, weights: Sequence[str]) -> Phase:
        """The leaver's phase: contrast, fuse these weights, slow down on a plateau."""
        assert self.iterations is not None and self.fuse_every is not None and self.rho is not None
        plateau = term(
            "plateau", factor=self.factor, patience=self.patience, minimum=self.minimum_lr, every=self.fuse_every
        )
        fusion = term("fuse", donor="start", rho=float(self.rho), every=self.fuse_every, names=",".join(weights))
        phase = replace(
            base,
            objective=term("contrast", temperature=float(self.temperature)),
            view="forget",
            steps=self.iterations // self.fuse_every * self.fuse_every,
            after=(fusion,),
        )
        return phase.with_optimiser(rule="adam", lr=self.lr, beta2=self.beta2, decay=self.decay, plateau=plateau)
