"""The networks: one small CNN family, the paper's presets in it, and any module of yours.

    conv1 → norm1 → ReLU → max-pool 2 → conv2 → norm2 → ReLU → max-pool 2 → [average-pool] → flatten → [hidden] → head

The paper does not print its CNN, so the family has knobs and the presets are the ones that were measured to come
closest (`cnn` on CIFAR-10, `cnn-wide` on CIFAR-100). Two things are fixed on purpose: parameter 0 is `conv1.weight`,
the tensor NoT negates, and the *head* is dropout + linear, so that features are taken before the dropout's noise.

A module of your own is named `package.module:factory`; the factory is called anew for every fresh model, which is
what makes "a model that never saw the data" possible.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from unfed import rng
from unfed.errors import UnfedError, listed, nearest

PRESETS: dict[str, dict[str, Any]] = {
    "cnn": {"widths": (32, 64), "kernel": 5, "norm": "group", "dropout": 0.5},
    "cnn-wide": {"widths": (64, 128), "kernel": 5, "norm": "group", "pool": 4},
    "cnn-small": {"widths": (16, 32), "kernel": 3, "norm": "group"},
    "cnn-tiny": {"widths": (4, 8), "kernel": 3, "norm": "group"},
    "cnn-tiny-bn": {"widths": (4, 8), "kernel": 3, "norm": "batch"},
    "cnn-tiny-dropout": {"widths": (4, 8), "kernel": 3, "norm": "group", "dropout": 0.5},
}

NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "group": lambda channels, side: nn.GroupNorm(1, channels),
    "batch": lambda channels, side: nn.BatchNorm2d(channels),
    "layer": lambda channels, side: nn.LayerNorm([channels, side, side]),
    "none": lambda channels, side: nn.Identity(),
}

HEADS = ("head", "fc", "classifier", "heads")


class CNN(nn.Module):
    """Convolution blocks and a linear head; `features` is what enters the head."""

    head_name = "head"

    def __init__(
        self,
        widths: Sequence[int] = (32, 64),
        kernel: int = 5,
        norm: str = "group",
        pool: int = 0,
        hidden: int = 0,
        dropout: float = 0.0,
        *,
        in_channels: int = 3,
        size: int = 32,
        classes: int = 10,
    ) -> None:
        super().__init__()
        side = _checked_side(widths, kernel, norm, pool, hidden, dropout, size, classes)
        self.depth = len(widths)
        for i, (before, width) in enumerate(zip((in_channels, *widths), widths, strict=False), start=1):
            self.add_module(f"conv{i}", nn.Conv2d(before, width, kernel, padding=kernel // 2))
            self.add_module(f"norm{i}", NORMS[norm](width, size >> (i - 1)))
            self.add_module(f"relu{i}", nn.ReLU())
            self.add_module(f"pool{i}", nn.MaxPool2d(2))
        self.average = nn.AvgPool2d(pool) if pool else nn.Identity()
        entering = widths[-1] * side**2
        self.hidden = nn.Sequential()
        if hidden:
            self.hidden.add_module("linear", nn.Linear(entering, hidden))
            self.hidden.add_module("relu", nn.ReLU())
        self.head = nn.Sequential()
        if dropout:
            self.head.add_module("dropout", nn.Dropout(dropout))
        self.head.add_module("linear", nn.Linear(hidden or entering, classes))

    def features(self, x: Tensor) -> Tensor:
        """The penultimate activations, before the head's dropout."""
        for i in range(1, self.depth + 1):
            for part in ("conv", "norm", "relu", "pool"):
                x = self.get_submodule(f"{part}{i}")(x)
        return self.hidden(self.average(x).flatten(1))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


def _checked_side(
    widths: Sequence[int], kernel: int, norm: str, pool: int, hidden: int, dropout: float, size: int, classes: int
) -> int:
    """The side of the map that is flattened, or the sentence that says which number cannot be."""
    if not widths or min(widths) < 1:
        raise UnfedError(f"A CNN needs widths of at least one channel each, not {list(widths)}; try widths = [32, 64].")
    if kernel < 1 or kernel % 2 == 0:
        raise UnfedError(f"A CNN's kernel must be odd, so that 'same' padding is symmetric, not {kernel}; try 3 or 5.")
    if norm not in NORMS:
        raise UnfedError(f"There is no norm {norm!r}; choose {listed(NORMS)}.{nearest(norm, NORMS)}")
    if not 0 <= dropout < 1:
        raise UnfedError(f"A CNN's dropout must lie in [0, 1), not {dropout}; use 0 for none.")
    if classes < 1 or pool < 0 or hidden < 0:
        raise UnfedError(
            f"A CNN needs classes >= 1, pool >= 0 and hidden >= 0, not {classes}, {pool} and {hidden}; use 0 for none."
        )
    side = size >> len(widths)
    if side < 1:
        raise UnfedError(
            f"Images of {size}x{size} are too small for {len(widths)} max-poolings; use fewer widths or larger images."
        )
    if pool > side:
        raise UnfedError(f"An average-pool of {pool} does not fit the last {side}x{side} map; use {side} or less.")
    return side // pool if pool else side


_handed_out: WeakSet[nn.Module] = WeakSet()


def build(name: str, *, shape: Sequence[int], classes: int, seed: int, **options: Any) -> nn.Module:
    """A fresh model, initialised as a function of `seed`: a preset by name, or your `package.module:factory`.

    `shape` is one image's (channels, height, width). `options` override a preset's knobs (widths, kernel, norm, pool,
    hidden, dropout), or are handed to your factory.
    """
    with rng.seeded(seed):
        module = _from_factory(name, shape, classes, options) if ":" in name else _preset(name, shape, classes, options)
    if module in _handed_out:
        raise UnfedError(f"{name} returned the same module twice; let it build a new one on every call.")
    _handed_out.add(module)
    return module


def _preset(name: str, shape: Sequence[int], classes: int, options: dict[str, Any]) -> CNN:
    if name not in PRESETS:
        raise UnfedError(
            f"There is no model {name!r}; choose {listed(PRESETS)}, or name your own as package.module:factory."
            f"{nearest(name, PRESETS)}"
        )
    knobs = [knob for knob, p in inspect.signature(CNN).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for option in options:
        if option not in knobs:
            raise UnfedError(f"{name} has no option {option!r}; it has {listed(knobs)}.{nearest(option, knobs)}")
    if len(shape) != 3 or shape[1] != shape[2]:
        raise UnfedError(f"{name} takes square images (channels, side, side), not {tuple(shape)}; crop or resize them.")
    return CNN(**(PRESETS[name] | options), in_channels=shape[0], size=shape[1], classes=classes)


def _from_factory(name: str, shape: Sequence[int], classes: int, options: dict[str, Any]) -> nn.Module:
    factory = _factory(name)
    try:
        accepted = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        accepted = inspect.signature(lambda: None).parameters
    everything = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for option in options:
        if option not in accepted and not everything:
            raise UnfedError(f"{name} takes no argument {option!r}; remove it or add it.{nearest(option, accepted)}")
    facts: dict[str, Any] = {"shape": tuple(shape), "classes": classes}
    given = {fact: value for fact, value in facts.items() if everything or fact in accepted} | options
    try:
        module = factory(**given)
    except UnfedError:
        raise
    except Exception as error:
        raise UnfedError(
            f"{name} failed with {type(error).__name__}: {error};"
            f" make it work when called with {listed(given) or 'nothing'}."
        ) from error
    if not isinstance(module, nn.Module):
        raise UnfedError(f"{name} returned a {type(module).__name__}; let it return a torch.nn.Module.")
    return module


def _factory(name: str) -> Callable[..., object]:
    where, _, what = name.partition(":")
    try:
        module = importlib.import_module(where)
    except (ImportError, ValueError) as error:
        raise UnfedError(
            f"The module {where!r} of the model {name!r} cannot be imported ({error});"
            " install it, or add its folder to PYTHONPATH."
        ) from error
    factory: object = getattr(module, what, None)
    if not callable(factory):
        raise UnfedError(
            f"{where} has no callable {what!r}; define it, or name another one after the colon."
            f"{nearest(what, vars(module))}"
        )
    return factory


def head_of(module: nn.Module) -> str:
    """The name of the submodule that turns features into logits.

    The class attribute `head_name` decides; else a child named head, fc, classifier or heads; else the last
    `nn.Linear`. When that linear and a dropout are all that their `nn.Sequential` holds, the Sequential is the head;
    in a longer Sequential no single name covers both, so the linear is returned and features come after the dropout.
    """
    named: dict[str, nn.Module] = dict(module.named_modules())
    declared = getattr(type(module), "head_name", None)
    if declared is not None:
        if declared not in named:
            raise UnfedError(
                f"{type(module).__name__}.head_name is {declared!r}, which is no submodule; correct it."
                f"{nearest(str(declared), named)}"
            )
        return str(declared)
    children = dict(module.named_children())
    for name in HEADS:
        if name in children:
            return name
    linears: list[str] = [name for name, part in named.items() if name and isinstance(part, nn.Linear)]
    if not linears:
        raise UnfedError(
            f"{type(module).__name__} has no submodule {listed(HEADS)} and no nn.Linear, so its head is unknown;"
            " set the class attribute head_name."
        )
    last = linears[-1]
    parent = last.rpartition(".")[0]
    if parent and isinstance(named[parent], nn.Sequential) and _is_dropout_and_linear(named[parent]):
        return parent
    return last


def _is_dropout_and_linear(module: nn.Module) -> bool:
    parts = list(module.children())
    return len(parts) == 2 and isinstance(parts[0], nn.Dropout) and isinstance(parts[1], nn.Linear)


def reset(module: nn.Module, seed: int) -> tuple[str, ...]:
    """Re-initialise a bare instance through `reset_parameters`; the names of parameters that this cannot reach.

    Class tokens, position embeddings and custom initialisations have no `reset_parameters`: they keep their values and
    are returned, so that a method which needs a model that never saw the data can refuse. Marking every entry with
    NaN first is what finds them: comparing values would call a bias that is zero before and after "untouched".
    """
    parameters = dict(module.named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    untouched: list[str] = []
    with torch.no_grad(), rng.seeded(seed):
        for p in parameters.values():
            p.fill_(torch.nan)
        try:
            # Parents last: what a composite sets in its children wins, as it does in its constructor.
            for part in reversed(list(module.modules())):
                again = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
                if callable(again):
                    again()
        finally:
            for name, p in parameters.items():
                if bool(p.isnan().any()):
                    p.copy_(before[name])
                    untouched.append(name)
    return tuple(untouched)
