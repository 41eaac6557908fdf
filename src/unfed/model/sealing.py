"""Perturbations without a public inverse: pure functions of (params, choices, draw).

    orthogonal   W ← Q·W over the outputs, Q uniform among orthogonal matrices
    permute      W ← D·P·W: the outputs in another order, each with a sign of its own
    signs        W ← D·W: each output keeps or changes its sign
    reinit       W ← the model's own initialisation
    fade         W ← λ·W + √(1 − λ²)·s·E: a part of W under noise of its own size s, E ~ N(0, 1)

Each Q, P, D and E is read from the draw, 32 bytes, by SHAKE-256: 2²⁵⁶ of them. A seed of 63 bits would not do, because
PyTorch's generator on a CPU looks at 32 of them, and 2³² matrices can be tried one after another on a published model.
Who holds both W and what became of it solves for Q by least squares (`solved`); who holds one of them cannot.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from unfed.errors import UnfedError, listed, nearest
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import changed_at, reinit, uniform_orthogonal

DRAW_BYTES = 32
WIDEST = 4096
"""Outputs that one matrix mixes at most; a longer axis belongs to a table of words, whose columns are mixed instead."""


def orthogonal(w: Tensor, draw: bytes, address: str) -> Tensor:
    """A random rotation or reflection of the outputs."""
    rows = _rows(w)
    q = uniform_orthogonal(_gaussian((len(rows), len(rows)), draw, address))
    return _back(q.to(w.device) @ rows.double(), w)


def permute(w: Tensor, draw: bytes, address: str) -> Tensor:
    """The outputs in another order, each with a sign of its own."""
    rows = _rows(w)
    order = _words(len(rows), draw, f"{address}/order").argsort()
    return signs(_back(rows[order.to(w.device)], w), draw, f"{address}/signs")


def signs(w: Tensor, draw: bytes, address: str) -> Tensor:
    """Each output keeps or changes its sign, half of them on average."""
    rows = _rows(w)
    sign = torch.where(_words(len(rows), draw, address) < 0, -1.0, 1.0).to(w)
    return _back(sign[:, None] * rows, w)


def fade(w: Tensor, draw: bytes, address: str, keep: float = 0.5) -> Tensor:
    """A part of the tensor under noise as strong as what was taken away.

    On average its norm stays what it was.
    """
    if not 0 <= keep < 1:
        raise UnfedError(f"The part that fading keeps is a number from 0 to below 1, not {keep}.")
    noise: Tensor = _gaussian(tuple(w.shape), draw, address).to(w)
    size = w.square().mean().sqrt()
    return w * keep + noise * (math.sqrt(1 - keep**2) * size)


SEALS: dict[str, Callable[..., Tensor]] = {
    "orthogonal": orthogonal,
    "permute": permute,
    "signs": signs,
    "fade": fade,
}
NAMES = (*SEALS, "reinit")


def seal(
    params: Mapping[str, Tensor],
    choices: Sequence[Choice],
    how: str,
    draw: bytes,
    fresh: Callable[[int], Params] | None = None,
    keep: float = 0.5,
) -> Params:
    """The chosen tensors perturbed; `fresh(seed)` draws the model's own initialisation, for `reinit`.

    `keep` is λ.
    """
    if how not in NAMES:
        raise UnfedError(f"There is no sealed perturbation {how!r}; choose {listed(NAMES)}.{nearest(how, NAMES)}")
    if len(draw) != DRAW_BYTES:
        raise UnfedError(f"A draw is {DRAW_BYTES} bytes, not {len(draw)}; take secrets.token_bytes({DRAW_BYTES}).")
    if how == "reinit":
        if fresh is None:
            raise UnfedError(
                "The perturbation 'reinit' needs the model's own initialisation; name the model by preset or factory,"
                " or choose another perturbation."
            )
        return reinit(params, choices, fresh=fresh(int(_words(1, draw, how)) >> 1 & (2**63 - 1)))
    rule = partial(fade, keep=keep) if how == "fade" else SEALS[how]
    return changed_at(params, choices, lambda w, choice: rule(w, draw, json.dumps([how, choice.name, choice.rows])))


def statistics_afresh(module: nn.Module, params: Mapping[str, Tensor]) -> Params:
    """The params with every running statistic as a new model has it.

    The next rounds estimate them on what stays.
    """
    begun = dict(params)
    for prefix, part in module.named_modules():
        if isinstance(part, _NormBase):
            for leaf, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
                name = f"{prefix}.{leaf}".lstrip(".")
                if name in begun:
                    begun[name] = torch.full_like(begun[name], value)
    return begun


def solved(before: Tensor, after: Tensor) -> Tensor:
    """The Q for which Q·before = after, by least squares: what two files give away that lie side by side."""
    old, new = _rows(before).double(), _rows(after).double()
    found: Tensor = torch.linalg.lstsq(old.T, new.T).solution.T
    return found


def _rows(w: Tensor) -> Tensor:
    """The outputs as rows; of a table with very many, the columns."""
    rows = w.reshape(w.shape[0] if w.ndim else 1, -1)
    return rows.T if len(rows) > WIDEST else rows


def _back(rows: Tensor, like: Tensor) -> Tensor:
    whole = rows.T if like.ndim and like.shape[0] > WIDEST else rows
    return whole.to(like.dtype).reshape(like.shape)


def _words(count: int, draw: bytes, address: str) -> Tensor:
    """Signed 64-bit words at an address of the draw, the same on every machine."""
    stream = hashlib.shake_256(draw + address.encode()).digest(8 * count)
    return torch.frombuffer(bytearray(stream), dtype=torch.int64)


def _gaussian(shape: Sequence[int], draw: bytes, address: str) -> Tensor:
    """Standard normal values in double precision, by Box and Muller."""
    count = math.prod(shape)
    word = _words(2 * count, draw, address)
    uniform = ((word >> 11) & (2**53 - 1)).double().add_(0.5).mul_(2.0**-53)
    return ((-2 * uniform[:count].log()).sqrt() * (2 * math.pi * uniform[count:]).cos()).reshape(tuple(shape))
