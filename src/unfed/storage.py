"""Files that are whole or not there: safetensors and JSON, written atomically, read without pickle.

    write to a temporary file beside the target → fsync → rename over the target → fsync the folder

A process killed at any moment leaves the old file or the new one. A checkpoint is one safetensors file whose header
carries the numbers as JSON, so tensors and numbers can never come from two different rounds, and the SHA-256 of both,
so that a file that was damaged or changed is found when it is read. Files are for their owner alone (0600).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unfed import records
from unfed.errors import Halted, UnfedError

if sys.platform != "win32":
    import fcntl

Tensors = dict[str, Tensor]

NUMBERS = "unfed"
_ORDER = "order"
SUMS = "sha256"
WAY_BACK = "way_back"
_CHUNK = 1 << 20
_LONGEST_HEADER = 1 << 30
PRIVATE = 0o600
HANDED = ("/dev/fd/", "/dev/stdin")  # `<(command)` and `command |`
MOST_BYTES = 1 << 30  # of lines, which are read one by one
MOST_JSON = 1 << 28  # of one value, which takes many times as much memory


def write_bytes(path: Path, *data: bytes | memoryview) -> None:
    """Replace a file's content by these parts, all of it or nothing."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "r+b") as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        sync(path.parent)


def deliver(path: Path, data: bytes) -> None:
    """Write a file that a user asked for, and remove what a killed writer of it left beside it."""
    sweep_beside(path)
    write_bytes(path, data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file to write to; it becomes `path` if the block succeeds, and vanishes if not."""
    refuse_other(path, links=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _claimed(temporary):
            yield temporary
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def refuse_other(path: Path, links: bool = False) -> None:
    """Refuse to replace anything but a file: root would lose /dev/null by it.

    With `links` a link is replaced that leads to a file, or nowhere; what it leads to is never touched.
    """
    try:
        mode = os.stat(path, follow_symlinks=links).st_mode
    except OSError:  # nothing is there, or the writer finds out what is wrong
        return
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a device or a pipe"
        raise UnfedError(f"{path} is {what}, and no file is written in its place; name another file.")


@contextlib.contextmanager
def _claimed(temporary: Path) -> Iterator[None]:
    """Make a temporary file, and hold it by a lock that ends with the process."""
    flags = os.O_CREAT | os.O_RDWR | os.O_TRUNC
    descriptor = os.open(temporary, flags, PRIVATE)
    if sys.platform == "win32":  # where a file that is open cannot be renamed
        os.close(descriptor)
        yield
        return
    try:
        while not _held(descriptor):  # a sweep came between opening and holding
            os.close(descriptor)
            descriptor = os.open(temporary, flags, PRIVATE)
        yield
    finally:
        os.close(descriptor)


def _held(descriptor: int) -> bool:
    """Wait for the lock of a file; False if the file is gone meanwhile. Some file systems have none."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.fstat(descriptor).st_nlink > 0


def _own(path: str, flags: int) -> int:
    """Open a file for its owner alone, never through a link: a folder may come from elsewhere."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), PRIVATE)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def content(path: Path, most: int = MOST_BYTES, start: int = 0) -> bytes:
    """What a file holds from a place on; what is no file, or has more bytes than this, is refused.

    A folder may come from elsewhere: a link to a device never ends, and reading a pipe blocks. Only a pipe that a shell
    hands over under its own name is read, because its writer was started with it.
    """
    handed = os.fspath(path).startswith(HANDED)
    flag = 0 if handed else getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
        if handed or (stat.S_ISREG((about := os.fstat(file.fileno())).st_mode) and about.st_size <= most):
            if start:
                file.seek(start)
            if len(data := file.read(most + 1)) <= most:
                return data
    raise UnfedError(f"{path} is no file, or has more than {most >> 20} MiB; restore it, or name another file.")


def read_json(path: Path, what: str) -> Any:
    try:
        return records.parsed(content(path, MOST_JSON))
    except FileNotFoundError as error:
        raise UnfedError(f"There is no {what} at {path}; check the path.") from error
    except (OSError, ValueError) as error:
        raise UnfedError(f"The {what} at {path} is damaged ({error}); restore it from a copy.") from error


_Read = TypeVar("_Read")
_RACY = 2_000_000_000  # nanoseconds in which a file may change twice and look the same: clocks of disks are coarse
_seen: OrderedDict[tuple[str, str], tuple[tuple[int, int, int], Any]] = OrderedDict()


def unchanged(path: Path, read: Callable[[Path], _Read]) -> _Read | None:
    """What a file says, read again only when it has changed; None where there is none.

    The value is shared by all who ask: change none of it.
    """
    key = (os.path.abspath(path), read.__qualname__)
    try:
        stamp = _stamp(path)
    except (FileNotFoundError, NotADirectoryError):
        _seen.pop(key, None)
        return None
    except OSError:
        return read(path)  # which says what is wrong
    if key not in _seen or _seen[key][0] != stamp:
        value = read(path)
        if time.time_ns() - stamp[0] < _RACY:
            return value
        _keep(key, stamp, value)
    kept: _Read = _seen[key][1]
    return kept


def wrote(path: Path, read: Callable[[Path], _Read], value: _Read) -> None:
    """Note what `unchanged` would read of a file that was just written here, under a lock."""
    _keep((os.path.abspath(path), read.__qualname__), _stamp(path), value)


def _stamp(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_mtime_ns, about.st_size, about.st_ino


def _keep(key: tuple[str, str], stamp: tuple[int, int, int], value: Any) -> None:
    _seen[key] = stamp, value
    _seen.move_to_end(key)
    while len(_seen) > 4096:
        _seen.popitem(last=False)


def append_line(path: Path, line: str) -> int:
    """Add a line and give the file's new length, once it is on the disk."""
    refuse_no_file(path)
    with disk_errors(path), open(path, "ab", opener=_own) as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Go on with a file at a place, over whatever a killed process left after it."""
    with disk_errors(path), open(path, "r+b", opener=_own) as file:
        file.truncate(offset)
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def cut(path: Path, length: int) -> None:
    """Shorten a file to what a saved state vouches for."""
    if path.exists() and path.stat().st_size > length:
        with disk_errors(path), open(path, "r+b", opener=_own) as file:
            file.truncate(length)
            os.fsync(file.fileno())


def save(
    path: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], notes: Mapping[str, str] | None = None
) -> None:
    """One file with tensors and numbers; the tensors' order is kept in the header, beside other notes."""
    write_bytes(path, *_parts(tensors, numbers, notes or {}))


def packed(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> bytes:
    """The bytes of such a file; equal tensors and numbers give equal bytes."""
    return b"".join(_parts(tensors, numbers, {}))


def refuse_no_file(path: Path) -> None:
    """Refuse a folder, pipe or device in the place of a file; reading a pipe can block for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnfedError(f"{path} is no file but a folder, a pipe or a device; restore it, or name another.")


def load(path: Path, what: str = "checkpoint") -> tuple[Tensors, dict[str, Any]]:
    """The tensors in their own order, and the numbers (empty for a file of other makers)."""
    verify(path, what)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = json.loads(header.get(_ORDER, "null")) or list(file.keys())
            # Copies: a mapped file would change under them, and where a mapped file cannot be replaced (Windows) a
            # job could not save over the state that it went on from.
            return {name: file.get_tensor(name).clone() for name in names}, _numbers(header)
    except FileNotFoundError as error:
        raise UnfedError(f"There is no {what} at {path}; check the path.") from error
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise UnfedError(
            f"The {what} at {path} cannot be read as safetensors ({_short(error)}); restore it, or turn a .pt file into"
            " safetensors with `unfed convert`."
        ) from error


def numbers_of(path: Path, what: str = "saved state") -> dict[str, Any]:
    """Only the numbers, without reading the tensors."""
    refuse_no_file(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if _sums(header).get("numbers", _sum_of_numbers(header)) != _sum_of_numbers(header):
                raise ValueError("its numbers are not those that were written")
            return _numbers(header)
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise UnfedError(f"The {what} {path} is damaged ({_short(error)}); restore it from a copy.") from error


def names_of(path: Path) -> list[str]:
    """Only the names of the tensors, without reading them."""
    refuse_no_file(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (safetensors.SafetensorError, OSError) as error:
        raise UnfedError(f"The file {path} is damaged ({_short(error)}); restore it from a copy.") from error


def remove(path: Path) -> None:
    """Take a file away, so that it does not come back when the power fails."""
    with disk_errors(path):
        path.unlink(missing_ok=True)
        sync(path.parent)


def link(path: Path, second: Path) -> None:
    """Keep a file's content under a second name; where the file system has no links, a copy."""
    with disk_errors(second):
        second.unlink(missing_ok=True)
        try:
            os.link(path, second)
        except OSError:
            write_bytes(second, path.read_bytes())


def verify(path: Path, what: str = "checkpoint") -> None:
    """Refuse a file whose tensors or numbers are not those that were written.

    A file without sums (of other programs) passes, and one that cannot be read at all is left to its reader.
    """
    refuse_no_file(path)
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= min(_LONGEST_HEADER, os.fstat(file.fileno()).st_size):
                return
            described = json.loads(file.read(size))
            header = described.pop("__metadata__", {})
            if not (sums := _sums(header)):
                return
            found = hashlib.sha256(_canonical(described).encode())
            while chunk := file.read(_CHUNK):
                found.update(chunk)
        fits = sums == {"numbers": _sum_of_numbers(header), "tensors": found.hexdigest()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return
    if not fits:
        raise UnfedError(
            f"The {what} at {path} is not what was written there (its SHA-256 differs): it is damaged or was changed;"
            " restore it from a copy."
        )


def _numbers(header: Mapping[str, str]) -> dict[str, Any]:
    found = json.loads(header.get(NUMBERS, "{}"))
    if not isinstance(found, dict):
        raise ValueError("its numbers are no table")
    return found


def way_back(numbers: Any) -> str:
    """What can be taken back of a model, as its file says; empty if it says nothing."""
    said = numbers.get(WAY_BACK) if isinstance(numbers, dict) else None
    return "; ".join(map(str, said)) if isinstance(said, list) else ""


def _sums(header: Mapping[str, str]) -> dict[str, str]:
    found = json.loads(header.get(SUMS, "{}"))
    return found if isinstance(found, dict) else {"numbers": "none"}


def _sum_of_numbers(header: Mapping[str, str]) -> str:
    return hashlib.sha256((header.get(NUMBERS, "") + "\n" + header.get(_ORDER, "")).encode()).hexdigest()


def _canonical(header: Mapping[str, Any]) -> str:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def join(groups: Mapping[str, Tensors]) -> Tensors:
    """Several groups of tensors as one, `group/name`."""
    return {f"{group}/{name}": t for group, tensors in groups.items() for name, t in tensors.items()}


def part(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """The groups back."""
    groups: dict[str, Tensors] = {}
    for name, t in tensors.items():
        group, _, own = name.partition("/")
        groups.setdefault(group, {})[own] = t
    return groups


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a disk can say into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Halted(
                f"The disk is full, so {path} could not be written; what was saved before is untouched."
                " Free some space and resume."
            ) from error
        if error.errno == errno.ELOOP:
            raise Halted(f"{path} is a link, and nothing is written through one; put the file in its place.") from error
        raise Halted(f"{path} could not be written ({error.strerror or error}); check the path.") from error


def _parts(
    tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], notes: Mapping[str, str]
) -> list[bytes | memoryview]:
    """A safetensors file with a sorted header that holds the sums of its parts.

    Tensors are written from where they lie; safetensors itself copies each, and writes metadata in any order. Equal
    states must give equal bytes, or a hash of the file would say nothing.
    """
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    header = {**notes, NUMBERS: json.dumps(numbers), _ORDER: json.dumps(list(plain))}
    small = safetensors.torch.save({name: t.new_zeros(1) for name, t in plain.items()})  # it knows types and places
    described = json.loads(small[8 : 8 + int.from_bytes(small[:8], "little")])
    data, end = list[bytes | memoryview](), 0
    for name in sorted(described, key=lambda name: described[name]["data_offsets"]):
        data.append(plain[name].reshape(-1).view(torch.uint8).numpy().data)
        begin, end = end, end + plain[name].nbytes
        described[name] |= {"shape": list(plain[name].shape), "data_offsets": [begin, end]}
    found = hashlib.sha256(_canonical(described).encode())
    for part in data:
        found.update(part)
    sums = {"numbers": _sum_of_numbers(header), "tensors": found.hexdigest()}
    text = _canonical({**described, "__metadata__": {**header, SUMS: json.dumps(sums)}}).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    return [len(text).to_bytes(8, "little"), text, *data]


_LEFT = re.compile(r"\..+\.\d+\.tmp")


def is_leftover(path: Path) -> bool:
    """Whether a file is one that a killed process was about to write.

    It is known by its name, which nothing else here has.
    """
    return _LEFT.fullmatch(path.name) is not None


def sweep(files: Iterable[Path]) -> None:
    """Take away, of these files, what killed processes left.

    Who calls this holds the lock that writers need.
    """
    for path in files:
        if is_leftover(path):
            with contextlib.suppress(OSError):
                path.unlink()


def sweep_beside(path: Path) -> None:
    """Take away what killed writers of this file left beside it."""
    with contextlib.suppress(OSError):  # the folder need not be there yet
        sweep_dead(other for other in path.parent.iterdir() if other.name.startswith(f".{path.name}."))


def sweep_dead(files: Iterable[Path]) -> None:
    """Take away those files that killed processes left; what a living one writes is locked.

    On Windows nothing is: there no file is locked while it is written.
    """
    if sys.platform != "win32":
        for path in filter(is_leftover, files):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    path.unlink()


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    folder = path.is_dir()  # Windows syncs no folders, and files only if they were opened for writing
    if folder and sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
