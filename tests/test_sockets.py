"""Lines to plain processes: who has no token is not let in, what is no frame is refused, and nothing is waited for in
vain. The workers here are this process with a socket in its hand; `test_transports.py` has real ones."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from unfed.cli.main import app as cli
from unfed.errors import UnfedError
from unfed.remote import frames, worker
from unfed.remote.frames import USUAL, Limits
from unfed.remote.messages import CENSUS, TRAIN, Answer, Ask, Reply
from unfed.remote.replies import Failure, Unreadable
from unfed.remote.sockets import Workers
from unfed.remote.transport import Messenger

ASK = Ask(CENSUS, "0", "{}")


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(limits=Limits(10_000, 10_000)) as found:
        yield found


def joined(workers: Workers) -> socket.socket:
    """A line that has shown the token, once the server knows it."""
    before = len(workers.nodes())
    line = worker.joined(workers.address, workers.token)
    while len(workers.nodes()) == before:
        threading.Event().wait(0.01)
    return line


def answers(line: socket.socket, how: Callable[[int], bytes]) -> threading.Thread:
    """Answer one question in some way, in the background."""

    def work() -> None:
        number: Any = frames.read(line.recv, USUAL).words["number"]
        if found := how(number):
            line.sendall(found)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def ended(line: socket.socket) -> bool:
    """Whether the other end closes the line without another word."""
    try:
        return line.recv(1) == b""
    except ConnectionError:  # so ends a line on which something was left unread
        return True


def test_a_question_and_its_answer_come_through_whole(workers: Workers) -> None:
    """Types, shapes, orders and tensors that share memory; and every byte is counted."""
    whole = torch.arange(6.0, dtype=torch.float64)
    group = {"b": whole[:3], "a": whole.reshape(2, 3).T, "n": torch.tensor(7), "e": torch.zeros(0, 3).bool()}
    ask = Ask(TRAIN, "0", "{}", body="é", tensors={"params": group, "context.t": {"w": whole.half()}})
    seen: list[Ask] = []

    def how(line: socket.socket) -> None:
        came = frames.read(line.recv, USUAL)
        seen.append(frames.ask_of(came))
        answer = Answer({"digest": seen[0].digest}, {"counts": {"rows": 3}}, dict(seen[0].tensors))
        line.sendall(frames.answer_frame(answer, came.words["number"]))

    with joined(workers) as line:
        thread = threading.Thread(target=how, args=(line,))
        thread.start()
        (node,) = workers.nodes()
        delivery = Messenger(workers, 30.0).send({node.id: ask})
        thread.join()
    reply = delivery.answers[node.id]
    assert isinstance(reply, Reply) and reply.numbers == {"counts": {"rows": 3}}
    assert (seen[0].words, list(seen[0].tensors["params"])) == (ask.words, ["b", "a", "n", "e"])
    for name, tensor in group.items():
        found = reply.arrays["params"][name].read(name)
        assert found.dtype == tensor.dtype and torch.equal(found, tensor)
    once = sum(t.nbytes for own in ask.tensors.values() for t in own.values())
    assert delivery.traffic.wire_bytes == 2 * once < delivery.traffic.serialised_bytes


def test_who_does_not_know_the_token_is_not_let_in(workers: Workers) -> None:
    with pytest.raises(UnfedError, match="has another token; check the port and the token"):
        worker.work(workers.address, "a guess", {})
    assert workers.nodes() == []


def test_a_server_that_does_not_know_the_token_is_told_nothing() -> None:
    """A worker answers no question of somebody who merely listens at the port."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def listens() -> None:
            line, _ = impostor.accept()
            with line:
                line.sendall(frames.frame({"nonce": "1"}))
                frames.read(line.recv, USUAL)
                line.sendall(frames.frame({"proof": "0" * 64}) + frames.ask_frame(ASK, 1, {}))
                assert ended(line)

        thread = threading.Thread(target=listens)
        thread.start()
        with pytest.raises(UnfedError, match="is no server of unfed's, or has another token"):
            worker.work(f"127.0.0.1:{impostor.getsockname()[1]}", "secret", {})
        thread.join()


HEAD = struct.Struct("<4sIQ")


@pytest.mark.parametrize(
    "knock",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD.pack(b"unf1", 2**31, 0),
        HEAD.pack(b"unf1", 3, 0) + b"[1]",
        frames.frame({}),
        frames.frame({"nonce": "1", "proof": "0" * 64}),
        b"",
    ],
    ids=["a browser", "two gigabytes of words", "no table", "no proof", "a wrong proof", "nothing"],
)
def test_whatever_else_knocks_is_let_go(knock: bytes, workers: Workers) -> None:
    with socket.create_connection(("127.0.0.1", workers.port)) as stranger:
        frames.read(stranger.recv, USUAL)
        stranger.sendall(knock)
        with contextlib.suppress(OSError):  # it may have been let go by now
            stranger.shutdown(socket.SHUT_WR)
        assert ended(stranger)
    assert workers.nodes() == []


TENSORS = frames._packed({"params": {"w": torch.zeros(2)}})


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (lambda n: b"\x80\x04" + bytes(20), "is no frame"),
        (lambda n: HEAD.pack(b"unf1", 2, 2**40), "it announced 2 bytes of words and 1099511627776 of tensors; at most"),
        (lambda n: frames.frame({"number": n}), "the numbers of its answer are no table"),
        (lambda n: frames.frame({"number": n, "numbers": {}, "arrays": ["w"]}), "have no names"),
        (lambda n: frames.frame({"number": n, "numbers": {}, "arrays": [["p", "w"]]}), "holds others"),
        (lambda n: frames.frame({"number": n, "numbers": {}, "arrays": [["p", "w"]]}, TENSORS[:-1]), "cannot be read"),
        (
            lambda n: frames.frame({"number": n, "numbers": {}, "arrays": []}, TENSORS),
            "names 0 tensors and holds others",
        ),
        (lambda n: frames.frame({"number": n, "numbers": {}, "arrays": []}), "was not made by unfed"),
        (lambda n: frames.frame({"number": n, "failed": "ValueError: \x1b[2J"}), "it failed (ValueError: ?[2J)"),
        (lambda n: b"unf1", "it went away before it answered"),
    ],
)
def test_an_answer_that_is_none_is_its_senders_refusal(
    how: Callable[[int], bytes], sentence: str, workers: Workers
) -> None:
    with joined(workers) as line:
        (node,) = workers.nodes()

        def cut(number: int) -> bytes:
            found = how(number)
            if len(found) < 16:
                line.sendall(found)
                line.shutdown(socket.SHUT_RDWR)
                return b""
            return found

        thread = answers(line, cut)
        answer = Messenger(workers, 30.0).send({node.id: ASK}).answers[node.id]
        thread.join()
    assert isinstance(answer, Failure) and sentence in answer.reason


def test_who_is_silent_is_missing_and_its_late_answer_is_thrown_away(workers: Workers) -> None:
    with joined(workers) as line:
        (node,) = workers.nodes()
        assert workers.send({node.id: ASK}, 0.05).found == {}
        late: Any = frames.read(line.recv, USUAL).words["number"]
        line.sendall(frames.answer_frame(Answer({"digest": ASK.digest, "name": "late"}), late))
        thread = answers(line, lambda n: frames.answer_frame(Answer({"digest": ASK.digest, "name": "now"}), n))
        reply = workers.send({node.id: ASK}, 30.0).found[node.id]
        thread.join()
        assert isinstance(reply, Reply) and reply.said["name"] == "now"
        assert workers.nodes()[0].alive > node.alive  # which is how a server sees that it lives after all


def test_who_takes_no_question_keeps_nobody_else_waiting(workers: Workers) -> None:
    """A question larger than what the system keeps for a process that does not read."""
    big = Ask(TRAIN, "0", "{}", tensors={"params": {"w": torch.zeros(2**22)}})
    with joined(workers) as stuck, joined(workers) as other:
        thread = answers(other, lambda n: frames.answer_frame(Answer({"digest": big.digest}), n))
        first, second = workers.nodes()
        found = workers.send({first.id: big, second.id: big}, 2.0).found
        thread.join()
        assert list(found) == [second.id] and stuck.fileno() >= 0


def test_who_went_between_a_look_and_a_question_is_said_to_have_gone_at_once(workers: Workers) -> None:
    with joined(workers):
        (node,) = workers.nodes()
    while workers.nodes():  # a thread sees that the line has ended
        pass
    with joined(workers) as other:
        thread = answers(other, lambda n: frames.answer_frame(Answer({"digest": ASK.digest}), n))
        found = workers.send({node.id: ASK, workers.nodes()[0].id: ASK}, 30.0).found
        thread.join()
    assert found[node.id] == Failure("it went away before it answered") and len(found) == 2


def test_who_was_never_there_is_missing(workers: Workers) -> None:
    assert workers.send({77: ASK}, 30.0).found == {}


WHOLE = frames.answer_frame(Answer({"digest": "x"}, {"counts": {"n": 1}}, {"params": {"w": torch.arange(6.0)}}), 1)


@given(st.data())
def test_whatever_comes_is_an_answer_or_one_sentence(data: st.DataObject) -> None:
    """Bytes changed, cut and put in anywhere: reading them never ends in any other way, nor in more than came."""
    place = data.draw(st.integers(0, len(WHOLE)))
    more = data.draw(st.binary(max_size=20))
    came = io.BytesIO(WHOLE[:place] + more + WHOLE[place + data.draw(st.integers(0, 20)) :])
    with contextlib.suppress(Unreadable, frames.Ended):
        reply = frames.reply_of(frames.read(came.read, Limits(10_000, 10_000)))
        for group in reply.arrays.values():
            for name, packed in group.items():
                assert packed.read(name).nbytes <= len(WHOLE) + 20


# --- where the token is, and where the server is ----------------------------------------------------------------------


def test_a_token_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with Workers(token_file=file) as workers:
        assert file.stat().st_mode & 0o777 == 0o600 and worker.token_of(file) == workers.token
    os.chmod(file, 0o644)
    with pytest.raises(UnfedError, match="Others may read the token file .*chmod 600"):
        worker.token_of(file)
    with pytest.raises(UnfedError, match="cannot be read"):
        worker.token_of(tmp_path / "nowhere")
    with pytest.raises(UnfedError, match="--token-file FILE, or UNFED_TOKEN in the environment"):
        worker.token_of(None, {})
    assert worker.token_of(None, {"UNFED_TOKEN": "x"}) == "x"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1", "is no address"),
        ("127.0.0.1:0", "is no address"),
        ("192.0.2.1:80", "'192.0.2.1' is not this machine, and these frames are not encrypted"),
    ],
)
def test_a_wrong_address_is_one_sentence(address: str, sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        worker.work(address, "secret", {})


def test_a_worker_that_finds_nobody_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNFED_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnfedError, match=f"Port {port} cannot be listened on"):
            Workers(port=port)
    words = ["worker", "--connect", f"127.0.0.1:{port}", "--wait", "0", "--node", "partition-id=0"]
    found = CliRunner().invoke(cli, words)
    assert isinstance(found.exception, UnfedError) and f"Nobody listens at 127.0.0.1:{port}" in str(found.exception)
    with pytest.raises(UnfedError, match="takes KEY=VALUE pairs such as partition-id=0, not 'allow'"):
        worker.node_config(["allow"])


def test_a_worker_refuses_what_is_no_question_and_goes_on(workers: Workers) -> None:
    """A mistake in a question is its answer; the line holds, and ends when the server does."""
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(worker.work(workers.address, workers.token, {})))
    thread.start()
    while not workers.nodes():
        threading.Event().wait(0.01)
    (node,) = workers.nodes()
    for ask, sentence in (
        (ASK, "What the server says of the experiment cannot be read"),
        (Ask("dance", "0", "{}"), "asked for 'dance', which it does not know; it knows train, measure"),
        (Ask(TRAIN, "0", json.dumps(None)), "cannot be read"),
    ):
        answer = Messenger(workers, 30.0).send({node.id: ask}).answers[node.id]
        assert isinstance(answer, Failure) and sentence in answer.reason
    workers.close()
    thread.join()
    assert counted == [3]
