"""The pictures of a judged population as files: where margins lie, and U-LiRA's ROC at low rates.

    python benchmarks/population_figures.py benchmarks/records/2026-11-16-ranking-cifar10-cuda.json PREFIX

reads what `unfed judge` wrote (judged.json, or a record of it), and writes PREFIX-margins.svg and PREFIX-roc.svg.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from unfed.report import figures
from unfed.report.views import JudgedPopulation


def main(record: Path, prefix: str) -> None:
    judged = JudgedPopulation.of(json.loads(record.read_text(encoding="utf-8")))
    drawn = [figures.distributions(judged, "margins"), figures.roc(judged, "roc")]
    for one in drawn:
        if one is not None:
            path = Path(f"{prefix}-{one.name}.svg")
            path.write_text(one.svg(), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
