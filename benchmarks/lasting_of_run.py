"""The lines of `lasting.py` from run folders: for a network too large for that benchmark, run as a block of the paper.

    python benchmarks/lasting_of_run.py RUN … --variants retrain,sealed,anew=reinit --record FILE

Per variant its trajectory's test accuracies, what its last round left, and, where `unfed probe RUN` has tried to undo
it, what came back. LABEL=NAME gives a label of the config the name that the tables know. The first folder's θ* is the
one that rounds are counted to, its request the one that is shown; a later folder may hold a variant that owes nothing
to θ*, such as everything drawn anew. A run keeps the model of its last round alone, so these lines are attacked at the
end only, and the tables say so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SEEN = ("retain", "forget", "test", "mia", "backdoor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--variants", required=True, help="labels with commas; LABEL=NAME gives one another name")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    labels = dict(_named(text) for text in options.variants.split(","))
    lines = [json.dumps(line) for line in lines_of(options.runs, labels)]
    options.record.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _named(text: str) -> tuple[str, str]:
    label, _, name = text.partition("=")
    return label, name or label


def lines_of(runs: Sequence[Path], labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One line per variant, of the folder in which it went furthest."""
    told = json.loads((runs[0] / "run.json").read_text(encoding="utf-8"))
    config = told["config"]
    rows = [[json.loads(text) for text in (run / "trajectory.jsonl").read_text().splitlines()] for run in runs]
    before = next(row for row in rows[0] if row["method"] == "before")
    seed, request = before["seed"], before["request"]
    common = {"data": config["data"]["name"], "model": config["model"]["name"], "scope": "client", "seed": seed}
    hardware = told["hardware"].partition(",")[0]
    made = {"hardware": hardware, "precision": config["engine"]["precision"], "trained": config["training"]["rounds"]}
    for label, name in labels.items():
        own = max(([row for row in part if row["method"] == label] for part in rows), key=len)
        line = common | {"variant": name, "k": 1, "rounds": own[-1]["round"], "lr": config["training"]["lr"]}
        line |= {"before": _seen(before), "after": _seen(own[-1])}
        line |= {"curve": [[row["round"], round(row["test"], 6)] for row in own]}
        undone = back(runs[0] / "undo" / str(seed) / request, label)
        yield line | ({"undo": undone} if undone else {}) | made


def _seen(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(row[name], 6) for name in SEEN}


def back(folder: Path, label: str) -> dict[str, Any] | None:
    """What came back of a variant: from its own file, or Retrain's from another one's."""
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        who = "unlearned" if found["method"] == label else label
        if who in found["measured"]:
            return _told(found["measured"][who], found["effort"])
    return None


def _told(measured: dict[str, Any], effort: dict[str, Any]) -> dict[str, Any]:
    best, grid = measured["realign"], effort["grid"]
    names = ("usable", "tried", "forget", "backdoor", "forget_at", "backdoor_at")
    found = {name: best[name] for name in names} | {"rates": grid["rates"], "batch": grid["budget"]["batch"]}
    found |= {"rows": grid["rows"], "steps": grid["budget"]["stops"], "tries": [_tried(one) for one in best["tries"]]}
    parts = {"flip": ("forget", "test", "backdoor"), "resurface": ("rounds", "forget_rise", "backdoor_rise")}
    parts |= {
        "relearn": ("rounds", "areas", "area"),
        "difference": ("cosine", "variation", "variation_of_equal_shares"),
    }
    light = {"lift": ("back_1", "back_5"), "triggers": ("own", "known")}  # files of before November 17 have none
    parts |= {part: own for part, own in light.items() if set(own) <= set(measured.get(part, ()))}
    found |= {part: {name: measured[part].get(name) for name in own} for part, own in parts.items()}
    return found | {"path": {name: measured["path"]["before"][name] for name in ("relative_l2", "cosine", "peak")}}


def _tried(one: dict[str, Any]) -> list[Any]:
    """An attacked model as `lasting.py` keeps it; of many layers their number."""
    layers = [name.removesuffix(".weight") for name in one["layers"]]
    which = "+".join(layers) if len(layers) < 9 else f"{len(layers)} layers"
    return [f"{one['start']} {which}", *(one[name] for name in ("n", "steps", "rate", "forget", "test", "backdoor"))]


if __name__ == "__main__":
    main()
