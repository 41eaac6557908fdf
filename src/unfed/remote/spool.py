"""Keep the arrays of a round's replies out of memory.

A server needs every update of a round at once: they are averaged in the federation's order, and some rules compare
them. The first `IN_MEMORY` bytes stay in memory. All further replies go to one file without a name, which vanishes with
the process, and their arrays are read from it where they are needed. The numbers are the same bits either way.

    spool = Spool()                                    one per round trip
    found[node] = spool.keep(reply)                    as each reply arrives

The file lies in the folder for temporary files; point TMPDIR to a disk where that folder is itself in memory.
"""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import replace
from typing import IO

from unfed.errors import UnfedError
from unfed.remote.messages import Packed, Reply

IN_MEMORY = 32 * 2**20
"""Bytes of a round's replies that stay in memory."""
_ALIGNED = 64
"""Where an array may begin, so that its numbers can be read in place."""


class Spool:
    """The replies of one round trip."""

    def __init__(self, in_memory: int | None = None) -> None:
        self._left = IN_MEMORY if in_memory is None else in_memory
        self._file: IO[bytes] | None = None

    def keep(self, reply: Reply) -> Reply:
        """The same reply, with its arrays in the file if memory's share is used up."""
        every = [packed for group in reply.arrays.values() for packed in group.values()]
        size = sum(len(packed.data) for packed in every)
        if size <= self._left:
            self._left -= size
            return reply
        try:
            places = iter(self._written(every))
        except OSError as error:
            raise UnfedError(
                f"A client's reply of {size / 1e6:.0f} MB cannot be put into a temporary file ({error.strerror});"
                " point TMPDIR to a disk with more room and resume."
            ) from error
        arrays = {
            name: {n: replace(packed, data=next(places)) for n, packed in group.items()}
            for name, group in reply.arrays.items()
        }
        return replace(reply, arrays=arrays)

    def _written(self, every: list[Packed]) -> list[memoryview]:
        """The arrays, as they lie in the file; whatever is written into them stays in this process."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="unfed-")  # noqa: SIM115  (closed with the last array)
        file, begin = self._file, _rounded(self._file.seek(0, 2), mmap.ALLOCATIONGRANULARITY)
        places, end = [], begin
        for packed in every:
            end = _rounded(end, _ALIGNED)
            file.seek(end)
            file.write(packed.data)
            places.append((end - begin, end - begin + len(packed.data)))
            end += len(packed.data)
        file.truncate(end)  # an empty array may end it
        file.flush()
        mapped = memoryview(mmap.mmap(file.fileno(), end - begin, access=mmap.ACCESS_COPY, offset=begin))
        return [mapped[a:b] for a, b in places]


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
