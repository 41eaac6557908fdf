"""A caller's model and data as a world: one client, named `all`, that holds the retained rows and then the others."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unfed import rng
from unfed.central.inputs import Rows, row_sums, source
from unfed.data import ClientData, Request, Source
from unfed.engines import Engine, Sequential
from unfed.engines.determinism import fixed_order
from unfed.errors import UnfedError
from unfed.model import networks
from unfed.model.flops import forward_flops
from unfed.model.params import Params, cast, check_like, params_of
from unfed.runs.config import Config
from unfed.runs.world import DTYPES, Seeds, World, pick_device, template_of

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


class OwnWorld(World):
    """The world of one call: nothing is loaded, dealt or built, everything is the caller's."""

    def __init__(self, config: Config, given: Given) -> None:
        self.config, self.given = config, given
        (self.seed,) = config.seed_list
        self.seeds = Seeds.of(config, self.seed)
        self.device, self.dtype = pick_device(config.device), DTYPES[config.engine.precision]
        fixed_order(self.device)
        self.repaired = ()
        self.initial = None
        classes = _outputs(given, self.device, self.dtype)
        train = source([given.retain, given.forget], classes, self.device, self.dtype)
        self._test = None if given.test is None else source([given.test], classes, self.device, self.dtype)
        if self._test is not None and self._test.shape != train.shape:
            raise UnfedError(f"test rows have the shape {list(self._test.shape)}, training rows {list(train.shape)}.")
        rows = torch.arange(len(train))
        self.clients = (ClientData(HOLDER, train, rows, rows, rows[:0]),)
        self.template = template_of(config, given.model, train.shape, self.device)
        if not self.template.trainable:
            raise UnfedError("No parameter of the model can be trained; set requires_grad on those that should move.")
        self.params = cast(params_of(given.model), self.dtype, self.device)
        check_like(self.params, self.template.like, "The model")  # finds NaN and infinity
        self.forward_flops = forward_flops(self.template)
        self.threads = self._threads()
        self.settle()
        self.parameters = sum(self.template.like[n].numel() for n in self.template.trainable)

    @property
    def held_out(self) -> Source | None:
        return self._test

    def engine(self, clients: dict[str, ClientData]) -> Engine:
        """One client has nobody to be stacked with."""
        return Sequential(self.template, clients, self.config.engine.compile)

    def fresh(self, seed: int) -> Params:
        """A model that never saw the data: the factory's, or this one re-initialised layer by layer."""
        if self.given.factory is not None:
            with rng.seeded(seed):
                made = self.given.factory()
            if not isinstance(made, nn.Module) or made is self.given.model:
                raise UnfedError("factory must return a new torch.nn.Module on every call; let it build one.")
            found = params_of(made)
            check_like(found, self.template.like, "The model that factory made")
            return cast({name: found[name] for name in self.template.like}, self.dtype, self.device)
        again = copy.deepcopy(self.given.model)
        untouched = networks.reset(again, seed)
        if untouched:
            raise UnfedError(_untouched(untouched))
        return cast(params_of(again), self.dtype, self.device)

    def requests(self) -> tuple[Request, ...]:
        """D_u as requests. A class of which no row stays is a forgotten class: test data is then read without it."""
        n, labels = len(self.given.retain), self.clients[0].labels.cpu()
        kept, leaving = set(labels[:n].tolist()), labels[n:]
        gone = tuple(sorted(set(leaving.tolist()) - kept))
        rest = n + (~torch.isin(leaving, torch.tensor(gone, dtype=leaving.dtype))).nonzero().flatten()
        classes = (Request("forget-classes" if len(rest) else "forget", classes=gone),) if gone else ()
        samples = tuple((HOLDER, row) for row in rest.tolist())
        return classes + ((Request("forget", samples=samples),) if samples else ())

    def fingerprint(self) -> str:
        """What this call works on, so that a folder is only gone on with by the same model and rows."""
        digest = hashlib.sha256()
        for name, value in self.params.items():
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        for part in (self.given.retain, self.given.forget, self.given.test):
            digest.update(b"nothing" if part is None else _words(part).numpy().tobytes())
        return digest.hexdigest()[:32]


def reachable(model: nn.Module, factory: Factory | None, title: str) -> None:
    """Refuse by name a method that needs a fresh model where there is no way to make one."""
    if factory is not None:
        return
    untouched = networks.reset(copy.deepcopy(model), 0)
    if untouched:
        raise UnfedError(f"{title} needs a freshly initialised model. {_untouched(untouched)}")


def _untouched(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"reset_parameters does not reach {names[0]!r}{more}, which would keep what it learned; pass factory=, a"
        " function that builds the model anew."
    )


def _words(rows: Rows) -> Tensor:
    """A word per row; of a data set that may draw at random, only how many rows there are."""
    return torch.tensor([len(rows)]) if rows.pair is None else row_sums(*rows.pair)


def _outputs(given: Given, device: torch.device, dtype: torch.dtype) -> int:
    """How many classes the model tells apart, after checking that all labels are among them."""
    sets = [rows for rows in (given.retain, given.forget, given.test) if rows is not None]
    probe = copy.deepcopy(given.model).to(device=device, dtype=dtype).eval()
    x = source([given.retain.pick(torch.arange(1), given.retain.name)], 1 << 30, device, dtype).fetch(torch.arange(1))[
        0
    ]
    try:
        with torch.no_grad():
            out: Any = probe(x)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UnfedError(
            f"The model does not accept rows of shape {list(x.shape[1:])} ({str(error).splitlines()[0]}); give it the"
            " inputs it was trained on."
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2:
        shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UnfedError(f"The model must give one row of logits per input, [N, classes], but it gives {shape}.")
    classes = int(out.shape[1])
    for rows in sets:
        labels = None if rows.pair is None else rows.pair[1]
        if labels is None or labels.is_floating_point():
            continue  # a data set's labels are checked when it is read
        wrong = ((labels < 0) | (labels >= classes)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise UnfedError(
                f"Row {row} of {rows.name} has the label {int(labels[row])}, but the model has {classes} outputs, for"
                f" labels 0 to {classes - 1}; number the classes from 0 on, or give the model that was trained on them."
            )
    return classes
