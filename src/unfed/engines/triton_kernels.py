"""The kernels themselves. Apart from `kernels.py`, because this module cannot be imported where there is no Triton."""

import triton
import triton.language as tl


@triton.jit
def conv_forward(
    x, w, y, pixels, x_client, per_image: tl.constexpr, per_row: tl.constexpr, x_image: tl.constexpr,
    x_row: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, RUN: tl.constexpr, KH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of BM pixels times BN channels of one client."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = m < pixels
    within = m % per_image
    base = (m // per_image) * x_image + (within // per_row) * x_row + (within % per_row) * CIN
    x += client * x_client
    w += client * (KH * RUN * COUT)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(KH):
        for j in range(0, RUN, BK):
            run = j + k
            if EVEN:
                a = tl.load(x + (base + i * x_row)[:, None] + run[None, :], mask=inside[:, None], other=0.0)
                b = tl.load(w + (i * RUN + run)[:, None] * COUT + n[None, :], mask=(n < COUT)[None, :], other=0.0)
            else:
                there = run < RUN
                a = tl.load(
                    x + (base + i * x_row)[:, None] + run[None, :], mask=inside[:, None] & there[None, :], other=0.0
                )
                b = tl.load(
                    w + (i * RUN + run)[:, None] * COUT + n[None, :],
                    mask=there[:, None] & (n < COUT)[None, :],
                    other=0.0,
                )
            total = tl.dot(a, b, total, input_precision=PRECISION)
    y += client * pixels * COUT
    tl.store(
        y + m[:, None] * COUT + n[None, :], total.to(y.dtype.element_ty), mask=inside[:, None] & (n < COUT)[None, :]
    )


@triton.jit
def conv_weight(
    x, dy, out, pixels, x_client, clients, share: tl.constexpr, per_image: tl.constexpr, per_row: tl.constexpr,
    x_image: tl.constexpr, x_row: tl.constexpr, dy_image: tl.constexpr, dy_row: tl.constexpr, margin: tl.constexpr,
    pieces: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, RUN: tl.constexpr, KH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of BK kernel entries times BN channels of one client, over one share of the pixels."""
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tile = tl.program_id(0)
    row = (tile // pieces) % KH
    run = (tile % pieces) * BK + tl.arange(0, BK)
    n = (tile // (pieces * KH)) * BN + tl.arange(0, BN)
    there = run < RUN
    x += client * x_client + row * x_row
    dy += client * (pixels // per_image) * dy_image * COUT
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for start in range(0, share, BM):
        m = split * share + start + tl.arange(0, BM)
        inside = m < pixels
        within = m % per_image
        image, line, column = m // per_image, within // per_row, within % per_row
        base = image * x_image + line * x_row + column * CIN
        at = (image * dy_image + (line + margin) * dy_row + column + margin) * COUT
        a = tl.load(x + base[:, None] + run[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        b = tl.load(dy + at[:, None] + n[None, :], mask=inside[:, None] & (n < COUT)[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    out += (split.to(tl.int64) * clients + client) * (KH * RUN * COUT)
    tl.store(out + (row * RUN + run)[:, None] * COUT + n[None, :], total, mask=there[:, None] & (n < COUT)[None, :])
