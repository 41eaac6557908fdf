"""Sealed: what it perturbs, that nobody keeps the draw, and that no two files that are left give it away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from conftest import SMALL
from unfed import rng, storage
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder.purge import purge
from unfed.methods import Retrain, Sealed, State
from unfed.methods.sealed import drawn_from, from_the_system
from unfed.model import sealing
from unfed.model.layers import Choice, choose
from unfed.model.networks import build
from unfed.model.params import Params, params_of
from unfed.model.sealing import NAMES, SEALS, seal, solved, statistics_afresh
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from worlds import serve

ONE, OTHER = bytes(32), bytes(31) + b"\1"
QUERY = "encoder.layers.encoder_layer_0.self_attention.in_proj_weight[8:16]"
SERVES = ("methods.run=[]", "request=[]", "engine.precision=float64", "checkpoint.rounds=1000")


def network(name: str) -> nn.Module:
    return build(name, shape=(1, 8, 8), classes=10, seed=0).double()


# --- the perturbation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", NAMES)
def test_a_perturbation_is_a_function_of_params_layers_and_draw(how: str) -> None:
    module = network("cnn-tiny")
    params, chosen = params_of(module), choose(module, ["hidden"])

    def fresh(seed: int) -> dict[str, torch.Tensor]:
        return params_of(build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=seed).double())

    one, again, other = (seal(params, chosen, how, draw, fresh) for draw in (ONE, ONE, OTHER))
    for name in params:
        assert torch.equal(one[name], again[name])
        touched = name in {c.name for c in chosen}
        assert touched != torch.equal(one[name], params[name])
        assert touched != torch.equal(one[name], other[name]), "the last byte of the draw counts"


def test_the_first_byte_of_a_draw_counts_as_the_last_does() -> None:
    """A generator that looks at 32 bits of its seed would be tried through on a published model."""
    w = torch.eye(4, dtype=torch.float64)
    seeds = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1 + 2**32)
    assert torch.equal(*(torch.randn(4, generator=g) for g in seeds)), "why PyTorch's generator is not used"
    draws = [ONE, b"\1" + bytes(31), bytes(15) + b"\1" + bytes(16)]
    drawn = [SEALS["orthogonal"](w, draw, "w") for draw in draws]
    assert all((a - b).abs().max() > 0.1 for a, b in permutations(drawn, 2))


def test_mixing_keeps_lengths_and_angles_and_permuting_keeps_rows() -> None:
    w = torch.randn(6, 20, dtype=torch.float64)
    q = SEALS["orthogonal"](torch.eye(6, dtype=torch.float64), ONE, "w")
    torch.testing.assert_close(q @ q.T, torch.eye(6, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(SEALS["orthogonal"](w, ONE, "w"), q @ w)
    moved = SEALS["permute"](w, ONE, "w")
    assert sorted(moved[:, 0].abs().tolist()) == sorted(w[:, 0].abs().tolist())
    assert not torch.equal(moved.abs(), w.abs())
    turned = SEALS["signs"](torch.ones(400, 1), ONE, "w")
    assert set(turned.flatten().tolist()) == {-1.0, 1.0} and abs(float(turned.mean())) < 0.2


def test_fading_keeps_a_part_and_the_size() -> None:
    w = torch.randn(200, 200, dtype=torch.float64)
    faded = SEALS["fade"](w, ONE, "w", keep=0.3)
    assert float((faded * w).sum() / w.norm() / faded.norm()) == pytest.approx(0.3, abs=0.02)
    assert float(faded.norm() / w.norm()) == pytest.approx(1.0, abs=0.02)
    with pytest.raises(UnfedError, match="from 0 to below 1"):
        SEALS["fade"](w, ONE, "w", keep=1.0)


def test_a_long_table_is_mixed_over_its_columns() -> None:
    table = torch.randn(5000, 3, dtype=torch.float64)
    mixed = SEALS["orthogonal"](table, ONE, "w")
    torch.testing.assert_close(mixed.norm(dim=1), table.norm(dim=1))
    assert not torch.allclose(mixed, table)


def test_a_draw_of_another_length_and_an_unknown_name_are_refused() -> None:
    module = network("cnn-tiny")
    for how, draw, says in (
        ("orthogonal", b"1", "A draw is 32 bytes"),
        ("orthogonall", ONE, "Did you mean"),
    ):
        with pytest.raises(UnfedError, match=says):
            seal(params_of(module), choose(module, ["hidden"]), how, draw)


def test_checking_a_seal_refuses_what_applying_it_would_and_draws_for_one_entry_of_a_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, words = network("vit-tiny"), list[int]()
    real = sealing._words

    def counted(count: int, draw: bytes, address: str) -> torch.Tensor:
        words.append(count)
        return real(count, draw, address)

    monkeypatch.setattr(sealing, "_words", counted)
    for how in NAMES:
        Sealed(perturbation=how).check(module)
        Sealed(perturbation=how, layers=(QUERY, "conv_proj.weight")).check(module)
    assert words and max(words) <= 2
    for layers in (("hidden",), (QUERY,)):
        for wrong in ({"perturbation": "orthogonall"}, {"keep": 1.0}, {"keep": -0.1}):
            method = Sealed(layers=layers, **wrong)
            with pytest.raises(UnfedError) as applied:
                seal(params_of(module), choose(module, layers), method.perturbation, ONE, None, method.keep)
            with pytest.raises(UnfedError, match=re.escape(str(applied.value))):
                method.check(module)


# --- which layers -----------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A table of words that is the head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.table(x)))  # type: ignore[no-any-return]


def hidden(module: nn.Module) -> list[str]:
    return [choice.name for choice in choose(module, ["hidden"])]


def test_hidden_is_every_weight_that_trains_before_the_head() -> None:
    assert hidden(network("cnn-tiny")) == ["conv1.weight", "conv2.weight"]
    assert len(hidden(network("resnet-tiny"))) == 12 and "fc.weight" not in hidden(network("resnet-tiny"))
    vit = hidden(network("vit-tiny"))
    assert "conv_proj.weight" in vit and "encoder.layers.encoder_layer_0.self_attention.in_proj_weight" in vit
    assert not [name for name in vit if "heads" in name or "token" in name or "pos_embedding" in name]
    assert hidden(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))) == [
        "0.weight",
        "2.weight",
    ]


def test_a_weight_that_the_head_shares_is_perturbed_once_and_a_frozen_one_is_not() -> None:
    assert hidden(Tied()) == ["table.weight", "mix.weight"]
    module = network("cnn-tiny")
    module.get_submodule("conv1").requires_grad_(False)
    assert hidden(module) == ["conv2.weight"]


def test_hidden_without_a_hidden_layer_or_a_known_head_is_one_sentence() -> None:
    with pytest.raises(UnfedError, match="no hidden layer that trains"):
        hidden(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(UnfedError, match="which layer is the head"):
        hidden(nn.Sequential(nn.Conv2d(1, 1, 3)))


def test_running_statistics_begin_afresh() -> None:
    """They were estimated with the leaver's images; the next rounds estimate them on what stays."""
    module = network("cnn-tiny-bn")
    params = {n: t + 3 for n, t in params_of(module).items()}
    begun, fresh = statistics_afresh(module, params), params_of(network("cnn-tiny-bn"))
    statistics = [n for n in params if n.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")]
    assert len(statistics) == 6
    assert all(torch.equal(begun[n], fresh[n]) for n in statistics)
    assert all(begun[n] is params[n] for n in params if n not in statistics)


def test_the_running_statistics_of_a_sealed_model_are_new() -> None:
    world = simulated(Config.parse({**SMALL, "model": {"name": "cnn-tiny-bn"}}), 0)
    theta = {n: t + 3 for n, t in world.fresh(1).items()}
    assert float(Sealed().begin(serve(world, params=theta)).params["norm1.running_var"].mean()) == 1.0


def test_every_layer_has_a_draw_of_its_own() -> None:
    same = {"a": torch.ones(5, 5), "b": torch.ones(5, 5)}
    drawn = seal(same, [Choice("a", None, ""), Choice("b", None, "")], "fade", ONE)
    assert not torch.allclose(drawn["a"], drawn["b"])


@pytest.mark.parametrize("model", ["cnn-tiny-bn", "resnet-tiny", "vit-tiny"])
def test_every_kind_of_network_can_be_sealed_and_trained_on(model: str) -> None:
    world = simulated(Config.parse({**SMALL, "model": {"name": model}}), 0)
    server = serve(world)
    state = Sealed().begin(server)
    after = Sealed().round(server, state)
    assert all(torch.isfinite(t).all() for t in after.params.values() if t.is_floating_point())


# --- a class leaves: the head too -------------------------------------------------------------------------------------


CLASS, CLIENT = Request("nine", classes=(9,)), Request("one", clients=("1",))
HIDDEN, HEAD = ("conv1.weight", "conv2.weight"), ("head.linear.weight", "head.linear.bias")


def moved_by(method: Sealed) -> set[str]:
    server = serve(simulated(Config.parse(SMALL), 0))
    begun = method.begin(server).params
    return {name for name, old in server.params.items() if not torch.equal(old, begun[name])}


def test_once_a_class_has_left_the_head_is_drawn_and_what_it_says_of_itself_follows() -> None:
    module = network("cnn-tiny")
    assert {name for name in params_of(module) if name.startswith("head.")} == set(HEAD)
    for requests, layers in (([CLIENT], HIDDEN), ([CLASS], (*HIDDEN, *HEAD)), ([CLASS, CLIENT], (*HIDDEN, *HEAD))):
        method = Sealed().for_requests(requests)
        assert moved_by(method) == set(layers) == method.drawn(module)
        did = method.perturbed(module)
        assert did is not None and {choice.name for choice in did.choices} == set(layers)
        assert method.short_of(module) == ""
    assert Sealed(layers=("conv1",)).for_requests([CLASS]).drawn(module) == {"conv1.weight", *HEAD}
    assert Sealed().for_requests([CLIENT]) == Sealed(), "a client or samples leave as before"


def test_a_head_that_is_frozen_or_shared_is_not_drawn_for_a_class() -> None:
    module = network("cnn-tiny")
    module.get_submodule("head").requires_grad_(False)
    assert Sealed().for_requests([CLASS]).drawn(module) == set(HIDDEN)
    assert Sealed().for_requests([CLASS]).drawn(Tied()) == {"table.weight", "mix.weight"}, (
        "the head has nothing of its own"
    )
    with pytest.raises(UnfedError, match="Which layer is the head is not known"):
        Sealed(layers=("0",), head=True).check(nn.Sequential(nn.Conv2d(1, 1, 3)))


def test_a_run_draws_the_head_for_a_class_and_keeps_it_for_a_client(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    was = dict(run.current(0))

    class Watching(Watch):
        begun: ClassVar[list[Params]] = []

        def saved(self, job: Job, state: State, histories: Any) -> None:
            if job.label == "sealed" and state.round == 0:
                self.begun.append(state.params)

    run.forget(CLIENT, "sealed", until=1, watch=Watching())
    after = dict(run.current(0))
    run.forget(CLASS, "sealed", until=1, watch=Watching())
    one, other = Watching.begun
    assert all(torch.equal(one[name], was[name]) for name in HEAD)
    assert not any(torch.equal(other[name], after[name]) for name in HEAD)


# --- nobody keeps the draw --------------------------------------------------------------------------------------------


def test_no_option_sets_the_draw_and_two_runs_of_one_config_draw_differently() -> None:
    assert {name for name, *_ in Sealed.options()} == {"layers", "perturbation", "keep", "head"}
    server = serve(simulated(Config.parse(SMALL), 0))
    with drawn_from(from_the_system):
        one, other = (Sealed().begin(server).params["conv1.weight"] for _ in range(2))
    assert not torch.allclose(one, other)
    pinned = [Sealed().begin(server).params["conv1.weight"] for _ in range(2)]
    assert torch.equal(*pinned), "only a draw that is handed in through Python repeats"


def trained(folder: Path, *sets: str) -> Run:
    run = Run.create(Config.parse(SMALL, [*SERVES, *sets]), folder)
    run.execute()
    return run


class Killed(Exception):
    pass


def killed_at(run: Run, save: int) -> list[dict[str, torch.Tensor]]:
    """Serve a request until just after the given save of its state; what was saved up to then."""
    keep, seen = run.folder.save_state, list[Params]()

    def saving(job: Job, state: State, *rest: Any) -> None:
        if job.label == "sealed" and save == 0:
            raise Killed
        keep(job, state, *rest)
        if job.label == "sealed":
            seen.append(state.params)
            if len(seen) == save:
                raise Killed

    run.folder.save_state = saving  # type: ignore[method-assign, assignment]
    with pytest.raises(BaseException) as error:
        run.forget(Request("r1", clients=("0",)), "sealed", until=3)
    assert isinstance(error.value, Killed | UnfedError)
    return seen


def tensors_in(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The params in every file of a run, by its path; of a file that holds several models, each by its group."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, tensor in storage.load(path, "file")[0].items():
            group = name.rpartition("/")[0].removeprefix("params")
            where = path.relative_to(folder).as_posix() + (f"#{group}" if group else "")
            found.setdefault(where, {})[name.rpartition("/")[2]] = tensor
    return {where: own for where, own in found.items() if "conv1.weight" in own}


def holding(folder: Path, models: Sequence[Params]) -> list[str]:
    """The files, of whatever kind, in which a tensor of these models stands: its bytes, or its numbers in figures."""
    weights = [t for params in models for name, t in params.items() if t.ndim > 1]
    raw = [t.to(kind).numpy().tobytes() for t in weights for kind in (torch.float64, torch.float32)]
    figures = {f"{float(value):.6g}" for t in weights for value in t.flatten()[:8] if abs(float(value)) > 1e-3}
    found = []
    for path in (one for one in sorted(folder.rglob("*")) if one.is_file()):
        data = path.read_bytes()
        told = {f"{float(text):.6g}" for text in re.findall(rb"-?\d+\.\d{5,}", data)}
        if any(own in data for own in raw) or len(figures & told) > 1:
            found.append(path.relative_to(folder).as_posix())
    return found


def test_the_perturbed_model_is_overwritten_after_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfed.runs.serving.STOPS", (Killed,))
    run = trained(tmp_path / "run", "checkpoint.seconds=1000")
    begun, _ = killed_at(run, 2)
    kept = storage.load(run.folder.state_file(Job(0, "r1", "sealed")), "state")
    assert kept[1]["round"] == 1, "the config would save every 1000 rounds"
    for own in tensors_in(tmp_path / "run").values():
        assert not torch.equal(own["conv1.weight"], begun["conv1.weight"])


def test_killed_after_begin_it_goes_on_from_the_perturbed_model_and_before_that_it_draws_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfed.runs.serving.STOPS", (Killed,))
    draws = iter(rng.key(0, "draw", i).to_bytes(32, "big") for i in range(10))
    with drawn_from(lambda seed: next(draws)):
        run = trained(tmp_path / "run")
        killed_at(run, 0)
        killed_at(Run.open(run.folder.path), 1)
        Run.open(run.folder.path).execute()
    assert next(draws) == rng.key(0, "draw", 2).to_bytes(32, "big"), "drawn twice: killed before its save, and then"
    whole = trained(tmp_path / "whole")
    with drawn_from(lambda seed: rng.key(0, "draw", 1).to_bytes(32, "big")):
        whole.forget(Request("r1", clients=("0",)), "sealed", until=3)
    one, other = (r.folder.load_model(Job(0, "r1", "sealed")) for r in (run, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_refused_after_recorded_history(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 'training.record=["fukd"]')
    with pytest.raises(UnfedError, match="history for fukd.*--method retrain"):
        run.forget(Request("r1", clients=("0",)), "sealed", until=1)


# --- solving for the draw ---------------------------------------------------------------------------------------------


def found_out(
    files: dict[str, dict[str, torch.Tensor]], truth: dict[str, torch.Tensor]
) -> dict[tuple[str, str], float]:
    """For every two files, how far the best matrix that leads from one to the other is from the one that was drawn."""
    off = {}
    for (one, before), (other, after) in permutations(files.items(), 2):
        apart = [
            float((solved(before[name], after[name]) - q).norm() / q.norm())
            for name, q in truth.items()
            if before[name].shape == after[name].shape
        ]
        off[one, other] = min(apart)
    return off


@pytest.mark.filterwarnings("ignore:Sealed by 'orthogonal' was undone")
def test_no_two_files_that_are_left_give_the_draw_away_and_two_that_must_go_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfed.runs.serving.STOPS", (Killed,))
    run = trained(tmp_path / "run", "methods.sealed.perturbation=orthogonal")
    draw = rng.key(0, "draw").to_bytes(32, "big")
    with drawn_from(lambda seed: draw):
        killed_at(run, 1)
        truth: dict[str, torch.Tensor] = {}
        for choice in choose(run.world(0).template.module, ["hidden"]):
            size = run.world(0).template.like[choice.name].shape[0]
            eye = {choice.name: torch.eye(size, dtype=torch.float64)}
            truth |= seal(eye, [choice], "orthogonal", draw)
        together = found_out(tensors_in(tmp_path / "run"), truth)
        old, begun = "models/0/train.safetensors", "state/0/r1/sealed.safetensors"
        assert together[old, begun] < 1e-9, "while the perturbed model lies beside the old one the draw is no secret"
        perturbed = tensors_in(tmp_path / "run")[begun]
        theta = tensors_in(tmp_path / "run")[old]
        assert begun in holding(tmp_path / "run", [perturbed])
        Run.open(run.folder.path).execute()
        after_it(run.folder.path)

    assert found_out(tensors_in(tmp_path / "run"), truth).keys() >= {(old, "models/0/r1/sealed.safetensors")}
    assert {old, "state/0/train.safetensors"} <= {grave.file for grave in purge(Run.open(run.folder.path), "r1").gone}
    left = tensors_in(tmp_path / "run")
    made = [f"{kind}/0/{job}.safetensors" for kind in ("models", "state") for job in ("client-1/ft", "r1/sealed")]
    assert sorted(left) == made
    assert min(found_out(left, truth).values()) > 0.5
    kinds = {path.relative_to(tmp_path / "run").parts[0] for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"models", "state", "report.html", "trajectory.jsonl", "requests", "handed-out.jsonl"} <= kinds
    assert holding(tmp_path / "run", [theta, perturbed]) == [], "in no file of any kind"


def after_it(folder: Path) -> None:
    """What else may write into a run's folder once a request was served: another request, a report."""
    next_one = ["forget", str(folder), "--client", "1", "--method", "ft", "--until", "1", "--max-drop", "100"]
    for words in (next_one, ["report", str(folder)]):
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 0, found.output


def brought_back(files: dict[str, Params], names: Sequence[str], old: Params) -> dict[tuple[str, str], float]:
    """For every two files, how near the noise that leads from one to the other brings the second to the old model."""
    near, keep = {}, Sealed().keep
    for (one, before), (other, after) in permutations(files.items(), 2):
        noise = {n: after[n] - keep * before[n] for n in names}
        found = torch.cat([((after[n] - noise[n]) / keep).flatten() for n in names])
        near[one, other] = float(torch.cosine_similarity(found, torch.cat([old[n].flatten() for n in names]), dim=0))
    return near


def test_what_was_faded_comes_back_from_the_two_files_that_must_go_and_from_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unfed.runs.serving.STOPS", (Killed,))
    run = trained(tmp_path / "run")
    names = [choice.name for choice in choose(run.world(0).template.module, ["hidden"])]
    old, begun = "models/0/train.safetensors", "state/0/r1/sealed.safetensors"
    killed_at(run, 1)
    theta = run.folder.load_model(Job(0, None, "train"))
    assert brought_back(tensors_in(tmp_path / "run"), names, theta)[old, begun] > 0.999
    Run.open(run.folder.path).execute()
    purge(Run.open(run.folder.path), "r1")
    left = tensors_in(tmp_path / "run")
    assert len(left) == 2
    assert max(brought_back(left, names, theta).values()) < 0.6, "no nearer than the published model itself"


# --- starting over ----------------------------------------------------------------------------------------------------


def test_with_everything_drawn_anew_it_is_retrain_from_another_start() -> None:
    """The second control of the study: nothing of the old model is left."""
    server = serve(simulated(Config.parse(SMALL), 0))
    begun = Sealed(layers=("*",), perturbation="reinit").begin(server).params
    assert all(not torch.equal(t, server.params[n]) for n, t in begun.items() if n.endswith("weight") and t.ndim > 1)
    assert set(begun) == set(Retrain().begin(server).params)
