"""Products with long sums, cut into pieces, are the same products."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from test_batched import federation, plan_of
from unfed.client.plan import Optimiser, Phase
from unfed.engines import Batched, Sequential
from unfed.engines.compiled import capture, convolution, recorded
from unfed.model.functional import Template
from unfed.model.params import cast, params_of
from worlds import noting


def test_the_pieces_add_up_to_the_product() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((3, 5, 12), (3, 7, 12)))
    torch.testing.assert_close(convolution.in_pieces(a, b.transpose(1, 2), 4), a @ b.transpose(1, 2))


@pytest.mark.parametrize(
    ("clients", "rows", "length", "classes", "pieces"),
    [
        (10, 64, 510, 10, 1),
        (10, 64, 4096, 10, 16),
        (20, 64, 4096, 10, 8),
        (160, 64, 4096, 10, 1),
        (10, 64, 768, 10, 2),
        (10, 64, 511, 10, 1),
    ],
    ids=["a short sum", "few tiles", "more tiles", "enough tiles", "three short pieces are two", "an odd sum"],
)
def test_a_sum_is_cut_until_the_device_is_busy(clients: int, rows: int, length: int, classes: int, pieces: int) -> None:
    a, b = torch.empty(clients, rows, length), torch.empty(clients, length, classes)
    assert convolution.pieces_of(a, b) == pieces


def test_a_recorded_step_cuts_its_last_layer_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "compiler", capture.as_traced)
    cut: list[int] = []
    monkeypatch.setattr(convolution, "in_pieces", noting(cut, convolution.in_pieces, lambda a, b, pieces: pieces))
    clients = federation((9, 17, 24))
    some = next(iter(clients.values())).source
    torch.manual_seed(0)
    entries = some.shape[0] * some.shape[1] * some.shape[2]
    net = nn.Sequential(nn.Flatten(), nn.Linear(entries, 1024), nn.ReLU(), nn.Linear(1024, some.classes))
    template = Template(net, some.shape).to("cpu", torch.float64)
    params = cast(params_of(template.module), torch.float64, torch.device("cpu"))
    plan = plan_of(Phase(batch=8, optimiser=Optimiser(lr=0.1)))
    (found,) = Batched(template, clients, compile=True).train(plan, params, list(clients), {})
    assert cut and set(cut) == {4}
    for place, one in enumerate(Sequential(template, clients, compile=False).train(plan, params, list(clients), {})):
        for name, value in one.of(0).items():
            torch.testing.assert_close(found.of(place)[name], value, rtol=1e-9, atol=1e-9)
