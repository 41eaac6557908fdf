"""The how-to of centralised unlearning runs as it is printed; its notebook is in `test_notebooks`."""

from __future__ import annotations

import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unfed.errors import UnfedWarning

ROOT = Path(__file__).parents[2]


# --- the how-to, with stand-ins for torchvision -----------------------------------------------------------------------


class Images:
    """Sixty little pictures in place of CIFAR-10, with torchvision's way of handing them out."""

    def __init__(self, root: str, train: bool, transform: Any, download: bool = False) -> None:
        generator = torch.Generator().manual_seed(int(train))
        self.targets = [row % 10 for row in range(60)]
        self._images = torch.randint(0, 256, (60, 3, 8, 8), generator=generator, dtype=torch.uint8)
        self._transform = transform

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self._transform(self._images[row]), self.targets[row]


def tiny(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, num_classes))


def stand_in() -> dict[str, types.ModuleType]:
    made = {name: types.ModuleType(f"torchvision.{name}") for name in ("datasets", "models", "transforms")}
    made["datasets"].CIFAR10 = Images  # type: ignore[attr-defined]
    made["models"].resnet18 = tiny  # type: ignore[attr-defined]

    class Compose:
        def __init__(self, parts: list[Any]) -> None:
            self._parts = parts

        def __call__(self, image: Any) -> Any:
            for part in self._parts:
                image = part(image)
            return image

    made["transforms"].Compose = Compose  # type: ignore[attr-defined]
    made["transforms"].RandomHorizontalFlip = lambda: lambda image: image.flip(-1)  # type: ignore[attr-defined]
    made["transforms"].ToTensor = lambda: lambda image: image.float() / 255  # type: ignore[attr-defined]
    whole = types.ModuleType("torchvision")
    for name, module in made.items():
        setattr(whole, name, module)
    return {"torchvision": whole, **{f"torchvision.{name}": module for name, module in made.items()}}


def test_the_how_to_runs_on_a_torchvision_style_model_and_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)
    torch.manual_seed(0)
    torch.save(tiny(10).state_dict(), "resnet18.pt")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/central.md").read_text(), re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfedWarning)
        exec(code, {"__name__": "__main__"})
    said = capsys.readouterr()
    assert said.out.startswith("NoT") and "gap: not measured, no Retrain" in said.out
    assert "NoT 200/200" in said.err
    assert (tmp_path / "report.html").exists() and (tmp_path / "unlearned.pt").exists()
