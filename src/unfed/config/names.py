"""Names that become files: of runs, requests and methods.

They come from configs and request files, so they are checked before a path is made of them.
"""

from __future__ import annotations

import re

from unfed.errors import UnfedError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_FOLDER = re.compile(r"\w[\w .,;=+@()\[\]-]{0,79}")


def check_id(name: object, what: str) -> str:
    """A name that can be a file's: letters, digits, dots, underscores and dashes."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = name if isinstance(name, str) and len(name) <= 100 else f"{str(name)[:100]}…"
        raise UnfedError(
            f"The {what} {shown!r} cannot be used as a file name; take at most 80 letters, digits, dots, dashes or"
            " underscores, beginning with a letter or a digit."
        )
    return name


def check_folder(name: str) -> str:
    """The name of a run, which is also its folder's: any words, as long as they stay in their place."""
    if not _FOLDER.fullmatch(name):
        raise UnfedError(
            f"The name {name[:100]!r} cannot be used for a folder; take at most 80 letters, digits and spaces, no"
            " slash, beginning with a letter or a digit."
        )
    return name


def check_label(label: object, what: str = "method name") -> str:
    """A method's label, which may be `package.module:Class`: its file has a dot for the colon."""
    check_id(label.replace(":", ".") if isinstance(label, str) else label, what)
    return str(label)
