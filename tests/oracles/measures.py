"""Attacks, distances, intervals and bounds once more, in plain loops; nothing here imports unfed.

Numbers in, numbers out: logits and labels have become p, φ or losses before, and what is drawn at random is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import optimize, stats
from sklearn.svm import SVC
from torch import Tensor, nn

Floats = NDArray[np.float64]


# --- features ---------------------------------------------------------------------------------------------------------


def nearest_map(features: Floats, goal: Floats) -> Floats:
    """The rows [f, 1]·A nearest to the goal, a small multiple of A's length added: least squares on longer columns."""
    x = np.hstack([features, np.ones((len(features), 1))])
    weight = 1e-3 * np.mean([np.sum(column**2) for column in x.T])
    longer = np.vstack([x, np.sqrt(weight) * np.eye(x.shape[1])])
    return np.asarray(np.linalg.lstsq(longer, np.vstack([goal, np.zeros((x.shape[1], goal.shape[1]))]), rcond=None)[0])


def read_by_softmax(x: Floats, y: NDArray[np.int64], asked: Floats) -> NDArray[np.int64]:
    """min ‖W‖²/2 + Σ_i n/(K n_{y_i}) · ce_i over W and a free constant; what it reads the asked rows as."""
    kinds = np.unique(y)
    place = np.searchsorted(kinds, y)
    weights = np.array([len(y) / (len(kinds) * np.sum(y == own)) for own in y])

    def value(flat: Floats) -> float:
        w, b = flat[: -len(kinds)].reshape(len(kinds), -1), flat[-len(kinds) :]
        z = x @ w.T + b
        top = z.max(1)
        ce = top + np.log(np.exp(z - top[:, None]).sum(1)) - z[np.arange(len(z)), place]
        return float((w**2).sum() / 2 + (weights * ce).sum())

    start = np.zeros(len(kinds) * (x.shape[1] + 1))
    found = optimize.minimize(value, start, method="BFGS", options={"gtol": 1e-5}).x
    z = asked @ found[: -len(kinds)].reshape(len(kinds), -1).T + found[-len(kinds) :]
    return np.asarray(kinds[z.argmax(1)])


# --- one model --------------------------------------------------------------------------------------------------------


def logistic(x: Floats, y: NDArray[np.int64], weights: Floats | None = None) -> tuple[float, float]:
    """min w²/2 + Σ c_i [log(1 + e^{z_i}) − y_i z_i], z = w x + b."""
    c = np.ones(len(x)) if weights is None else weights

    def value(at: Floats) -> float:
        z = at[0] * x + at[1]
        return float(at[0] ** 2 / 2 + np.sum(c * (np.logaddexp(0, z) - y * z)))

    def slope(at: Floats) -> Floats:
        wrong = c * (1 / (1 + np.exp(-(at[0] * x + at[1]))) - y)
        return np.array([at[0] + np.sum(wrong * x), np.sum(wrong)])

    found = optimize.minimize(value, np.zeros(2), jac=slope, method="BFGS", options={"gtol": 1e-9})
    return float(found.x[0]), float(found.x[1])


def mia(forget: Floats, test: Floats, splits: Sequence[NDArray[np.int64]]) -> float:
    """Percent right on the rows that each split leaves out; both sets of one size, forget first, each sorted."""
    x, y = np.concatenate([np.sort(forget), np.sort(test)]), np.repeat([1, 0], len(forget))
    right = []
    for train in splits:
        w, b = logistic(x[train], y[train])
        out = [i for i in range(len(x)) if i not in set(train.tolist())]
        right.append(np.mean([(w * x[i] + b > 0) == (y[i] == 1) for i in out]))
    return float(100 * np.mean(right))


def entropy_attack(retain: Floats, test: Floats, forget: Floats, balanced: bool = True) -> float:
    """Percent of the forgotten rows called members; both classes weigh n/2 together."""
    x, y = np.concatenate([retain, test]), np.repeat([1, 0], [len(retain), len(test)])
    weights = np.array([len(x) / 2 / np.sum(y == label) for label in y]) if balanced else np.ones(len(x))
    w, b = logistic(x, y, weights)
    return float(100 * np.mean(w * forget + b > 0))


def svc_efficacy(retain: Floats, test: Floats, forget: Floats, c: float = 3.0, gamma: float = 1.0) -> float:
    """Percent of the forgotten rows called strangers by e^{−γ(x − x')²} with C, as many taught of each kind."""
    assert len(retain) == len(test)
    x, y = np.concatenate([retain, test]), np.repeat([1, 0], [len(retain), len(test)])
    kernel = np.exp(-gamma * (x[:, None] - x[None]) ** 2)
    fitted = SVC(C=c, kernel="precomputed").fit(kernel, y)
    return float(100 * np.mean(fitted.predict(np.exp(-gamma * (forget[:, None] - x[None]) ** 2)) == 0))


def iam(target: Floats, original: Floats, shadow: Floats) -> Floats:
    """Σ_α w_α P(Gumbel_α ≤ r_target) / Σ w_α over 99 steps from the shadow to the original, weighed by the next α."""

    def r(p: float) -> float:
        return -math.log(0.01 - math.log(p + 0.00001))

    found = np.zeros(len(target))
    weights = 0.0
    for step in range(99):
        alpha, weight = step / 99, (step + 1) / 99
        along = [r(s) + alpha * (r(o) - r(s)) for o, s in zip(original, shadow, strict=True)]
        middle = sum(along) / len(along)
        beta = math.sqrt(6) / math.pi * math.sqrt(sum((a - middle) ** 2 for a in along) / len(along))
        for i, (p, a) in enumerate(zip(target, along, strict=True)):
            found[i] += weight * math.exp(-math.exp(-(r(p) - (a - 0.5772 * beta)) / beta))
        weights += weight
    return found / weights


# --- many models ------------------------------------------------------------------------------------------------------


def u_lira(phi: Floats, unlearned: Floats, retrained: Floats) -> Floats:
    """log N(φ; unlearned) − log N(φ; Retrains) for each model and row; no σ is below 0.001."""
    found = np.empty_like(phi)
    for i, row in np.ndindex(*phi.shape):
        logs = []
        for side in (unlearned[:, row], retrained[:, row]):
            spread = max(float(np.std(side, ddof=1)), 1e-3)
            logs.append(stats.norm.logpdf(phi[i, row], np.mean(side), spread))
        found[i, row] = logs[0] - logs[1]
    return found


def rmia(target: Floats, held_out: Floats, out: Floats, out_held_out: Floats, a: float = 0.3) -> Floats:
    """The share of held-out rows that each row beats; p̄ = ((1 + a) mean + (1 − a)) / 2."""

    def usual(p: Floats) -> float:
        return float(((1 + a) * np.mean(p) + (1 - a)) / 2)

    found = np.empty_like(target)
    for i, row in np.ndindex(*target.shape):
        ratio = target[i, row] / usual(out[:, row])
        others = [held_out[i, z] / usual(out_held_out[:, z]) for z in range(held_out.shape[1])]
        found[i, row] = np.mean([ratio > other for other in others])
    return found


def klom(unlearned: Floats, retrained: Floats) -> Floats:
    """Σ p log(p/q) over 20 bins of the joint range of a row's margins, clipped to ±100."""
    found = []
    for u, r in zip(np.clip(unlearned, -100, 100).T, np.clip(retrained, -100, 100).T, strict=True):
        edges = np.linspace(min(*u, *r), max(*u, *r), 21)
        p, q = (np.histogram(side, edges)[0] / len(side) for side in (u, r))
        q = np.array([max(b, 1e-5) if a > 0 else b for a, b in zip(p, q, strict=True)])
        q = q / q.sum()
        found.append(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))
    return np.array(found)


def neurips_epsilon(unlearned: Floats, retrained: Floats) -> float:
    """ε of one row: the best threshold for the kind with the larger median, the best interval for the narrower one."""
    large, small = (unlearned, retrained) if np.median(unlearned) >= np.median(retrained) else (retrained, unlearned)
    narrow, wide = (small, large) if np.ptp(large) >= np.ptp(small) else (large, small)
    if np.ptp(narrow) < 0.01 * np.ptp(wide):
        return math.inf
    values = sorted({*unlearned, *retrained})
    between = [values[0] - 1, *((a + b) / 2 for a, b in pairwise(values)), values[-1] + 1]
    rules = [(np.mean(small > cut), np.mean(large <= cut)) for cut in between]
    for low, high in combinations(between, 2):
        inside = [(side > low) & (side < high) for side in (wide, narrow)]
        rules.append((np.mean(inside[0]), np.mean(~inside[1])))
    best = 0.0
    for fpr, fnr in rules:
        if fpr == 0 and fnr == 0:
            return math.inf
        if fpr > 0 and fnr > 0:
            for one, other in ((fpr, fnr), (fnr, fpr)):
                if 1 - 1e-5 - one > 0:
                    best = max(best, math.log((1 - 1e-5 - one) / other))
    return best


def neurips_score(
    unlearned: Floats, retrained: Floats, retain: tuple[float, float], test: tuple[float, float]
) -> float:
    """The mean points times the ratios of accuracies."""
    points = []
    for u, r in zip(unlearned.T, retrained.T, strict=True):
        epsilon = neurips_epsilon(u, r)
        points.append(0.0 if epsilon >= math.ceil(math.log(len(u) - 1)) else 2.0 ** -math.floor(epsilon / 0.5))
    return float(np.mean(points)) * retain[0] / retain[1] * test[0] / test[1]


def auc(unlearned: Floats, retrained: Floats) -> float:
    """The share of pairs that the unlearned side wins; a tie is half a win."""
    u, r = unlearned.ravel()[:, None], retrained.ravel()[None]
    return float(np.mean((u > r) + 0.5 * (u == r)))


def bootstrap(unlearned: Floats, retrained: Floats, generator: np.random.Generator, draws: int) -> tuple[float, float]:
    """The AUC's 95 % interval: n − 1 models of n on each side, and rows for both sides at once, drawn again."""
    seen = []
    for _ in range(draws):
        mine = generator.integers(len(unlearned), size=len(unlearned) - 1)
        theirs = generator.integers(len(retrained), size=len(retrained) - 1)
        rows = generator.integers(unlearned.shape[1], size=unlearned.shape[1])
        seen.append(auc(unlearned[mine][:, rows], retrained[theirs][:, rows]))
    low, high = np.quantile(seen, [0.025, 0.975])
    return float(low), float(high)


def permutation(first: Floats, second: Floats, statistic: Callable[[Floats, Floats], float]) -> float:
    """The share of all ways to part the models whose statistic is as large as here."""
    both, here = np.concatenate([first, second]), statistic(first, second)
    ways = [set(way) for way in combinations(range(len(both)), len(first))]
    parted = [
        [both[[i in way for i in range(len(both))]], both[[i not in way for i in range(len(both))]]] for way in ways
    ]
    return float(np.mean([statistic(one, other) >= here for one, other in parted]))


# --- looking inside ---------------------------------------------------------------------------------------------------


def hsic(x: Tensor, y: Tensor) -> float:
    """The unbiased HSIC₁ of two sets of features, sum by sum."""
    n = len(x)
    k, m = ([[float(a @ b) if i != j else 0.0 for j, b in enumerate(z)] for i, a in enumerate(z)] for z in (x, y))
    trace = sum(k[i][j] * m[j][i] for i in range(n) for j in range(n))
    totals = sum(map(sum, k)) * sum(map(sum, m)) / ((n - 1) * (n - 2))
    paths = sum(k[i][j] * m[j][h] for i in range(n) for j in range(n) for h in range(n))
    return (trace + totals - 2 * paths / (n - 2)) / (n * (n - 3))


def cka(batches: Sequence[tuple[Tensor, Tensor]]) -> float:
    """HSIC₁ averaged over batches, then divided."""
    pairs = [[(x, y), (x, x), (y, y)] for x, y in batches]
    both, one, other = (sum(hsic(*pair[i]) for pair in pairs) for i in range(3))
    return both / math.sqrt(one * other)


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.eval()(x), y)


def time_bound(
    start: nn.Module,
    retrained: nn.Module,
    long: nn.Module,
    way: Sequence[nn.Module],
    retain: tuple[Tensor, Tensor],
    forget: tuple[Tensor, Tensor],
    epsilon: float,
) -> float:
    """(1−ε)² (δ(Retrain) − δ(start))² / (Lip² |L_r(start) − L_r(long)|), Lip over the start and the checkpoints."""

    def delta(net: nn.Module) -> float:
        return abs(float(losses(net, *retain).detach() - losses(net, *forget).detach()))

    steepest = 0.0
    for net in (start, *way):
        net.zero_grad()
        (losses(net, *retain) - losses(net, *forget)).backward()
        squares = [float(p.grad.square().sum()) for p in net.parameters() if p.grad is not None]
        steepest = max(steepest, math.sqrt(sum(squares)))
    down = abs(float(losses(start, *retain).detach() - losses(long, *retain).detach()))
    return float((1 - epsilon) ** 2 * (delta(retrained) - delta(start)) ** 2 / (steepest**2 * down))


# --- dealing rows -----------------------------------------------------------------------------------------------------


def dirichlet(labels: Sequence[int], shares: Sequence[Sequence[float]], order: Sequence[int]) -> list[set[int]]:
    """Each class dealt by its own shares, its rows in a drawn order; cut where the running sum says."""
    dealt: list[set[int]] = [set() for _ in shares[0]]
    for own, c in zip(shares, sorted(set(labels)), strict=True):
        rows, begin, total = [i for i in order if labels[i] == c], 0, 0.0
        for client, share in enumerate(own):
            total += share
            end = len(rows) if client == len(own) - 1 else math.floor(total * len(rows))
            dealt[client] |= set(rows[begin:end])
            begin = end
    return dealt


def shards(
    labels: Sequence[int], clients: int, per_client: int, order: Sequence[int], deal: Sequence[int]
) -> list[set[int]]:
    """Rows by label, in a drawn order inside a label, cut into shards; shard i goes to client deal[i] // per_client."""
    rows = sorted(order, key=lambda i: labels[i])
    n, pieces = len(rows), clients * per_client
    dealt: list[set[int]] = [set() for _ in range(clients)]
    begin = 0
    for i in range(pieces):
        end = begin + n // pieces + (i < n % pieces)
        dealt[deal[i] // per_client] |= set(rows[begin:end])
        begin = end
    return dealt
