"""Are our ResNet-18, ViT-B/16 and EfficientNet-B0 torchvision's? Names, shapes, outputs and gradients, side by side.

    PYTHONPATH=src python benchmarks/torchvision_check.py [--out FOLDER]

Needs torch and torchvision and nothing else of ours but `unfed.model.networks`. For each model torchvision's random
initialisation, shaken so that nothing in it is zero, is loaded into ours by name; then both see the same images in eval
and in train mode (dropout and stochastic depth off: they draw), in float32 and float64, on the CPU and on a CUDA
device where there is one. Writes torchvision-check.json to FOLDER (default: $OUT, else benchmarks/records) and exits
with 1 if anything differs by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from unfed.model import networks

PAIRS = {
    "resnet18": ("resnet18", 10, 11_181_642),
    "vit-b-16": ("vit_b_16", 101, 85_876_325),
    "efficientnet-b0": ("efficientnet_b0", 1000, 5_288_548),
}
# Relative to the largest value: what the order of summation may change, with room for another kernel's choice.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-10}


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    scale = float(theirs.double().abs().max()) or 1.0
    return float((ours.double() - theirs.double()).abs().max()) / scale


def quiet(module: nn.Module) -> None:
    """Switch off what draws, so that train mode is a function of its input."""
    for part in module.modules():
        if isinstance(part, nn.Dropout) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0


def one_pass(module: nn.Module, x: Tensor, training: bool) -> dict[str, Tensor]:
    """Logits, and in train mode the gradients of their squared sum and the running statistics."""
    module.train(training).zero_grad()
    logits = module(x)
    found = {"logits": logits.detach()}
    if training:
        logits.square().sum().backward()
        found |= {f"grad {n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
        found |= {f"buffer {n}": b.clone() for n, b in module.named_buffers()}
    return found


def compare(name: str, device: str) -> dict[str, Any]:
    theirs_name, classes, parameters = PAIRS[name]
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, theirs_name)(weights=None, num_classes=classes)
    ours = networks.build(name, shape=(3, 224, 224), classes=classes, seed=0)
    listed = [[(n, list(p.shape)) for n, p in m.named_parameters()] for m in (ours, theirs)]
    record: dict[str, Any] = {
        "model": name,
        "device": device,
        "classes": classes,
        "parameters": sum(p.numel() for p in ours.parameters()),
        "parameter_names_order_and_shapes_equal": listed[0] == listed[1],
        "state_dict_keys_equal": list(ours.state_dict()) == list(theirs.state_dict()),
        "largest_relative_difference": {},
    }
    right = record["parameter_names_order_and_shapes_equal"] and record["state_dict_keys_equal"]
    right = right and record["parameters"] == parameters
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.01 * torch.randn_like(p))
    ours.load_state_dict(theirs.state_dict())
    for module in (ours, theirs):
        quiet(module)
    for dtype, most in TOLERANCE.items():
        start = {n: t.clone() for n, t in theirs.state_dict().items()}
        x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        for training in (False, True):
            passes = []
            for module in (ours, theirs):
                module.load_state_dict(start)
                passes.append(one_pass(module.to(device, dtype), x, training))
            worst = max((difference(passes[0][k], passes[1][k]), k) for k in passes[1])
            same = passes[0].keys() == passes[1].keys()
            label = f"{str(dtype).removeprefix('torch.')} {'train' if training else 'eval'}"
            record["largest_relative_difference"][label] = {"value": worst[0], "at": worst[1]}
            right = right and same and worst[0] <= most
    record["equal"] = bool(right)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", Path(__file__).parent / "records")))
    out: Path = parser.parse_args().out
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    records = []
    for device in devices:
        for name in PAIRS:
            records.append(compare(name, device))
            print(json.dumps(records[-1]), flush=True)
    whole = {
        "what": "unfed.model.networks against torchvision: names, order, shapes, outputs, gradients, running stats",
        "command": "PYTHONPATH=src python benchmarks/torchvision_check.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "tolerance": {str(dtype).removeprefix("torch."): most for dtype, most in TOLERANCE.items()},
        "equal": all(record["equal"] for record in records),
        "models": records,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "torchvision-check.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    print("equal" if whole["equal"] else "NOT equal", "->", out / "torchvision-check.json")
    return 0 if whole["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
