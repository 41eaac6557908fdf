"""Flower's own quickstarts, taken from a clone of Flower, with their data set replaced and a handful of lines changed.

    git clone https://github.com/adap/flower
    python benchmarks/flower_quickstarts.py flower              in Flower's simulator
    python benchmarks/flower_quickstarts.py flower --real       on a SuperLink and four SuperNodes, as processes

Of the two apps nothing is part of this repository. Each is run twice with `flwr run`: as it is but for the data (which
would be downloaded), and then with `Unlearn`, from the model that the first run left. Every message is counted where a
client app is called, by a line in `sitecustomize.py` that the app knows nothing of.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_machines import deployment, flwr_run, simulator, told

NODES = 4
COUNTING = """
import os, sys
if any(word.endswith(("default_worker.py", "flwr-clientapp")) for word in sys.orig_argv):  # where client apps run
    from flwr.clientapp import ClientApp
    called = ClientApp.__call__
    def noted(self, message, context):
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{context.node_config['partition-id']} {message.metadata.message_type}\\n")
        return called(self, message, context)
    ClientApp.__call__ = noted
"""
CLIENT = "from flwr.clientapp import ClientApp\n"
INTRODUCED = {
    CLIENT: CLIENT + "from unfed.flower import introduce\n",
    "app = ClientApp()\n": "app = introduce(ClientApp())\n",
}
STRATEGY = "from flwr.serverapp.strategy import FedAvg\n"

DIGITS = '''
def digits(rows):
    """scikit-learn's digits in the place of CIFAR-10: three equal channels, 32x32."""
    from sklearn.datasets import load_digits
    found = load_digits()
    images = torch.tensor(found.images[rows], dtype=torch.float32)[:, None] / 8 - 1
    images = F.interpolate(images, 32).expand(-1, 3, -1, -1)
    return [{"img": img, "label": int(label)} for img, label in zip(images, found.target[rows])]


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    own = digits(slice(partition_id, 1500, num_partitions))
    cut = int(0.8 * len(own))
    return DataLoader(own[:cut], batch_size=batch_size, shuffle=True), DataLoader(own[cut:], batch_size=batch_size)


def load_centralized_dataset():
    return DataLoader(digits(slice(1500, None)), batch_size=128)


'''
IRIS = '''
def load_data(partition_id: int, num_partitions: int):
    """The same flowers, from scikit-learn."""
    from sklearn.datasets import load_iris
    found = load_iris()
    rows = np.random.default_rng(0).permutation(len(found.data))[partition_id::num_partitions]
    cut = int(0.8 * len(rows))
    X, y = found.data[rows][:, [2, 3, 0, 1]], found.target[rows]
    return X[:cut], y[:cut], X[cut:], y[cut:]
'''


def torch_data(task: str) -> str:
    """The quickstart's task.py with everything about its data set replaced."""
    kept = [
        line
        for line in task.splitlines(keepends=True)
        if not line.startswith(("from datasets", "from flwr_datasets", "from torchvision"))
    ]
    text = "".join(kept)
    return text[: text.index("fds = None")] + DIGITS.lstrip() + text[text.index("def train(") :]


def sklearn_data(task: str) -> str:
    kept = [line for line in task.splitlines(keepends=True) if not line.startswith("from flwr_datasets")]
    text = "".join(kept)
    return text[: text.index("fds = None")] + IRIS.lstrip()


APPS: dict[str, dict[str, Any]] = {
    "quickstart-pytorch": {
        "package": "pytorchexample",
        "data": torch_data,
        "config": "num-server-rounds=3 learning-rate=0.05",
        "server": {
            STRATEGY: STRATEGY + "from unfed.flower import Unlearn, negate, node_with\n",
            "arrays = ArrayRecord(global_model.state_dict())": 'arrays = ArrayRecord(torch.load("final_model.pt"))',
            "strategy = FedAvg(fraction_evaluate=fraction_evaluate)": (
                "strategy = Unlearn(lambda: FedAvg(fraction_evaluate=fraction_evaluate), negate(global_model),"
                " node_with(partition_id=0), ledger=None)"
            ),
        },
    },
    "quickstart-sklearn": {
        "package": "sklearnexample",
        "data": sklearn_data,
        "config": "num-server-rounds=3",
        "server": {
            STRATEGY: STRATEGY + "from unfed.flower import Unlearn, negate_arrays, node_with\n",
            "arrays = ArrayRecord(get_model_params(model))": (
                'arrays = ArrayRecord(get_model_params(joblib.load("logreg_model.pkl")))'
            ),
            "strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)": (
                'strategy = Unlearn(FedAvg, negate_arrays("0"), node_with(partition_id=0), ledger=None)'
            ),
        },
    },
}


def changed(file: Path, lines: Mapping[str, str]) -> int:
    """Replace parts of a file, each of which is there once; how many lines are new."""
    old = new = file.read_text()
    for was, will in lines.items():
        if new.count(was) != 1:
            raise SystemExit(f"{file} has no single {was!r}; this clone of Flower is another version.")
        new = new.replace(was, will)
    file.write_text(new)
    return sum(line.startswith("+ ") for line in difflib.ndiff(old.splitlines(), new.splitlines()))


def asked(file: Path) -> dict[str, int]:
    """How often partition 0 and the others together were called, by kind; the note is taken away."""
    found: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        partition, kind = line.split()
        found[f"{'leaver' if partition == '0' else 'others'} {kind}"] += 1
    file.unlink()
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flower", type=Path, help="a clone of Flower")
    parser.add_argument("--real", action="store_true", help="SuperNodes as processes, instead of the simulator")
    parser.add_argument("--out", type=Path, help="write the record here as well")
    given = parser.parse_args()
    revision = ["git", "-C", str(given.flower), "rev-parse", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True, check=True).stdout.strip()
    records = []
    for name, app in APPS.items():
        with tempfile.TemporaryDirectory(prefix="quickstart-") as folder:
            where = Path(folder)
            (where / "counting").mkdir()
            (where / "counting" / "sitecustomize.py").write_text(COUNTING)
            own = where / name
            shutil.copytree(given.flower / "examples" / name, own)
            task = own / str(app["package"]) / "task.py"
            task.write_text(app["data"](task.read_text()))
            note, paths = where / "asked", [str(where / "counting"), str(Path(__file__).parent.parent / "src")]
            asks, path, nodes = str(note), ":".join(paths), None if given.real else NODES
            made = deployment(where, NODES, ASKED=asks, PYTHONPATH=path) if given.real else None
            with made or simulator(where, ASKED=asks, PYTHONPATH=path) as env:
                flwr_run(own, env, str(app["config"]), nodes)
                before = asked(note)
                package = own / str(app["package"])
                client, server = (
                    changed(package / "client_app.py", INTRODUCED),
                    changed(package / "server_app.py", app["server"]),
                )
                flwr_run(own, env, str(app["config"]), nodes)
                after = asked(note)
        records.append(
            {
                **told(),
                "command": "python benchmarks/flower_quickstarts.py flower" + (" --real" if given.real else ""),
                "kind": "SuperNodes as processes, TLS and keys" if given.real else "Flower's simulator (ray)",
                "app": name,
                "flower": commit,
                "lines": {"client app": client, "server app": server},
                "before": before,
                "after": after,
            }
        )
        print(json.dumps(records[-1]), flush=True)
    if given.out:
        given.out.write_text("".join(json.dumps(one) + "\n" for one in records))


if __name__ == "__main__":
    main()
