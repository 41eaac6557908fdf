"""Is everything said for a release? Prints its notes, which are its section of CHANGELOG.md.

    python tools/release.py v0.1.0           exits with 1 and one sentence per disagreement

The version stands in `src/unfed/__init__.py`. The package takes it from there; tag, CHANGELOG.md and CITATION.cff are
held to it here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("Name the tag: python tools/release.py v0.1.0", file=sys.stderr)
        return 2
    wrong = list(disagreements(arguments[0], ROOT))
    print("\n".join(wrong), file=sys.stderr) if wrong else print(notes(version_of(ROOT), ROOT))
    return 1 if wrong else 0


def version_of(root: Path) -> str:
    """The version, read without importing anything."""
    found = re.search(r'^__version__ = "(.+)"$', _text(root / "src" / "unfed" / "__init__.py"), re.M)
    assert found is not None, "src/unfed/__init__.py names no __version__"
    return found[1]


def disagreements(tag: str, root: Path) -> Iterator[str]:
    """What does not say the version, in sentences."""
    version = version_of(root)
    if tag != f"v{version}":
        yield f"The tag is {tag}, but src/unfed/__init__.py says {version}; change the one or the other."
    if not re.search(rf"^version: {re.escape(version)}$", _text(root / "CITATION.cff"), re.M):
        yield f"CITATION.cff does not say version: {version}."
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", _text(root / "CHANGELOG.md"), re.M):
        yield f"CHANGELOG.md has no heading `## {version} (YYYY-MM-DD)`; write the day in place of `unreleased`."


def notes(version: str, root: Path) -> str:
    """The section of CHANGELOG.md that speaks of this version."""
    sections = re.split(r"^## ", _text(root / "CHANGELOG.md"), flags=re.M)
    return next(section.partition("\n")[2].strip() for section in sections if section.startswith(f"{version} "))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
