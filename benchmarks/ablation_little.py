"""The part `little` of `ablations.py`: recovery with fewer rows, fewer clients, or only images without labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from ablation_bench import WITHIN, Bench, gap, kept
from unfed.client.plan import Phase, term
from unfed.client.scores import score
from unfed.data import ClientData
from unfed.federation.server import JobServer, Members
from unfed.federation.state import State
from unfed.model.layers import Choice, choose
from unfed.model.params import Params

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
SHARES = (0.01, 0.05, 0.2, 1.0)
CLIENTS = (1, 3)
TAUGHT = "unlabelled images, θ* as teacher"


class Little:
    """A bench whose clients hold less, or stay away."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.scene = bench.scene

    @cached_property
    def everybody(self) -> dict[str, ClientData]:
        return dict(self.scene.world.scoped([self.bench.request]))

    def with_share(self, share: float) -> JobServer:
        return self._over({name: _some(c, share) for name, c in self.everybody.items()})

    def with_clients(self, count: int) -> JobServer:
        stay = [name for name, c in self.everybody.items() if c.holds("retain")][:count]
        return self._over({name: self.everybody[name] for name in stay})

    def _over(self, clients: dict[str, ClientData]) -> JobServer:
        server = self.scene.server([self.bench.request], self.bench.setting.effort.recovery)
        server.look_at(Members(clients, self.scene.world.engine(clients)))
        # As many steps in a round as with all rows, or less data would also mean less training.
        epochs = server.base.epochs * max(1, round(_steps(self.everybody, server) / _steps(clients, server)))
        server.settings = replace(server.settings, phase=replace(server.base, epochs=epochs))
        return server

    def taught(self, chosen: tuple[Choice, ...], how: str) -> dict[str, Any]:
        """Recovery by distillation from θ* on a fifth of the test images, without labels; scored on the others."""
        bench, scene = self.bench, self.scene
        rows = torch.arange(len(scene.test) // 5)
        nobody = torch.zeros(len(rows), dtype=torch.bool)
        public = ClientData("public", scene.test, rows, torch.arange(len(rows)), rows[:0], nobody)
        server = scene.server([bench.request], bench.setting.effort.recovery)
        server.look_at(Members({"public": public}, scene.world.engine({"public": public})))
        state, curve, theta = State(bench.perturbed(chosen, how)), [], scene.trained
        base = server.base
        phase: Phase = replace(base, objective=term("distil", temperature=3.0), epochs=4 * base.epochs)
        unseen = torch.arange(len(rows), len(scene.test))

        def test(params: Params) -> float:
            return score(scene.world.template, params, scene.test, unseen).accuracy

        start, goal = test(state.params), test(theta) - WITHIN
        while state.round < bench.setting.effort.recovery:
            state = server.advance(state, ["public"], phase, context={"teacher": theta})
            if state.round % bench.setting.every == 0:
                curve.append((state.round, round(test(state.params), 2)))
        found = scene.numbers(state.params) | {"test": test(state.params)}
        return {
            "gap": gap(found, bench.reference),
            "back": next((r for r, t in curve if t >= goal), None),
            "start": start,
            "curve": curve,
            "numbers": kept(found),
        }


def little(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    """Less and less to recover with: fewer rows at everybody, fewer clients, only images without labels."""
    own = Little(bench)
    module = bench.scene.world.template.module
    starts = {
        "ft": ((), "none"),
        "not": (choose(module, ("first",)), "negate"),
        "sealed": (choose(module, ("hidden",)), "sealed fade"),
    }
    ways: dict[str, Callable[[], JobServer]] = {
        **{f"{share:.0%} of the rows": partial(own.with_share, share) for share in SHARES},
        **{f"{count} of nine clients": partial(own.with_clients, count) for count in CLIENTS},
    }
    for way, server in ways.items():
        for method, (chosen, how) in starts.items():
            yield (
                {"layer": way, "how": method},
                lambda c=chosen, h=how, s=server: bench.cell(c, h, s()),  # type: ignore[misc]
            )
    for method, (chosen, how) in starts.items():
        yield {"layer": TAUGHT, "how": method}, partial(own.taught, chosen, how)


def _some(client: ClientData, share: float) -> ClientData:
    """A client with only some of its retained rows."""
    retained = client.train[~client.forget[client.train]]
    count = max(1, round(share * len(retained)))
    return replace(client, train=torch.cat([retained[:count], client.train[client.forget[client.train]]]))


def _steps(clients: dict[str, ClientData], server: JobServer) -> int:
    return max(math.ceil(len(c.view("retain")) / server.base.batch) for c in clients.values())
