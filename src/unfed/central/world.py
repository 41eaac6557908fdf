"""A caller's model and data as a world of one client, `all`: retained rows first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from unfed import rng
from unfed.central.inputs import Rows, source
from unfed.config.config import Config, Seeds
from unfed.data import ClientData, Request
from unfed.engines.choice import fixed_order
from unfed.errors import UnfedError
from unfed.model import networks
from unfed.model.calling import called, copied, unwrapped
from unfed.model.functional import Template, forward_flops
from unfed.model.params import Params, cast, check_like, params_of
from unfed.runs.simulated import cpu_threads, pick_device, template_of
from unfed.runs.world import DTYPES, Residents, World

HOLDER = "all"
Factory = Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class Given:
    """What the caller handed in."""

    model: nn.Module
    retain: Rows
    forget: Rows
    test: Rows | None
    factory: Factory | None


def own_world(config: Config, given: Given) -> World:
    """The world of one call: nothing is loaded, dealt or built, everything is the caller's."""
    (seed,) = config.seed_list
    device, dtype = pick_device(config.device), DTYPES[config.engine.precision]
    fixed_order(device)
    classes = _outputs(given, device, dtype)
    train = source([given.retain, given.forget], classes, device, dtype)
    test = None if given.test is None else source([given.test], classes, device, dtype)
    if test is not None and test.shape != train.shape:
        raise UnfedError(f"test rows have the shape {list(test.shape)}, training rows {list(train.shape)}.")
    rows = torch.arange(len(train))
    template = template_of(config, given.model, train.shape, device, train.inputs)
    params = cast(params_of(given.model), dtype, device)
    check_like(params, template.like, "The model")  # finds NaN and infinity
    flops = forward_flops(template)
    world = World(
        config=config,
        seed=seed,
        holders=Residents((ClientData(HOLDER, train, rows, rows, rows[:0]),), Seeds.of(config, seed).partition),
        template=template,
        device=device,
        forward_flops=flops,
        fresh=partial(_fresh, given, template, dtype, device),
        initial=params,
        held_out=test,
        threads=cpu_threads(config, device, flops),
    )
    world.settle()
    return world


def _fresh(given: Given, template: Template, dtype: torch.dtype, device: torch.device, seed: int) -> Params:
    """A model that never saw the data: the factory's, or this one re-initialised layer by layer."""
    if given.factory is not None:
        with rng.seeded(seed):
            made = given.factory()
        if not isinstance(made, nn.Module) or made is given.model:
            raise UnfedError("factory must return a new torch.nn.Module on every call; let it build one.")
        found = params_of(unwrapped(made))
        check_like(found, template.like, "The model that factory made")
        return cast({name: found[name] for name in template.like}, dtype, device)
    again = copied(given.model)
    if untouched := networks.reset(again, seed):
        raise UnfedError(_untouched(untouched))
    return cast(params_of(again), dtype, device)


def requests_of(given: Given, world: World) -> tuple[Request, ...]:
    """D_u as requests.

    A class of which no row stays is a forgotten class: test data is then read without it.
    """
    n, labels = len(given.retain), world.clients[0].labels.cpu()
    kept, leaving = set(labels[:n].tolist()), labels[n:]
    gone = tuple(sorted(set(leaving.tolist()) - kept))
    rest = n + (~torch.isin(leaving, torch.tensor(gone, dtype=leaving.dtype))).nonzero().flatten()
    classes = (Request("forget-classes" if len(rest) else "forget", classes=gone),) if gone else ()
    samples = tuple((HOLDER, row) for row in rest.tolist())
    return classes + ((Request("forget", samples=samples),) if samples else ())


def fingerprint(given: Given, params: Params) -> str:
    """What a call works on, so that a folder is only gone on with by the same model and rows."""
    digest = hashlib.sha256()
    for name, value in params.items():
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    for part in (given.retain, given.forget, given.test):
        digest.update(b"nothing" if part is None else _words(part).numpy().tobytes())
    return digest.hexdigest()[:32]


def reachable(model: nn.Module, factory: Factory | None, title: str) -> None:
    """Refuse by name a method that needs a fresh model where there is no way to make one."""
    if factory is None and (untouched := networks.reset(copied(model), 0)):
        raise UnfedError(f"{title} needs a freshly initialised model. {_untouched(untouched)}")


def _untouched(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"reset_parameters does not reach {names[0]!r}{more}, which would keep what it learned; pass factory=, a"
        " function that builds the model again."
    )


def _words(rows: Rows) -> Tensor:
    """A word per row; of a data set that may draw at random, only how many rows there are."""
    return torch.tensor([len(rows)]) if rows.pair is None else rows.sums


def _outputs(given: Given, device: torch.device, dtype: torch.dtype) -> int:
    """How many classes the model tells apart, after checking that all labels are among them."""
    sets = [rows for rows in (given.retain, given.forget, given.test) if rows is not None]
    probe = copied(given.model).to(device=device, dtype=dtype).eval()
    x = source([given.retain.pick(torch.arange(1), given.retain.name)], 1 << 30, device, dtype).fetch(torch.arange(1))[
        0
    ]
    try:
        with torch.no_grad():
            out = called(probe, x, given.retain.inputs)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnfedError(f"The model does not accept rows of shape {list(x.shape[1:])} ({said}).") from error
    if out.ndim != 2:
        raise UnfedError(
            f"The model must give one row of logits per input, [N, classes], but it gives {list(out.shape)}; for a"
            " language model give labels=input_ids."
        )
    classes = int(out.shape[1])
    for rows in sets:
        labels = None if rows.pair is None else rows.pair[1]
        if labels is None or labels.is_floating_point():
            continue  # a data set's labels are checked when it is read
        wrong = ((labels.long() < 0) | (labels.long() >= classes)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise UnfedError(
                f"Row {row} of {rows.name} has the label {int(labels[row])}, but the model has {classes} outputs;"
                f" number the classes from 0 to {classes - 1}."
            )
    return classes
