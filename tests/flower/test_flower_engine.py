"""Flower gives what the sequential engine gives, and no node can spoil it: claims about the engine and its clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from worlds import Small

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from flower_grid import EVERYTHING, InProcessGrid, Reply, directory_of, flower_world, grid_of, lost, refuse
from unfed.client.plan import Measure
from unfed.config.config import Config
from unfed.data import Request
from unfed.data.scope import own_marks
from unfed.errors import Refused, UnfedError
from unfed.flower import transport
from unfed.methods import METHODS, Central, FineTune, Method, NoT, find
from unfed.model.params import Params
from unfed.remote import transport as carried
from unfed.remote.client import describe, node_data_of
from unfed.remote.directory import Directory, in_order
from unfed.remote.messages import MEASURE, TRAIN, Ask, Failure, drawn_models, own_part
from unfed.remote.server import nodes_of
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from unfed.values import is_measured
from worlds import LEAVES, serve, train, unlearn

DOUBLE = ['engine.precision="float64"', 'engine.name="sequential"', "data.train_size=240", "data.test_size=60"]
SCOPES = {
    "client": LEAVES,
    "class": Request("r1", classes=(3,)),
    "instance": Request("r1", samples=(("0", 3), ("0", 5), ("2", 1))),
    "fraction": Request("r1", fraction=0.1),
}
CASES = [
    (name, scope)
    for name in METHODS
    for scope, request in SCOPES.items()
    if request.kind in find(name).scopes and (scope != "fraction" or name == "not")
]


def method_of(name: str) -> Method:
    kind = METHODS[name]
    short: dict[str, Any] = {"led": {"teacher_rounds": 1}}.get(name, {})
    method = kind(**({"federated": True} if issubclass(kind, Central) else short))
    return method.on("cnn-tiny")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-12, msg=name)


@pytest.fixture
def config(small: Small) -> Config:
    return small(*DOUBLE)


@pytest.fixture
def local(config: Config) -> World:
    return simulated(config, 0)


# --- equality ---------------------------------------------------------------------------------------------------------


_trained: list[Params] = []


def trained(world: World) -> Params:
    """θ* of the small federation, trained once for all methods that record nothing on the way."""
    if not _trained:
        _trained.append(train(world, 2)[0])
    return dict(_trained[0])


def test_a_training_on_flower_is_the_training_here(config: Config, local: World) -> None:
    remote = flower_world(config, grid_of(config), local=local, public=local.public(local.scoped([])))
    assert_same(trained(local), train(remote, 2)[0])


def test_large_replies_are_pulled_one_by_one_and_averaged_to_the_same_bits(
    config: Config, local: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "IN_MEMORY", 1)
    monkeypatch.setattr(carried, "IN_MEMORY", 1)
    grid, pulled = grid_of(config), list[int]()
    pull = grid.pull_messages

    def counted(names: Iterable[str]) -> Iterable[Message]:
        pulled.append(len(list(names)))
        return pull(names)

    grid.pull_messages = counted  # type: ignore[assignment]
    remote = flower_world(config, grid, local=local, public=local.public(local.scoped([])))
    found, whole = train(remote, 2)[0], train(flower_world(config, grid_of(config), local=local), 2)[0]
    assert all(tensor.equal(found[name]) for name, tensor in whole.items())
    assert len(pulled) > 4 and set(pulled) == {1}


@pytest.mark.parametrize(("name", "scope"), CASES)
def test_every_method_gives_on_flower_what_it_gives_here(name: str, scope: str, config: Config, local: World) -> None:
    method, request = method_of(name), SCOPES[scope]
    public = local.public(local.scoped([request]))
    remote = flower_world(config, grid_of(config), local=local, public=public)
    found = []
    for world in (local, remote):
        records = "history" in method.needs
        params, histories = train(world, 2, {"own": method}) if records else (trained(local), {})
        server = serve(world, (request,), params, histories.get("own"))
        found.append((unlearn(method, server, 2), server.ledger))
    (here, costs), (there, remote_costs) = found
    assert_same(here.params, there.params)
    assert (costs.comm_bytes, costs.flops) == (remote_costs.comm_bytes, remote_costs.flops)
    if name in ("salun", "ssd"):  # the two counts beside a gradient are numbers there, not tensors
        assert 0 < costs.wire_bytes - remote_costs.wire_bytes <= 2 * 4 * 2 * 8
    else:
        assert costs.wire_bytes == remote_costs.wire_bytes
    assert remote_costs.serialised_bytes > remote_costs.wire_bytes or remote_costs.wire_bytes == 0


def test_rows_of_a_data_set_are_refused_where_clients_number_their_own(config: Config, local: World) -> None:
    remote, asked = flower_world(config, grid_of(config), local=local), [Request("r1", rows=(3, 5))]
    for look in (remote.scoped, lambda requests: remote.holds(requests[0], [])):
        with pytest.raises(UnfedError, match="elsewhere and number their rows themselves; list client,position"):
            look(asked)


@pytest.mark.own_process
def test_fukd_distils_at_the_server_in_halves_where_the_run_computes_in_halves(small: Small) -> None:
    """The server is where FUKD trains: what it computes there is what a simulation computes, halves too."""
    config, request = small('engine.precision="bf16"', 'engine.name="sequential"'), LEAVES
    local, method = simulated(config, 0), method_of("fukd")
    remote = flower_world(config, grid_of(config), local=local, public=local.public(local.scoped([request])))
    theta, histories = train(local, 1, {"own": method})
    here, there = (method.begin(serve(world, (request,), theta, histories["own"])) for world in (local, remote))
    assert here.params.keys() == there.params.keys()
    assert all(torch.equal(value, there.params[name]) for name, value in here.params.items())


@pytest.mark.parametrize("scope", list(SCOPES))
def test_evaluation_reads_the_same_where_owners_allow_it(scope: str, config: Config, local: World) -> None:
    remote = flower_world(config, grid_of(config), local=local)
    params, request = local.fresh(1), SCOPES[scope]
    here, there = (world.evaluator([request])(params) for world in (local, remote))
    assert here.numbers.keys() == there.numbers.keys()
    for column, value in here.numbers.items():
        assert there.numbers[column] == (pytest.approx(value, abs=1e-9) if is_measured(value) else value)
    for column, values in here.samples.items():
        torch.testing.assert_close(there.samples[column], values)
    assert local.evaluator([request]).forgotten_rows == remote.evaluator([request]).forgotten_rows


def test_nobody_is_asked_for_single_rows_that_were_purged(config: Config, local: World) -> None:
    """Counted they are, for their own request alone, while their owner allows it; as in a simulation."""
    grid = grid_of(config)
    remote = flower_world(config, grid, local=local)
    first, few = Request("r0", clients=("0",), purged=True), Request("few", samples=(("2", 1),), purged=True)
    params, last = local.fresh(1), Request("r1", clients=("1",))
    here, there = (world.evaluator([first, last])(params) for world in (local, remote))
    assert len(there.samples["forget/loss"]) == len(here.samples["forget/loss"]) == here_rows(local, last)
    assert there.numbers["forget"] == pytest.approx(here.numbers["forget"], abs=1e-9)
    assert there.numbers["mia"] == pytest.approx(here.numbers["mia"], abs=1e-9)
    assert there.earlier == pytest.approx(here.earlier, abs=1e-9) and is_measured(there.earlier["r0"])
    seen = [world.evaluator([few, last])(params).earlier["few"] for world in (local, remote)]
    assert seen == ["not measured: its 1 row was purged, 10 needed"] * 2
    both = remote.evaluator([few, Request("c", classes=(3,))])(params)
    assert both.numbers["mia"] == "not measured: client 2 also holds rows that were purged"
    assert not len(both.samples["forget/loss"])
    for world in (local, remote):
        assert world.evaluator([first])(params).numbers["forget"] == "not measured: all of it was purged"


def here_rows(world: World, request: Request) -> int:
    return sum(len(c.view("forget")) for c in world.scoped([request]).values())


def test_a_backdoor_is_measured_at_the_server(small: Small) -> None:
    config = small(*DOUBLE, 'poison.client="0"')
    local = simulated(config, 0)
    remote = flower_world(config, grid_of(config), local=local)
    params, _ = train(local, 1)
    assert_same(params, train(remote, 1)[0])
    assert remote.evaluator([])(params).numbers["backdoor"] == local.evaluator([])(params).numbers["backdoor"]


@pytest.mark.parametrize("model", ["cnn-tiny-bn", "cnn-tiny-dropout"])
def test_norms_and_dropout_are_the_same_there(model: str, small: Small) -> None:
    config = small(*DOUBLE, f'model.name="{model}"')
    assert_same(train(simulated(config, 0), 2)[0], train(flower_world(config, grid_of(config)), 2)[0])


def test_answers_are_averaged_in_the_clients_order_whatever_order_they_come_in(config: Config) -> None:
    grid = grid_of(config)
    server = serve(flower_world(config, grid), ())
    names = [b.clients[0] for b in server.train(server.plan(1), server.params, ["3", "1", "0"])]
    assert names == ["0", "1", "3"]
    assert [m.metadata.src_node_id for m in grid.replies[-3:]] == [1000, 1001, 1003]  # the grid hands them out reversed


# --- what crosses -----------------------------------------------------------------------------------------------------


def test_wire_bytes_are_a_hand_count_of_the_tensors_in_the_records(config: Config) -> None:
    grid = grid_of(config)
    world = flower_world(config, grid)
    server = serve(world, (LEAVES,))
    grid.sent.clear()
    grid.replies.clear()
    server.recover(NoT().begin(server))
    arrays = [a for m in grid.sent + grid.replies for r in m.content.array_records.values() for a in r.values()]
    by_hand = sum(a.numpy().nbytes for a in arrays)
    assert server.ledger.wire_bytes == by_hand == 6 * sum(t.nbytes for t in server.params.values())
    assert server.ledger.serialised_bytes >= sum(len(a.data) for a in arrays)


@pytest.mark.parametrize("holds", ["a part of the data set", "its own data"])
def test_fcus_random_model_travels_as_a_seed(holds: str, config: Config) -> None:
    own = [{**own_data(), "client": str(k), "seed": k} for k in range(4)]
    grid = grid_of(config) if holds == "a part of the data set" else InProcessGrid(own)
    world = flower_world(config, grid)
    server = serve(world, (LEAVES,))
    grid.sent.clear()
    grid.replies.clear()
    method_of("fcu").begin(server)
    (question,) = grid.sent
    assert list(question.content.array_records) == ["params"]
    assert server.ledger.wire_bytes == 2 * sum(t.nbytes for t in server.params.values())
    text = str(question.content.config_records["ask"]["drawn"])
    shard = node_data_of(nodes_of(world).shard, grid.nodes[1000], "0")
    assert_same(server.init("downgraded model"), drawn_models(text, shard.model[1])["downgraded"])
    with pytest.raises(UnfedError, match="'downgraded' came out other than at the server; install the same"):
        drawn_models(text, lambda seed: world.fresh(seed + 1))


def test_what_was_counted_for_a_model_is_not_asked_again(config: Config, local: World) -> None:
    grid = grid_of(config, allow="")
    world = flower_world(config, grid, local=local)
    params = local.fresh(3)
    first = world.evaluator([])(params).numbers
    asked = len(grid.sent)
    after = world.evaluator([LEAVES])  # concerns client 0 alone: what the others count is known
    assert after(params).numbers["validation"] != first["validation"] and len(grid.sent) == asked
    assert after.validation(params) == pytest.approx(local.evaluator([LEAVES]).validation(params))
    world.evaluator([Request("r2", classes=(3,))])(params)  # concerns everybody
    assert len(grid.sent) == asked + 2 * 4
    after(local.fresh(2))
    assert len(grid.sent) == asked + 2 * 4 + 3


def test_a_leaver_gets_no_message_at_all(config: Config, local: World) -> None:
    grid = grid_of(config, allow="")
    world = flower_world(config, grid, local=local)
    before = len(grid.asked(1000))
    server = serve(world, (LEAVES,))
    state = unlearn(NoT(), server, 2)
    found = world.evaluator([LEAVES])(state.params).numbers
    assert len(grid.asked(1000)) == before
    assert found["forget"] == "not measured: client 0 does not allow it"
    assert is_measured(found["validation"]) and is_measured(found["test"])


SECOND = Request("r2", clients=("2",))


def test_a_leaver_measures_with_its_leave_and_never_trains(config: Config, local: World) -> None:
    grid = grid_of(config, allow="")
    grid.nodes[1000]["allow"] = "forget"
    world = flower_world(config, grid, local=local)
    grid.sent.clear()
    state = unlearn(NoT(), serve(world, (LEAVES,)), 2)
    found = world.evaluator([LEAVES])(state.params).numbers
    assert found["forget"] == pytest.approx(local.evaluator([LEAVES])(state.params).numbers["forget"])
    assert (len(grid.asked(1000, "train")), len(grid.asked(1000, "evaluate"))) == (0, 1)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_request_is_measured_by_its_own_owners_only(deleted: bool, config: Config, local: World) -> None:
    grid, params = grid_of(config, allow=""), local.fresh(1)
    grid.nodes[1002]["allow"] = "forget"
    world = flower_world(config, grid, local=local)
    first = replace(LEAVES, deleted=deleted)
    grid.sent.clear()
    found = world.evaluator([first, SECOND])
    seen = found(params)
    assert seen.numbers["forget"] == pytest.approx(local.evaluator([SECOND])(params).numbers["forget"])
    why = "data deleted" if deleted else "client 0 does not allow it"
    assert seen.earlier == {"r1": f"not measured: {why}"}
    right = found.evidence(params).right
    assert not isinstance(right, str) and 100 * right.mean() == pytest.approx(seen.numbers["forget"])
    assert grid.asked(1000) == [] and grid.asked(1002, "train") == []
    reverse = world.evaluator([SECOND, first])(params)
    assert reverse.numbers["forget"] == f"not measured: {why}"
    assert reverse.earlier["r2"] == pytest.approx(seen.numbers["forget"])


def test_where_all_owners_allow_it_two_requests_read_as_in_a_simulation(config: Config, local: World) -> None:
    world, params = flower_world(config, grid_of(config), local=local), local.fresh(1)
    for requests in ([LEAVES, SECOND], [Request("c", classes=(3,)), SECOND], [LEAVES, Request("c", classes=(3,))]):
        here, there = (w.evaluator(requests)(params) for w in (local, world))
        assert there.numbers["forget"] == pytest.approx(here.numbers["forget"], abs=1e-9)
        first = requests[0]
        apart = "not measured: its owners count the rows of all requests together"
        assert there.earlier == {first.id: pytest.approx(here.earlier[first.id]) if first.clients else apart}
        again = world.evaluator(requests).again(params)
        assert {name: one["forget"] for name, one in again.items()} == there.earlier
        unseen = {"expected": "not measured: the clients give no labels of single rows"}
        beside = {name: again[first.id][name] for name in ("chance", "expected") if name in again[first.id]}
        assert beside == (unseen if first.clients else {"chance": 10.0})


def test_sample_ids_go_to_their_owner_only(config: Config) -> None:
    grid = grid_of(config)
    server = serve(flower_world(config, grid), (SCOPES["instance"],))
    grid.sent.clear()
    server.recover(FineTune().begin(server))
    for client, listed in (("0", [["0", 3], ["0", 5]]), ("1", None), ("2", [["2", 1]]), ("3", None)):
        (message,) = grid.asked(1000 + int(client), "train")
        scope = json.loads(str(message.content.config_records["ask"]["scope"]))
        assert scope == ([] if listed is None else [{"id": "r1", "samples": listed}])


def test_other_clients_names_and_server_paths_do_not_travel(config: Config) -> None:
    assert own_part([LEAVES, Request("r2", classes=(1,))], "1") == (Request("r2", classes=(1,)),)
    assert own_part([Request("r", clients=("0", "1"))], "1") == (Request("r", clients=("1",)),)
    assert "root" not in describe(Config.parse({"data": {"root": "/somewhere"}}), 0)


def test_nodes_that_play_a_part_hold_what_train_size_leaves_and_data_of_ones_own_stays_whole(small: Small) -> None:
    said = describe(small("data.train_size=100", "data.test_size=1000"), 0)
    dealt = [node_data_of(said, {"partition-id": str(k)}, str(k)).data for k in range(4)]
    assert sum(len(client.rows) for client in dealt) == 100
    own = node_data_of(said, {"client": "east", "data": "digits"}, "east").data
    assert len(own.rows) == 1797 - 1000


def test_marking_is_idempotent_and_survives_a_restart(config: Config, local: World) -> None:
    client, requests = local.clients[0], [SCOPES["class"], SCOPES["fraction"], SCOPES["instance"]]
    once = own_marks(client, requests, local.seeds.partition)
    marked = replace(client, forget=once)
    assert bool((own_marks(marked, [*requests, *requests], local.seeds.partition) == once).all())
    assert bool((once == next(iter(local.scoped(requests).values())).forget).all())


def test_earlier_requests_stay_in_force(config: Config, local: World) -> None:
    first, second = Request("a", classes=(3,)), Request("b", clients=("1",))
    remote = flower_world(config, grid_of(config))
    for world in (local, remote):
        world.scoped([first, second])
    results = [
        unlearn(FineTune(), serve(world, (first, second), local.fresh(1)), 1).params for world in (local, remote)
    ]
    assert_same(*results)


# --- nodes that spoil the round ---------------------------------------------------------------------------------------


def changed_arrays(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        if "params" in reply.content.array_records:
            tensors = change(dict(reply.content.array_records["params"].to_torch_state_dict()))
            reply.content["params"] = ArrayRecord(tensors)
        return reply

    return changed


def with_words(**words: str) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        reply.content["answer"] = ConfigRecord({**reply.content.config_records["answer"], **words})
        return reply

    return changed


def with_counts(**counts: Any) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        if "counts" in reply.content.metric_records and question.metadata.message_type == "train":
            reply.content["counts"] = MetricRecord({**reply.content.metric_records["counts"], **counts})
        return reply

    return changed


SPOILT: dict[str, tuple[Reply, str]] = {
    "nan": (changed_arrays(lambda p: {n: t * float("nan") for n, t in p.items()}), "NaN or infinite"),
    "shape": (changed_arrays(lambda p: {n: t[..., None] for n, t in p.items()}), "has shape"),
    "type": (changed_arrays(lambda p: {n: t.float() for n, t in p.items()}), "float32"),
    "lacking": (changed_arrays(lambda p: dict(list(p.items())[1:])), "lacks the tensor"),
    "wrong plan": (with_words(digest="0" * 32), "another question"),
    "no weight": (with_counts(samples=0), "not positive"),
    "half a row": (with_counts(samples=0.5), "cannot be read"),
    "dropped none": (with_counts(dropped=7), "left out 7 rows, where the requests in force take out 0"),
    "late": (lost, "did not answer within 5 s"),
    "error": (lambda q, r: Message(Error(2, "Traceback\nValueError: oh"), reply_to=q), r"error 2 (ValueError: oh)"),
    "stranger": (lambda q, r: Message(RecordDict({}), reply_to=q), "not made by unfed"),
    "unwilling": (refuse("it does not feel like it"), "does not feel like it"),
}


@pytest.mark.parametrize("how", list(SPOILT))
def test_a_spoilt_answer_is_named_and_the_round_goes_on_without_it(how: str, config: Config, local: World) -> None:
    grid = grid_of(config)
    world = flower_world(config, grid)
    grid.tamper[1002] = SPOILT[how][0]
    server = serve(world, (), local.fresh(1))
    state = server.recover(FineTune().begin(server))
    (refusal,) = server.refusals
    assert (refusal.client, refusal.round) == ("2", 1) and SPOILT[how][1] in refusal.reason
    others = serve(local, (), local.fresh(1))
    assert_same(others.fedavg(others.params, others.plan(1), ["0", "1", "3"]), state.params)


def test_below_the_quorum_the_round_fails_and_says_who(config: Config) -> None:
    grid = grid_of(config)
    world = flower_world(config, grid)
    grid.tamper |= {node: lost for node in (1000, 1001, 1002)}
    server = serve(world, ())
    with pytest.raises(Refused, match="1 usable updates of 4 asked, the quorum is 2 .client 0: it did not answer"):
        server.recover(FineTune().begin(server))


def test_nodes_may_go_and_come_back_under_another_id(config: Config, local: World) -> None:
    grid = grid_of(config)
    world = flower_world(config, grid)
    server = serve(world, (), local.fresh(1))
    away = grid.nodes.pop(1002)
    state = server.recover(FineTune().begin(server))
    assert [(r.client, r.reason) for r in server.refusals] == [("2", "it is not connected")]
    grid.nodes[7] = away
    server.recover(state)
    assert len(server.refusals) == 1 and grid.asked(7, "train")


def test_a_dead_node_costs_one_time_out_not_one_per_round(config: Config) -> None:
    grid = grid_of(config)
    grid.lives = {node: 60.0 for node in grid.nodes}
    server = serve(flower_world(config, grid), ())
    grid.tamper[1002] = lost
    state = FineTune().begin(server)
    for _ in range(2):
        state = server.recover(state)
    assert len(grid.asked(1002, "train")) == 1
    reasons = [r.reason for r in server.refusals]
    assert reasons == ["it did not answer within 5 s", "it did not answer the last time and gave no sign of life since"]
    del grid.tamper[1002]
    grid.lives[1002] = 90.0  # it lives after all
    server.recover(state)
    assert len(server.refusals) == 2 and len(grid.asked(1002, "train")) == 2


def test_a_gradient_that_is_not_given_stops_the_method(config: Config) -> None:
    world = flower_world(config, grid_of(config, allow="forget"))
    server = serve(world, (SCOPES["class"],))
    with pytest.raises(Refused, match="Client 0 did not answer with its gradient: it does not give gradients"):
        server.measure(Measure("gradient", "forget"), server.params, server.owners)


# --- what a client accepts --------------------------------------------------------------------------------------------


def test_by_default_a_client_neither_trains_nor_counts_on_rows_to_be_forgotten(config: Config) -> None:
    world = flower_world(config, grid_of(config, allow=""))
    server = serve(world, (SCOPES["class"],))
    ascent = replace(server.base, view="forget")
    for phase in (ascent, replace(server.base, view="all")):
        with pytest.raises(Refused, match='does not train on rows that are to be forgotten.*allow="forget"'):
            list(server.train(server.plan(0, phase), server.params, ["1"]))
    with pytest.raises(Refused, match="does not measure rows that are to be forgotten"):
        server.measure(Measure(view="forget"), server.params, ["1"])
    assert float(server.measure(Measure(view="val"), server.params, ["1"])["count"]) > 0


def test_where_a_client_has_nothing_to_forget_all_its_rows_are_retained_rows(config: Config) -> None:
    server = serve(flower_world(config, grid_of(config, allow="")), (LEAVES,))
    (block,) = server.train(server.plan(0, replace(server.base, view="all")), server.params, ["1"])
    assert block.clients == ("1",)


def test_a_node_with_another_model_says_so_and_does_not_train(config: Config) -> None:
    world = flower_world(config, grid_of(config))
    other = {name: torch.zeros(2) for name in world.template.like}
    plan = serve(world, ()).plan(1).to_json()
    for kind, body in ((TRAIN, plan), (MEASURE, '[{"what": "correct", "view": "val", "batch": 64}]')):
        ask = Ask(kind, "1", nodes_of(world).shard, body=body, tensors={"params": other})
        (found,) = nodes_of(world).directory.messenger.send({1001: ask}).answers.values()
        assert isinstance(found, Failure) and "The server's model has 'conv1.weight' with shape (2,)" in found.reason


def test_nobody_trains_on_validation_rows(config: Config) -> None:
    server = serve(flower_world(config, grid_of(config)), (LEAVES,))
    with pytest.raises(Refused, match="does not train on validation rows"):
        list(server.train(server.plan(0, replace(server.base, view="val")), server.params, ["1"]))


def test_a_foreign_model_factory_runs_only_where_the_node_names_it(small: Small, allow_code: None) -> None:
    """That the server allows code does not matter to a node."""
    config = small(*DOUBLE, 'model.name="test_flower_engine:tiny"')
    with pytest.raises(Refused, match="which runs code of that module"):
        waiting(config, grid_of(config), 4)
    grid = grid_of(config)
    for node in grid.nodes.values():
        node["model"] = "test_flower_engine:tiny"
    train(flower_world(config, grid), 1)


def test_a_foreign_data_factory_runs_only_where_the_node_names_it(small: Small, allow_code: None) -> None:
    config = small(*DOUBLE, 'data.name="test_flower_engine:pair"')
    with pytest.raises(Refused, match="asks for the data 'test_flower_engine:pair', which runs code of that module"):
        waiting(config, grid_of(config), 4)


def test_sums_that_make_no_sense_are_not_added_up(config: Config, local: World) -> None:
    def nonsense(question: Message, reply: Message) -> Message:
        for name in list(reply.content.metric_records):
            if name.startswith("sums."):
                reply.content[name] = MetricRecord({**reply.content.metric_records[name], "correct": 1e9})
        return reply

    grid = grid_of(config)
    world = flower_world(config, grid, local=local)
    grid.tamper[1002] = nonsense
    found = world.evaluator([LEAVES])(local.fresh(1)).numbers
    assert found["unheard"] == "client 2: it counts more right answers than rows"
    grid.tamper |= {1001: lost, 1003: lost}
    nobody = world.evaluator([LEAVES])(local.fresh(2)).numbers
    assert nobody["retain"] == "not measured: client 1: it did not answer within 5 s"


def tiny(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


def test_a_misspelt_permission_is_answered_with_the_known_ones(config: Config) -> None:
    with pytest.raises(Refused, match="allows 'forgt'.*Did you mean 'forget'"):
        waiting(config, grid_of(config, allow="forgt"), 4)


# --- who is who -------------------------------------------------------------------------------------------------------


def waiting(config: Config, grid: InProcessGrid, minimum: int) -> Directory:
    directory = directory_of(grid, 5.0)
    directory.wait(minimum, describe(config, 0), seconds=0.01, sleep=lambda s: None)
    return directory


def test_no_nodes_and_too_few_nodes_end_after_a_time_out(config: Config) -> None:
    with pytest.raises(Refused, match="Only 0 of 4 clients are there after 0.01 s; start more SuperNodes"):
        waiting(config, InProcessGrid([]), 4)
    with pytest.raises(Refused, match="Only 3 of 4 clients are there after 0.01 s"):
        grid = grid_of(config)
        del grid.nodes[1003]
        waiting(config, grid, 4)


def test_a_leaver_that_is_gone_is_no_error_for_who_does_not_need_it(config: Config, local: World) -> None:
    grid = grid_of(config)
    del grid.nodes[1000]
    world = flower_world(config, grid)
    gone = replace(LEAVES, deleted=True)
    server = serve(world, (gone,), local.fresh(1))
    state = unlearn(NoT(), server, 1)
    assert server.owners == () and server.retained == ("1", "2", "3")
    assert_same(unlearn(NoT(), serve(local, (LEAVES,), local.fresh(1)), 1).params, state.params)
    assert world.evaluator([gone])(state.params).numbers["forget"] == "not measured: data deleted"


def test_who_cannot_be_told_apart_is_not_unlearned(config: Config) -> None:
    grid = grid_of(config)
    grid.nodes[1001]["partition-id"] = 0
    with pytest.raises(Refused, match="'0' cannot be identified: 2 nodes call themselves that"):
        flower_world(config, grid).scoped([LEAVES])
    grid = grid_of(config)
    grid.nodes[1000] = {"loader": "test_flower_engine:three_images"}  # connected, but it does not say who it is
    with pytest.raises(
        Refused, match="cannot be identified: its name did not show up.*node 1000 .*does not say who it is"
    ):
        flower_world(config, grid).scoped([LEAVES])


@pytest.mark.parametrize("in_sight", [True, False])
def test_a_key_that_comes_back_as_somebody_else_is_not_taken_for_who_it_was(in_sight: bool, config: Config) -> None:
    grid = grid_of(config)
    directory, shard = waiting(config, grid, 4), describe(config, 0)
    if in_sight:
        del grid.nodes[1003]
        directory.look(shard)
        grid.nodes[1003] = {"partition-id": 0, "device": "cpu"}
    else:
        grid.restart(1003, **{"partition-id": 0, "device": "cpu"})
    grid.contexts.clear()
    directory.look(shard)
    assert directory.nodes("3") == [] and directory.nodes("0") == [1000, 1003]


def test_a_registered_node_that_comes_back_with_forgotten_data_is_refused(config: Config) -> None:
    grid = grid_of(config)
    grid.names = {1000 + k: name for k, name in enumerate(("north", "east", "south", "west"))}
    del grid.nodes[1000]
    directory = directory_of(grid, 5.0)
    directory.keep_out(["0"])
    directory.wait(3, describe(config, 0), seconds=0.01, sleep=lambda s: None)
    grid.restart(1003, **{"partition-id": 0, "device": "cpu"})
    directory.look(describe(config, 0))
    assert directory.names == ("east", "south")


def test_a_name_that_two_nodes_claim_belongs_to_neither(config: Config) -> None:
    grid = grid_of(config)
    grid.nodes[2000] = dict(grid.nodes[1001])
    server = serve(flower_world(config, grid, order=("0", "1", "2", "3")), (LEAVES,))
    assert [block.clients for block in server.train(server.plan(1), server.params, ["1", "2"])] == [("2",)]
    assert not grid.asked(2000, "train") and not grid.asked(1001, "train")


def test_registered_names_come_before_what_a_node_says(config: Config) -> None:
    grid = grid_of(config)
    grid.names = {1000: "north", 1001: "south"}
    assert waiting(config, grid, 4).names == ("2", "3", "north", "south")
    assert in_order(["10", "9", "a2", "a10"]) == ("9", "10", "a2", "a10")


# --- what a node holds ------------------------------------------------------------------------------------------------


def three_images(node: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(int(node.get("seed", 0)))
    side = int(node.get("side", 8))
    return torch.rand(30, 1, side, side, generator=generator), torch.arange(30) % 3


def own_data(side: int = 8) -> dict[str, Any]:
    return {"loader": "test_flower_engine:three_images", "side": side, "allow": EVERYTHING}


def test_a_users_own_loader_feeds_a_client_and_the_server_needs_no_data(config: Config) -> None:
    grid = InProcessGrid([{**own_data(), "client": name, "seed": i} for i, name in enumerate(("east", "west"))])
    world = flower_world(config, grid)
    nodes = nodes_of(world)
    assert (nodes.shape, nodes.classes, [c.name for c in nodes.clients]) == ((1, 8, 8), 3, ["east", "west"])
    params, _ = train(world, 2)
    found = world.evaluator([])(params).numbers
    assert found["test"] == "not measured: the server holds no test data" and is_measured(found["validation"])


def test_a_node_with_other_images_is_named_and_takes_no_part(config: Config) -> None:
    sides = {"a": 8, "b": 8, "c": 12}
    grid = InProcessGrid([{**own_data(side), "client": name} for name, side in sides.items()])
    world = flower_world(config, grid)
    assert nodes_of(world).refused == {"c": "its samples have the shape (1, 12, 12), the federation's (1, 8, 8)"}
    assert serve(world, ()).retained == ("a", "b")


def test_a_node_whose_partition_or_loader_is_wrong_says_so(config: Config) -> None:
    for node, sentence in (
        ({"partition-id": 9}, "partition-id=9; it must be one of 0 to 3"),
        ({"partition-id": 0, "num-partitions": 7}, "counts 7 partitions, the experiment 4"),
        ({"client": "x", "loader": "nowhere:load"}, "cannot be imported"),
        ({"client": "x", "loader": "builtins:len"}, "returned a int"),
    ):
        with pytest.raises(Refused, match=sentence):
            waiting(config, InProcessGrid([node]), 1)


def test_rows_of_a_client_cannot_be_read_by_the_server(config: Config) -> None:
    world = flower_world(config, grid_of(config))
    with pytest.raises(UnfedError, match="lie at the client"):
        world.clients[0].source.fetch(torch.arange(1))


def test_a_message_of_somebody_else_is_answered_with_a_sentence(config: Config) -> None:
    grid = grid_of(config)
    (reply,) = grid.send_and_receive([Message(RecordDict({}), 1000, "train")])
    assert "was not sent by unfed" in str(reply.content.config_records["answer"]["refused.all"])
    other = RecordDict({"ask": ConfigRecord({"format": 99})})
    (reply,) = grid.send_and_receive([Message(other, 1000, "train")])
    assert "format 99" in str(reply.content.config_records["answer"]["refused.all"])
