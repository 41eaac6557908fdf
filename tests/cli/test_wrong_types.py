"""Wrong Python types in public calls end in one sentence, never in an error of Python's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unfed

MODEL = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
ROWS = (torch.zeros(4, 4), torch.zeros(4, dtype=torch.long))

CALLS: dict[str, Callable[[], Any]] = {
    "a state dict to negate": lambda: unfed.negate(MODEL.state_dict()),  # type: ignore[arg-type]
    "a path to negate": lambda: unfed.negate("model.safetensors"),  # type: ignore[arg-type]
    "layers that are no names": lambda: unfed.negate(MODEL, 1.5),  # type: ignore[arg-type]
    "a number as layers": lambda: unfed.negate(MODEL, [None]),  # type: ignore[list-item]
    "a number as a run's results": lambda: unfed.results(3),  # type: ignore[arg-type]
    "no run to report": lambda: unfed.write_report(None),  # type: ignore[arg-type]
    "a list to plot": lambda: unfed.plot([]),  # type: ignore[arg-type]
    "a number to open": lambda: unfed.Run.open(3),  # type: ignore[arg-type]
    "a dict as a config": lambda: unfed.Run.create({"name": "x"}, "runs/x"),  # type: ignore[arg-type]
    "a number as a preset": lambda: unfed.Config.preset(3),  # type: ignore[arg-type]
    "a string of sets": lambda: unfed.Config.preset("demo", "seed=1"),
    "clients as one string": lambda: unfed.Request("r", clients="10"),  # type: ignore[arg-type]
    "a number as an id": lambda: unfed.Request(3, clients=("1",)),  # type: ignore[arg-type]
    "a state dict to unlearn": lambda: unfed.unlearn(MODEL.state_dict(), retain=ROWS, forget=ROWS, test=ROWS),  # type: ignore[arg-type]
    "a path as retained rows": lambda: unfed.unlearn(MODEL, retain="rows", forget=ROWS, test=ROWS),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_type_is_one_sentence(what: str) -> None:
    with pytest.raises(unfed.UnfedError) as caught:
        CALLS[what]()
    assert str(caught.value).endswith((".", "?")) and "\n" not in str(caught.value)
