"""The kernels of `fused.py` and `convolution.py`, which have the formulas.

They are apart from them because Triton is not everywhere.

Every image lies channels-last and padded, so the window of an output pixel is KH runs of KW·CIN neighbouring numbers,
and entry k of the flattened kernel lies at (k div RUN)·x_row + k mod RUN behind the window's first number.
Sums are float32. Partial sums are written side by side and added in order, never by atomics: the same step gives the
same bits. z ≤ 0 is tested instead of taking a maximum, so that a NaN stays one.
"""

import triton
import triton.language as tl


@triton.jit
def _offsets(k, x_row: tl.constexpr, RUN: tl.constexpr, K: tl.constexpr, VEC: tl.constexpr):
    """Where the kernel's entries k lie, relative to a window's first number.

    Entries behind the last one read what the first ones read, and are not stored. VEC neighbours lie side by side,
    which the compiler cannot see by itself.
    """
    if k.shape[0] > 2 * K:  # noqa: SIM108 (Triton decides it while it compiles)
        k = k % K
    else:
        k = tl.where(k < K, k, k - K)
    return tl.max_contiguous(tl.multiple_of((k // RUN) * x_row + k % RUN, VEC), VEC)


@triton.jit
def _places(begin, COUNT: tl.constexpr, WIDE: tl.constexpr):
    """Lines and columns of COUNT neighbours from `begin` on, a multiple of COUNT.

    Where they fill lines, or a part of one, all but two numbers are the same in every turn of a loop.
    """
    i = tl.arange(0, COUNT)
    if WIDE % COUNT == 0 or COUNT % WIDE == 0:
        line, column = begin // WIDE + i // WIDE, begin % WIDE + i % WIDE
    else:
        line, column = (begin + i) // WIDE, (begin + i) % WIDE
    return line, column


@triton.jit
def conv(
    x, w, bias, gamma, y, winners, stats, x_unit: tl.constexpr, x_image: tl.constexpr, x_row: tl.constexpr,
    OW: tl.constexpr, IMAGE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, COUT: tl.constexpr, G: tl.constexpr,
    RUN: tl.constexpr, K: tl.constexpr, NT: tl.constexpr, POOL: tl.constexpr, VEC: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BM windows times BN channels, of one unit (an image, or all of a client's).

    A window serves G neighbours of a line, whose outputs alternate. For a pool, y = conv + b: the tile's count, mean
    and spread for the norm, and the winners. Eight windows and the eight below them follow each other then, so that a
    thread holds all four values of a cell.
    """
    tile, unit, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (client * tl.num_programs(1) + unit).to(tl.int64)
    WIDE: tl.constexpr = OW // G
    m = (tile // NT) * BM + tl.arange(0, BM)
    n = (tile % NT) * BN + tl.arange(0, BN)
    if POOL:
        q = m // 16 * 8 + m % 8
        line, column = q // WIDE * 2 + m // 8 % 2, q % WIDE
        inside, pixel, base = q < ROWS // 2, line * OW + column * G, line * x_row + column * STEP
    else:
        inside, pixel = m < ROWS, m * G
        base = m // IMAGE * x_image + m % IMAGE // WIDE * x_row + m % WIDE * STEP
    if ROWS % BM:
        base = tl.where(inside, base, 0)  # rows outside compute something and are not stored
    x += at * x_unit
    w += client.to(tl.int64) * K * (G * COUT)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for piece in tl.range(0, (K + BK - 1) // BK, num_stages=STAGES):
        k = piece * BK + tl.arange(0, BK)
        if RUN % BK == 0:
            run = (piece // (RUN // BK)) * x_row + (piece % (RUN // BK)) * BK + tl.arange(0, BK)
        else:
            run = _offsets(k, x_row, RUN, K, VEC)
        if K % BK == 0:
            a = tl.load(x + base[:, None] + run[None, :])
        else:
            a = tl.load(x + base[:, None] + run[None, :], mask=(k < K)[None, :], other=0.0)
        if K % BK == 0 and (G * COUT) % BN == 0:
            b = tl.load(w + k[:, None] * (G * COUT) + n[None, :])
        else:
            known = (k < K)[:, None] & (n < G * COUT)[None, :]
            b = tl.load(w + k[:, None] * (G * COUT) + n[None, :], mask=known, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    half = y.dtype.element_ty
    y += at * (ROWS * G * COUT) + pixel[:, None] * COUT
    if G == 1:
        tl.store(y + n[None, :], total.to(half), mask=inside[:, None] & (n < COUT)[None, :])
    else:
        left, right = tl.split(tl.reshape(total, (BM, BN // 2, 2)))
        o = (tile % NT) * (BN // 2) + tl.arange(0, BN // 2)
        there = inside[:, None] & (o < COUT)[None, :]
        if POOL:
            own = tl.load(bias + client * COUT + o, mask=o < COUT, other=0.0)[None, :]
            left, right = left + own, right + own
        left, right = left.to(half), right.to(half)
        tl.store(y + o[None, :], left, mask=there)
        tl.store(y + COUT + o[None, :], right, mask=there)
        if POOL:
            left, right = tl.where(there, left.to(tl.float32), 0.0), tl.where(there, right.to(tl.float32), 0.0)
            count = tl.minimum(BM, ROWS - (tile // NT) * BM) * tl.minimum(BN, 2 * COUT - (tile % NT) * BN)
            mean = tl.sum(left + right) / count
            apart = tl.where(there, (left - mean) * (left - mean) + (right - mean) * (right - mean), 0.0)
            stats += (at * tl.num_programs(0) + tile) * 3
            tl.store(stats, count.to(tl.float32))
            tl.store(stats + 1, mean)
            tl.store(stats + 2, tl.sum(apart))
            top, bottom = _lines(left, BM, BN)
            top_right, bottom_right = _lines(right, BM, BN)
            scale = tl.load(gamma + client * COUT + o, mask=o < COUT, other=0.0)
            best, _ = _win(top, top_right, bottom, bottom_right, scale)
            q = (tile // NT) * (BM // 2) + tl.arange(0, BM // 2)
            where = winners + at * (ROWS // 2 * COUT) + q[:, None] * COUT + o[None, :]
            tl.store(where, best.to(half), mask=(q < ROWS // 2)[:, None] & (o < COUT)[None, :])


@triton.jit
def _lines(values, BM: tl.constexpr, BN: tl.constexpr):
    """The upper and the lower values of the cells."""
    cells = tl.reshape(values, (BM // 16, 2, 8, BN // 2))
    top, bottom = tl.split(tl.permute(cells, (0, 2, 3, 1)))
    return tl.reshape(top, (BM // 2, BN // 2)), tl.reshape(bottom, (BM // 2, BN // 2))


@triton.jit
def _win(a, b, c, d, gamma):
    """The winner of each window, and its place; the first of equals wins."""
    sign = tl.where(gamma > 0, 1.0, tl.where(gamma < 0, -1.0, 0.0))[None, :]
    best, place = a, tl.zeros(a.shape, dtype=tl.int32)
    place = tl.where(b * sign > best * sign, 1, place)
    best = tl.where(place == 1, b, best)
    place = tl.where(c * sign > best * sign, 2, place)
    best = tl.where(place == 2, c, best)
    place = tl.where(d * sign > best * sign, 3, place)
    best = tl.where(place == 3, d, best)
    return best, place


@triton.jit
def sums(
    dp, winners, moments, gamma, beta, per_image, levels, PIXELS: tl.constexpr, WINDOWS: tl.constexpr,
    COUT: tl.constexpr, BQ: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """One image: Σ dz x̂ and Σ dz per channel, and the two means that dy needs."""
    image, client = tl.program_id(0), tl.program_id(1)
    all_images = tl.num_programs(0) * tl.num_programs(1)
    at = (client * tl.num_programs(0) + image).to(tl.int64)
    o = tl.arange(0, BO)
    scale = tl.load(gamma + client * COUT + o, mask=o < COUT, other=0.0)
    shift = tl.load(beta + client * COUT + o, mask=o < COUT, other=0.0)
    mean, inverse = tl.load(moments + at), tl.load(moments + all_images + at)
    against = tl.zeros((BQ, BO), dtype=tl.float32)
    level = tl.zeros((BQ, BO), dtype=tl.float32)
    for begin in range(0, WINDOWS, BQ):
        q = begin + tl.arange(0, BQ)
        mask = (q < WINDOWS)[:, None] & (o < COUT)[None, :]
        where = at * (WINDOWS * COUT) + q[:, None] * COUT + o[None, :]
        best = (tl.load(winners + where, mask=mask, other=0.0).to(tl.float32) - mean) * inverse
        given = tl.load(dp + where, mask=mask, other=0.0).to(tl.float32)
        dz = tl.where(best * scale[None, :] + shift[None, :] <= 0, 0.0, given)
        against += dz * best
        level += dz
    a, b = tl.sum(against, 0), tl.sum(level, 0)
    tl.store(per_image + at * COUT + o, a, mask=o < COUT)
    tl.store(per_image + (all_images + at) * COUT + o, b, mask=o < COUT)
    tl.store(levels + at, tl.sum(a * scale) / (PIXELS * COUT))
    tl.store(levels + all_images + at, tl.sum(b * scale) / (PIXELS * COUT))


@triton.jit
def _gradients(
    y, dp, moments, levels, at, all_images, scale, shift, line, column, o, mask, PW: tl.constexpr,
    WINDOWS: tl.constexpr, COUT: tl.constexpr,
):  # fmt: skip
    """dy of the four pixels of some windows, as it is stored, and their sum; zero outside the mask."""
    mean, inverse = tl.load(moments + at), tl.load(moments + all_images + at)
    against, level = tl.load(levels + at), tl.load(levels + all_images + at)
    first = y + at * (4 * WINDOWS * COUT) + (line * 4 * PW + column * 2)[:, None] * COUT + o[None, :]
    a = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(first + COUT, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(first + 2 * PW * COUT, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(first + (2 * PW + 1) * COUT, mask=mask, other=0.0).to(tl.float32)
    best, place = _win(a, b, c, d, scale)
    where = dp + at * (WINDOWS * COUT) + (line * PW + column)[:, None] * COUT + o[None, :]
    given = tl.load(where, mask=mask, other=0.0).to(tl.float32)
    best = (best - mean) * inverse
    dz = tl.where(best * scale[None, :] + shift[None, :] <= 0, 0.0, given) * scale[None, :]
    a = (tl.where(place == 0, dz, 0.0) - level - (a - mean) * inverse * against) * inverse
    b = (tl.where(place == 1, dz, 0.0) - level - (b - mean) * inverse * against) * inverse
    c = (tl.where(place == 2, dz, 0.0) - level - (c - mean) * inverse * against) * inverse
    d = (tl.where(place == 3, dz, 0.0) - level - (d - mean) * inverse * against) * inverse
    half = y.dtype.element_ty
    a, b = tl.where(mask, a, 0.0).to(half), tl.where(mask, b, 0.0).to(half)
    c, d = tl.where(mask, c, 0.0).to(half), tl.where(mask, d, 0.0).to(half)
    return a, b, c, d, a.to(tl.float32) + b.to(tl.float32) + c.to(tl.float32) + d.to(tl.float32)


@triton.jit
def spread(
    y, dp, moments, levels, gamma, beta, dy, db, PW: tl.constexpr, WINDOWS: tl.constexpr, COUT: tl.constexpr,
    MARGIN: tl.constexpr, LINES: tl.constexpr, WIDE: tl.constexpr, SHARE: tl.constexpr, BQ: tl.constexpr,
    BO: tl.constexpr,
):  # fmt: skip
    """dy of BQ windows of one image, written with MARGIN pixels of zeros around it, and its sum."""
    tile, image, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (client * tl.num_programs(1) + image).to(tl.int64)
    all_images = tl.num_programs(1) * tl.num_programs(2)
    o = tl.arange(0, BO)
    line, column = _places(tile * BQ, BQ, PW)
    mask = (line < WINDOWS // PW)[:, None] & (o < COUT)[None, :]
    scale = tl.load(gamma + client * COUT + o, mask=o < COUT, other=0.0)
    shift = tl.load(beta + client * COUT + o, mask=o < COUT, other=0.0)
    a, b, c, d, four = _gradients(
        y, dp, moments, levels, at, all_images, scale, shift, line, column, o, mask, PW, WINDOWS, COUT
    )  # fmt: skip
    first = (line * 2 + MARGIN) * WIDE + column * 2 + MARGIN
    where = dy + at * (LINES * WIDE * COUT) + first[:, None] * COUT + o[None, :]
    tl.store(where, a, mask=mask)
    tl.store(where + COUT, b, mask=mask)
    tl.store(where + WIDE * COUT, c, mask=mask)
    tl.store(where + (WIDE + 1) * COUT, d, mask=mask)
    own = db + ((image * tl.num_programs(0) + tile) * tl.num_programs(2) + client) * COUT
    tl.store(own + o, tl.sum(four, 0), mask=o < COUT)
    zero = tl.zeros((BQ, BO), dtype=dy.dtype.element_ty)
    for begin in range(0, SHARE, BQ):  # this program's share of the image with its margin: what is outside gets a zero
        pixel = tile * SHARE + begin + tl.arange(0, BQ)
        line, column = pixel // WIDE, pixel % WIDE
        outside = (line < MARGIN) | (line >= LINES - MARGIN) | (column < MARGIN) | (column >= WIDE - MARGIN)
        empty = (outside & (pixel < LINES * WIDE))[:, None] & (o < COUT)[None, :]
        tl.store(dy + at * (LINES * WIDE * COUT) + pixel[:, None] * COUT + o[None, :], zero, mask=empty)


@triton.jit
def weight(
    x, dy, out, images, SHARE: tl.constexpr, x_image: tl.constexpr, x_row: tl.constexpr, OW: tl.constexpr,
    ROWS: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, G: tl.constexpr, RUN: tl.constexpr, K: tl.constexpr,
    NT: tl.constexpr, MARGIN: tl.constexpr, LINES: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, VEC: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BK entries of a window times BN channels of one client: Σ window ⊗ dy over SHARE windows.

    A window serves G neighbours of a line, whose channels follow each other; each neighbour has sums of its own.
    """
    tile, split, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = (tile // NT) * BK + tl.arange(0, BK)
    n = (tile % NT) * BN + tl.arange(0, BN)
    run = _offsets(k, x_row, RUN, K, VEC)
    x += client.to(tl.int64) * images * x_image
    dy += client.to(tl.int64) * images * (LINES * WIDE * COUT)
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for begin in tl.range(split * SHARE, (split + 1) * SHARE, BM, num_stages=STAGES):
        if ROWS % BM == 0:
            image = begin // ROWS
            line, column = _places(begin % ROWS, BM, OW // G)
        else:
            m = begin + tl.arange(0, BM)
            image, line, column = m // ROWS, m % ROWS // (OW // G), m % (OW // G)
        inside = image + 0 * line < images  # for every row, where the tile has one image
        image = tl.minimum(image, images - 1)
        base = image * x_image + line * x_row + column * (G * CIN)
        at = (image * (LINES * WIDE) + (line + MARGIN) * WIDE + column * G + MARGIN) * COUT
        a = tl.load(x + base[:, None] + run[None, :])
        b = tl.load(dy + at[:, None] + n[None, :], mask=inside[:, None] & (n < G * COUT)[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    OWN: tl.constexpr = RUN - (G - 1) * CIN  # of a neighbour's window, which begins (n // COUT) pixels to the right
    PLACES: tl.constexpr = K // RUN * OWN
    out += ((split * G + n // COUT) * tl.num_programs(2) + client).to(tl.int64) * PLACES * COUT + n % COUT
    column = (k % RUN)[:, None] - (n // COUT * CIN)[None, :]
    mine = (k < K)[:, None] & (n < G * COUT)[None, :] & (column >= 0) & (column < OWN)
    tl.store(out[None, :] + ((k // RUN * OWN)[:, None] + column) * COUT, total, mask=mine)


@triton.jit
def weight_at_once(
    x, y, dp, moments, levels, gamma, beta, out, db, images, SHARE: tl.constexpr, x_image: tl.constexpr,
    x_row: tl.constexpr, PW: tl.constexpr, WINDOWS: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    RUN: tl.constexpr, K: tl.constexpr, BQ: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, VEC: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `weight`, with dy made on the way: over SHARE images of one client, window by window. And Σ dy."""
    tile, split, client = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    all_images = images * tl.num_programs(2)
    k = tile * BK + tl.arange(0, BK)
    o = tl.arange(0, BO)
    run = _offsets(k, x_row, RUN, K, VEC)
    scale = tl.load(gamma + client * COUT + o, mask=o < COUT, other=0.0)
    shift = tl.load(beta + client * COUT + o, mask=o < COUT, other=0.0)
    total = tl.zeros((BK, BO), dtype=tl.float32)
    plain = tl.zeros((BQ, BO), dtype=tl.float32)
    for step in range(0, SHARE):
        image = split * SHARE + step
        at = (client * images + tl.minimum(image, images - 1)).to(tl.int64)
        for begin in tl.range(0, WINDOWS, BQ, num_stages=STAGES):
            line, column = _places(begin, BQ, PW)
            mask = ((line < WINDOWS // PW) & (image < images))[:, None] & (o < COUT)[None, :]
            a, b, c, d, four = _gradients(
                y, dp, moments, levels, at, all_images, scale, shift, line, column, o, mask, PW, WINDOWS, COUT
            )  # fmt: skip
            plain += four
            base = tl.minimum(line, WINDOWS // PW - 1) * 2 * x_row + column * 2 * CIN
            where = x + at * x_image + base[:, None] + run[None, :]
            known = (k < K)[None, :]
            first = tl.load(where, mask=known, other=0.0)
            second = tl.load(where + CIN, mask=known, other=0.0)
            third = tl.load(where + x_row, mask=known, other=0.0)
            fourth = tl.load(where + x_row + CIN, mask=known, other=0.0)
            total = tl.dot(tl.trans(first), a, total, input_precision=PRECISION)
            total = tl.dot(tl.trans(second), b, total, input_precision=PRECISION)
            total = tl.dot(tl.trans(third), c, total, input_precision=PRECISION)
            total = tl.dot(tl.trans(fourth), d, total, input_precision=PRECISION)
    part = split * tl.num_programs(2) + client
    out += part.to(tl.int64) * K * COUT
    tl.store(out + k[:, None] * COUT + o[None, :], total, mask=(k < K)[:, None] & (o < COUT)[None, :])
    if tile == 0:
        tl.store(db + part * COUT + o, tl.sum(plain, 0), mask=o < COUT)
