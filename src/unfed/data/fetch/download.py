"""Download data sets: resume by Range, check checksums, unpack beside the target, verify, rename.

    download("cifar10", root)      fetch ─► MD5 ─► unpack into a temporary folder ─► verify ─► rename

What was fetched of an archive stays in `.downloads` and the next attempt goes on from there, on any mirror, because
the checksum and not the server decides whether a file is right. A data set appears under the root whole or not at all.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch

from unfed.data.fetch import cifar, folders, idx
from unfed.data.fetch.catalogue import (
    VARIABLE,
    Archive,
    DatasetEntry,
    data_root,
    entry_of,
    find,
    locate,
    md5_of,
)
from unfed.errors import UnfedError
from unfed.storage import disk_errors

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that are there, and the bytes there will be, where the server says so."""

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 60.0
MOST_DOWNLOADED = 4 << 30
"""Bytes of one archive; the largest that is listed has 0.2 GiB."""
MOST_UNPACKED = 16 << 30
MOST_FILES = 1_000_000
_LONGEST_NAME = 1024


@dataclass(frozen=True)
class Verified:
    """What `verify` saw."""

    name: str
    folder: Path
    images: int
    classes: int
    how: str


def download(
    name: str, root: str | Path | None = None, mirror: str | None = None, progress: Progress | None = None
) -> Verified:
    """Get a data set into the data root, unless it is there already; either way it is verified.

    `mirror` is an address under which the archives lie by their own names.
    """
    entry = entry_of(name)
    base = data_root(root)
    if base is None:
        raise UnfedError(
            f"There is no data root to download to; give one with --root DIR, or set {VARIABLE} to a folder."
        )
    with disk_errors(base):
        base.mkdir(parents=True, exist_ok=True)
    if locate(base, entry.places) is not None:
        return verify(name, base)
    kept = base / ".downloads" / name  # MNIST and Fashion-MNIST have files of the same names
    with disk_errors(kept):
        kept.mkdir(parents=True, exist_ok=True)
    try:
        seen = _install(entry, base, [fetch(archive, kept, mirror, progress) for archive in entry.archives])
        shutil.rmtree(kept, ignore_errors=True)
        return seen
    finally:
        with contextlib.suppress(OSError):  # what was fetched so far is kept, an empty folder is not
            kept.rmdir()
        with contextlib.suppress(OSError):
            kept.parent.rmdir()


def _install(entry: DatasetEntry, base: Path, archives: Sequence[Path]) -> Verified:
    """Unpack beside the target, look whether it is right, and only then let it appear."""
    place = base / entry.places[0]
    with _workshop(base) as workshop:
        for archive in archives:
            if archive.name.endswith((".tar.gz", ".zip")):
                unpack(archive, workshop)
            else:
                with disk_errors(workshop / place.name):
                    (workshop / place.name).mkdir(exist_ok=True)
                    shutil.copyfile(archive, workshop / place.name / archive.name)
        found = _unpacked(workshop, entry.name, place.name)
        seen = verify(entry.name, found)
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(found, place)
    return replace(seen, folder=place)


def _unpacked(workshop: Path, name: str, wanted: str) -> Path:
    """The data set's folder in what its archives held; an archive of it that lies inside is unpacked too."""
    for inner in sorted(workshop.rglob(f"{wanted}.tar*")):
        unpack(inner, inner.parent)
    found = next((path for path in sorted(workshop.rglob(wanted)) if path.is_dir()), None)
    if found is None:
        raise UnfedError(f"The archive of {name} holds no folder {wanted!r}; try another mirror.")
    return found


@contextlib.contextmanager
def _workshop(base: Path) -> Iterator[Path]:
    """A folder beside the target, on the same disk, gone afterwards whatever happens."""
    with disk_errors(base):
        folder = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- the transfer -----------------------------------------------------------------------------------------------------


def fetch(archive: Archive, base: Path, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """The archive's file with the right checksum, from the network or from an earlier attempt."""
    target, part = base / archive.name, base / f"{archive.name}.part"
    if target.is_file() and md5_of(target) == archive.md5:
        return target
    url = _address(archive, mirror)
    resumed = part.is_file() and part.stat().st_size > 0
    _transfer(url, part, archive.name, progress)
    found = md5_of(part)
    if found != archive.md5 and resumed:
        # The beginning may stem from another version or another mirror: once more, from the start.
        part.unlink()
        _transfer(url, part, archive.name, progress)
        found = md5_of(part)
    if found != archive.md5:
        part.unlink()
        raise UnfedError(
            f"{url} gave a file with the MD5 {found}, published is {archive.md5}, so it was deleted;"
            " try again, or another mirror."
        )
    with disk_errors(target):
        os.replace(part, target)
    return target


def _address(archive: Archive, mirror: str | None) -> str:
    if mirror is None:
        return archive.url
    if urllib.parse.urlsplit(mirror).scheme not in ("http", "https"):
        raise UnfedError(f"The mirror {mirror!r} is no web address; give one that begins with http:// or https://.")
    return f"{mirror.rstrip('/')}/{archive.name}"


def _transfer(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Fill `part`, going on after every break, as long as each attempt brings new bytes."""
    while True:
        before = part.stat().st_size if part.is_file() else 0
        if _attempt(url, part, before, name, progress):
            return
        after = part.stat().st_size if part.is_file() else 0
        if after <= before:
            raise UnfedError(
                f"The download of {url} broke off after {after:,} bytes; run the same command again to go on from"
                " there, or give another mirror."
            )


def _attempt(url: str, part: Path, have: int, name: str, progress: Progress | None) -> bool:
    """One request; True if the file is whole as far as the server says."""
    headers = {"User-Agent": "unfed", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            if error.headers.get("Content-Range", "").endswith(f"/{have}"):
                return True  # all of it was there
            part.unlink()
            return _attempt(url, part, 0, name, progress)
        raise UnfedError(
            f"{url} answered {error.code} {error.reason}; give another mirror, or get the file by hand."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnfedError(f"{url} cannot be reached ({reason}); check the network, or give another mirror.") from error
    with response:
        goes_on = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if goes_on and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise UnfedError(f"{url} sent another part of the file than was asked for; give another mirror.")
        have = have if goes_on else 0  # a server without Range sends all of it again
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with disk_errors(part), open(part, "ab" if goes_on else "wb") as file:
            while True:
                try:  # a broken connection must not be mistaken for a full disk
                    chunk = response.read(CHUNK_BYTES)
                except (OSError, http.client.HTTPException):
                    return False
                if not chunk:
                    break
                if have + len(chunk) > MOST_DOWNLOADED:
                    raise UnfedError(
                        f"{url} sends more than {MOST_DOWNLOADED >> 30} GiB, so it was stopped; give another mirror."
                    )
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total)
    return total is None or have >= total


# --- unpacking --------------------------------------------------------------------------------------------------------


def unpack(archive: Path, folder: Path) -> None:
    """Write an archive's files under the folder; nothing is followed, linked or written anywhere else."""
    with disk_errors(folder):
        try:
            left = MOST_UNPACKED
            for count, (name, content) in enumerate(_members(archive), 1):
                target = folder / _inside(name, archive)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, open(target, "xb") as file:
                    while chunk := content.read(CHUNK_BYTES):
                        left -= len(chunk)
                        if left < 0 or count > MOST_FILES:
                            raise UnfedError(
                                f"The archive {archive} unpacks to more than {MOST_UNPACKED >> 30} GiB or"
                                f" {MOST_FILES:,} files; delete it and download it again."
                            )
                        file.write(chunk)
        except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
            raise UnfedError(f"The archive {archive} is damaged ({said}); delete it and download it again.") from error


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every file in a zip or tar."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield info.filename, packed.open(info)
        return
    with tarfile.open(archive) as tape:
        for member in tape:
            if member.isdir():
                continue
            content = tape.extractfile(member) if member.isreg() else None
            if content is None:
                raise UnfedError(f"The archive {archive} holds a link or device {member.name!r}; it was not unpacked.")
            yield member.name, content


def _inside(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if len(name) > _LONGEST_NAME:
        raise UnfedError(f"The archive {archive} holds a name of {len(name)} characters; it was not unpacked.")
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise UnfedError(f"The archive {archive} holds {name!r}, which lies outside its folder; it was not unpacked.")
    return path


# --- verifying --------------------------------------------------------------------------------------------------------


_CIFAR = {layout.name: layout for layout in (cifar.CIFAR10, cifar.CIFAR100)}


def verify(name: str, root: str | Path | None = None) -> Verified:
    """Read the whole data set and compare it with what is published; the first difference is an error."""
    entry = entry_of(name)
    folder = find(name, None if root is None else Path(root))
    advice = f"`unfed data download {name} --root DIR`"
    hashed = 0
    for path, own, published in _checksums(entry, folder):
        hashed += 1
        if own != published:
            raise UnfedError(
                f"The content of {path} has the checksum {own}, published is {published}; delete {path.parent} and run"
                f" {advice}."
            )
    if name in _CIFAR:
        labels = [labels for _, labels in cifar.read(_CIFAR[name], folder)]
    elif name == "caltech101":
        (images, own_labels), _ = folders.caltech101(folder)
        images.decode(8)  # an image that cannot be decoded is named
        labels = [own_labels]
    else:
        labels = [labels for _, labels in idx.read(name, folder)]
    expected, found = [n for n in (entry.train, entry.test) if n], [len(part) for part in labels]
    present = len(torch.unique(torch.cat(labels)))
    if found != expected or present != entry.classes:
        raise UnfedError(
            f"The data set in {folder} has {' + '.join(map(str, found))} images of {present} classes, {name} has"
            f" {' + '.join(map(str, expected))} of {entry.classes}; delete the folder and run {advice}."
        )
    counted = f"{sum(found):,} images in {present} classes counted"
    how = f"{hashed} published checksums, {counted}" if hashed else counted
    return Verified(name, folder, sum(found), present, how)


def _checksums(entry: DatasetEntry, folder: Path) -> Iterator[tuple[Path, str, str]]:
    """(file, its checksum, the published one) of what has one, by content: the layout does not matter."""
    for name, published in entry.files.items():
        if (folder / name).is_file():
            yield folder / name, md5_of(folder / name), published
    for stem, published in entry.contents.items():
        if entry.name in _CIFAR:
            pixels, labels = cifar.read_batch(_CIFAR[entry.name], folder, stem)
            content = np.concatenate([labels[:, None], pixels], 1).tobytes()
        else:
            content = idx.plain_bytes(idx.file_of(folder, stem))
        kind = "sha1" if len(published) == 40 else "md5"
        yield folder / stem, hashlib.new(kind, content, usedforsecurity=False).hexdigest(), published
