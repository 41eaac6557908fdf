"""What the NeurIPS 2023 score says of models that are all of one kind: far less than 1, and how much it varies.

    python benchmarks/neurips_null.py           one CPU minute

independent     N values against N of one distribution, every row for itself: the rule counts ranks, so whether the
                distribution is normal, uniform or heavy-tailed hardly matters
together        100 rows of models that move as a whole (a model's own shift, and half as much per row), as those of a
                real population do: the mean is the same, and one population's score varies far more
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from unfed.measures.population import distances

RECORDS = Path(__file__).parent / "records"
ROWS = {16: 16_000, 32: 8_000, 64: 5_000}
POPULATIONS = {16: 60, 32: 40, 64: 20}
OTHERS = ("uniform", "exponential", "standard_cauchy")


def spread(values: np.ndarray, name: str) -> dict[str, float]:
    return {"mean": round(float(values.mean()), 4), name: round(float(values.std(ddof=1)), 4)}


def main() -> None:
    generator, found = np.random.default_rng(0), []

    def together(models: int) -> np.ndarray:
        return generator.normal(size=(models, 1)) + 0.5 * generator.normal(size=(models, 100))

    for models, rows in ROWS.items():
        draws = {"normal": rows} | {name: rows // 8 for name in OTHERS}
        each = {}
        for name, count in draws.items():
            sides = [getattr(generator, name)(size=(models, count)) for _ in range(2)]
            points = distances.points(distances.epsilon(*sides), models)
            each[name] = {
                "mean": round(float(points.mean()), 4),
                "error": round(float(points.std()) / count**0.5, 4),
            }
        seen = np.array(
            [distances.forgetting_quality(together(models), together(models)) for _ in range(POPULATIONS[models])]
        )
        found.append({"models": models, "independent": each, "together": spread(seen, "std over populations")})
        print(json.dumps(found[-1]), flush=True)
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": " ".join(["python", *sys.argv]), "rows": found}
    (RECORDS / f"{about['date']}-neurips-null-cpu.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
