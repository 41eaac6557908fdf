"""What can go wrong in a command.

Each fault is one sentence and an exit code: 2 for what a user can mend, 1 for a fault of ours.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

import unfed


def explained(error: Exception) -> tuple[str, int]:
    """The sentence, and the exit code."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; check the path, its rights, the disk and the network.", 2
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return (
            "There is not enough memory for this; take fewer clients at once (engine.chunk), smaller batches, or a"
            " larger machine. What was saved before is untouched.",
            2,
        )
    if isinstance(error, RecursionError):
        return "Something that was read is nested too deep; give a file with fewer levels.", 2
    said = (str(error).splitlines() or [""])[0][:200]
    shown = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"This was not foreseen ({shown}). {_logged(error)} What was saved before is untouched.", 1


def _out_of_memory(error: Exception) -> bool:
    """PyTorch says it in its own words, on the CPU and on a device."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "not enough memory" in str(error))
    )


def _logged(error: Exception) -> str:
    """Write down what happened, for whoever mends it."""
    text = [
        f"unfed {unfed.__version__}, Python {platform.python_version()}, {platform.platform()}\n",
        f"{sys.argv!r}\n\n",
        *traceback.format_exception(error),
    ]
    try:
        descriptor, path = tempfile.mkstemp(prefix="unfed-", suffix=".log", text=True)  # 0600
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(text)
    except OSError as failed:
        return f"The details could not be written down ({failed.strerror or failed})."
    return f"The details are in {path}; please report it with that file."
