"""Rounds: who is asked, what is averaged, what it costs, and what must always hold."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from test_run import kept_before_every_write, outcome
from unfed import rng
from unfed.client.plan import Measure, Optimiser, Phase, Plan
from unfed.data.scope import ClientData
from unfed.engines import Sequential
from unfed.engines.base import Block, Refusal
from unfed.errors import Refused, UnfedError
from unfed.federation import server
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import Schedule, Settings
from unfed.methods import FineTune, NoT, Retrain, State
from unfed.model.functional import Template
from unfed.model.networks import build
from unfed.model.params import Params, cast, params_of, tensor_bytes
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from worlds import Small, Toy, noting


def fresh(seed: int, name: str = "cnn-tiny") -> Params:
    return cast(params_of(build(name, shape=(1, 8, 8), classes=3, seed=seed)), torch.float64, "cpu")


def serve(
    clients: Any,
    params: Params | None = None,
    seed: int = 5,
    engine: Any = None,
    model: str = "cnn-tiny",
    **settings: Any,
) -> JobServer:
    template = Template(build(model, shape=(1, 8, 8), classes=3, seed=0), (1, 8, 8)).to("cpu", torch.float64)
    phase = Phase(batch=4, optimiser=Optimiser(lr=0.05))
    return JobServer(
        Setup(template, lambda s: fresh(s, model), forward_flops=10),
        Members(clients, engine or Sequential(template, clients)),
        params or template.like,
        Settings(**{"phase": phase, "rounds": 4, **settings}),
        seed,
    )


def only(answers: Iterable[Block | Refusal]) -> Block:
    """The answer of the one client that was asked."""
    (block,) = answers
    assert isinstance(block, Block)
    return block


def rounds(method: FineTune | NoT | Retrain, server: JobServer, n: int) -> State:
    state = method.begin(server)
    for _ in range(n):
        state = method.round(server, state)
    return state


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


# --- what must always hold --------------------------------------------------------------------------------------------


def test_not_without_layers_is_ft_bit_for_bit(toy: Toy) -> None:
    clients = toy(9, 12, 7, forget={0: list(range(9))})
    a = rounds(NoT(layers=()), serve(clients), 3)
    b = rounds(FineTune(), serve(clients), 3)
    assert equal(a.params, b.params)


def test_retrain_on_an_empty_scope_and_the_same_seed_repeats_the_training_bit_for_bit(toy: Toy) -> None:
    a = rounds(Retrain(), serve(toy(9, 12, 7)), 3)
    b = rounds(Retrain(), serve(toy(9, 12, 7), params=a.params), 3)
    assert equal(a.params, b.params)
    c = rounds(Retrain(), serve(toy(9, 12, 7), seed=6), 3)
    assert not equal(a.params, c.params)


def test_ft_starts_at_theta_star(toy: Toy) -> None:
    params = fresh(3)
    assert equal(FineTune().begin(serve(toy(9, 12), params)).params, params)


def test_not_negates_the_first_weight_and_nothing_else(toy: Toy) -> None:
    params = fresh(3)
    state = NoT().begin(serve(toy(9, 12), params))
    assert torch.equal(state.params["conv1.weight"], -params["conv1.weight"])
    assert torch.equal(state.params["conv1.bias"], params["conv1.bias"])
    for name in params:
        if name != "conv1.weight":
            assert torch.equal(state.params[name], params[name]), name


@pytest.mark.parametrize("method", [NoT(), FineTune(), Retrain()])
@pytest.mark.parametrize("forget", [{0: list(range(9))}, {0: [1, 2], 1: [5], 2: [0]}])
def test_no_forgotten_row_is_ever_fetched(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, method: FineTune | NoT | Retrain, forget: dict[int, list[int]]
) -> None:
    clients = toy(9, 12, 7, forget=forget)
    source = clients["0"].source
    seen: list[Tensor] = []
    original = type(source).fetch
    monkeypatch.setattr(type(source), "fetch", noting(seen, original, lambda self, rows, draws=None: rows))
    rounds(method, serve(clients), 2)
    touched = set(torch.cat(seen).tolist())
    forgotten = {int(clients[str(k)].rows[p]) for k, positions in forget.items() for p in positions}
    assert touched == set(range(28)) - forgotten


def test_a_client_without_retained_rows_is_never_asked(toy: Toy) -> None:
    server = serve(toy(9, 12, 7, forget={0: list(range(9))}))
    rounds(FineTune(), server, 2)
    assert server.asked == {1: ["1", "2"], 2: ["1", "2"]}
    assert server.retained == ("1", "2") and server.owners == ("0",)


def test_every_client_gone_is_an_error(toy: Toy) -> None:
    with pytest.raises(UnfedError, match="no client is left to train"):
        serve(toy(3, 2, forget={0: [0, 1, 2], 1: [0, 1]}))


# --- averaging --------------------------------------------------------------------------------------------------------


def test_a_round_is_the_weighted_mean_of_its_clients(toy: Toy) -> None:
    clients, params = toy(9, 12), fresh(3)
    server = serve(clients, params)
    alone = {k: only(server.engine.train(server.plan(1), params, [k], {})).of(0) for k in clients}
    new = server.recover(State(params)).params
    for name in params:
        expected = (9 * alone["0"][name] + 12 * alone["1"][name]) / 21
        assert torch.allclose(new[name], expected, atol=1e-12), name


class Shuffled(Sequential):
    """Answers come in any order."""

    def train(self, plan: Any, params: Any, clients: Any, context: Any, optimiser: Any = None) -> Iterator[Block]:
        yield from reversed(list(super().train(plan, params, clients, context, optimiser)))


def test_the_order_of_the_answers_does_not_matter(toy: Toy) -> None:
    clients = toy(9, 12, 7)
    server = serve(clients)
    shuffled = serve(clients, engine=Shuffled(server.template, clients))
    assert equal(rounds(FineTune(), server, 2).params, rounds(FineTune(), shuffled, 2).params)


def test_batch_statistics_are_averaged_and_counters_copied(toy: Toy) -> None:
    clients = toy(9, 12)
    server = serve(clients, fresh(3, "cnn-tiny-bn"), model="cnn-tiny-bn")
    new = server.recover(State(server.params)).params
    assert not torch.equal(new["norm1.running_mean"], server.params["norm1.running_mean"])
    assert int(new["norm1.num_batches_tracked"]) == 3  # the last client: 12 rows in batches of 4


# --- who answers ------------------------------------------------------------------------------------------------------


class Faulty(Sequential):
    """Some clients answer with NaN."""

    def __init__(self, template: Template, clients: dict[str, ClientData], bad: set[str]) -> None:
        super().__init__(template, clients)
        self.bad = bad

    def train(self, plan: Any, params: Any, clients: Any, context: Any, optimiser: Any = None) -> Iterator[Block]:
        for block in super().train(plan, params, clients, context, optimiser):
            if block.clients[0] in self.bad:
                block.params["conv1.weight"][:] = float("nan")
            yield block


def test_a_nan_update_is_refused_and_the_round_goes_on_with_the_rest(toy: Toy) -> None:
    clients = toy(9, 12, 7)
    server = serve(clients)
    server.engine = Faulty(server.template, clients, {"1"})
    new = server.recover(State(server.params)).params
    without = serve(clients)
    expected = without.fedavg(without.params, without.plan(1), ["0", "2"])
    assert equal(new, expected)
    assert [(r.round, r.client) for r in server.refusals] == [(1, "1")]


def test_below_the_quorum_the_round_fails_with_the_reasons(toy: Toy) -> None:
    clients = toy(9, 12, 7)
    server = serve(clients)
    server.engine = Faulty(server.template, clients, {"0", "1"})
    with pytest.raises(
        Refused, match=r"Round 1 got 1 usable updates of 3 asked, the quorum is 2 \(client 0: its update has NaN"
    ):
        server.recover(State(server.params))
    server = serve(clients, quorum=0.0)
    server.engine = Faulty(server.template, clients, {"0", "1"})
    server.recover(State(server.params))  # one is enough


def test_clients_that_drop_out_are_named_and_the_rest_goes_on(toy: Toy) -> None:
    server = serve(toy(4, 4, 4, 4, 4, 4), drop_out=0.4, quorum=0.0, rounds=20)
    state = rounds(FineTune(), server, 12)
    missing = {(r.round, r.client) for r in server.refusals}
    assert 10 < len(missing) < 50 and all(r.reason == "it did not answer" for r in server.refusals)
    assert all(bool(torch.isfinite(t).all()) for t in state.params.values())
    again = serve(toy(4, 4, 4, 4, 4, 4), drop_out=0.4, quorum=0.0, rounds=20)
    rounds(FineTune(), again, 12)
    assert missing == {(r.round, r.client) for r in again.refusals}


def test_a_failed_round_asked_for_again_meets_other_drop_outs_and_its_first_attempt_the_same(toy: Toy) -> None:
    def silent(attempt: int, round: int = 1) -> list[str]:
        server = serve(toy(*[4] * 30), drop_out=0.5)
        server.attempt = attempt
        return [name for name in server.clients if server._drops_out(name, round)]

    first = rng.key(5, "drop-out", 1, "0")
    word = rng.words(rng.as_key(first), torch.zeros((), dtype=torch.int64))
    assert ("0" in silent(0)) == bool(rng.chance(word, 0.5))  # the address of a first attempt is what it always was
    assert silent(0) == silent(0) != silent(1) == silent(1) != silent(2)
    assert silent(1) != silent(0, round=2)


def executed(run: Run, world: World, tries: int = 20) -> int:
    """Resume as an operator would, until no round falls below the quorum; how often that took.

    A world is a function of the config, so it is not built again for each process that would.
    """
    for number in range(tries):
        run.use(world)
        try:
            run.execute()
        except Refused as error:
            assert "then resume" in str(error)
            run = Run.open(run.folder.path)
        else:
            return number
    raise AssertionError(f"stuck after {tries} attempts")


HARSH: tuple[str, ...] = (
    "training.drop_out=0.4",
    "seeds.training=3",
    "request=[]",
    "training.quorum=0.6",
    "training.rounds=2",
)
HARSH += ("partition.scheme=dirichlet", "partition.beta=0.5", "engine.name=sequential", "training.batch=256")
HARSH += ("training.record=['fukd']", "evaluation.every=2", "evaluation.attack=false", "evaluation.samples=false")


def test_a_round_below_the_quorum_is_asked_for_again_on_resume_and_a_kill_changes_nothing(
    small: Small, tmp_path: Path
) -> None:
    config = small(*HARSH)
    world = simulated(config, 0)
    whole = Run.create(config, tmp_path / "whole", world)
    with kept_before_every_write(tmp_path / "whole", tmp_path / "killed") as kept:
        failed = executed(whole, world)
    assert failed == 2  # once in each round
    truth = outcome(tmp_path / "whole")
    silent = [refusal for line in truth[0] for refusal in line.get("refused", ())]
    assert len(silent) >= 2 * failed and {r["reason"] for r in silent} == {"it did not answer"}
    for folder in kept:
        run = Run.open(folder)
        executed(run, world)
        assert outcome(folder) == truth, f"differs after a crash before write {folder.name} of {len(kept)}"
        a, b = (r.folder.load_histories(Job(0, None, "train"))["fukd"].pack() for r in (run, whole))
        assert a[1] == b[1] and equal(a[0], b[0])


def test_what_a_failed_attempt_cost_is_counted(small: Small, tmp_path: Path) -> None:
    world = simulated(small(*HARSH), 0)
    run = Run.create(world.config, tmp_path / "run", world)
    executed(run, world)
    size = tensor_bytes(world.template.like)
    lines = [line for line in run.lines() if line["method"] == "train"]
    asked = sum(len(clients) for line in lines for clients in line["asked"].values())
    answered = asked - sum(len(line["refused"]) for line in lines)
    assert asked > 4 * 2 and lines[-1]["wire_bytes"] == (asked + answered) * size


def test_partial_participation_asks_a_seeded_share(toy: Toy) -> None:
    server = serve(toy(*[4] * 10), participation=0.3)
    rounds(FineTune(), server, 5)
    assert all(len(names) == 3 for names in server.asked.values())
    assert all(names == sorted(names, key=int) for names in server.asked.values())
    assert len({tuple(names) for names in server.asked.values()}) > 1
    assert serve(toy(4, 4), participation=0.01).participants(1, ("0", "1")) in (("0",), ("1",))


def test_half_a_client_is_a_client(toy: Toy) -> None:
    server = serve(toy(*[4] * 5), participation=0.5)
    assert len(server.participants(1, server.clients)) == 3
    assert len(server.participants(1, server.clients[:3])) == 2


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_by_hand() -> None:
    assert Schedule().rate(0.1, 7, 10) == 0.1
    for kind in ("constant", "cosine", "step"):  # before the first round: the first round's rate
        assert Schedule(kind).rate(0.1, 0, 10) == Schedule(kind).rate(0.1, 1, 10) == 0.1
    step = Schedule("step", every=3, factor=0.5)
    assert [step.rate(0.8, r, 9) for r in (1, 3, 4, 6, 7)] == [0.8, 0.8, 0.4, 0.4, 0.2]
    cosine = Schedule("cosine", minimum=0.02)
    assert cosine.rate(0.1, 1, 11) == pytest.approx(0.1)
    assert cosine.rate(0.1, 6, 10) == pytest.approx(0.06)
    assert cosine.rate(0.1, 11, 10) == pytest.approx(0.02)
    later = Schedule("cosine", warmup=2)
    assert [later.rate(0.1, r, 6) for r in (1, 2, 3, 5)] == pytest.approx([0.05, 0.1, 0.1, 0.05])
    warm = Schedule(warmup=4)
    assert [warm.rate(0.1, r, 9) for r in (1, 2, 4, 5)] == pytest.approx([0.025, 0.05, 0.1, 0.1])
    with pytest.raises(UnfedError, match="use constant, cosine, step or one-cycle"):
        Schedule("linear").rate(0.1, 1, 2)


def test_a_one_cycle_rises_for_a_fifth_of_the_rounds_and_falls_to_two_percent() -> None:
    cycle = Schedule("one-cycle")
    assert [cycle.rate(0.5, r, 10) for r in (0, 1, 2, 6, 10)] == pytest.approx([0.25, 0.25, 0.5, 0.255, 0.01])
    assert [cycle.rate(1.0, r, 11) for r in (1, 2, 3, 4)] == pytest.approx([1 / 3, 2 / 3, 1.0, 1 - 0.98 / 8])
    assert max(range(1, 36), key=lambda r: cycle.rate(1.0, r, 35)) == 7
    assert cycle.rate(0.5, 13, 10) == pytest.approx(0.01), "whoever goes on stays at the end of the cycle"
    assert cycle.rate(0.5, 1, 1) == 0.5 and cycle.rate(0.5, 2, 1) == pytest.approx(0.01)
    assert Schedule("one-cycle", over=10).rate(0.5, 6, 99) == pytest.approx(0.255)


@pytest.mark.parametrize("rounds", [1, 2, 10])
def test_the_cosine_is_pytorchs_and_its_last_round_still_moves(rounds: int) -> None:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    truth = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds, eta_min=1e-4)
    for r in range(1, rounds + 1):
        assert Schedule("cosine", minimum=1e-4).rate(0.1, r, rounds) == pytest.approx(truth.get_last_lr()[0])
        optimiser.step()
        truth.step()
    assert Schedule("cosine").rate(0.1, rounds, rounds) > 0


def test_the_server_writes_the_rounds_rate_into_the_plan(toy: Toy) -> None:
    server = serve(toy(4), schedule=Schedule("step", every=1, factor=0.1))
    assert server.plan(3).phases[0].optimiser.lr == pytest.approx(0.0005)
    assert server.base.optimiser.lr == 0.05


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_costs_by_hand(toy: Toy) -> None:
    clients = toy(9, 12, 7, forget={0: list(range(9))})
    server = serve(clients)
    rounds(FineTune(), server, 2)
    parameters = sum(server.params[n].numel() for n in server.template.trainable)
    assert server.ledger.comm_bytes == 2 * 2 * 2 * 4 * parameters  # rounds · clients · directions
    assert server.ledger.wire_bytes == 2 * 2 * 2 * tensor_bytes(server.params)
    assert server.ledger.flops == 2 * (12 + 7) * 3 * 10


def test_buffers_count_on_the_wire_but_not_in_the_papers_bytes(toy: Toy) -> None:
    server = serve(toy(9, 12), model="cnn-tiny-bn")
    server.recover(State(server.params))
    buffers = [n for n in server.params if n not in server.template.trainable]
    extra = sum(server.params[n].numel() * server.params[n].element_size() for n in buffers)
    weights = sum(server.params[n].numel() * 8 for n in server.template.trainable)  # float64 here
    assert server.ledger.wire_bytes == 4 * (weights + extra)
    assert server.ledger.comm_bytes == 4 * weights // 2


def test_ft_and_not_cost_the_same(toy: Toy) -> None:
    a, b = serve(toy(9, 12)), serve(toy(9, 12))
    rounds(FineTune(), a, 3)
    rounds(NoT(), b, 3)
    assert dataclasses.replace(a.ledger, seconds=0) == dataclasses.replace(b.ledger, seconds=0)


def test_who_does_not_answer_was_sent_a_model_but_sent_none(toy: Toy) -> None:
    server = serve(toy(4, 4, 4, 4), drop_out=0.3, quorum=0.0)
    rounds(FineTune(), server, 6)
    size = tensor_bytes(server.params)
    assert server.ledger.wire_bytes == size * (6 * 4 + 6 * 4 - len(server.refusals))


# --- measuring --------------------------------------------------------------------------------------------------------


def test_measured_sums_add_up_over_clients(toy: Toy) -> None:
    clients = toy(9, 12)
    server = serve(clients)
    total = server.measure(Measure("correct", "all"), server.params, ["0", "1"])
    parts = [server.measure(Measure("correct", "all"), server.params, [k]) for k in ("0", "1")]
    assert float(total["count"]) == 21
    assert float(total["correct"]) == sum(float(p["correct"]) for p in parts)


def test_a_measured_gradient_is_the_gradient(toy: Toy) -> None:
    clients = toy(8)
    server = serve(clients)
    found = server.measure(Measure("gradient", "all", batch=8), server.params, ["0"])
    squared = server.measure(Measure("squared_gradient", "all", batch=8), server.params, ["0"])
    quiet = Phase(view="all", batch=8, optimiser=Optimiser(lr=1.0, momentum=0.0, decay=0.0))
    after = only(server.engine.train(Plan(1, 1, (quiet,)), server.params, ["0"], {})).of(0)
    for name in server.template.trainable:
        step = server.params[name] - after[name]
        assert torch.allclose(found[name], step, atol=1e-12)
        assert torch.allclose(squared[name], step.square(), atol=1e-12)
    assert float(found["batches"]) == 1


def test_the_unlearning_seed_moves_every_draw(toy: Toy) -> None:
    clients = toy(9, 12)
    assert not equal(
        rounds(FineTune(), serve(clients, seed=1), 1).params, rounds(FineTune(), serve(clients, seed=2), 1).params
    )
    assert rng.key(1, "init") != rng.key(2, "init")


def test_who_holds_what_is_noted_by_view(toy: Toy) -> None:
    clients = toy(4, 5, 6, forget={0: [0, 1, 2, 3], 2: [1]})
    server = serve(clients)
    assert (server.clients, server.retained, server.owners) == (("0", "1", "2"), ("1", "2"), ("0", "2"))


# --- a device that works while the server looks -----------------------------------------------------------------------


class Examined:
    """An answer that is there at once, or one that a device is still working on."""

    def __init__(self, block: str, like: dict[str, Any], round: int, size: Any) -> None:
        self.block = block
        self.event = object() if block.startswith("device") else None


class Named(str):
    """A block that is nothing but its name."""

    moved = None


@pytest.mark.parametrize(
    ("come", "seen"),
    [
        (["device 1", "device 2", "device 3"], ["made 1", "made 2", "device 1", "made 3", "device 2", "device 3"]),
        (["host 1", "host 2"], ["made 1", "host 1", "made 2", "host 2"]),
        (["device 1", "host 2", "device 3"], ["made 1", "made 2", "device 1", "host 2", "made 3", "device 3"]),
        ([], []),
    ],
)
def test_an_answer_on_a_device_is_read_when_the_next_client_is_at_work(
    monkeypatch: pytest.MonkeyPatch, come: list[str], seen: list[str]
) -> None:
    monkeypatch.setattr(server, "CheckedUpdate", Examined)
    noted: list[Any] = []

    def answers() -> Iterator[Any]:
        for number, answer in enumerate(come, 1):
            noted.append(f"made {number}")
            yield Named(answer)

    for found in server._checked(answers(), {"w": torch.ones(1)}, 1):
        assert isinstance(found, Examined)
        noted.append(found.block)
    assert noted == seen
