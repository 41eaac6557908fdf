"""Objectives against PyTorch's own losses."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from unfed.client.batch import Batch
from unfed.client.objectives import OBJECTIVES, distil, find, nll

ROWS, CLASSES = 6, 5


class Fixed:
    """A network that gives the logits it was given."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits


def batch() -> Batch:
    zeros = torch.zeros(ROWS, dtype=torch.int64)
    return Batch(torch.zeros(ROWS, 1), zeros, zeros > 0, zeros)


def logits(seed: int) -> Tensor:
    return 8 * torch.randn(ROWS, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_cross_entropy_has_the_bits_of_pytorch_s_and_spares_an_import(tmp_path: Path) -> None:
    """In a map PyTorch's own imports sympy, which takes longer than a round of digits."""
    own, y = torch.stack([logits(1), logits(2)]).requires_grad_(), torch.tensor([0, 4, 2, 2, 1, 3])
    found = [f(own, torch.stack([y, y])) for f in (vmap(nll), vmap(partial(F.cross_entropy, reduction="none")))]
    mine, theirs = (torch.autograd.grad(value.sum(), own)[0] for value in found)
    assert torch.equal(*found) and torch.equal(mine, theirs)
    code = "import sys, torch; from unfed.client.objectives import nll; zeros = torch.zeros(2, 3, 4)"
    code += "; torch.func.vmap(nll)(zeros, zeros[..., 0].long()); print('sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_is_the_divergence_pytorch_computes(temperature: float) -> None:
    own, taught = logits(1).requires_grad_(), logits(2)
    found = distil(Fixed(own), batch(), {"teacher": Fixed(taught)}, temperature)
    p, q = (own / temperature).log_softmax(-1), (taught / temperature).softmax(-1)
    want = temperature**2 * F.kl_div(p, q, reduction="none").sum(-1)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
    mine, theirs = (torch.autograd.grad(value.sum(), own)[0] for value in (found, want))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_a_class_that_the_teacher_rules_out_costs_nothing() -> None:
    own, taught = logits(1), logits(2)
    taught[:, 2] = -torch.inf  # a probability of exactly zero
    own[:, 2] = -torch.inf
    kept = [0, 1, 3, 4]
    own.requires_grad_()
    found = distil(Fixed(own), batch(), {"teacher": Fixed(taught)}, 1.0)
    without = F.kl_div(own[:, kept].log_softmax(-1), taught[:, kept].softmax(-1), reduction="none").sum(-1)
    torch.testing.assert_close(found, without, rtol=1e-12, atol=1e-12)
    assert bool(torch.isfinite(torch.autograd.grad(found.sum(), own)[0][:, kept]).all())


def test_distillation_is_mapped_over_clients_without_an_inner_loop() -> None:
    def one(own: Tensor, taught: Tensor) -> Tensor:
        return distil(Fixed(own), batch(), {"teacher": Fixed(taught)})

    own, taught = torch.stack([logits(1), logits(3)]), torch.stack([logits(2), logits(4)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns where it has to loop
        stacked = vmap(one)(own, taught)
    torch.testing.assert_close(stacked, torch.stack([one(own[0], taught[0]), one(own[1], taught[1])]))


def test_an_objective_that_does_not_say_so_is_given_its_draws() -> None:
    assert {name for name, objective in OBJECTIVES.items() if objective.draws} == {"random_label"}
    assert find("random_label").draws
