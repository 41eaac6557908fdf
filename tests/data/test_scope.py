"""What must leave is marked once, stays marked, and never comes back through a view."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unfed import rng
from unfed.data import ClientData, Request, SampleList, TensorSource, backdoor, iid, mark, split
from unfed.data.scope import own_marks
from unfed.errors import UnfedError


def federation(clients: int = 4, rows: int = 60, classes: int = 3) -> tuple[ClientData, ...]:
    source = TensorSource(torch.zeros(rows, 1, 8, 8, dtype=torch.uint8), torch.arange(rows) % classes)
    dealt = iid(source.labels, clients, seed=5).rows
    return tuple(
        ClientData(f"client-{k}", source, own, *split(len(own), rng.key(5, "split", k))) for k, own in enumerate(dealt)
    )


def positions(client: ClientData, view: str) -> set[int]:
    return set(client.view(view).tolist())


def leaves(clients: tuple[ClientData, ...]) -> list[list[bool]]:
    return [client.forget.tolist() for client in clients]


def test_the_views_of_a_hand_made_client() -> None:
    source = TensorSource(torch.zeros(9, 1), torch.arange(9))
    marks = torch.tensor([True, False, True, False, True])
    own = ClientData("a", source, torch.tensor([8, 6, 4, 2, 0]), torch.tensor([0, 1, 3]), torch.tensor([2, 4]), marks)
    assert {v: own.view(v).tolist() for v in ("retain", "forget", "all", "val")} == {
        "retain": [1, 3],
        "forget": [0],
        "all": [0, 1, 3],
        "val": [],
    }
    assert own.labels.tolist() == [8, 6, 4, 2, 0]


def requests() -> st.SearchStrategy[Request]:
    names = st.sampled_from([f"client-{k}" for k in range(3)])  # client-3 always stays
    return st.one_of(
        st.builds(lambda n: Request("a", clients=(n,)), names),
        st.builds(lambda c: Request("b", classes=(c,)), st.integers(0, 1)),
        st.builds(lambda f: Request("c", fraction=f), st.floats(0.1, 0.5)),
        st.just(Request("d", samples=(("client-1", 0), ("client-1", 1), ("client-1", 2), ("client-1", 3)))),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(requests(), max_size=3), st.integers(0, 5))
def test_a_retain_view_never_yields_a_forgotten_row(asked: list[Request], seed: int) -> None:
    for client in mark(federation(), asked, seed):
        forgotten = {p for p, gone in enumerate(client.forget.tolist()) if gone}
        assert not positions(client, "retain") & forgotten and not positions(client, "val") & forgotten
        assert positions(client, "forget") <= forgotten
        assert positions(client, "retain") | positions(client, "forget") == positions(client, "all")
        assert not positions(client, "retain") & positions(client, "forget")
        assert not positions(client, "all") & positions(client, "val")


@settings(max_examples=40, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=3), st.integers(0, 5))
def test_marking_is_idempotent_and_does_not_depend_on_the_order_of_requests(asked: list[Request], seed: int) -> None:
    once = mark(federation(), asked, seed)
    assert leaves(mark(once, asked, seed)) == leaves(once)
    assert leaves(mark(federation(), asked[::-1], seed)) == leaves(once)
    step_by_step = federation()
    for request in asked:
        step_by_step = mark(step_by_step, [request], seed)
    assert leaves(step_by_step) == leaves(once)


def test_nothing_is_forgotten_without_a_request() -> None:
    assert not any(client.forget.any() for client in mark(federation(), [], 0))


def test_a_client_request_marks_all_its_rows_and_touches_nobody_else() -> None:
    before = federation()
    after = mark(before, [Request("r", clients=("client-2",))], 0)
    assert bool(after[2].forget.all()) and len(after[2].view("retain")) == 0 and len(after[2].view("val")) == 0
    assert [new is old for new, old in zip(after, before, strict=True)] == [True, True, False, True]
    assert not before[2].forget.any()


def test_a_class_request_marks_by_label_in_every_client() -> None:
    for client in mark(federation(), [Request("r", classes=(1,))], 0):
        assert torch.equal(client.forget, client.labels == 1)
        assert 1 not in client.labels[client.view("val")].tolist()


def test_a_class_request_goes_by_the_label_the_client_holds() -> None:
    clean = federation()
    assert isinstance(clean[0].source, TensorSource)
    poisoned = backdoor(clean[0].source, clean[0].rows[clean[0].train], 2, seed=0)
    clients = [ClientData(c.name, poisoned, c.rows, c.train, c.val) for c in clean]
    first = mark(clients, [Request("r", classes=(2,))], 0)[0]
    assert int(first.forget.sum()) > int((clean[0].labels == 2).sum())
    assert torch.equal(first.forget, poisoned.labels[first.rows] == 2)


def test_a_fraction_takes_that_part_of_every_clients_training_rows() -> None:
    for client in mark(federation(), [Request("r", fraction=0.25)], 0):
        assert len(client.train) == 12 and len(client.view("forget")) == 3 == int(client.forget.sum())
    for client in mark(federation(), [Request("r", fraction=0.24)], 0):
        assert len(client.view("forget")) == 2 == math.floor(0.24 * 12)


def test_a_fraction_of_less_than_one_row_takes_none_and_where_nobody_has_one_it_is_refused() -> None:
    source = TensorSource(torch.zeros(30, 1), torch.zeros(30, dtype=torch.int64), classes=2)
    few, many = (ClientData(str(n), source, torch.arange(n), torch.arange(n), torch.arange(0)) for n in (3, 30))
    marked = mark([few, many], [Request("r", fraction=0.1)], 0)
    assert [int(client.forget.sum()) for client in marked] == [0, 3]
    assert int(own_marks(few, [Request("r", fraction=0.1)], 0).sum()) == 0
    with pytest.raises(UnfedError, match="less than one of 30; ask for a larger"):
        mark([few, many], [Request("r", fraction=0.01)], 0)


def test_a_fraction_is_of_the_training_rows_not_of_all_rows() -> None:
    """Half of 12 training rows is 6; of the client's 15 rows it would be 7."""
    for client in mark(federation(), [Request("r", fraction=0.5)], 0):
        assert (len(client.rows), len(client.train)) == (15, 12)
        assert int(client.forget.sum()) == len(client.view("forget")) == 6


def test_a_fraction_is_drawn_from_the_request_id_and_the_seed() -> None:
    drawn = leaves(mark(federation(), [Request("r", fraction=0.5)], 0))
    assert drawn == leaves(mark(federation(), [Request("r", fraction=0.5)], 0))
    assert drawn != leaves(mark(federation(), [Request("s", fraction=0.5)], 0))
    assert drawn != leaves(mark(federation(), [Request("r", fraction=0.5)], 1))
    assert len({tuple(marks) for marks in drawn}) > 1


def test_named_samples_are_marked_whether_they_train_or_validate() -> None:
    own = federation()[1]
    train, val = int(own.train[0]), int(own.val[0])
    marked = mark(federation(), [Request("r", samples=(("client-1", train), ("client-1", val)))], 0)[1]
    assert positions(marked, "forget") == {train} and val not in positions(marked, "val")
    assert int(marked.forget.sum()) == 2


VAL = int(federation()[0].val[0])


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            Request("r", clients=("client-9",)),
            "client 'client-9', which is not among the 4 clients of this federation: ",
        ),
        (Request("r", samples=(("bob", 0),)), "client 'bob', which is not among the 4 clients"),
        (Request("r", classes=(0, 7)), "class 7, which none of the 4 clients holds"),
        (Request("r", samples=(("client-1", 15),)), "position 15 of client 'client-1', which holds 15 rows"),
        (Request("r", samples=(("client-0", VAL),)), "names no training row, so its forget set is empty"),
        (
            Request("r", clients=tuple(f"client-{k}" for k in range(4))),
            "every training row of every client; ask for less",
        ),
        (Request("r", classes=(0, 1, 2)), "every training row of every client; ask for less"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(request_: Request, sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        mark(federation(), [request_], 0)


def test_clients_with_equal_places_draw_places_of_their_own() -> None:
    source = TensorSource(torch.zeros(80, 1), torch.arange(80) % 2)
    places = torch.arange(40)
    clients = [ClientData(name, source, 40 * k + places, places, places[:0]) for k, name in enumerate("ab")]
    first, second = leaves(mark(clients, [Request("r", fraction=0.5)], 0))
    assert first != second and sum(first) == sum(second) == 20


def test_requests_that_together_remove_everyone_are_refused() -> None:
    left = mark(federation(2), [Request("a", clients=("client-0",))], 0)
    with pytest.raises(UnfedError, match="every training row of every client; ask for less"):
        mark(left, [Request("b", clients=("client-1",))], 0)


def test_an_unknown_view_and_misshapen_marks_are_refused() -> None:
    own = federation()[0]
    with pytest.raises(UnfedError, match=r"There is no view 'retian'; .* Did you mean 'retain'"):
        own.view("retian")
    with pytest.raises(UnfedError, match="'client-0' needs 15 boolean forget marks"):
        ClientData(own.name, own.source, own.rows, own.train, own.val, torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (Request("r", clients=("a", "b")), "client"),
        (Request("r", classes=(0, 3)), "class"),
        (Request("r", samples=(("a", 4), ("b", 0))), "instance"),
        (Request("r", fraction=0.1), "instance"),
    ],
)
def test_a_request_travels_as_json(asked: Request, kind: str) -> None:
    assert asked.kind == kind
    assert Request.from_json(json.loads(json.dumps(asked.to_json()))) == asked


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"clients": ["a"]}, "A request needs an id"),
        ({"id": 3, "clients": ["a"]}, "A request needs an id"),
        ({"id": "r"}, "names nothing to forget; give exactly one of clients, classes, samples, rows or fraction"),
        ({"id": "r", "clients": ["a"], "classes": [1]}, "gives clients and classes; give exactly one of"),
        ({"id": "r", "samples": [["a", 1]], "fraction": 0.1}, "gives samples and fraction; give exactly one of"),
        ({"id": "r", "fraction": 1.0}, "fraction 1.0; it must lie between 0 and 1"),
        ({"id": "r", "fraction": "half"}, "fraction must be a number between 0 and 1, not 'half'"),
        ({"id": "r", "clients": "a"}, "clients must be a list of client names, not 'a'"),
        ({"id": "r", "classes": [-1]}, "classes must be a list of class numbers"),
        ({"id": "r", "classes": [True]}, "classes must be a list of class numbers"),
        ({"id": "r", "samples": [["a"]]}, "samples must be a list of pairs"),
        ({"id": "r", "client": ["a"]}, "has no field 'client'; .* Did you mean 'clients'"),
        (["r"], "A request is a table"),
    ],
)
def test_a_malformed_request_is_refused(data: Any, sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        Request.from_json(data)


def test_a_text_is_not_taken_for_the_clients_that_its_letters_name() -> None:
    """`clients="10"` left client 10 in and took clients 1 and 0 out."""
    wrong: tuple[dict[str, Any], ...] = (
        {"clients": "10"},
        {"clients": (1,)},
        {"classes": "3"},
        {"rows": (1.5,)},
        {"samples": ("a", 1)},
        {"samples": (("a", -1),)},
    )
    for asked in wrong:
        with pytest.raises(UnfedError, match=r"must be a list of .*, not "):
            Request("r", **asked)
    assert Request("r", clients=["10"]) == Request("r", clients=("10",))  # type: ignore[arg-type]
    own = Request("r", rows=tuple(np.array([3, 5, 9])))
    assert own.rows == (3, 5, 9) and json.dumps(own.to_json()), "numbers of NumPy's travel too"
    assert Request("r", rows=range(3)).rows == (0, 1, 2)  # type: ignore[arg-type]


def test_a_sample_list_is_read_in_order(tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    file.write_text('\ufeffclient,position\n"Smith, J",0\nb, 12\n\na,3\n', encoding="utf-8")
    assert SampleList.read(file).samples == (("Smith, J", 0), ("b", 12), ("a", 3))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty; write the header"),
        ("client,position\n", "has a header and no sample"),
        ("a,1\nb,2\n", "Line 1 of .* is 'a,1'; write the header `row` or `client,position` there"),
        ("client;position\na;1\n", "Line 1 of .* is 'client;position'; write the header `row` or `client"),
        ("client,position\na,1\nb,two\n", "Line 3 of .* has the position 'two'"),
        ("client,position\na,-1\n", "Line 2 of .* has the position '-1'"),
        ("client,position\na,1.0\n", "Line 2 of .* has the position '1.0'"),
        ("client,position\na\n", "Line 2 of .* must hold a client and a position"),
        ("client,position\n,1\n", "Line 2 of .* must hold a client and a position"),
        ("client,position\na,1\nb,1\na,1\n", "Line 4 of .* repeats line 2"),
    ],
)
def test_a_malformed_sample_list_is_refused_by_line(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "samples.csv").write_text(text)
    with pytest.raises(UnfedError, match=sentence):
        assert SampleList.read(tmp_path / "samples.csv").samples


def test_a_sample_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match=r"cannot be read .No such file"):
        assert SampleList.read(tmp_path / "missing.csv").samples
    (tmp_path / "binary.csv").write_bytes(b"client,position\n\xff\xfe,1\n")
    with pytest.raises(UnfedError, match=r"cannot be read .*UTF-8"):
        assert SampleList.read(tmp_path / "binary.csv").samples
