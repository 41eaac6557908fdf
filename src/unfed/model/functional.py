"""A module is only the template that turns params and inputs into logits or features.

    Template(module).bind(params)            eval mode: dropout off, running statistics
    Template(module).bind(params, key=…)     train mode: dropout drawn from the key, batch statistics

Two kinds of layer would break "a client alone equals the client in a stack". They are swapped for twins with the same
parameter names that read what they need from non-persistent buffers, which `functional_call` sets for every step
and `vmap` stacks like any tensor:

* dropout and stochastic depth draw their masks from a key: an integer hash of (key, layer, position in the batch);
* BatchNorm takes a weight per row, so that padded rows count for nothing:
  μ = Σ w x / Σ w,  σ² = Σ w (x − μ)² / Σ w.

The caller's module is copied, never changed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from unfed import rng
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.networks import StochasticDepth, head_of
from unfed.model.params import Params, params_of, trainable_names


class Net:
    """A template with its tensors put in: what an objective calls."""

    def __init__(self, template: Template, tensors: Params, training: bool) -> None:
        self._template, self.tensors, self.training = template, tensors, training

    def __call__(self, x: Tensor) -> Tensor:
        return self._template.run(self.tensors, x, self.training)

    def features(self, x: Tensor) -> Tensor:
        """What enters the head (and the head's dropout)."""
        return self._template.run(self.tensors, x, self.training, features=True)


class Template:
    """One architecture as a pure function."""

    def __init__(self, module: nn.Module, shape: Sequence[int]) -> None:
        like = params_of(module)
        self.like: Params = like
        self.shape = tuple(shape)
        self.trainable = trainable_names(module)
        self.state = tuple(name for name in like if name not in set(self.trainable))
        self._head: str | None = None
        self._evaluator = copy.deepcopy(module).eval()  # its parameters still say which of them are frozen
        self._trainer = _swap(copy.deepcopy(module)).train().requires_grad_(False)
        self._keys = tuple(n for n, m in self._trainer.named_modules() if isinstance(m, KeyedDropout))
        self._rows = tuple(n for n, m in self._trainer.named_modules() if isinstance(m, WeightedBatchNorm))
        self._bodies: dict[bool, tuple[nn.Module, frozenset[str]]] = {}
        self._slots: dict[int, _Slots] = {}
        self.autocast: torch.dtype | None = None
        """The type of matrix products and convolutions in training, where it is not the params' own (bf16)."""
        self._functional_dropout = False
        self.draws_its_own = False
        self._probe()

    @property
    def module(self) -> nn.Module:
        """The architecture itself, for those who ask about its layers."""
        return self._evaluator

    @property
    def keyed(self) -> bool:
        """Whether training needs a dropout key at all."""
        return bool(self._keys) or self._functional_dropout

    @property
    def batch_normed(self) -> bool:
        return bool(self._rows)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Template:
        """Move the template itself, in place, for the non-persistent buffers that a module may own."""
        for module in (self._evaluator, self._trainer, *(body for body, _ in self._bodies.values())):
            module.to(device=device, dtype=dtype)
        self.like = {n: t.to(device, dtype if t.is_floating_point() else t.dtype) for n, t in self.like.items()}
        return self

    def bind(self, params: Mapping[str, Tensor], *, key: Tensor | None = None, rows: Tensor | None = None) -> Net:
        """The network for these params.

        With a key it trains: its running statistics are then written into `params`.
        """
        tensors = dict(params)
        if key is None:
            return Net(self, tensors, training=False)
        for name in self._keys:
            tensors[f"{name}.key"] = key
        if rows is not None:
            for name in self._rows:
                tensors[f"{name}.rows"] = rows
        if self._functional_dropout:
            tensors[_FUNCTIONAL_KEY] = key
        return Net(self, tensors, training=True)

    def run(self, tensors: Params, x: Tensor, training: bool, features: bool = False) -> Tensor:
        module, call = self._trainer if training else self._evaluator, tensors
        if features:
            module, known = self._body(training)
            call = {name: t for name, t in tensors.items() if name in known or name == _FUNCTIONAL_KEY}
        if training and self.autocast is not None:
            with torch.autocast(x.device.type, self.autocast):
                return self._call(module, call, x, training).to(x.dtype)
        return self._call(module, call, x, training)

    def _call(self, module: nn.Module, tensors: Params, x: Tensor, training: bool) -> Tensor:
        if training and self._functional_dropout:
            key = tensors[_FUNCTIONAL_KEY]
            tensors = {name: t for name, t in tensors.items() if name != _FUNCTIONAL_KEY}
            with _FunctionalDropout(key):
                return _tensor(functional_call(module, tensors, (x,)))
        if torch.compiler.is_compiling():
            return _tensor(functional_call(module, tensors, (x,)))
        if id(module) not in self._slots:
            self._slots[id(module)] = _Slots(module)
        return _tensor(self._slots[id(module)](tensors, x))

    def _body(self, training: bool) -> tuple[nn.Module, frozenset[str]]:
        """The module with an identity for a head, and its tensor names.

        It needs no hooks, so it works under vmap and compile.
        """
        if training not in self._bodies:
            self._head = self._head or head_of(self._evaluator)
            body = copy.deepcopy(self._trainer if training else self._evaluator)
            parent, _, child = self._head.rpartition(".")
            setattr(body.get_submodule(parent), child, nn.Identity())
            names = dict(body.named_parameters()) | dict(body.named_buffers())
            self._bodies[training] = body, frozenset(names)
        return self._bodies[training]

    def _probe(self) -> None:
        """One forward pass in train mode: does the module call dropout by hand, or draw numbers of its own?"""
        parameter = next(iter(self.like.values()), torch.zeros(()))
        x = torch.zeros((2, *self.shape), device=parameter.device, dtype=_floating(self.like))
        tensors = {n: t.clone() for n, t in self.like.items()}
        zero = torch.zeros((), dtype=torch.int64, device=parameter.device)
        devices = [parameter.device] if parameter.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            before = torch.get_rng_state()
            with _FunctionalDropout(zero) as seen:
                try:
                    functional_call(self._trainer, tensors | {f"{n}.key": zero for n in self._keys}, (x,))
                except (RuntimeError, ValueError, IndexError) as error:
                    raise UnfedError(
                        f"The model does not accept a batch of inputs of shape {self.shape}"
                        f" ({str(error).splitlines()[0]}); choose a model that fits the data."
                    ) from error
            self._functional_dropout = seen.calls > 0
            self.draws_its_own = not torch.equal(before, torch.get_rng_state())
        if self.draws_its_own:
            warnings.warn(
                "This model draws random numbers of its own in its forward pass, so the batched engine and bit-equal"
                " resume are off for it; use nn.Dropout or F.dropout, which unfed can key.",
                UnfedWarning,
                stacklevel=3,
            )


class _Slots:
    """Puts tensors into a module for one call.

    It is `functional_call` without its bookkeeping, which costs a small network a tenth of its step. A tied weight has
    one name and several places.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        names: dict[int, str] = {}
        for prefix, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        name = names.setdefault(id(tensor), f"{prefix}.{key}" if prefix else key)
                        self._places.setdefault(name, []).append((table, key))

    def __call__(self, tensors: Params, x: Tensor) -> Any:
        own = [(table, key, table[key]) for name in tensors for table, key in self._places[name]]
        try:
            for name, tensor in tensors.items():
                for table, key in self._places[name]:
                    table[key] = tensor
            return self._module(x)
        finally:
            # A layer may put a new tensor in the place of a buffer: it is handed out, as `functional_call` does.
            for name in tensors:
                table, key = self._places[name][0]
                tensors[name] = table[key]
            for table, key, tensor in own:
                table[key] = tensor


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of (key, layer, position): equal alone, stacked and compiled."""

    key: Tensor

    def __init__(self, p: float, layer: int, axes: int | None) -> None:
        super().__init__()
        self.p, self.layer, self.axes = p, layer, axes
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return keyed_dropout(x, self.p, rng.fold(self.key, self.layer), self.axes)


def keyed_dropout(x: Tensor, p: float, key: Tensor, axes: int | None = None) -> Tensor:
    """x · keep / (1 − p), where keep is drawn per element, or per index of the first `axes` axes.

    Those axes may be rows, or rows and channels.
    """
    if p == 0.0:
        return x
    shape = x.shape if axes is None else x.shape[:axes] + (1,) * (x.dim() - axes)
    count = 1
    for size in shape:
        count *= size
    keep = ~rng.chance(rng.words(key, torch.arange(count, device=x.device)), p)
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return x * (keep.view(shape).to(x.dtype) * scale)


class WeightedBatchNorm(_BatchNorm):
    """BatchNorm with one weight per row; without weights it is PyTorch's own."""

    rows: Tensor

    def __init__(self, like: _BatchNorm) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.register_buffer("rows", torch.empty(0), persistent=False)
        self.load_state_dict(like.state_dict())

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of trailing axes: the layer this one stands for has checked its own."""

    def forward(self, input: Tensor) -> Tensor:
        per_channel = input.numel() // input.shape[1]
        if not self.training or (self.rows.numel() == 0 and per_channel > 1):
            return super().forward(input)
        rows = self.rows if self.rows.numel() else input.new_ones(input.shape[0])
        axes = [axis for axis in range(input.dim()) if axis != 1]
        weight = rows.view(-1, *[1] * (input.dim() - 1)).to(input.dtype)
        n = weight.sum() * (per_channel // input.shape[0])
        mean = (input * weight).sum(axes) / n
        centred = input - _per_channel(mean, input)
        variance = (centred.square() * weight).sum(axes) / n
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._remember(mean.detach(), (variance * n / (n - 1).clamp(min=1)).detach())
        out = centred * _per_channel((variance + self.eps).rsqrt(), input)
        if self.affine:
            out = out * _per_channel(self.weight, input) + _per_channel(self.bias, input)
        return out

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # momentum=None means the average over all batches so far; as a tensor it also works under vmap.
        share = 1.0 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.copy_(self.running_mean * (1 - share) + mean * share)
        self.running_var.copy_(self.running_var * (1 - share) + variance * share)


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    return value.view(1, -1, *[1] * (like.dim() - 2))


_FUNCTIONAL_KEY = "functional dropout.key"


class _FunctionalDropout(TorchFunctionMode):
    """Catches `F.dropout` inside a user's forward and draws its mask from the key; counts the calls."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and float(_argument(args, options, 4, "dropout_p", 0.0)) > 0:
            raise UnfedError("Dropout inside fused attention cannot be keyed; set the attention's dropout to 0.")
        if func in (F.dropout, F.dropout2d) and _argument(args, options, 2, "training", True):
            p = float(_argument(args, options, 1, "p", 0.5))
            if p > 0.0:
                self.calls += 1
                # Layers of their own are numbered from 0; calls by hand come far behind them.
                axes = 2 if func is F.dropout2d else None
                return keyed_dropout(args[0], p, rng.fold(self.key, 1_000_000 + self.calls), axes)
        return func(*args, **options)


def _argument(args: tuple[Any, ...], options: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else options.get(name, default)


_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def _swap(module: nn.Module) -> nn.Module:
    """Replace the layers that draw, and BatchNorm, by their keyed and weighted twins.

    They are replaced in place, wherever they sit.
    """
    twins: dict[int, nn.Module] = {}
    layer = 0
    for name, child in list(module.named_modules()):
        _refuse_unkeyable(name, child)
        if isinstance(child, (nn.Dropout, *_CHANNEL_DROPOUT, StochasticDepth)):
            drawn = 2 if isinstance(child, _CHANNEL_DROPOUT) else None
            twins[id(child)] = KeyedDropout(child.p, layer, 1 if isinstance(child, StochasticDepth) else drawn)
            layer += 1
        elif type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            assert isinstance(child, _BatchNorm)
            twin = WeightedBatchNorm(child)
            weight = next(child.parameters(), child.running_mean)
            twins[id(child)] = twin if weight is None else twin.to(weight.device, weight.dtype)
    if id(module) in twins:
        return twins[id(module)]
    for parent in list(module.modules()):
        for key, child in list(parent.named_children()):
            if id(child) in twins:
                setattr(parent, key, twins[id(child)])
    return module


def _refuse_unkeyable(name: str, module: nn.Module) -> None:
    inside = isinstance(module, nn.MultiheadAttention | nn.RNNBase) and float(module.dropout) > 0
    alpha = isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout) and module.p > 0
    if inside or alpha:
        raise UnfedError(
            f"The dropout inside {name or type(module).__name__!r} ({type(module).__name__}) cannot be keyed;"
            " set it to 0, or use nn.Dropout beside it."
        )


def _tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise UnfedError(f"The model returned a {type(output).__name__}; its forward must return one tensor of logits.")
    return output


def _floating(params: Mapping[str, Tensor]) -> torch.dtype:
    return next((t.dtype for t in params.values() if t.is_floating_point()), torch.float32)
