"""Led: resumed, counted, listed and refused; its rule is held by its twin in `oracles/`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unfed import storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.engines.batched import Batched
from unfed.engines.compiled import recorded
from unfed.engines.compiled.capture import as_traced
from unfed.errors import UnfedError, UnfedWarning
from unfed.folder.purge import purge
from unfed.methods import Led, NoT, Retrain
from unfed.model.functional import Template
from unfed.model.params import tensor_bytes
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.runs.record import affected
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.testing.conformance import check
from worlds import Small, assert_same, serve, unlearn

FEW = ("data.train_size=200", "data.test_size=60")
DOUBLE = ("engine.precision=float64", "engine.name=sequential")
LEAVES = Request("bye", clients=("0",))


def test_the_kit_finds_nothing_wrong() -> None:
    claims = list(check(Led, ["methods.led={teacher='model', teacher_rounds=1, led=1}", *FEW]))
    assert len(claims) == 17 and all(claim.held for claim in claims), claims


def test_the_first_step_is_not_itself_bit_for_bit(small: Small) -> None:
    world = simulated(small(*DOUBLE), 0)
    two = unlearn(Led(teacher_rounds=2), serve(world), 2)
    assert two.round == 3 and two.model
    assert all(torch.equal(two.tensors["teacher"][n], t) for n, t in unlearn(NoT(), serve(world), 2).params.items())
    fresh = Retrain().begin(serve(world)).params
    assert all(torch.equal(Led().begin(serve(world)).params[n], t) for n, t in fresh.items())


def test_a_recorded_step_is_the_step(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, here without its compiler; a model that never ran before is traced."""
    monkeypatch.setattr(recorded, "compiler", as_traced)
    method = Led("model").for_requests([Request("bye", classes=(3,))])
    found = []
    for recorded_step in (False, True):
        world = simulated(small(*DOUBLE, "model.name=mlp"), 0)
        server = serve(world, (Request("bye", classes=(3,)),))
        clients = world.scoped([Request("bye", classes=(3,))])
        server.engine = Batched(world.template, clients, compile=True) if recorded_step else world.engine(clients)
        found.append(unlearn(method, server, 2).params)
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", ["cnn-tiny-bn", "cnn-tiny-dropout", "mlp", "vit-tiny"])
def test_one_pass_gives_logits_and_features(model: str, small: Small) -> None:
    world = simulated(small(*DOUBLE, f"model.name={model}"), 0)
    params, x = world.fresh(3), torch.randn(4, *world.template.shape, dtype=torch.float64)
    for key in (None, torch.tensor(5)):
        nets = [world.template.bind({n: t.clone() for n, t in params.items()}, key=key) for _ in range(3)]
        logits, features = nets[0].with_features(x)
        torch.testing.assert_close(logits, nets[1](x), rtol=0, atol=1e-12)
        torch.testing.assert_close(features, nets[2].features(x), rtol=0, atol=0)
    world.template.check_head()


def test_a_model_that_does_not_end_in_its_head_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.head.forward(torch.relu(self.body(x)))

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.head.weight = self.body.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head.forward(torch.relu(self.body(x)))

    for module in (Scaled(), Tied()):
        with pytest.raises(UnfedError, match="does not end in its head 'head', or shares .*; use retrain or sealed"):
            Template(module, (3,)).check_head()


def test_the_teacher_is_counted_as_one_more_model_down_in_every_led_round(small: Small) -> None:
    world = simulated(small(*DOUBLE), 0)
    server = serve(world)
    unlearn(Led(teacher_rounds=2, led=1), server, 4)  # two of NoT, one led, one alone; three clients stay
    weights = 4 * world.template.parameters
    assert server.ledger.comm_bytes == 3 * weights * (2 + 2 + 3 + 2)
    assert server.ledger.wire_bytes == 3 * tensor_bytes(server.params) * (2 + 2 + 3 + 2)
    rows = sum(len(c.view("retain")) for c in world.scoped([Request("r", clients=("0",))]).values())
    assert server.ledger.flops == world.forward_flops * rows * (3 + 3 + 4 + 3)


def test_a_request_is_served_and_the_kept_teacher_is_listed_until_it_is_purged(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("request=[]", "methods.run=[]", "checkpoint.rounds=1"), tmp_path / "run")
    run.execute()
    run.forget(LEAVES, "led", until=4, how=RequestOptions({"teacher_rounds": 2}))
    lines = [line for line in run.lines() if line["method"] == "led"]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4] and lines[2]["model"] is False
    state = "state/0/bye/led.safetensors"
    kept = [one for one in affected(run, "0") if one.file == state]
    assert [(one.kind, one.what) for one in kept] == [("part", "what its method kept beside the model (teacher)")]
    assert not any(one.file.startswith("models/0/bye/") for one in affected(run, "0"))
    purge(run, "bye")
    assert not any(one.file == state for one in affected(run, "0"))
    assert not any(name.startswith("teacher/") for name in storage.names_of(tmp_path / "run" / state))


def test_led_by_the_old_model_warns_and_keeps_no_copy_of_it(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("request=[]", "methods.run=[]"), tmp_path / "run")
    run.execute()
    with pytest.warns(UnfedWarning, match="forgets in its outputs, not in its features: .* use teacher = 'not'"):
        run.forget(LEAVES, "led", until=2, how=RequestOptions({"teacher": "model"}))
    assert not any(one.kind == "part" for one in affected(run, "0"))


def test_a_file_can_be_the_teacher(small: Small, tmp_path: Path) -> None:
    world = simulated(small(*DOUBLE), 0)
    storage.save(tmp_path / "t.safetensors", {n: t.float() for n, t in world.fresh(1).items()}, {})
    found = unlearn(Led(str(tmp_path / "t.safetensors")), serve(world), 2).params
    rounded = {n: t.float().double() for n, t in world.fresh(1).items()}
    assert_same(unlearn(Led("model"), serve(world, params=rounded), 2).params, found)
    storage.save(tmp_path / "other.safetensors", {"w": torch.zeros(1)}, {})
    with pytest.raises(UnfedError, match="The teacher .*other.safetensors"):
        Led(str(tmp_path / "other.safetensors")).begin(serve(world))
    with pytest.raises(UnfedError, match="is no file; use 'not', 'model', or a safetensors file"):
        Led("nowhere").check(world.template.module)
    for wrong in ({"weight": -1.0}, {"led": -1}, {"teacher_rounds": 0}):
        with pytest.raises(UnfedError, match=f"Led's {next(iter(wrong))} must be at least"):
            Led(**wrong)


def test_where_one_place_holds_all_data_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    raw = {"setting": "central", "data": {"train_size": 300, "test_size": 100}, "model": {"name": "cnn-tiny"}}
    raw |= {"training": {"rounds": 2}, "unlearning": {"rounds": 3}, "checkpoint": {"rounds": 1}}
    sets = ['request={id="r1", classes=[3]}', "methods={run=['led'], led={teacher_rounds=2, led=2}}"]
    config = Config.parse(raw, sets)
    whole = Run.create(config, tmp_path / "whole")
    whole.execute()
    for at in (1, 2, 3):  # in the first step, between the two, in the second

        def killed(self: Led, server: Any, state: Any, at: int = at, go_on: Any = Led.round) -> Any:
            if state.round == at:
                raise Crash
            return go_on(self, server, state)

        folder = tmp_path / f"killed-{at}"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Led, "round", killed)
            Run.create(config, folder).execute()
        again = Run.open(folder)
        again.execute()
        a, b = (one.folder.load_model(Job(0, "r1", "led")) for one in (whole, again))
        assert all(torch.equal(a[n], b[n]) for n in a), at


def test_where_one_place_holds_all_data_the_second_step_begins_with_a_new_optimiser(small: Small) -> None:
    """Momentum of NoT's rounds is momentum from before; the fresh model's first epoch has none of it."""
    world = simulated(small(*DOUBLE, "partition.clients=1", "partition.validation=0"), 0)
    some = Request("r", samples=(("0", 1), ("0", 2)))
    two = unlearn(Led(teacher_rounds=1, led=0), serve(world, (some,), keep=True), 2)
    server = serve(world, (some,), keep=True)
    alone = server.recover(replace(Retrain().begin(server), round=1))
    assert_same(alone.params, two.params)
