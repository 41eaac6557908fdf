"""Why a sealed network with BatchNorm seems to stand still at first: its running statistics, round by round.

    python benchmarks/running_statistics.py --record FILE [--rounds 40] [--train-rounds 60] [--model efficientnet-tiny]

Digits, ten clients, client 0 leaves. Test accuracy after every round with the running statistics, as a model is used,
and with those of the test batch itself; after Retrain's beginning, Sealed's, Sealed's without some kinds of layers,
Sealed's with the statistics of before, and θ* with nothing but its statistics begun afresh.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from lasting import Bench, Told, requests_of
from unfed import plugins, rng
from unfed.federation.state import State
from unfed.model.functional import Template
from unfed.model.layers import Choice, choose
from unfed.model.params import Params
from unfed.model.sealing import DRAW_BYTES, seal, statistics_afresh

LEAVER = requests_of("client", 1)


def accuracy(template: Template, params: Params, data: tuple[Tensor, Tensor], of_the_batch: bool) -> float:
    """In percent, by the running statistics or by those of the batch."""
    with torch.no_grad():
        key = torch.tensor(5) if of_the_batch else None
        net = template.bind({name: t.clone() for name, t in params.items()}, key=key)
        return 100.0 * float((net(data[0]).argmax(1) == data[1]).double().mean())


def kind(bench: Bench, choice: Choice) -> str:
    """depthwise, squeeze or other."""
    part = bench.world.template.module.get_submodule(choice.name.removesuffix(".weight"))
    return "depthwise" if getattr(part, "groups", 1) > 1 else "squeeze" if ".fc" in choice.name else "other"


def beginnings(bench: Bench) -> dict[str, Params]:
    """Where the rounds may begin."""
    module, star, fresh = bench.world.template.module, bench.theta, bench.world.fresh
    hidden, draw = choose(module, ["hidden"]), rng.key(1, "why").to_bytes(DRAW_BYTES, "big")
    some = {
        "sealed all": hidden,
        "sealed no depthwise": [c for c in hidden if kind(bench, c) != "depthwise"],
        "sealed no squeeze": [c for c in hidden if kind(bench, c) != "squeeze"],
        "sealed only others": [c for c in hidden if kind(bench, c) == "other"],
    }
    return {
        "retrain": fresh(7),
        **{name: statistics_afresh(module, seal(star, own, "fade", draw, fresh, 0.3)) for name, own in some.items()},
        "sealed all, statistics kept": seal(star, hidden, "fade", draw, fresh, 0.3),
        "statistics afresh alone": statistics_afresh(module, star),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--model", default="efficientnet-tiny")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--train-rounds", type=int, default=60)
    parser.add_argument("--rates", default="0.05,0.2")
    told = parser.parse_args()
    for lr in map(float, told.rates.split(",")):
        how = Told("cpu", "float32", 1, (1,), told.rounds, told.rounds, 1, 0, train_rounds=told.train_rounds, lr=lr)
        bench = Bench("digits", told.model, 0, how)
        template, test = bench.world.template, bench.world.dataset.test
        assert test is not None
        data = test.fetch(torch.arange(len(test.labels)), None)
        lines = [{"lr": lr, "theta": accuracy(template, bench.theta, data, False)}]
        for name, start in beginnings(bench).items():
            server, state, curve = bench.server(LEAVER, bench.theta, told.rounds), State(start), []
            while state.round < told.rounds:
                state = server.recover(state)
                both = [round(accuracy(template, state.params, data, batch), 1) for batch in (False, True)]
                curve.append([state.round, *both])
            lines.append({"lr": lr, "start": name, "curve": curve})
        with told.record.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    with plugins.allow_code():
        main()
