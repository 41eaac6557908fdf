"""Questions and answers as bytes: they come through whole, and damaged bytes are the refusal of their sender."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from unfed.remote.client import answered
from unfed.remote.codec import decode_ask, decode_reply, encode_answer, encode_ask
from unfed.remote.messages import CENSUS, TRAIN, Answer, Ask, Failure, Reply
from unfed.remote.transport import Connected, Messenger, Replies

ASK = Ask(CENSUS, "0", "{}")
LOG = logging.getLogger("test")


class OneNode:
    """A transport to one node that answers with whatever bytes it is made with."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer, self.asked = answer, b""

    def nodes(self) -> list[Connected]:
        return [Connected(1)]

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        self.asked = encode_ask(asks[1])
        answer = (
            encode_answer(answered(lambda: decode_ask(self.asked), {}, LOG)) if self.answer is None else self.answer
        )
        return Replies({1: decode_reply(answer)}, len(self.asked) + len(answer))


def test_a_question_and_its_answer_come_through_whole() -> None:
    """Types, shapes, orders and tensors that share memory; and every byte is counted."""
    whole = torch.arange(6.0, dtype=torch.float64)
    group = {"b": whole[:3], "a": whole.reshape(2, 3).T, "n": torch.tensor(7), "e": torch.zeros(0, 3).bool()}
    ask = Ask(TRAIN, "0", "{}", body="é", tensors={"params": group, "context.t": {"w": whole.half()}})
    node = OneNode(encode_answer(Answer({"digest": ask.digest}, {"counts": {"rows": 3}}, ask.tensors)))
    delivery = Messenger(node, 30.0).send({1: ask})
    seen, reply = decode_ask(node.asked), delivery.answers[1]
    assert isinstance(reply, Reply) and reply.numbers == {"counts": {"rows": 3}}
    assert (seen.words, list(seen.tensors["params"])) == (ask.words, ["b", "a", "n", "e"])
    for name, tensor in group.items():
        found = reply.arrays["params"][name].read(name)
        assert found.dtype == tensor.dtype and torch.equal(found, tensor)
        assert torch.equal(seen.tensors["params"][name], tensor)
    once = sum(t.nbytes for own in ask.tensors.values() for t in own.values())
    assert delivery.traffic.wire_bytes == 2 * once < delivery.traffic.serialised_bytes


def message(words: Any, **tensors: torch.Tensor) -> bytes:
    return safetensors.torch.save(tensors, {"unfed": json.dumps(words)})


W = torch.zeros(2)
NO_MESSAGE = "it sent something that is no message of unfed's"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"\x80\x04" + bytes(20), NO_MESSAGE),
        (b"unf1", NO_MESSAGE),
        (safetensors.torch.save({"0": W}), NO_MESSAGE),
        (safetensors.torch.save({}, {"unfed": "{]"}), NO_MESSAGE),
        (message({"numbers": {}, "arrays": []})[:-1], NO_MESSAGE),
        (message([1]), NO_MESSAGE),
        (message({"numbers": {}, "arrays": ["w"]}), NO_MESSAGE),
        (message({"numbers": {}, "arrays": [["p", "w"]]}, **{"0": W})[:-1], NO_MESSAGE),
        (message({"arrays": []}), "the numbers of its answer are no table"),
        (message({"numbers": {}, "arrays": [["p", "w"]]}), "holds others"),
        (message({"numbers": {}, "arrays": []}, **{"0": W}), "names 0 tensors and holds others"),
        (message({"numbers": {}, "arrays": []}), "was not made by unfed"),
    ],
)
def test_an_answer_that_is_none_is_its_senders_refusal(answer: bytes, sentence: str) -> None:
    found = Messenger(OneNode(answer), 30.0).send({1: ASK}).answers[1]
    assert isinstance(found, Failure) and sentence in found.reason


WHOLE = encode_answer(Answer({"digest": "x"}, {"counts": {"n": 1}}, {"params": {"w": torch.arange(6.0)}}))


@given(st.data())
def test_whatever_comes_is_an_answer_or_one_sentence(data: st.DataObject) -> None:
    """Bytes changed, cut and put in anywhere: reading them never ends in any other way, nor in more than came."""
    place = data.draw(st.integers(0, len(WHOLE)))
    more = data.draw(st.binary(max_size=20))
    reply = decode_reply(WHOLE[:place] + more + WHOLE[place + data.draw(st.integers(0, 20)) :])
    assert (
        isinstance(reply, Failure)
        or sum(len(packed.data) for group in reply.arrays.values() for packed in group.values()) <= len(WHOLE) + 20
    )


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (ASK, "What the server says of the experiment cannot be read"),
        (Ask("dance", "0", "{}"), "asked for 'dance', which it does not know; it knows train, measure"),
        (Ask(TRAIN, "0", "null"), "cannot be read"),
    ],
)
def test_a_client_refuses_what_is_no_question(ask: Ask, sentence: str) -> None:
    """A mistake in a question is its answer."""
    found = Messenger(OneNode(None), 30.0).send({1: ask}).answers[1]
    assert isinstance(found, Failure) and sentence in found.reason


def test_bytes_that_are_no_question_are_refused_by_the_client() -> None:
    refused = answered(lambda: decode_ask(b"unf1 and no more"), {}, LOG).words["refused.all"]
    assert NO_MESSAGE in refused
