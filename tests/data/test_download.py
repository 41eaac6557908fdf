"""Downloads against a server on this machine: whole, broken off, resumed, refused; and what an archive may not do."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from test_layouts import batch, folder_of, idx, write_binary, write_pickles
from unfed.data import DATASETS, load
from unfed.data.datasets import FROM_FILES
from unfed.data.fetch.catalogue import CATALOGUE, Archive, DatasetEntry, found
from unfed.data.fetch.cifar import CIFAR10, CIFAR100
from unfed.data.fetch.download import download, fetch, unpack, verify
from unfed.data.fetch.folders import PACKAGES
from unfed.errors import UnfedError


@dataclass
class Server:
    """What the loopback server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next responses break off."""
    says_length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.rpartition("/")[2], self.headers.get("Range")
            state.asked.append((name, wanted))
            if name not in state.files:
                self.send_error(404)
                return
            data, start = state.files[name], 0
            if wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(data)}")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            body = data[start:]
            if state.says_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cuts.pop(0)] if state.cuts else body)

        def log_message(self, *_: object) -> None:
            """Silence."""

    monkeypatch.setenv("NO_PROXY", "*")
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_address[1]}/some/folder/"
    yield state
    running.shutdown()
    running.server_close()
    thread.join()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def tar_of(folder: Path, inside: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tape:
        tape.add(folder, inside)
    return packed.getvalue()


def small_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> DatasetEntry:
    """The catalogue's CIFAR-10 with a few images, on the server."""
    made = write_binary(CIFAR10, tmp_path / "made")
    data = tar_of(made, CIFAR10.binary)
    server.files["cifar-10-binary.tar.gz"] = data
    stems = (*CIFAR10.train, CIFAR10.test)
    sha1 = {s: hashlib.sha1((made / f"{s}.bin").read_bytes()).hexdigest() for s in stems}
    labels = np.concatenate([batch(CIFAR10, stem)[1] for stem in stems])
    entry = replace(
        CATALOGUE["cifar10"],
        train=20,
        test=4,
        classes=len(np.unique(labels)),
        archives=(Archive("http://127.0.0.1:9/cifar-10-binary.tar.gz", md5(data)),),
        contents=sha1,
    )
    monkeypatch.setitem(CATALOGUE, "cifar10", entry)
    return entry


def left_over(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_data_set_is_fetched_checked_unpacked_and_then_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    root, seen = tmp_path / "root", []
    made = download("cifar10", root, server.url, lambda name, done, total: seen.append((name, done, total)))
    size = len(server.files["cifar-10-binary.tar.gz"])
    assert seen[-1] == ("cifar-10-binary.tar.gz", size, size)
    assert made.folder == root / CIFAR10.binary and made.images == 24
    assert made.how.startswith("6 published checksums, 24 images")
    assert left_over(root) == [CIFAR10.binary] and len(load("cifar10", root=root).train) == 20
    asked = len(server.asked)
    assert download("cifar10", root, server.url) == made and len(server.asked) == asked, "nothing to fetch"
    there = found(root)
    assert there["cifar10"] == root / CIFAR10.binary and there["mnist"] is None


def test_an_interrupted_transfer_goes_on_where_it_broke_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    server.cuts = [1000, 500]
    download("cifar10", tmp_path / "root", server.url)
    name = "cifar-10-binary.tar.gz"
    assert server.asked == [(name, None), (name, "bytes=1000-"), (name, "bytes=1500-")]


def test_a_transfer_that_gets_nowhere_is_kept_and_the_next_command_resumes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    root = tmp_path / "root"
    server.cuts = [2000, 0]
    with pytest.raises(UnfedError, match=r"broke off after 2,000 bytes; run the same command again to go on"):
        download("cifar10", root, server.url)
    assert left_over(root) == [".downloads"]
    download("cifar10", root, server.url)
    assert server.asked[-1][1] == "bytes=2000-" and left_over(root) == [CIFAR10.binary]


def test_a_server_without_range_sends_it_all_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    server.ranges, server.cuts = False, [1000]
    assert download("cifar10", tmp_path / "root", server.url).images == 24
    assert server.asked[1][1] == "bytes=1000-", "asked for, not given"


def test_a_server_that_tells_no_length_is_judged_by_the_checksum(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    server.says_length = False
    assert download("cifar10", tmp_path / "root", server.url).images == 24


def archive_on(server: Server, data: bytes) -> Archive:
    server.files["a.bin"] = data
    return Archive(server.url + "a.bin", md5(data))


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, server: Server) -> None:
    archive = archive_on(server, b"right" * 100)
    server.files["a.bin"] = b"wrong" * 100
    with pytest.raises(
        UnfedError, match=rf"gave a file with the MD5 \w+, published is {archive.md5}, so it was deleted"
    ):
        fetch(archive, tmp_path)
    assert left_over(tmp_path) == []


def test_a_beginning_from_elsewhere_is_thrown_away_and_fetched_again(tmp_path: Path, server: Server) -> None:
    archive = archive_on(server, b"right" * 100)
    (tmp_path / "a.bin.part").write_bytes(b"other" * 20)
    assert fetch(archive, tmp_path).read_bytes() == b"right" * 100
    assert [wanted for _, wanted in server.asked] == ["bytes=100-", None]


@pytest.mark.parametrize("extra", [b"", b"and too much"])
def test_a_part_that_is_already_whole_or_too_long_is_settled(extra: bytes, tmp_path: Path, server: Server) -> None:
    archive = archive_on(server, b"right" * 100)
    (tmp_path / "a.bin.part").write_bytes(b"right" * 100 + extra)
    assert fetch(archive, tmp_path).read_bytes() == b"right" * 100
    assert len(server.asked) == (2 if extra else 1)
    assert fetch(archive, tmp_path).exists() and len(server.asked) == (2 if extra else 1), (
        "what is there is not asked for"
    )


def test_what_a_server_can_answer_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    root = tmp_path / "root"
    server.files.clear()
    with pytest.raises(UnfedError, match=r"cifar-10-binary.tar.gz answered 404 Not Found; give another mirror"):
        download("cifar10", root, server.url)
    with pytest.raises(UnfedError, match=r"http://127.0.0.1:9/.* cannot be reached \(.*\); check the network"):
        download("cifar10", root)
    with pytest.raises(UnfedError, match="is no web address"):
        download("cifar10", root, "file:///etc")
    with pytest.raises(UnfedError, match=r"not in the catalogue of downloads.*Did you mean 'cifar10'"):
        download("cifar-10", root)
    assert left_over(root) == []
    monkeypatch.delenv("UNFED_DATA", raising=False)
    with pytest.raises(UnfedError, match="no data root to download to"):
        download("cifar10")


def test_an_archive_with_the_right_checksum_and_wrong_data_does_not_appear(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    entry = small_cifar(monkeypatch, tmp_path, server)
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(entry, train=21))
    with pytest.raises(UnfedError, match=r"has 20 \+ 4 images of \d+ classes, cifar10 has 21 \+ 4"):
        download("cifar10", tmp_path / "root", server.url)
    assert left_over(tmp_path / "root") == [".downloads"]


def test_the_mnist_family_comes_as_four_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> None:
    archives, contents = [], {}
    for stem, n in (("train", 10), ("t10k", 10)):
        for kind, values in (
            ("images-idx3", np.zeros((n, 28, 28), np.uint8)),
            ("labels-idx1", np.arange(n, dtype=np.uint8)),
        ):
            name = f"{stem}-{kind}-ubyte.gz"
            server.files[name] = gzip.compress(idx(values))
            contents[name.removesuffix(".gz")] = md5(idx(values))
            archives.append(Archive(f"http://127.0.0.1:9/{name}", md5(server.files[name])))
    small = replace(CATALOGUE["mnist"], train=10, test=10, archives=tuple(archives), contents=contents)
    monkeypatch.setitem(CATALOGUE, "mnist", small)
    made = download("mnist", tmp_path, server.url)
    assert made.how == "4 published checksums, 20 images in 10 classes counted"
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    labels = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(labels, 1))
    assert verify("mnist", tmp_path) == made, "who compressed it does not matter"
    path.write_bytes(gzip.compress(labels[:-1] + bytes([0])))
    with pytest.raises(UnfedError, match=r"t10k-labels-idx1-ubyte has the checksum \w+, published is"):
        verify("mnist", tmp_path)


def test_the_published_checksums_of_cifar_100s_pickles_are_compared(tmp_path: Path) -> None:
    write_pickles(CIFAR100, tmp_path)
    with pytest.raises(UnfedError, match=r"cifar-100-python/train has the checksum \w+, published is 16019d7e"):
        verify("cifar100", tmp_path)
    write_binary(CIFAR100, tmp_path)
    with pytest.raises(UnfedError, match=r"has 4 \+ 4 images of \d classes, cifar100 has 50000 \+ 10000 of 100"):
        verify("cifar100", tmp_path)


def test_caltech_101_lies_in_an_archive_inside_an_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    folder_of(tmp_path / "made", {"BACKGROUND_Google": 1, "Faces": 3, "airplanes": 2}, ".jpg")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as outer:
        outer.writestr("caltech-101/101_ObjectCategories.tar.gz", tar_of(tmp_path / "made", "101_ObjectCategories"))
        outer.writestr("caltech-101/Annotations.tar", b"not needed")
    server.files["caltech-101.zip"] = packed.getvalue()
    archive = Archive("http://127.0.0.1:9/caltech-101.zip", md5(packed.getvalue()))
    small = replace(CATALOGUE["caltech101"], train=5, classes=2, archives=(archive,))
    monkeypatch.setitem(CATALOGUE, "caltech101", small)
    root = tmp_path / "root"
    (root / "caltech101").mkdir(parents=True)  # an empty folder of that name is no obstacle
    made = download("caltech101", root, server.url)
    assert made.folder == root / "caltech101" / "101_ObjectCategories" and made.images == 5
    image = next((made.folder / "Faces").iterdir())
    image.write_bytes(image.read_bytes()[:100])
    with pytest.raises(UnfedError, match=rf"The image {image} cannot be decoded"):
        verify("caltech101", root)


def test_verify_reads_both_layouts_of_cifar_by_their_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    folder = write_pickles(CIFAR10, tmp_path / "pickled")
    assert verify("cifar10", tmp_path / "pickled").images == 24
    made = tmp_path / "made" / CIFAR10.binary / "data_batch_2.bin"
    made.write_bytes(made.read_bytes()[:-1] + b"!")
    with pytest.raises(UnfedError, match=r"content of .*data_batch_2 has the checksum \w+, published is"):
        verify("cifar10", tmp_path / "made")
    with pytest.raises(UnfedError, match="has no cifar-100-binary or cifar-100-python"):
        verify("cifar100", folder)


# --- what an archive may not do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "..\\evil", "C:evil"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_path_that_leads_outside_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr(zipfile.ZipInfo(name), b"evil")
    else:
        with tarfile.open(path, "w") as tape:
            info = tarfile.TarInfo(name)
            info.size = 4
            tape.addfile(info, io.BytesIO(b"evil"))
    (tmp_path / "in" / "deep").mkdir(parents=True)
    with pytest.raises(UnfedError, match="lies outside its folder; it was not unpacked"):
        unpack(path, tmp_path / "in" / "deep")
    assert [p for p in tmp_path.rglob("*evil*")] == []


def test_links_in_an_archive_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        with tarfile.open(tmp_path / "a.tar", "w") as tape:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = kind, "/etc/passwd"
            tape.addfile(info)
        with pytest.raises(UnfedError, match="holds a link or device 'link'"):
            unpack(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path / "made", {"a": 2})
    whole = tar_of(tmp_path / "made", "x")
    for i, data in enumerate((whole[: len(whole) // 2], b"no archive")):
        for ending in ("tar.gz", "zip"):
            path = tmp_path / f"{i}.{ending}"
            path.write_bytes(data)
            with pytest.raises(UnfedError, match=f"{i}.{ending} is damaged .*; delete it and download it again"):
                unpack(path, tmp_path / f"out{i}{ending}")


# --- the catalogue itself ---------------------------------------------------------------------------------------------


def test_the_catalogue_names_every_data_set_that_can_be_loaded() -> None:
    assert {*CATALOGUE} == {*found()} == set(DATASETS) - {"imagefolder", *FROM_FILES, *PACKAGES}
    assert [name for name, entry in CATALOGUE.items() if not entry.archives] == ["digits"]
    for entry in CATALOGUE.values():
        assert len(entry.labels) in (0, entry.classes)
        for archive in entry.archives:
            assert len(archive.md5) == 32 and archive.url.startswith("http") and "?" not in archive.name
