"""The kernels of `gelu.py` and `attention.py`, which have the formulas.

They are apart from them because Triton is not everywhere.

Sums are float32, in a fixed order, never by atomics: the same step gives the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def _normal(x):
    """Φ(x) and exp(−x²/2). A squared root's inverse costs less than a division."""
    t = tl.rsqrt(1.0 + 0.23164189 * tl.abs(x))
    t = t * t
    bell = tl.exp2(-0.72134752 * x * x)
    rest = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    tail = 0.5 * bell * t * (0.254829592 + t * (-0.284496736 + t * rest))
    return tl.where(x < 0, tail, 1.0 - tail), bell


@triton.jit
def gelu(x, y, count, BLOCK: tl.constexpr):
    """The forward pass y = x Φ(x)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    below, _ = _normal(value)
    tl.store(y + at, (value * below).to(y.dtype.element_ty), mask=at < count)


@triton.jit
def gelu_backward(
    dy, x, dx, sums, rows, COLUMNS: tl.constexpr, SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dx of SHARE rows and BN columns, and what they add up to."""
    part = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in tl.range(0, SHARE, BM, num_stages=STAGES):
        m = part * SHARE + begin + tl.arange(0, BM)
        at, mask = m[:, None] * COLUMNS + n[None, :], (m < rows)[:, None] & (n < COLUMNS)[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        given = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        below, bell = _normal(value)
        found = (given * (below + value * bell * 0.39894228)).to(dx.dtype.element_ty)
        tl.store(dx + at, found, mask=mask)
        total += found.to(tl.float32)
    tl.store(sums + part * COLUMNS + n, tl.sum(total, 0), mask=n < COLUMNS)


@triton.jit
def attend(
    x, out, level, scale, LENGTH: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, LP: tl.constexpr,
    BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One head of one image, BM queries after BM queries: all of its keys and values stay on the chip."""
    head, image = tl.program_id(0), tl.program_id(1)
    n, d = tl.arange(0, LP), tl.arange(0, D)
    ROW: tl.constexpr = 3 * HEADS * D
    x += image.to(tl.int64) * (LENGTH * ROW) + head * D
    out += image.to(tl.int64) * (LENGTH * HEADS * D) + head * D
    level += (image * HEADS + head) * LENGTH
    there = (n < LENGTH)[:, None]
    k = tl.load(x + HEADS * D + n[:, None] * ROW + d[None, :], mask=there, other=0.0)
    v = tl.load(x + 2 * HEADS * D + n[:, None] * ROW + d[None, :], mask=there, other=0.0)
    for begin in tl.range(0, LENGTH, BM, num_stages=STAGES):
        m = begin + tl.arange(0, BM)
        inside = (m < LENGTH)[:, None]
        q = tl.load(x + m[:, None] * ROW + d[None, :], mask=inside, other=0.0)
        s = tl.where((n < LENGTH)[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        top = tl.max(s, 1)
        p = tl.exp2(s - top[:, None])
        total = tl.sum(p, 1)
        o = tl.dot(p.to(v.dtype), v) / total[:, None]
        tl.store(out + m[:, None] * (HEADS * D) + d[None, :], o.to(out.dtype.element_ty), mask=inside)
        tl.store(level + m, top + tl.log2(total), mask=m < LENGTH)


@triton.jit
def attend_backward(
    x, out, level, dout, dx, sums, scale, scale2, LENGTH: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
    LP: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One head of one image.

    Scores lie keys × queries, so that the widest products have the keys in their rows. Rows behind the last one are
    zeros: a query's contribute nothing, a key's are not stored.
    """
    head, image = tl.program_id(0), tl.program_id(1)
    n, d = tl.arange(0, LP), tl.arange(0, D)
    ROW: tl.constexpr = 3 * HEADS * D
    first = image.to(tl.int64) * (LENGTH * ROW) + head * D
    x += first
    dx += first
    mine = image.to(tl.int64) * (LENGTH * HEADS * D) + head * D
    out += mine
    dout += mine
    level += (image * HEADS + head) * LENGTH
    there = (n < LENGTH)[:, None]
    k = tl.load(x + HEADS * D + n[:, None] * ROW + d[None, :], mask=there, other=0.0)
    v = tl.load(x + 2 * HEADS * D + n[:, None] * ROW + d[None, :], mask=there, other=0.0)
    dk = tl.zeros((LP, D), dtype=tl.float32)
    dv = tl.zeros((LP, D), dtype=tl.float32)
    total = tl.zeros((D, BM), dtype=tl.float32)
    for begin in tl.range(0, LENGTH, BM, num_stages=STAGES):
        m = begin + tl.arange(0, BM)
        inside = (m < LENGTH)[:, None]
        q = tl.load(x + m[:, None] * ROW + d[None, :], mask=inside, other=0.0)
        do = tl.load(dout + m[:, None] * (HEADS * D) + d[None, :], mask=inside, other=0.0)
        o = tl.load(out + m[:, None] * (HEADS * D) + d[None, :], mask=inside, other=0.0)
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * scale2 - tl.load(level + m, mask=m < LENGTH, other=0.0)[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = (p * (tl.dot(v, tl.trans(do)) - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk)
        dq = (tl.dot(tl.trans(k), ds) * scale).to(dx.dtype.element_ty)
        total += dq.to(tl.float32)
        tl.store(dx + m[None, :] * ROW + d[:, None], dq, mask=(m < LENGTH)[None, :])
    where = dx + n[:, None] * ROW + d[None, :]
    keys, values = (dk * scale).to(dx.dtype.element_ty), dv.to(dx.dtype.element_ty)
    tl.store(where + HEADS * D, keys, mask=there)
    tl.store(where + 2 * HEADS * D, values, mask=there)
    sums += image * ROW + head * D + d
    tl.store(sums, tl.sum(total, 1))
    tl.store(sums + HEADS * D, tl.sum(tl.where(there, keys.to(tl.float32), 0.0), 0))
    tl.store(sums + 2 * HEADS * D, tl.sum(tl.where(there, values.to(tl.float32), 0.0), 0))
