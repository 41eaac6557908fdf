"""What `Unlearn` costs a Flower server beside stock FedAvg: 100 nodes in Flower's simulator, 20 real ones here.

    python benchmarks/flower_scale.py                    100 simulated SuperNodes, five alternating pairs
    python benchmarks/flower_scale.py --real 20          20 SuperNodes as processes with TLS and keys, one pair: it ends

Both run the app in flower_scale_app: clients that answer at once, with the arrays of Flower's PyTorch quickstart. The
seconds are CPU seconds of the strategy itself, per round; the median of the pairs' ratios stands with the interval
that holds it with 94 % (of five: the least and the greatest).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from flower_machines import app_of, deployment, flwr_run, simulator, told

HERE = Path(__file__).parent
COMPONENTS = 'serverapp = "flower_scale_app.server:app"\nclientapp = "flower_scale_app.client:app"'


def per_round(line: dict[str, Any]) -> dict[str, float]:
    """One start: CPU milliseconds of the strategy, bytes and messages of a round; the question who a node is apart."""
    rounds = line["rounds"]
    asked = {name: line[name].get("query.unfed", 0) for name in ("bytes", "messages")}
    return {
        "own_cpu_ms": 1000 * line["own_cpu_s"] / rounds,
        "grid_cpu_ms": 1000 * line["grid_cpu_s"] / rounds,
        "wall_s": line["wall_s"] / rounds,
        "memory_mb": line["memory_mb"],
        "megabytes": (sum(line["bytes"].values()) - asked["bytes"]) / rounds / 1e6,
        "messages": (sum(line["messages"].values()) - asked["messages"]) / rounds,
        "question_bytes_once": asked["bytes"],
    }


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("FedAvg", "Unlearn"):
        rows = [per_round(line) for line in lines if line["strategy"] == name]
        found[name] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    for key in ("own_cpu_ms", "megabytes", "memory_mb", "wall_s"):
        pairs: dict[int, dict[str, float]] = {}
        for line in lines:
            pairs.setdefault(line["pair"], {})[line["strategy"]] = per_round(line)[key]
        ratios = sorted(pair["Unlearn"] / pair["FedAvg"] for pair in pairs.values())
        found[f"ratio {key}"] = {"median": statistics.median(ratios), "from": ratios[0], "to": ratios[-1]}
    return found


def simulated(where: Path, nodes: int, pairs: int, rounds: int) -> list[dict[str, Any]]:
    out = where / "lines.jsonl"
    config = f'timeout = 3600.0\nwarm = true\npairs = {pairs}\nrounds = {rounds}\nnodes = {nodes}\nout = "{out}"'
    with simulator(where) as env:
        flwr_run(app_of(HERE / "flower_scale_app", where, COMPONENTS, config), env, nodes=nodes)
    return [json.loads(line) for line in out.read_text().splitlines()]


def real(where: Path, nodes: int, rounds: int, database: str, patience: int) -> list[dict[str, Any]]:
    """The tutorial's own scripts with so many nodes, then one pair."""
    out = where / "lines.jsonl"
    config = f'timeout = 600.0\nwarm = false\npairs = 1\nrounds = {rounds}\nnodes = {nodes}\nout = "{out}"'
    app = app_of(HERE / "flower_scale_app", where, COMPONENTS, config)
    with deployment(where, nodes, database, patience) as env:
        flwr_run(app, env)
    return [json.loads(line) for line in out.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=int, default=0, help="so many SuperNodes as processes, instead of the simulator")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--database", default=":flwr-in-memory:", help="of the SuperLink with real nodes; or a file")
    parser.add_argument(
        "--patience", type=int, default=300, help="seconds in the place of Flower's 30, with real nodes"
    )
    parser.add_argument("--out", type=Path, help="write the record here as well")
    asked = parser.parse_args()
    began, load = time.perf_counter(), os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="flower-scale-") as folder:
        if asked.real:
            lines = real(Path(folder), asked.real, asked.rounds, asked.database, asked.patience)
        else:
            lines = simulated(Path(folder), asked.nodes, asked.pairs, asked.rounds)
    options = f" --real {asked.real} --rounds {asked.rounds}" if asked.real else ""
    own = {"database": asked.database, "patience seconds": asked.patience} if asked.real else {}
    record = {
        **told(),
        "command": f"python benchmarks/flower_scale.py{options}",
        "nodes": asked.real or asked.nodes,
        **own,
        "kind": "SuperNodes as processes, TLS and keys" if asked.real else "Flower's simulator (ray)",
        "load before and after": [round(load[0], 1), round(os.getloadavg()[0], 1)],
        "whole seconds": round(time.perf_counter() - began, 1),
        "per round": summary(lines),
        "lines": lines,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
