"""Keys, canonical JSON and envelopes: what was signed is read again, and what was altered is not believed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from command_line import called
from unfed.errors import UnfedError
from unfed.runs.run import Run
from unfed.trust import signing
from unfed.trust.signing import SigningKey, canonical, canonical_value
from worlds import Small


def test_canonical_json_is_that_of_the_rfc() -> None:
    """RFC 8785, 3.2.2 and 3.2.3: numbers as ECMAScript writes them, names in the order of their UTF-16."""
    value = {"numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001], "literals": [None, True]}
    assert canonical(value) == b'{"literals":[null,true],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}'
    assert canonical({"\u20ac": 1, "\r": 2, "\U0001f600": 3, "\ufb33": 4, "1": 5}).decode() == (
        '{"\\r":2,"1":5,"\u20ac":1,"\U0001f600":3,"\ufb33":4}'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, object(), "\ud800"])
def test_what_has_no_canonical_form_is_not_signed(value: object) -> None:
    with pytest.raises(UnfedError, match="cannot be signed"):
        canonical(value)


@pytest.mark.parametrize(
    "text", [b'{"a":1,"a":2}', b'{"a":NaN}', b'{ "a":1}', b'{"b":1,"a":2}', b"[" * 100_000, b"\xff"]
)
def test_bytes_that_two_could_read_differently_are_refused(text: bytes) -> None:
    with pytest.raises(UnfedError):
        canonical_value(text, "test")


def test_a_key_file_is_for_its_owner_alone_and_is_not_replaced(tmp_path: Path) -> None:
    made = signing.new_key(tmp_path / "client-3")
    private, public = signing.key_files(tmp_path / "client-3")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert signing.signing_key(private).id == signing.public_key(public).id == made.id
    with pytest.raises(UnfedError, match="is not replaced"):
        signing.new_key(tmp_path / "client-3")
    private.chmod(0o644)
    with pytest.raises(UnfedError, match="chmod 600"):
        signing.signing_key(private)


def test_half_a_pair_of_keys_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = os.replace

    def killed(source: Path, target: Path) -> None:
        if target.suffix == ".pub":
            raise KeyboardInterrupt
        replaced(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        signing.new_key(tmp_path / "me")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_key_needs_a_name(name: str) -> None:
    with pytest.raises(
        UnfedError, match="is a folder and no name for a key; give one, as in `unfed keys new operator`"
    ):
        signing.new_key(Path(name))


CARELESS = {
    "request sign -o r.json": "Name what to forget with exactly one of",
    "request sign --client= -o r.json": "Name what to forget with exactly one of",
    "request sign --class 3 -o r.json": "A class is not one client's own data: a request for it needs the operator's",
    "request sign --samples ids.csv --client 1 -o r.json": "Client '1' asks for data of 0, not its own.",
    "request sign --samples ids.csv -o taken.json": "taken.json.opening is a folder, and no file is written in its",
    "request check folder r.json": "folder is not a run folder (it has no run.json)",
    "keys roster run 0= --operator operator.key": "Give a client and its key as CLIENT=FILE.pub, not '0='.",
    "keys roster run 0=me.pub 0=me.pub --operator operator.key": "Client '0' is given two keys; a client has one.",
}


@pytest.mark.parametrize("line", CARELESS)
def test_a_careless_command_is_answered_before_anything_is_signed(
    line: str, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each was signed, and refused by the operator later, or half of it was written."""
    monkeypatch.chdir(tmp_path)
    for name in ("me", "operator"):
        signing.new_key(Path(name))
    Path("ids.csv").write_text("client,position\n0,1\n")
    for folder in ("folder", "taken.json.opening"):
        Path(folder).mkdir()
    if "roster" in line:
        Run.create(small(), "run")
    before = sorted(Path().rglob("*"))
    own = ["--key", "me.key", "--to", "operator.pub", "--log", "log.json"] if "sign" in line else []
    code, _, err = called([*line.split(), *own], monkeypatch, capsys)
    assert code == 2 and CARELESS[line] in " ".join(err.split()), err
    assert sorted(Path().rglob("*")) == before


def test_a_file_that_holds_no_key_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_bytes(b"\xff nothing")
    (tmp_path / "a.key").write_bytes(b"nothing")
    (tmp_path / "a.key").chmod(0o600)
    with pytest.raises(UnfedError, match="no Ed25519 public key"):
        signing.public_key(tmp_path / "a.pub")
    with pytest.raises(UnfedError, match="no private key"):
        signing.signing_key(tmp_path / "a.key")
    with pytest.raises(UnfedError, match="cannot be read"):
        signing.public_key(tmp_path / "none.pub")


def test_what_is_signed_is_what_dsse_says() -> None:
    """The example of the DSSE protocol."""
    assert signing.pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_an_envelope_is_read_again_by_whoever_knows_the_key() -> None:
    key, value = SigningKey.drawn(), {"a": [1, 2.5, "ü"]}
    signed = signing.read(signing.sign("t", value, key).to_bytes())
    assert signing.opened(signed, "t", [SigningKey.drawn().public, key.public]) == (value, key.id)


def test_an_altered_envelope_is_not_believed() -> None:
    key, other = SigningKey.drawn(), SigningKey.drawn()
    good = signing.sign("t", {"a": 1}, key)
    with pytest.raises(UnfedError, match="none of the known keys"):
        signing.opened(good, "t", [other.public])
    with pytest.raises(UnfedError, match="of the type"):
        signing.opened(good, "u", [key.public])
    for altered in (
        signing.Envelope(good.payload + b" ", good.type, good.signatures),
        signing.Envelope(good.payload, good.type, ((key.id, b"\0" * 64),)),
        signing.Envelope(good.payload, good.type, ((key.id, b""),)),
        signing.Envelope(good.payload, good.type, ((key.id, other.sign(signing.pae("t", good.payload))),)),
    ):
        with pytest.raises(UnfedError, match="altered"):
            signing.opened(altered, "t", [key.public])
    renamed = signing.Envelope(good.payload, "u", good.signatures)  # one kind of statement does not pass for another
    with pytest.raises(UnfedError, match="altered"):
        signing.opened(renamed, "u", [key.public])


def test_what_is_signed_but_not_canonical_is_refused() -> None:
    key, payload = SigningKey.drawn(), b'{"a": 1}'
    loose = signing.Envelope(payload, "t", ((key.id, key.sign(signing.pae("t", payload))),))
    with pytest.raises(UnfedError, match="RFC 8785"):
        signing.opened(loose, "t", [key.public])


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {},
        {"payload": "!", "payloadType": "t", "signatures": [{"keyid": "k", "sig": ""}]},
        {"payload": "", "payloadType": 3, "signatures": [{"keyid": "k", "sig": ""}]},
        {"payload": "", "payloadType": "t", "signatures": []},
        {"payload": "", "payloadType": "t", "signatures": [{"sig": ""}]},
        {"payload": "", "payloadType": "t", "signatures": [{"keyid": "k", "sig": ""}], "more": 1},
    ],
)
def test_what_is_no_envelope_is_refused_in_one_sentence(raw: object) -> None:
    with pytest.raises(UnfedError, match="no DSSE envelope"):
        signing.read(json.dumps(raw).encode())
