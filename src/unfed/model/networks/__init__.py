"""The networks: small CNNs, three standard ones, two for rows and texts, and any module of yours.

    build("resnet18", shape=(3, 224, 224), classes=10, seed=0)

`resnet18`, `vit-b-16` and `efficientnet-b0` have torchvision's names, order, shapes and initialisation, so that its
checkpoints load and the paper's parameter indices hold; their `-tiny` variants are the same code in a size for tests.
A module of your own is named `package.module:factory`; the factory is called again for every fresh model, which is
what makes "a model that never saw the data" possible. The class attribute `head_name` names the submodule that turns
features into logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from unfed import plugins, rng
from unfed.errors import UnfedError, listed, nearest
from unfed.model.networks.cnn import CNN, MLP, NORMS, PRESETS, TextTransformer
from unfed.model.networks.efficientnet import EfficientNet, StochasticDepth
from unfed.model.networks.resnet import ResNet
from unfed.model.networks.vit import VisionTransformer

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "NORMS",
    "PRESETS",
    "EfficientNet",
    "ResNet",
    "StochasticDepth",
    "TextTransformer",
    "VisionTransformer",
    "build",
    "head_of",
    "reset",
    "translated",
]

MODELS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    **{name: (CNN, knobs) for name, knobs in PRESETS.items()},
    "resnet18": (ResNet, {}),
    "resnet-tiny": (ResNet, {"widths": (4, 8, 8, 16), "blocks": (1, 1, 1, 1)}),
    "vit-b-16": (VisionTransformer, {}),
    "vit-tiny": (VisionTransformer, {"patch": 4, "depth": 2, "heads": 2, "width": 16, "mlp": 32}),
    "efficientnet-b0": (EfficientNet, {}),
    "efficientnet-tiny": (EfficientNet, {"width": 0.25, "depth": 0.5, "stages": 3}),
    "mlp": (MLP, {}),
    "transformer-small": (TextTransformer, {}),
}

HEADS = ("head", "fc", "classifier", "heads")

_handed_out: WeakSet[nn.Module] = WeakSet()


def build(name: str, *, shape: Sequence[int], classes: int, seed: int, **options: Any) -> nn.Module:
    """A fresh model, initialised as a function of `seed`.

    It is a preset by name, or your `package.module:factory`.

    `shape` is one image's (channels, height, width). `options` override a preset's knobs (a CNN's widths, a ViT's
    depth), or are handed to your factory.
    """
    with rng.seeded(seed):
        module = _from_factory(name, shape, classes, options) if ":" in name else _preset(name, shape, classes, options)
    if module in _handed_out:
        raise UnfedError(f"{name} returned the same module twice; let it build a new one on every call.")
    _handed_out.add(module)
    return module


def _preset(name: str, shape: Sequence[int], classes: int, options: dict[str, Any]) -> nn.Module:
    if name not in MODELS:
        raise UnfedError(
            f"There is no model {name!r}; choose {listed(MODELS)}, or name your own as package.module:factory."
            f"{nearest(name, MODELS)}"
        )
    kind, preset = MODELS[name]
    knobs = [knob for knob, p in inspect.signature(kind).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for option in options:
        if option not in knobs:
            raise UnfedError(f"{name} has no option {option!r}; it has {listed(knobs)}.{nearest(option, knobs)}")
    of_rows = kind in (MLP, TextTransformer)
    if not of_rows and (len(shape) != 3 or shape[1] != shape[2]):
        raise UnfedError(f"{name} takes square images (channels, side, side), not {tuple(shape)}; crop or resize them.")
    facts = {"shape": tuple(shape)} if of_rows else {"in_channels": shape[0], "size": shape[1]}
    try:
        return kind(**(preset | options), **facts, classes=classes)
    except (TypeError, ValueError) as error:  # an option of the wrong type gets as far as PyTorch
        raise UnfedError(f"{name} cannot be built with {options} ({error}); correct model.options.") from error


def _from_factory(name: str, shape: Sequence[int], classes: int, options: dict[str, Any]) -> nn.Module:
    factory = plugins.load(name, "model", "model.name", callable, "a function that builds a torch.nn.Module")
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
    module = plugins.call(factory, name, "model", **given)
    if not isinstance(module, nn.Module):
        raise UnfedError(f"The model {name!r} returned a {type(module).__name__}; let it return a torch.nn.Module.")
    return module


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


def translated(module: nn.Module, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors under the names this model uses today.

    Old files call some layers by earlier names (the class attribute `old_names`), and lack BatchNorm's counters, which
    PyTorch itself takes as zero then. Whatever else differs stays as it is, for the caller to refuse.
    """
    found = dict(params)
    for old, new in getattr(type(module), "old_names", ()):
        found = {name.replace(old, new): value for name, value in found.items()}
    for name, counter in module.named_buffers():
        if name.endswith(".num_batches_tracked") and name.rpartition(".")[0] + ".running_mean" in found:
            found.setdefault(name, torch.zeros_like(counter))
    return found


def reset(module: nn.Module, seed: int) -> tuple[str, ...]:
    """Re-initialise a bare instance through `reset_parameters`.

    It gives the names of the parameters that this cannot reach.

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
