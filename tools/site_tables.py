"""While the site is built, a link to a CSV file, alone on its line, becomes the table, with a box to filter it.

On GitHub the same link opens the file, which is shown as a table with a search.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"^\[([^]]+)\]\(([\w./-]+\.csv)\)$", re.MULTILINE)
BOX = '<label>Filter <input type="search" class="filter" aria-label="Filter the table"></label>'


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What mkdocs calls for each page."""
    folder = Path(page.file.abs_src_path).parent
    return LINK.sub(lambda link: f"{link[0]}\n\n{BOX}\n\n{table(folder / link[2])}", markdown)


def table(file: Path) -> str:
    """A CSV file as Markdown."""
    with file.open(encoding="utf-8", newline="") as text:
        head, *rows = ([cell.replace("|", "\\|") for cell in row] for row in csv.reader(text))
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
