"""`make coverage` ends here: a page of what no test runs, from coverage.py's JSON.

Nothing here is a mark to reach: a line that runs is not a line that is held (`make mutants` asks that). The page is for
reading: functions that nothing calls, lines that nothing reaches, and ways out of a line that are never taken.

    python tools/uncovered.py [build/coverage/coverage.json]          writes uncovered.md beside it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOUND = Path("build/coverage/coverage.json")


def main(arguments: list[str]) -> int:
    source = Path(arguments[0]) if arguments else FOUND
    if not source.is_file():
        print(f"{source} is not there; `make coverage` measures first.", file=sys.stderr)
        return 2
    page = source.with_name("uncovered.md")
    page.write_text(written(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"Wrote {page}.")
    return 0


def written(found: Mapping[str, Any]) -> str:
    """The page: files with the most that is not run come first, files of which everything is run are only counted."""
    files = {name.replace("\\", "/"): file for name, file in found["files"].items()}
    open_files = {name: file for name, file in files.items() if file["missing_lines"] or _ways(file)}
    totals = found["totals"]
    lines = [
        "# What no test runs",
        "",
        f"`make coverage`, {found['meta']['timestamp'][:10]}: {totals['missing_lines']:,} of"
        f" {totals['num_statements']:,} statements were not run; {len(files) - len(open_files)} of {len(files)} files"
        " were run whole. What runs only on a GPU or over a real Flower deployment is not run here.",
        "",
        "| file | not run | of |",
        "|---|---:|---:|",
    ]
    order = sorted(open_files, key=lambda name: (-len(open_files[name]["missing_lines"]), name))
    for name in order:
        file = open_files[name]
        lines.append(f"| {name} | {len(file['missing_lines'])} | {file['summary']['num_statements']} |")
    for name in order:
        lines += ["", f"## {name}", *_of(open_files[name])]
    return "\n".join(lines) + "\n"


def _of(file: Mapping[str, Any]) -> list[str]:
    whole = {name: f for name, f in file["functions"].items() if name and _never_called(f)}
    inside = {line for function in whole.values() for line in function["missing_lines"]}
    said = []
    if whole:
        said.append("- never called: " + ", ".join(f"`{name}` ({f['start_line']})" for name, f in whole.items()))
    rest = [line for line in file["missing_lines"] if line not in inside]
    if rest:
        said.append("- lines not run: " + ", ".join(ranges(rest)))
    if _ways(file):
        said.append("- ways never taken: " + ", ".join(_ways(file)))
    return said


def _never_called(function: Mapping[str, Any]) -> bool:
    return bool(function["missing_lines"]) and not function["executed_lines"]


def _ways(file: Mapping[str, Any]) -> list[str]:
    """Branches from a line that runs to one that also runs, but never from here; a negative number is the way out."""
    missing = set(file["missing_lines"])
    ways = (way for way in file["missing_branches"] if not missing & {way[0], way[1]})
    return [f"{start} → {end if end > 0 else 'out'}" for start, end in ways]


def ranges(numbers: Iterable[int]) -> list[str]:
    """1, 2, 3, 7 as `1–3` and `7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}–{last}" for first, last in runs]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
