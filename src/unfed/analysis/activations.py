"""What the layers of a model answer.

These are z_ℓ(x) for chosen layers ℓ and some rows x, in eval mode, flattened per sample.

CNN         the convolution and the norm of each block, and the head
ResNet      the ReLU behind each block of each stage, and the head
ViT         conv_proj, each encoder layer, and the head
others      every layer with a weight of its own
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from unfed.data import Source
from unfed.errors import UnfedError, listed, nearest
from unfed.model.functional import Template
from unfed.model.networks import CNN, ResNet, VisionTransformer, head_of
from unfed.model.params import Params


def layers_of(module: nn.Module) -> tuple[str, ...]:
    """The layers that the paper looks at, by the names of their submodules, from input to output."""
    names = [name for name, _ in module.named_modules()]
    head = head_of(module)
    if isinstance(module, CNN):
        return (*(f"{part}{i}" for i in range(1, module.depth + 1) for part in ("conv", "norm")), head)
    if isinstance(module, ResNet):
        # A block is called once and ends with its last ReLU; the ReLU itself is one module that is called twice.
        blocks = [name for name in names if name.startswith("layer") and name.count(".") == 1]
        return ("relu", *blocks, head)
    if isinstance(module, VisionTransformer):
        return ("conv_proj", *(n for n in names if n.startswith("encoder.layers.") and n.count(".") == 2), head)
    owners = [name for name, part in module.named_modules() if name and list(part.parameters(recurse=False))]
    return tuple(dict.fromkeys((*owners, head)))


def activations(
    template: Template, params: Params, source: Source, rows: Tensor, layers: Sequence[str], batch: int = 256
) -> Iterator[dict[str, Tensor]]:
    """Batch after batch, one matrix [samples, features] per layer.

    A layer that is called twice gives its last one.
    """
    known = dict(template.module.named_modules())
    for name in layers:
        if name not in known:
            raise UnfedError(
                f"The model has no layer {name!r}; it has {listed(list(known)[1:])}.{nearest(name, known)}"
            )
    for begin in range(0, len(rows), batch):
        seen = _answers(template, params, source.fetch(rows[begin : begin + batch], None)[0], layers)
        if missing := [name for name in layers if name not in seen]:
            raise UnfedError(f"The layer {missing[0]!r} was not called in a forward pass; choose another.")
        yield {name: seen[name] for name in layers}


def called_layers(template: Template, params: Params, source: Source) -> tuple[str, ...]:
    """`layers_of` without those that a forward pass does not call.

    These are tables that are only read, and branches not taken.
    """
    layers = layers_of(template.module)
    seen = _answers(template, params, source.fetch(torch.arange(1), None)[0], layers)
    return tuple(name for name in layers if name in seen)


def _answers(template: Template, params: Params, x: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
    """What those layers answer that are called.

    Of several tensors (attention gives its weights too) it is the first.
    """
    known, seen = dict(template.module.named_modules()), dict[str, Tensor]()

    def keep(name: str, out: Tensor | tuple[Tensor, ...]) -> None:
        seen[name] = (out if isinstance(out, Tensor) else out[0]).detach().flatten(1)

    hooks = [known[name].register_forward_hook(lambda _, __, out, n=name: keep(n, out)) for name in layers]
    try:
        with torch.no_grad():
            template.bind(params)(x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def paired(
    template: Template,
    models: Mapping[str, Params],
    source: Source,
    rows: Tensor,
    layers: Sequence[str],
    batch: int = 256,
) -> Iterator[dict[str, dict[str, Tensor]]]:
    """The activations of several models on the same batches in the same order: model → layer → matrix."""
    for begin in range(0, len(rows), batch):
        some = rows[begin : begin + batch]
        yield {
            model: next(activations(template, params, source, some, layers, len(some)))
            for model, params in models.items()
        }
