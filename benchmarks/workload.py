"""What the benchmarks run: a federation, a model, and rounds of FedAvg on any engine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from unfed import rng, storage
from unfed.client.plan import Optimiser, Phase
from unfed.client.scores import score
from unfed.data import ClientData, TensorSource, Transform, dirichlet, iid, load, split
from unfed.engines import Engine
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import Settings, State
from unfed.model.functional import Template, forward_flops
from unfed.model.networks import build
from unfed.model.params import Params, cast, params_of

RECORDS = Path(__file__).parent / "records"


class Batches:
    """The rows of one client as tensors on the device, augmented anew each time if the data is augmented at all."""

    def __init__(self, source: TensorSource, rows: torch.Tensor) -> None:
        self._source, self._rows = source, rows.to(source.images.device)
        transform = source.transform
        self._augmented = bool(transform.flip or transform.pad_crop or transform.crop)
        self._x, self._y = (torch.empty(0), torch.empty(0)) if self._augmented else source.fetch(self._rows, None)

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._augmented:
            return self._x[places], self._y[places]
        words = torch.randint(0, rng.WORD, places.shape, device=places.device)
        return self._source.fetch(self._rows[places], words)


@dataclass(frozen=True)
class Workload:
    """Clients with their data on the device, a test set, and the numbers of a round."""

    name: str
    model: str
    clients: dict[str, ClientData]
    train: TensorSource
    test: TensorSource
    batch: int
    lr: float
    device: torch.device
    dtype: torch.dtype = torch.float32

    @property
    def images(self) -> int:
        """Images that one round trains on."""
        return sum(len(c.view("retain")) for c in self.clients.values())

    def fresh(self, seed: int = 0) -> torch.nn.Module:
        return build(self.model, shape=self.train.shape, classes=self.train.classes, seed=seed)

    def template(self, autocast: torch.dtype | None = None) -> Template:
        made = Template(self.fresh(), self.train.shape).to(self.device, self.dtype)
        made.autocast = autocast
        return made

    def params(self) -> Params:
        return cast(params_of(self.fresh()), self.dtype, self.device)

    def server(self, template: Template, engine: Engine) -> JobServer:
        phase = Phase(batch=self.batch, optimiser=Optimiser(lr=self.lr))
        start = self.params()
        flops = forward_flops(template)
        setup = Setup(template, lambda seed: start, flops)
        return JobServer(setup, Members(self.clients, engine), start, Settings(phase=phase), 0)

    def batches(self, client: ClientData) -> Batches:
        """A client's training rows, for loops that are not unfed's."""
        return Batches(self.train, client.rows[client.view("retain")])

    def accuracy(self, params: Params) -> float:
        rows = torch.arange(len(self.test))
        return score(self.template(), params, self.test, rows).accuracy


def rounds(server: JobServer, count: int, state: State | None = None) -> State:
    """`count` rounds of the default kind: train, validate, average."""
    state = state or State(server.params)
    for _ in range(count):
        state = server.recover(state)
    return state


def deal(source: TensorSource, clients: int, per_client: int | None, beta: float | None) -> dict[str, ClientData]:
    labels = source.labels.cpu()
    dealt = iid(labels, clients, 0) if beta is None else dirichlet(labels, clients, beta, 0, 2)
    made = {}
    for k, rows in enumerate(dealt.rows):
        train, val = split(len(rows), rng.key(0, k), 0.2)
        made[str(k)] = ClientData(str(k), source, rows, train if per_client is None else train[:per_client], val)
    return made


def digits(clients: int = 10, beta: float | None = None, model: str = "cnn-small", lr: float = 0.01) -> Workload:
    """scikit-learn's digits, as in the demo."""
    data = load("digits", test_size=360, seed=0)
    assert isinstance(data.train, TensorSource) and isinstance(data.test, TensorSource)
    held = deal(data.train, clients, None, beta)
    return Workload("digits", model, held, data.train, data.test, 16, lr, torch.device("cpu"))


def cifar10(device: torch.device, clients: int = 10, model: str = "cnn", batch: int = 64) -> Workload:
    """The real images, from `UNFED_DATA`; 80 % of each client's are trained on."""
    data = load("cifar10", device=device)
    assert isinstance(data.train, TensorSource) and isinstance(data.test, TensorSource)
    return Workload("cifar10", model, deal(data.train, clients, None, None), data.train, data.test, batch, 0.01, device)


def synthetic(
    device: torch.device,
    clients: int = 10,
    images: int = 50_000,
    side: int = 32,
    model: str = "cnn",
    batch: int = 64,
    beta: float | None = None,
    augment: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Workload:
    """CIFAR-shaped images that can be learnt: a smooth pattern per class under strong noise."""
    generator = rng.generator(1)
    patterns = torch.nn.functional.interpolate(torch.randn(10, 3, 4, 4, generator=generator), side, mode="bilinear")

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, 10, (count,), generator=generator)
        noise = torch.randn(count, 3, side, side, generator=generator)
        return ((patterns[labels] * 0.25 + noise) * 32 + 128).clamp(0, 255).to(torch.uint8), labels

    mean_std = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    transform = Transform(flip=0.5, pad_crop=4, **mean_std) if augment else Transform(**mean_std)

    def source(count: int) -> TensorSource:
        pixels, labels = draw(count)
        return TensorSource(pixels.to(device), labels, classes=10, transform=transform, dtype=dtype)

    train, test = source(images), source(2_000)
    held = deal(train, clients, None, beta)
    name = f"synthetic {images} x 3x{side}x{side}, {'iid' if beta is None else f'dirichlet {beta}'}"
    return Workload(name, model, held, train, test, batch, 0.01, device, dtype)


def digest(params: Params) -> str:
    """The bits of all tensors, in a few letters: two ways that give the same one computed the same."""
    return hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in params.values())).hexdigest()[:16]


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def attempt(name: str, work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """The row of a contestant, or what went wrong with it: one failure must not cost the others their numbers."""
    try:
        row = {"name": name, **work()}
    except Exception as error:
        row = {
            "name": name,
            "failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300],
        }
    print(json.dumps(row), flush=True)
    return row


def write(what: str, device: torch.device, body: dict[str, object]) -> Path:
    """One record: date, hardware, versions, command, numbers; also to $OUT where that is set."""
    name = f"{datetime.now(UTC):%Y-%m-%d}-{what}-{device.type}.json"
    text = json.dumps({"what": what, **head(device), **body}, indent=1, default=str)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / name).write_text(text + "\n")
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / name).write_text(text + "\n")
    return RECORDS / name


def add_rows(
    what: str,
    device: torch.device,
    rows: Sequence[dict[str, Any]],
    order: Callable[[dict[str, Any]], int] | None = None,
) -> None:
    """Add rows to the day's record, one JSON object per line: what a time limit cuts off is not lost.

    They come last, or where `order` puts them among those that are there.
    """
    name = f"{datetime.now(UTC):%Y-%m-%d}-{what}-{device.type}.jsonl"
    RECORDS.mkdir(exist_ok=True)
    lines = [json.dumps({**row, **head(device)}, default=str) + "\n" for row in rows]
    for folder in (RECORDS, *([Path(os.environ["OUT"])] if os.environ.get("OUT") else [])):
        path = folder / name
        if order is None:
            with path.open("a") as record:
                record.writelines(lines)
        else:
            there = path.read_text().splitlines(keepends=True) if path.exists() else []
            ordered = sorted([*there, *lines], key=lambda line: order(json.loads(line)))
            storage.write_bytes(path, "".join(ordered).encode())


def head(device: torch.device) -> dict[str, object]:
    """Where, when and how a number was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "command": command(sys.argv),
    }


def command(words: Sequence[str]) -> str:
    """As others would type it: a folder of the machine that it ran on says nothing to them, its name does."""
    return shlex.join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in words)])


def _commit() -> str:
    """$COMMIT where the copy that runs has no history of its own."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RECORDS.parent)
    return found.stdout.strip() or "not known"
