"""Staying out: who was forgotten is asked by no later run of the federation, under whatever node id."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_grid import EVERYTHING, InProcessGrid, echoing, foreign_grid
from test_flower_app import nodes, values
from unfed.errors import UnfedError
from unfed.flower import SubsetGrid, Unlearn, denied, node_with
from unfed.flower.server import run as serve
from unfed.remote.options import Options
from unfed.runs.run import Run
from unfed.runs.simulated import simulated


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over Flower from which client 0 was taken out."""
    folder = tmp_path_factory.mktemp("left") / "run"
    grid = nodes()
    for mode in ("train", "unlearn"):
        serve(grid, short(folder, mode=mode))
    return folder


def short(folder: Path, **changes: Any) -> dict[str, Any]:
    small = {"experiment.training.rounds": 1, "experiment.unlearning.rounds": 1, "min-nodes": 2, "methods": "ft"}
    return {**values(folder), **small, **{key.replace("_", "-"): value for key, value in changes.items()}}


def kinds(grid: InProcessGrid, node: int) -> set[str]:
    return {message.metadata.message_type for message in grid.asked(node)}


def newcomer(grid: InProcessGrid, number: int, partition: int, registered: str = "") -> None:
    grid.nodes[number] = {"device": "cpu", "allow": EVERYTHING, "partition-id": partition}
    grid.names |= {number: registered} if registered else {}


# --- unfed's own app --------------------------------------------------------------------------------------------------


def test_a_forgotten_client_that_comes_back_under_a_new_id_is_not_asked_in_a_new_run(
    left: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = nodes()
    newcomer(grid, 7, 0)
    del grid.nodes[1000]
    with caplog.at_level(logging.WARNING, "flwr"):
        run = serve(grid, short(tmp_path / "next", mode="train", deny=str(left)))
    assert kinds(grid, 7) == {"query"} and len(grid.asked(7)) == 1, "who it is, and nothing else"
    assert all(kinds(grid, node) == {"query", "train", "evaluate"} for node in (1001, 1002, 1003))
    assert {name for line in run.lines() for names in line["asked"].values() for name in names} == {"1", "2", "3"}
    assert "node 7 goes by '0', which was forgotten" in caplog.text and "flwr supernode unregister 7" in caplog.text


def test_a_registered_name_on_the_list_is_not_even_asked_who_it_is_and_second_keys_are_found(
    left: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = nodes()
    grid.names = {1000: "0", 1001: "1", 1002: "2", 1003: "3"}
    newcomer(grid, 7, 0, "0")  # a second key of the same name
    newcomer(grid, 8, 0, "other")  # a key of another name, with the leaver's config
    with caplog.at_level(logging.WARNING, "flwr"):
        serve(grid, short(tmp_path / "next", mode="train", deny=str(left)))
    assert grid.asked(1000) == grid.asked(7) == [] and kinds(grid, 8) == {"query"}
    assert "3 nodes went by the forgotten name '0': 1000, 7, 8" in caplog.text


def test_the_list_goes_on_when_the_run_is_resumed_and_in_the_run_after_it(left: Path, tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, short(tmp_path / "next", mode="train", deny=str(left)))
    serve(grid, short(tmp_path / "next", mode="unlearn", deny=str(left), forget_clients="3"))
    serve(grid, {"resume-from": str(tmp_path / "next"), "min-nodes": 2, "wait-seconds": 0.01})
    run = serve(grid, short(tmp_path / "third", mode="train", deny=str(tmp_path / "next")))
    assert run.config.deny.clients == ("0", "3") and kinds(grid, 1000) == {"query"}
    with pytest.raises(UnfedError, match="began with another deny list .*next., which cannot change; begin a new run"):
        serve(grid, {"resume-from": str(tmp_path / "third"), "deny": str(left), "wait-seconds": 0.01})


def test_a_request_for_somebody_who_left_before_is_one_sentence(left: Path, tmp_path: Path) -> None:
    serve(nodes(), short(tmp_path / "next", mode="train", deny=str(left)))
    with pytest.raises(UnfedError, match="Client '0' of request 'client-0' was forgotten before this run began"):
        serve(nodes(), short(tmp_path / "next", mode="unlearn"))


def test_denied_classes_are_left_out_by_the_nodes_themselves_and_they_learn_no_names(tmp_path: Path) -> None:
    """As the simulation does it: the same rows, and nobody else's name on the way."""
    sets = "deny.classes=[7]; deny.clients=['2']"
    grid = nodes()
    run = serve(grid, short(tmp_path / "next", mode="train", set=sets))
    here = {c.name: len(c.train) for c in simulated(Options.of(short(tmp_path, set=sets)).config(), 0).clients}
    there = {client.name: len(client.train) for client in run.world(0).clients}
    assert there == {name: count for name, count in here.items() if name != "2"} and here["2"] == 0
    shards = {str(m.content.config_records["ask"]["shard"]) for m in grid.sent}
    assert all("classes" in json.loads(text)["config"]["deny"] for text in shards)
    assert not any("clients" in json.loads(text)["config"]["deny"] for text in shards)


def test_a_file_of_names_is_a_list_too(tmp_path: Path) -> None:
    file, grid = tmp_path / "left.txt", nodes()
    file.write_text("# left in May\n0\n\n3\n")
    run = serve(grid, short(tmp_path / "next", mode="train", deny=str(file)))
    assert run.config.deny.clients == ("0", "3")
    file.write_text("# nobody\n")
    with pytest.raises(UnfedError, match="left.txt has no name in it; write one client per line"):
        serve(grid, short(tmp_path / "other", mode="train", deny=str(file)))


def test_single_rows_that_cannot_be_recognised_are_refused_and_not_let_in(tmp_path: Path) -> None:
    grid, listed = nodes(), tmp_path / "ids.csv"
    listed.write_text("client,position\n1,3\n")
    serve(grid, short(tmp_path / "run", mode="train"))
    serve(grid, short(tmp_path / "run", mode="unlearn", forget_clients="", forget_samples=str(listed)))
    with pytest.raises(UnfedError, match="single samples, which cannot be recognised elsewhere"):
        serve(grid, short(tmp_path / "next", mode="train", deny=str(tmp_path / "run")))
    rows = f"deny.rows=['{'a' * 64}']"
    with pytest.raises(UnfedError, match="has 1 single rows, which cannot be recognised at nodes"):
        serve(grid, short(tmp_path / "next", mode="train", set=rows))


# --- a foreign app ----------------------------------------------------------------------------------------------------


def federation(count: int = 4, names: Sequence[str] = (), app: ClientApp | None = None) -> InProcessGrid:
    grid = foreign_grid(count, app)
    grid.names = dict(zip(grid.nodes, names, strict=False))
    return grid


ARRAYS = ArrayRecord({"w": torch.ones(2)})


def test_a_later_training_of_a_foreign_app_does_not_ask_the_forgotten(left: Path) -> None:
    grid = federation()
    grid.nodes[7] = grid.nodes.pop(1000)
    FedAvg().start(SubsetGrid(grid, deny=left), ARRAYS, num_rounds=1)
    assert kinds(grid, 7) == {"query.unfed"} and kinds(grid, 1001) == {"query.unfed", "train", "evaluate"}


def test_unlearning_another_client_keeps_the_first_out_as_well(tmp_path: Path) -> None:
    file, grid = tmp_path / "left.txt", federation()
    file.write_text("0\n")
    Unlearn(FedAvg, None, [node_with(partition_id=3), denied(file)], ledger=None).start(grid, ARRAYS, num_rounds=1)
    asked = {node for node in grid.nodes if kinds(grid, node) & {"train", "evaluate"}}
    assert asked == {1001, 1002}


def test_second_keys_of_a_registered_name_are_named_and_apps_without_introduce_are_held_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silent = ClientApp()
    silent.train()(lambda message, context: echoing()(message, context))
    silent.evaluate()(lambda message, context: echoing()(message, context))
    file, grid = tmp_path / "left.txt", federation(5, ("north", "south", "north", "east", "west"), silent)
    file.write_text("north\n")
    with caplog.at_level(logging.WARNING, "flwr"):
        FedAvg().start(SubsetGrid(grid, deny=file), ARRAYS, num_rounds=1)
    assert grid.asked(1000) == grid.asked(1002) == [] and "train" in kinds(grid, 1001)
    assert "2 nodes went by the forgotten name 'north': 1000, 1002" in caplog.text


def test_nodes_that_nobody_can_name_are_an_error_and_nobody_need_be_found(tmp_path: Path) -> None:
    file = tmp_path / "left.txt"
    file.write_text("north\n")
    grid = federation()
    SubsetGrid(grid, deny=file, wait=0).settle()  # north is not there, which is well
    with pytest.raises(UnfedError, match="4 of 4 connected nodes might be it. Of the first: its client app"):
        SubsetGrid(federation(app=ClientApp()), deny=file, wait=0).settle()
    with pytest.raises(UnfedError, match="exclude is empty"):
        SubsetGrid(grid)


def test_a_run_of_unfeds_own_keeps_its_leavers_out_of_a_simulation(left: Path, tmp_path: Path) -> None:
    config = Options.of(short(tmp_path / "next", mode="train", deny=str(left))).config()
    assert Run.create(config, tmp_path / "next").config.deny.clients == ("0",)


# --- nodes by name, without any unlearning ----------------------------------------------------------------------------


def trained(grid: InProcessGrid, **lists: Any) -> set[int]:
    """Train one round over a subset; who was asked to train or to evaluate."""
    alone = FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    alone.start(SubsetGrid(grid, wait=0, **lists), ARRAYS, num_rounds=1)
    return {node for node in grid.nodes if kinds(grid, node) & {"train", "evaluate"}}


@pytest.mark.parametrize(
    ("lists", "found"),
    [
        ({"allow": ["north", "south"]}, {1000, 1001}),
        ({"deny": ["north"]}, {1001, 1002, 1003}),
        ({"allow": ["north", "south", "east"], "deny": ["east"]}, {1000, 1001}),
    ],
)
@pytest.mark.parametrize("by", ["key", "config"])
def test_nodes_take_part_or_not_by_their_names(by: str, lists: dict[str, Any], found: set[int]) -> None:
    grid, names = federation(), ("north", "south", "east", "west")
    if by == "key":
        grid = federation(names=names)
    else:
        grid.nodes = {node: {"client": name} for node, name in zip(grid.nodes, names, strict=True)}
    assert trained(grid, **lists) == found


@pytest.mark.parametrize("option", ["allow", "deny"])
def test_a_name_that_no_node_has_is_refused_with_the_names_there_are(option: str) -> None:
    grid = federation(3, names=("north", "south", "east"))
    with pytest.raises(UnfedError, match=r"The node 'nrth' is not among the 3 .*name one of east, north or south"):
        trained(grid, **{option: ["south", "nrth"]})
    assert grid.asked(1000, "train", "evaluate") == []
    if option == "deny":
        assert trained(grid, deny=["nrth"], gone=True) == {1000, 1001, 1002}


def test_a_node_cannot_claim_the_name_of_another_key_to_be_allowed() -> None:
    grid = federation(3, names=("north", "south", "east"))
    grid.nodes[1002] = {"client": "north"}
    assert trained(grid, allow=["north"]) == {1000}
    assert trained(federation(3, names=("north", "south", "east")), deny=["2"]) == {1000, 1001}


def test_who_is_not_on_the_list_is_neither_listed_nor_spoken_to_nor_heard_even_if_it_joins_later() -> None:
    grid = federation(3, names=("north", "south", "east"))
    subset = SubsetGrid(grid, allow=["north"], wait=0)
    assert list(subset.get_node_ids()) == [1000]
    grid.nodes[7], grid.names[7] = {"partition-id": 9}, "west"
    grid.nodes[8], grid.names[8] = {"partition-id": 0}, "north"  # a second machine with a key of that name
    assert list(subset.get_node_ids()) == [1000, 8] == [node.node_id for node in subset.get_nodes()]
    message = Message(RecordDict({}), 7, "train")
    with pytest.raises(UnfedError, match="Node 7 is not on the allow list"):
        subset.send_and_receive([message])
    for reply in (Message(RecordDict({}), reply_to=message), Message(Error(1, "gone"), reply_to=message)):
        grid.send_and_receive = lambda messages, timeout=None, reply=reply: [reply]  # type: ignore[method-assign, misc]
        assert subset.send_and_receive([]) == []


@pytest.mark.parametrize("option", ["allow", "deny"])
def test_a_list_without_names_and_nodes_without_names_are_one_sentence_each(option: str) -> None:
    lists: tuple[Any, ...] = ([], [1000], ["north", None])
    for wrong in lists:
        with pytest.raises(UnfedError, match=rf"{option} takes a list of node names, such as {option}="):
            SubsetGrid(federation(), **{option: wrong})
    with pytest.raises(UnfedError, match="allow takes a list of node names"):
        SubsetGrid(federation(), allow="north")
    with pytest.raises(UnfedError, match=r"4 of 4 connected nodes might be it.*introduce\(ClientApp\(\)\)"):
        trained(federation(app=ClientApp()), **{option: ["north"]})
