"""Keep the verdicts of `unfed theory`, and write the table of docs/explanation/theory.md from what was kept.

python tools/theory.py add OUT           the record of a folder of claims into benchmarks/records/
python tools/theory.py page              the page's table, between its marks
python tools/theory.py page --check      exits with 1 if the table is not what the record says
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed.paper.claims.trial import record

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks/records/2026-11-16-theory-digits-cpu.json"
PAGE = ROOT / "docs/explanation/theory.md"
BEGIN, END = "<!-- table: tools/theory.py -->", "<!-- end of table -->"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("add").add_argument("folder", type=Path)
    parts.add_parser("page").add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if options.part == "add":
        text = json.dumps(record(options.folder), indent=1, ensure_ascii=False)
        RECORD.write_text(text + "\n", encoding="utf-8")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    wanted = filled(text, json.loads(RECORD.read_text(encoding="utf-8")))
    if options.check:
        return 0 if text == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


def filled(page: str, kept: Mapping[str, Any]) -> str:
    """The page with the record's table between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} lacks the marks {BEGIN} and {END}.")
    return f"{before}{begin}\n{table(kept)}{end}{after}"


def table(kept: Mapping[str, Any]) -> str:
    """One row per claim: what it says, the verdict, what was seen."""
    lines = ["| claim | it says | verdict | seen | `--only` |", "|---|---|---|---|---|"]
    for one in kept["claims"]:
        cells = (one["place"], one["says"], f"**{one['verdict']}**", one["seen"], f"`{one['id']}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    lines.append(
        f"(`{kept['command']}`; seed {kept['seed']}, {kept['date']}, 2 x86-64 cores, {kept['seconds']:.0f} CPU seconds,"
        f" torch {kept['versions']['torch']}.)"
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
