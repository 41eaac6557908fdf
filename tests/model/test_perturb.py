"""perturb.py: pure maps over params; the involutions, the norms and the untouched tensors are checked over shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unfed.errors import UnfedError
from unfed.model import networks, perturb
from unfed.model.layers import Choice, choose
from unfed.model.params import Params, params_of

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
sides = st.integers(1, 5)
kernels = st.tuples(sides, sides, st.integers(2, 5)).map(lambda s: (s[0], s[1], s[2], s[2]))


def drawn(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pair(shape: tuple[int, ...], seed: int = 0) -> Params:
    return {"chosen": drawn(shape, seed), "other": drawn((3, 2), seed + 1), "count": torch.tensor(3)}


def pick(*rows: int) -> list[Choice]:
    return [Choice("chosen", (rows[0], rows[1]) if rows else None, "test")]


def fresh(seed: int) -> Params:
    return pair((4, 3, 3, 3), seed)


ALL = sorted(perturb.PERTURBATIONS)
SELF_INVERSE = ["negate", "flip-width", "flip-height", "flip-both", "rotate-180"]
ISOMETRIES = [*SELF_INVERSE, "rotate-90", "rotate-270", "orthogonal"]


def test_equation_3_negates_the_chosen_tensor_and_only_it() -> None:
    model = networks.build("cnn-tiny-bn", shape=(1, 8, 8), classes=10, seed=0)
    params = params_of(model)
    negated = perturb.negate(params, choose(model, ["first"]))
    assert list(negated) == list(params)
    for name in params:
        if name == "conv1.weight":
            assert torch.equal(negated[name], -params[name])
        else:
            assert negated[name] is params[name]


@quick
@given(st.lists(sides, min_size=0, max_size=5).map(tuple), seeds)
def test_negating_twice_is_identity(shape: tuple[int, ...], seed: int) -> None:
    params = pair(shape, seed)
    twice = perturb.negate(perturb.negate(params, pick()), pick())
    assert all(torch.equal(twice[name], params[name]) for name in params)


def test_negating_nothing_is_identity() -> None:
    params = pair((2, 2))
    assert perturb.negate(params, []) == params


@quick
@given(kernels, seeds, st.sampled_from(SELF_INVERSE))
def test_negation_flips_and_half_turns_are_involutions(shape: tuple[int, ...], seed: int, how: str) -> None:
    params = pair(shape, seed)
    once = perturb.perturb(params, pick(), how, seed=seed)
    assert torch.equal(perturb.perturb(once, pick(), how, seed=seed)["chosen"], params["chosen"])


@quick
@given(kernels, seeds, st.sampled_from(ISOMETRIES))
def test_norms_are_unchanged(shape: tuple[int, ...], seed: int, how: str) -> None:
    params = pair(shape, seed)
    after = perturb.perturb(params, pick(), how, seed=seed)["chosen"]
    assert math.isclose(float(after.norm()), float(params["chosen"].norm()), rel_tol=1e-9)


@quick
@given(seeds, st.sampled_from(ALL), st.booleans())
def test_only_the_chosen_rows_of_the_chosen_tensor_change_and_nothing_in_place(seed: int, how: str, some: bool) -> None:
    params = pair((4, 3, 3, 3), seed)
    before = {name: value.clone() for name, value in params.items()}
    after = perturb.perturb(params, pick(1, 3) if some else pick(), how, seed=seed, fresh=fresh)
    assert all(torch.equal(params[name], before[name]) for name in params)
    assert after["other"] is params["other"] and after["count"] is params["count"]
    changed = (after["chosen"] != before["chosen"]).flatten(1).any(1)
    assert changed.tolist() == ([False, True, True, False] if some else [True] * 4)


@pytest.mark.parametrize("how", ALL)
def test_the_same_seed_gives_the_same_result(how: str) -> None:
    params = pair((4, 3, 3, 3))
    one, same, other = (perturb.perturb(params, pick(), how, seed=s, fresh=fresh)["chosen"] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (how not in ("noise", "orthogonal", "reinit"))


def test_the_draws_of_two_tensors_and_of_two_row_blocks_differ() -> None:
    params = {"a": torch.ones(2, 8), "b": torch.ones(2, 8)} | {"c": torch.arange(16.0).reshape(2, 8) % 8}
    noisy = perturb.noise(params, [Choice("a", None, ""), Choice("b", None, "")], seed=0, scale=1)
    assert torch.equal(noisy["a"], params["a"]), "a constant tensor has no spread to scale the noise by"
    twins = {"a": params["c"], "b": params["c"]}
    noisy = perturb.noise(twins, [Choice("a", None, ""), Choice("b", None, "")], seed=0)
    assert not torch.allclose(noisy["a"], noisy["b"])
    rows = [Choice("c", (0, 1), ""), Choice("c", (1, 2), "")]
    added = perturb.noise(params, rows, seed=0)["c"] - params["c"]
    assert not torch.allclose(added[0], added[1])


def test_zero_is_zero_and_noise_has_the_spread_of_the_tensor() -> None:
    params = {"chosen": 0.01 * drawn((200, 200))}
    assert not perturb.zero(params, pick())["chosen"].any()
    for scale in (0.0, 1.0, 3.0):
        added = perturb.perturb(params, pick(), "noise", seed=0, scale=scale)["chosen"] - params["chosen"]
        assert math.isclose(float(added.std()), scale * float(params["chosen"].std()), rel_tol=0.02, abs_tol=1e-12)


def test_flips_and_rotations_turn_the_kernel_as_their_names_say() -> None:
    kernel = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
    expected = {
        "flip-width": [[2, 1], [4, 3]],
        "flip-height": [[3, 4], [1, 2]],
        "flip-both": [[4, 3], [2, 1]],
        "rotate-90": [[2, 4], [1, 3]],
        "rotate-180": [[4, 3], [2, 1]],
        "rotate-270": [[3, 1], [4, 2]],
    }
    for how, rows in expected.items():
        assert perturb.perturb({"chosen": kernel}, pick(), how, seed=0)["chosen"][0, 0].tolist() == rows


@quick
@given(st.tuples(sides, sides), seeds)
def test_orthogonal_preserves_the_angles_between_columns(shape: tuple[int, int], seed: int) -> None:
    w = drawn(shape, seed)
    turned = perturb.orthogonal({"chosen": w}, pick(), seed=seed)["chosen"]
    assert torch.allclose(turned.T @ turned, w.T @ w, atol=1e-10)


def test_a_random_rotation_prefers_no_sign() -> None:
    """QR by itself gives a matrix whose first entry is never positive."""
    corners = [perturb.orthogonal({"chosen": torch.eye(3)}, pick(), seed=seed)["chosen"][0, 0] for seed in range(40)]
    assert 8 < sum(float(corner) > 0 for corner in corners) < 32


def test_reinit_takes_the_models_own_initialisation_and_graft_any_models() -> None:
    def build(seed: int) -> Params:
        return params_of(networks.build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=seed))

    params, layer = build(0), [Choice("conv1.weight", None, "test")]
    again = perturb.perturb(params, layer, "reinit", seed=5, fresh=build)["conv1.weight"]
    assert not torch.equal(again, params["conv1.weight"])
    assert float(again.abs().max()) <= 1 / 3, "Kaiming-uniform of nine inputs, as Conv2d draws it"
    donor = build(9)
    grafted = perturb.graft(params, layer, donor=donor)
    assert torch.equal(grafted["conv1.weight"], donor["conv1.weight"])
    assert grafted["conv2.weight"] is params["conv2.weight"]
    grafted["conv1.weight"].zero_()
    assert donor["conv1.weight"].any(), "a graft is a copy"


@pytest.mark.own_process
def test_half_precision_and_scalars_are_perturbed_too() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        w = drawn((4, 3, 3, 3), dtype=torch.float32).to(dtype)
        for how in ALL:
            after = perturb.perturb({"chosen": w}, pick(), how, seed=0, fresh=fresh)["chosen"]
            assert after.dtype == dtype and after.shape == w.shape
    assert abs(float(perturb.orthogonal({"chosen": torch.tensor(2.0)}, pick(), seed=0)["chosen"])) == 2.0


CALLS = {
    "no perturbation 'negat'.*Did you mean 'negate'": lambda p: perturb.perturb(p, pick(), "negat", seed=0),
    "'zero' has no number 'scale'": lambda p: perturb.perturb(p, pick(), "zero", seed=0, scale=2),
    "'noise' has no number 'scael'": lambda p: perturb.perturb(p, pick(), "noise", seed=0, scael=2),
    "'reinit' needs the model's own init": lambda p: perturb.perturb(p, pick(), "reinit", seed=0),
    "scale of the noise must be": lambda p: perturb.noise(p, pick(), seed=0, scale=-1),
    "no tensor 'chosn' to perturb.*Did you mean 'chosen'": lambda p: perturb.zero(p, [Choice("chosn", None, "")]),
    "cannot be flipped along 'depth'": lambda p: perturb.flip(p, pick(), axis="depth"),
    "cannot be rotated by 45": lambda p: perturb.rotate(p, pick(), degrees=45),
    "which lacks it": lambda p: perturb.graft(p, pick(), donor={}),
    r"has it with shape \(2,\)": lambda p: perturb.graft(p, pick(), donor={"chosen": torch.zeros(2)}),
    "Flipping needs a convolution kernel larger": lambda p: perturb.flip(p, [Choice("one", None, "")], axis="both"),
    "Rotating needs a convolution kernel": lambda p: perturb.rotate(p, [Choice("dense", None, "")], degrees=180),
    "needs a square kernel, not 1x3": lambda p: perturb.rotate(p, [Choice("wide", None, "")], degrees=90),
    "along its height changes nothing": lambda p: perturb.flip(p, [Choice("wide", None, "")], axis="height"),
    "hold needs a mask or the names": lambda p: perturb.hold(p, p),
    "hold cannot find the tensor 'chosn'": lambda p: perturb.hold(p, p, names=["chosn"]),
    "rho is a fraction": lambda p: perturb.fuse(p, p, 1.5),
}


@pytest.mark.parametrize("sentence", CALLS)
def test_what_cannot_be_done_is_refused_in_one_sentence(sentence: str) -> None:
    params = {"chosen": torch.ones(2, 2, 3, 3), "one": torch.ones(2, 2, 1, 1), "dense": torch.ones(3, 3)}
    params["wide"] = torch.ones(2, 2, 1, 3)
    with pytest.raises(UnfedError, match=sentence):
        CALLS[sentence](params)


# The after-step maps


def distance(one: Params, other: Params) -> float:
    return math.sqrt(sum(float((one[n] - other[n]).square().sum()) for n in one))


@quick
@given(seeds, st.floats(0, 20))
def test_ball_projects_all_tensors_as_one_vector(seed: int, radius: float) -> None:
    params = {"a": drawn((3, 4), seed), "b": drawn((5,), seed + 1)}
    centre = {"a": drawn((3, 4), seed + 2), "b": drawn((5,), seed + 3), "unused": torch.ones(2)}
    far = distance(params, centre)
    projected = perturb.ball(params, centre, radius)
    if far <= radius:
        assert all(torch.equal(projected[n], params[n]) for n in params)
    else:
        assert math.isclose(distance(projected, centre), radius, rel_tol=1e-9, abs_tol=1e-12)
        for n in params:  # on the straight line to the centre
            expected = centre[n] + radius / far * (params[n] - centre[n])
            assert torch.allclose(projected[n], expected, atol=1e-12)


def test_a_ball_of_radius_zero_is_its_centre_without_nan() -> None:
    centre = {"a": drawn((3,), dtype=torch.float32), "b": torch.zeros(2)}
    for params in (centre, {n: c + 1 for n, c in centre.items()}, {n: c + 1e-30 for n, c in centre.items()}):
        projected = perturb.ball(params, centre, 0.0)
        assert all(torch.equal(projected[n], centre[n]) for n in centre)


def test_hold_restores_masked_out_entries_and_named_tensors_exactly() -> None:
    home = {"a": drawn((3, 2), 1), "b": drawn((4,), 2), "c": drawn((2,), 3)}
    moved = {n: t + 1 for n, t in home.items()}
    moved["a"][0, 0] = torch.nan  # a where, not a product: 0 * NaN would stay NaN
    mask = {"a": torch.tensor([[0, 1], [1, 0], [0, 0]])}
    held = perturb.hold(moved, home, mask=mask, names=["b"])
    assert torch.equal(held["a"], torch.where(mask["a"].bool(), home["a"] + 1, home["a"]))
    assert torch.equal(held["b"], home["b"])
    assert held["c"] is moved["c"]
    for kind in (torch.bool, torch.float32, torch.uint8):
        assert torch.equal(perturb.hold(moved, home, mask={"a": mask["a"].to(kind)})["a"], held["a"])


shapes_2d_4d = st.one_of(st.tuples(sides, sides), st.tuples(sides, sides, sides, sides))


def fused_by_numpy(base: np.ndarray, donor: np.ndarray, rho: float) -> np.ndarray:
    """The slow truth: FCU's fusion step by step, with the amplitude shifted, cut and shifted back."""

    def matrix(w: np.ndarray) -> np.ndarray:
        if w.ndim == 2:
            return w
        return w.transpose(1, 2, 3, 0).reshape(w.shape[1] * w.shape[2], w.shape[3] * w.shape[0])

    b, d = np.fft.fft2(matrix(base)), np.fft.fft2(matrix(donor))
    amplitude, given_amplitude = np.fft.fftshift(np.abs(b)), np.fft.fftshift(np.abs(d))
    (h, w), (rh, rw) = b.shape, (math.floor(n * rho / 2) for n in b.shape)
    rows, columns = slice(h // 2 - rh, h // 2 + rh), slice(w // 2 - rw, w // 2 + rw)
    amplitude[rows, columns] = given_amplitude[rows, columns]
    result = np.fft.ifft2(np.fft.ifftshift(amplitude) * np.exp(1j * np.angle(b))).real
    if base.ndim == 2:
        return result
    o, i, kh, kw = base.shape
    return result.reshape(i, kh, kw, o).transpose(3, 0, 1, 2)


@quick
@given(shapes_2d_4d, seeds, st.floats(0, 1))
def test_fuse_is_the_definition(shape: tuple[int, ...], seed: int, rho: float) -> None:
    base, donor = drawn(shape, seed), drawn(shape, seed + 1)
    fused = perturb.fuse({"w": base}, {"w": donor}, rho)["w"]
    assert np.allclose(fused.numpy(), fused_by_numpy(base.numpy(), donor.numpy(), rho), atol=1e-9)


@quick
@given(shapes_2d_4d, seeds, st.floats(0, 1))
def test_fusing_a_model_with_itself_changes_nothing(shape: tuple[int, ...], seed: int, rho: float) -> None:
    for dtype in (torch.float64, torch.float32):
        params = {"w": drawn(shape, seed, dtype)}
        assert torch.allclose(perturb.fuse(params, params, rho)["w"], params["w"], atol=1e-6)


def test_an_empty_band_returns_the_base() -> None:
    base, donor = {"w": drawn((6, 6))}, {"w": drawn((6, 6), 1)}
    assert perturb.fuse(base, donor, 0.0)["w"] is base["w"]
    assert perturb.fuse(base, donor, 0.3)["w"] is base["w"], "6 * 0.3 / 2 < 1"
    assert perturb.fuse(base, donor, 0.4)["w"] is not base["w"]
    assert perturb.fuse({"w": drawn((1, 8))}, {"w": drawn((1, 8), 1)}, 1.0)["w"].equal(drawn((1, 8)))


def test_a_full_band_on_even_sides_has_the_donors_amplitude_and_the_bases_phase() -> None:
    base, donor = drawn((8, 6)), drawn((8, 6), 1)
    spectrum = torch.fft.fft2(perturb.fuse({"w": base}, {"w": donor}, 1.0)["w"])
    expected = torch.polar(torch.fft.fft2(donor).abs(), torch.fft.fft2(base).angle())
    assert torch.allclose(spectrum, expected, atol=1e-9)
    assert float(torch.fft.ifft2(expected).imag.abs().max()) < 1e-6


@quick
@given(shapes_2d_4d, seeds)
def test_folding_a_convolution_round_trips_exactly(shape: tuple[int, ...], seed: int) -> None:
    w = drawn(shape, seed)
    assert torch.equal(perturb.from_matrix(perturb.as_matrix(w), w.shape), w)


def test_a_convolution_is_folded_with_inputs_and_height_in_the_rows() -> None:
    w = drawn((2, 3, 5, 7))
    folded = perturb.as_matrix(w)
    assert folded.shape == (3 * 5, 7 * 2)
    assert folded[2 * 5 + 4, 6 * 2 + 1] == w[1, 2, 4, 6]


def test_fuse_leaves_biases_tokens_counters_and_unnamed_tensors_with_the_base() -> None:
    base = {"w": drawn((4, 4)), "b": drawn((4,)), "token": drawn((1, 1, 4)), "n": torch.ones(2, 2, dtype=torch.int64)}
    donor = {name: value + 1 for name, value in base.items()}
    fused = perturb.fuse(base, donor, 0.9)
    assert all(fused[name] is base[name] for name in ("b", "token", "n"))
    assert not torch.equal(fused["w"], base["w"])
    assert perturb.fuse(base, donor, 0.9, names=["b"])["w"] is base["w"]


def test_the_maps_run_under_vmap_as_they_run_one_by_one() -> None:
    stacked = {"w": drawn((4, 3, 2, 3, 3), 1), "b": drawn((4, 3), 2)}
    home = {"w": drawn((3, 2, 3, 3), 3), "b": drawn((3,), 4)}
    mask = {"w": drawn((3, 2, 3, 3), 5) > 0}
    radii = torch.tensor([0.0, 1.0, 5.0, 100.0], dtype=torch.float64)
    maps: dict[str, Callable[..., Params]] = {
        "ball": lambda p, r: perturb.ball(p, home, r),
        "fixed ball": lambda p, r: perturb.ball(p, home, 2.0),
        "hold": lambda p, r: perturb.hold(p, home, mask, ["b"]),
        "fuse": lambda p, r: perturb.fuse(p, home, 0.9),
    }
    for name, change in maps.items():
        together = torch.func.vmap(change)(stacked, radii)
        for i in range(4):
            alone = change({n: t[i] for n, t in stacked.items()}, radii[i])
            assert all(torch.allclose(together[n][i], alone[n], atol=1e-12) for n in alone), name


@pytest.mark.own_process
def test_a_ball_and_a_fusion_keep_the_dtype_of_every_tensor() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        params = {"w": drawn((4, 4), 1).to(dtype), "b": drawn((4,), 2).to(dtype)}
        home = {n: torch.zeros_like(t) for n, t in params.items()}
        for result in (perturb.ball(params, home, 0.5), perturb.fuse(params, home, 0.9)):
            assert all(t.dtype == dtype and bool(t.isfinite().all()) for t in result.values())
