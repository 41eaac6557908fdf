"""Downloads that can be broken off.

They are resumed by Range, checked by checksum, unpacked beside the target and renamed.

    download("cifar10", root)      fetch ─► MD5 ─► unpack into a temporary folder ─► verify ─► rename

What was fetched of an archive stays in `.downloads` and the next attempt goes on from there, on any mirror, because
the checksum and not the server decides whether a file is right. A data set appears under the root whole or not at all.
"""

from __future__ import annotations

import contextlib
import gzip
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
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

from unfed.data.fetch.catalogue import (
    CATALOGUE,
    Archive,
    DatasetEntry,
    Listed,
    Verified,
    catalogue,
    entry_of,
    md5_of,
    verify,
)
from unfed.data.fetch.roots import VARIABLE, data_root, locate
from unfed.errors import UnfedError
from unfed.storage import disk_errors

__all__ = [
    "CATALOGUE",
    "Archive",
    "DatasetEntry",
    "Listed",
    "Progress",
    "Verified",
    "catalogue",
    "download",
    "fetch",
    "unpack",
    "verify",
]

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that are there, and the bytes there will be, where the server says so."""

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 60.0
MOST_DOWNLOADED = 4 << 30
"""Bytes of one archive; the largest that is listed has 0.2 GiB."""
MOST_UNPACKED = 16 << 30
MOST_FILES = 1_000_000
_LONGEST_NAME = 1024


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
    with _workshop(base) as workshop:
        target = workshop / entry.places[0]
        for archive in archives:
            if _is_archive(archive):
                unpack(archive, workshop)
            else:
                with disk_errors(target):
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(archive, target / archive.name)
        _settle(workshop, entry)
        seen = verify(entry.name, target)
        _appear(workshop, base, PurePosixPath(entry.places[0]))
    return replace(seen, folder=base / entry.places[0])


def _appear(workshop: Path, base: Path, place: PurePosixPath) -> None:
    """Rename the outermost folder that is not there yet, so that all of the data set appears at once."""
    for top in [*reversed(place.parents), place]:
        if not (base / top).exists():
            with disk_errors(base / top):
                os.rename(workshop / top, base / top)
            return


def _is_archive(path: Path) -> bool:
    return path.name.endswith((".tar.gz", ".tgz", ".tar", ".zip"))


def _settle(workshop: Path, entry: DatasetEntry) -> None:
    """Bring what an archive held to the first of the data set's places.

    What lies inside is unpacked and moved there.
    """
    target = workshop / entry.places[0]
    if target.is_dir():
        return
    wanted = target.name
    for inner in sorted(workshop.rglob(f"{wanted}.tar*")):
        unpack(inner, inner.parent)
    found = next((path for path in sorted(workshop.rglob(wanted)) if path.is_dir()), None)
    if found is None:
        raise UnfedError(f"The archive of {entry.name} holds no folder {wanted!r}; try another mirror.")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(found, target)


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
            for chunk in _chunks(response):
                if chunk is None:
                    return False
                if have + len(chunk) > MOST_DOWNLOADED:
                    raise UnfedError(
                        f"{url} sends more than {MOST_DOWNLOADED >> 30} GiB, so it was stopped; give another mirror."
                    )
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total)
    return total is None or have >= total


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes | None]:
    """The body in pieces; None where the connection broke, so that it cannot be mistaken for a full disk."""
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException):
            yield None
            return
        if not chunk:
            return
        yield chunk


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
