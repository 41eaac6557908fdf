"""The service: signed requests come in over HTTP, nothing is lost, nobody gets in who should not."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from unfed.cli.main import app
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.folder.purge import purge
from unfed.runs.run import Run
from unfed.trust import logbook, request, signing, verifier
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Handling, Intake
from unfed.trust.log import faults
from unfed.trust.service import HEADERS, LARGEST, Listener, ResumeWorker
from unfed.trust.signing import SigningKey
from unfed.trust.verdict import verdict

sys.path.append(str(Path(__file__).parents[1] / "campaigns"))

from serving import free_port, listening

CLIENTS = 60
TINY: dict[str, Any] = {
    "name": "tiny",
    "partition": {"clients": CLIENTS},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 1, "batch": 256},
    "unlearning": {"rounds": 1},
    "evaluation": {"attack": False, "samples": False, "recovered_within": 100},
    "gate": {"max_drop": 100},
    "engine": {"name": "batched"},
    "device": "cpu",
}
KEYS = {str(k): SigningKey.drawn() for k in range(CLIENTS)}
OPERATOR = SigningKey.drawn()
LOG: dict[str, str] = {}
"""The federation that requests here are signed for."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained federation of sixty clients, each with a key on the roster."""
    folder = tmp_path_factory.mktemp("serve")
    OPERATOR.write(folder / "operator.key")
    run = Run.create(Config.parse(TINY), folder / "run")
    trust = TrustFolder.begin(run.folder.path, folder / "operator.key")
    trust.enrol({n: key.public for n, key in KEYS.items()})
    LOG["log"] = trust.log.origin
    with logbook.logged(run) as watch:
        run.execute(watch)
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


def desk(home: Path) -> Intake:
    return Intake(Run.open(home / "run"), Handling("ft", "1"))


def asked(client: str, **more: Any) -> bytes:
    value = request.value({"clients": [client]}, client, OPERATOR.id, **more) | LOG
    return request.sign(value, KEYS[client]).to_bytes()


def taken_back(name: str, client: str, key: SigningKey | None = None) -> bytes:
    return request.revoke(name, client, OPERATOR.id, key or KEYS[client]).to_bytes()


@contextmanager
def served(home: Path) -> Iterator[httpx.Client]:
    """A service on a free port of this machine, and a client that calls it."""
    listener = Listener(desk(home), port=0)
    thread = threading.Thread(target=listener.listen)
    thread.start()
    try:
        with httpx.Client(base_url=listener.url, timeout=60.0) as client:
            yield client
    finally:
        listener.stop()
        thread.join()


def test_a_request_is_submitted_followed_served_and_its_evidence_fetched(home: Path, tmp_path: Path) -> None:
    with served(home) as http:
        answer = http.post("/api/requests", content=asked("7", name="r-seven"))
        assert answer.status_code == 201, answer.text
        verified = request.acknowledged(signing.read(answer.content), [OPERATOR.public])
        assert http.get("/api/requests/r-seven/acknowledgement").content == answer.content
        now = http.get("/api/requests/r-seven").json()
        assert (now["state"], now["expected_by"], now["signed_by"]) == ("open", verified.expected_by, "7")
        assert http.get("/api/requests/r-seven/bundle").status_code == 400, "there is nothing to give evidence of yet"
        run = Run.open(home / "run")
        with logbook.logged(run) as watch:
            run.execute(watch)
        told = http.get("/api/requests/r-seven").json()
        assert told["state"] == "fulfilled" and any("came into force" in said for _, said in told["events"])
        assert told["still_carries"], "the model before is still there"
        bundle = http.get("/api/requests/r-seven/bundle").content
        found = verdict(bundle, [OPERATOR.public.pem], model=home / "run/models/0/r-seven/ft.safetensors")
        said = " ".join(found.proven)
        assert "The operator acknowledged the request: received on" in said and "in none of the 1 rounds" in said
        assert f"Client '7' signed the request with the key {KEYS['7'].id}." in said
        grown = verdict(bundle, [OPERATOR.public.pem], log=answer.content).proven
        assert any("has grown from your checkpoint" in one for one in grown), "the answer has one"
        assert "it trained before, in the round at leaf 3" in said, said
        for name, value in (("place", 99), ("leaf", 2), ("path", [])):
            with pytest.raises(verifier.NotVerified, match="took part before|no bundle|does not fit its tree"):
                verdict(_with_another_past(bundle, name, value), [OPERATOR.public.pem])
        forked = _with_another_log(bundle, answer.content)
        with pytest.raises(verifier.NotVerified, match="The log does not hold this acknowledgement"):
            verdict(forked, [OPERATOR.public.pem])
        page = http.get("/").text
        assert "r-seven" in page and "fulfilled" in page and "/requests/r-seven" in page
        assert "came into force" in http.get("/requests/r-seven").text


def _with_another_past(bundle: bytes, name: str, value: Any) -> bytes:
    """The bundle with one part of the proof changed that the pseudonym took part before."""
    statement = json.loads(signing.read(bundle).payload)
    before = statement["predicate"]["participation"][0]["before"]
    assert before[name] != value
    before[name] = value
    return signing.sign(verifier.BUNDLE, statement, OPERATOR).to_bytes()


def _with_another_log(bundle: bytes, answer: bytes) -> bytes:
    """The bundle with an acknowledgement over a log that the operator showed to the client alone."""
    statement = json.loads(signing.read(bundle).payload)
    said = json.loads(signing.read(answer).payload)
    checkpoint = json.loads(signing.read(said["checkpoint"]).payload)
    other = signing.sign(verifier.CHECKPOINT, {**checkpoint, "root": "0" * 64}, OPERATOR)
    forged = signing.sign(request.ACKNOWLEDGEMENT, {**said, "checkpoint": other.to_json()}, OPERATOR)
    statement["predicate"]["acknowledgement"] = forged.to_json()
    return signing.sign(verifier.BUNDLE, statement, OPERATOR).to_bytes()


def test_a_round_that_was_under_way_when_the_request_came_is_said_to_be_outside_the_proof(home: Path) -> None:
    own = desk(home)
    own.submit(asked("7", name="r-seven"))
    trust = TrustFolder(home / "run")
    everybody = trust.participants.root(trust.pseudonyms.of(KEYS).values())
    told = {"seed": 0, "request": None, "method": "train", "round": 9, "model": "0" * 64}
    trust.enter({"type": "round", "at": "2026-11-15T00:00:00Z", **told, "participants": everybody})
    with logbook.logged(own.run) as watch:
        own.run.execute(watch)
    found = verdict(own.bundle("r-seven").to_bytes(), [OPERATOR.public.pem])
    place = next(n for n, leaf in enumerate(trust.log.leaves) if leaf.get("round") == 9)
    assert any(f"in none of the 1 rounds after its round under way at leaf {place}" in one for one in found.proven)

    purge(own.run, "r-seven")
    logbook.enter(own.run.folder, trust, purged=["r-seven"])
    found = verdict(own.bundle("r-seven").to_bytes(), [OPERATOR.public.pem])
    assert len(found.proven) == 2, "whose pseudonym it was can no longer be said"
    assert [answer for _, answer in found.decision[:2]] == [
        "not proven: the signed request was purged",
        "not proven: the proof was purged with the client's pseudonym",
    ]
    assert found.recommendation == "Accept, if the evidence made before the purge asked for deletion only."


def test_whoever_asked_can_revoke_and_nobody_else(home: Path) -> None:
    with served(home) as http:
        assert http.post("/api/requests", content=asked("3", name="r-three")).status_code == 201
        for data in (
            taken_back("r-three", "4"),
            taken_back("r-three", "3", KEYS["4"]),
            taken_back("r-three", "3", SigningKey.drawn()),
            taken_back("unknown", "3"),
            b"{}",
        ):
            refused = http.post("/api/revocations", content=data)
            assert refused.status_code in (400, 403) and refused.json()["error"].endswith("."), refused.text
        assert http.get("/api/requests/r-three").json()["state"] == "open"
        done = http.post("/api/revocations", content=taken_back("r-three", "3"))
        assert done.status_code == 200 and done.json()["state"] == "revoked"
        assert http.post("/api/revocations", content=taken_back("r-three", "3")).json()["state"] == "revoked"
    assert [*json.loads((home / "run/trust/refused.json").read_text()).values()] == [{"revocation": 5}]
    assert Run.open(home / "run").queue.book.besides(0) == []


def test_those_who_submit_at_the_same_moment_lose_nothing(home: Path) -> None:
    many = 8
    bodies = [asked(str(k), name=f"r-{k}") for k in range(many)]
    with served(home) as http:
        together = threading.Barrier(many)

        def submit(body: bytes) -> httpx.Response:
            together.wait()
            return http.post("/api/requests", content=body)

        with ThreadPoolExecutor(many) as pool:
            answers = list(pool.map(submit, bodies))
        assert [answer.status_code for answer in answers] == [201] * many
        assert len(http.get("/api/requests").json()["requests"]) == many
    found = [request.acknowledged(signing.read(answer.content), [OPERATOR.public]) for answer in answers]
    assert [json.loads(one.request.payload)["agent-request-id"] for one in found] == [f"r-{k}" for k in range(many)]
    trust, run = TrustFolder(home / "run"), Run.open(home / "run")
    assert faults(trust.log, [trust.operator]) == []
    entries = run.folder.book().entries
    assert sorted(entry.number for entry in entries) == list(range(1, many + 1))
    assert {entry.request.id for entry in entries} == {f"r-{k}" for k in range(many)}
    leaves = [leaf for leaf in trust.log.leaves if leaf["type"] == "request"]
    assert sorted(leaf["request"] for leaf in leaves) == sorted(f"r-{k}" for k in range(many))


def test_what_is_refused_is_one_sentence_and_changes_nothing(home: Path) -> None:
    with served(home) as http:
        first = asked("5", name="r-five")
        assert http.post("/api/requests", content=first).status_code == 201
        again = http.post("/api/requests", content=first)
        assert again.status_code == 403 and again.json()["reason"] == "replayed"
        for body in (
            b"",
            b"{",
            b"[]",
            b'{"request": 1}',
            b'{"request": {}, "x": 1}',
            b"[" * 5000,
            asked("5")[:-9],
            b"\xff",
        ):
            refused = http.post("/api/requests", content=body)
            assert refused.status_code in (400, 403), (body[:20], refused.text)
            assert refused.json()["error"].endswith(".") and "\n" not in refused.json()["error"]
        assert http.get("/api/requests/nobody").status_code == 404
        assert http.get("/api/requests/..%2f..%2fetc").status_code == 404
        assert http.get("/nowhere").json() == {"error": "There is nothing here; the page is at /."}
        assert http.put("/api/requests").status_code == 405
        assert [one["id"] for one in http.get("/api/requests").json()["requests"]] == ["r-five"]


def test_large_bodies_and_strange_hosts_are_turned_away(home: Path) -> None:
    with served(home) as http:
        assert http.post("/api/requests", content=b" " * (LARGEST + 1)).status_code == 413
        chunks = http.post("/api/requests", content=iter([b" " * LARGEST, b" "]))
        assert chunks.status_code == 413, "whatever its header says"
        assert http.get("/", headers={"Host": "evil.example"}).status_code == 400
        assert http.get("/", headers={"Host": "localhost:99"}).status_code == 200
        plain = http.get("/")
        assert "default-src 'none'" in plain.headers["content-security-policy"]
        assert plain.headers["cache-control"] == "no-store" and "server" not in plain.headers


def test_an_answer_to_a_failure_has_the_same_headers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "queue", lambda self: 1 / 0)
    with served(home) as http:
        answer = http.get("/api/requests")
    assert answer.status_code == 500 and answer.json()["error"].startswith("Something went wrong here")
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_it_can_be_reached_from_this_machine_only(home: Path) -> None:
    listener = Listener(desk(home), port=0)
    with listener._socket as found:
        assert found.getsockname()[0] == "127.0.0.1" and listener.url.startswith("http://127.0.0.1:")
        with pytest.raises(UnfedError, match="cannot be listened on"):
            Listener(desk(home), port=found.getsockname()[1])


def test_the_service_takes_the_method_that_forget_takes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desks: list[Intake] = []
    monkeypatch.setattr("unfed.trust.service.service", lambda intake, *_: desks.append(intake))
    monkeypatch.setattr(Listener, "listen", lambda _: desks[0].submit(asked("1")))
    assert CliRunner().invoke(app, ["serve", str(home / "run"), "--port", "0"], catch_exceptions=False).exit_code == 0
    (entry,) = [one for one in Run.open(home / "run").folder.book().entries if one.request.clients == ("1",)]
    assert entry.method == "retrain"


def test_every_file_that_the_service_writes_is_for_its_owner_alone(home: Path) -> None:
    with served(home) as http:
        http.post("/api/requests", content=asked("5", name="r-five"))
        http.post("/api/revocations", content=taken_back("r-five", "5"))
    open_to_others = [
        path for path in (home / "run/trust").rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert [path.name for path in open_to_others if not path.name.endswith(".lock")] == []


def test_a_run_without_a_log_has_no_desk(made: Path, tmp_path: Path) -> None:
    Run.create(Config.parse(TINY), tmp_path / "home/run")
    with pytest.raises(UnfedError, match="keeps no log of signed requests"):
        desk(tmp_path / "home")
    shutil.copytree(made, tmp_path / "other")
    told = json.loads((tmp_path / "other/run/trust/operator.json").read_text())
    (tmp_path / "other/run/trust/operator.json").write_text(json.dumps({**told, "key": str(tmp_path / "gone.key")}))
    with pytest.raises(UnfedError, match="is not at"):
        desk(tmp_path / "other")


def test_the_worker_serves_what_comes_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = desk(home)
    own.submit(asked("9", name="r-nine"))
    given: list[list[str]] = []
    done = threading.Event()

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            given.append(command)

        def wait(self) -> int:
            done.set()
            return 0

        def poll(self) -> int:
            return 0

    monkeypatch.setattr("unfed.trust.service.subprocess.Popen", Process)
    with ResumeWorker(own).working():
        assert done.wait(60)
    assert given[0][1:] == ["-m", "unfed", "resume", str(home / "run"), "--quiet"]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed; apt-get install nginx-light")
def test_behind_the_pages_nginx_half_sent_headers_are_closed_and_others_are_answered(
    home: Path, tmp_path: Path
) -> None:
    """As docs/how-to/evidence.md configures it; held by the service alone, such headers gave everyone 503."""
    _certificate(tmp_path)
    page = (Path(__file__).parents[2] / "docs/how-to/evidence.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
    port, held = free_port(), list[ssl.SSLSocket]()
    (tmp_path / "passwords").write_text("ward:{PLAIN}secret\n")
    with served(home) as behind:
        here = {"443 ssl": f"127.0.0.1:{port} ssl", "requests.example.org": "localhost"}
        here |= {"/etc/ssl/requests.pem": str(tmp_path / "c.pem"), "/etc/ssl/requests.key": str(tmp_path / "k.pem")}
        here |= {"/etc/nginx/requests.htpasswd": str(tmp_path / "passwords")}
        here |= {"http://127.0.0.1:8640": str(behind.base_url).rstrip("/")}
        for there, own in here.items():
            assert there in printed
            printed = printed.replace(there, own)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
        config = f"daemon off; user root; pid {tmp_path}/pid; error_log {tmp_path}/log;\n"
        config += "events { worker_connections 1024; }\n"
        (tmp_path / "nginx.conf").write_text(config + f"http {{ access_log off;\n{paths}{printed} }}\n")
        process = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
        try:
            assert listening(port), "nginx did not begin to listen"
            for _ in range(200):
                line = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
                line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-")
                held.append(line)
            with httpx.Client(base_url=f"https://localhost:{port}", verify=trusting, timeout=30.0) as http:
                for path in ("/", "/api/requests"):
                    assert http.get(path).status_code == 401 and http.get(path, auth=("ward", "no")).status_code == 401
                    assert http.get(path, auth=("ward", "secret")).status_code == 200
                assert http.post("/api/requests", content=b" " * (1 << 21)).status_code == 413
            for line in held:
                line.settimeout(30.0)
                assert b"408" in (said := line.recv(4096)) or said == b"", "closed after its time-out"
        finally:
            for line in held:
                line.close()
            process.terminate()
            process.wait(30)


def _certificate(folder: Path) -> None:
    """c.pem and k.pem of `localhost`, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    day = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), day, day + timedelta(1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
    (folder / "c.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "k.pem").write_bytes(pkcs8)
