"""A module as a pure function of params and inputs, and what its forward pass costs.

    Template(module).bind(params)            eval mode: dropout off, running statistics
    Template(module).bind(params, key=…)     train mode: dropout drawn from the key, batch statistics

Layers that draw, and BatchNorm, are swapped for the twins of `keyed.py`: a client alone equals the client in a stack.
The caller's module is copied, never changed. `forward_flops` counts two operations per multiply-add.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from unfed.errors import UnfedError, UnfedWarning, listed
from unfed.model.calling import Inputs, copied, logits_in, whole_numbers
from unfed.model.keyed import FUNCTIONAL_KEY, FunctionalDropout, KeyedAttention, KeyedDropout, WeightedBatchNorm, swap
from unfed.model.networks import head_of
from unfed.model.params import Params, params_of, trainable_names
from unfed.values import not_measured

# --- A module is only the template that turns params and inputs into logits or features -------------------------------


Arguments = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""What a module is called with, by place and by name."""


class Net:
    """A template with its tensors put in: what an objective calls."""

    def __init__(self, template: Template, tensors: Params, training: bool, half: bool = False) -> None:
        self._template, self.tensors, self.training = template, tensors, training
        self._half = training or half

    def __call__(self, x: Tensor) -> Tensor:
        return self._template.run(self.tensors, x, self.training, half=self._half)

    def as_in_training(self) -> Net:
        """The same, by products of the type that training has (bf16), in eval mode too."""
        return Net(self._template, self.tensors, self.training, half=True)

    def features(self, x: Tensor) -> Tensor:
        """What enters the head (and the head's dropout)."""
        return self._template.run(self.tensors, x, self.training, features=True, half=self._half)

    def with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and what enters the head, by one pass."""
        found = self.features(x)
        return self._template.head(self.tensors, found, self.training, half=self._half), found


class Template:
    """One architecture as a pure function.

    `inputs` says how a row is taken apart for a module that wants whole numbers, or more than one tensor.
    """

    def __init__(self, module: nn.Module, shape: Sequence[int], inputs: Inputs | None = None) -> None:
        like = params_of(module)
        self.like: Params = like
        self.shape, self.inputs = tuple(shape), inputs
        self.trainable = trainable_names(module)
        self.state = tuple(name for name in like if name not in set(self.trainable))
        self._head: str | None = None
        self._evaluator = copied(module).eval()  # its parameters still say which of them are frozen
        self._trainer = swap(copied(module)).train().requires_grad_(False)
        keyed = KeyedDropout | KeyedAttention
        self._keys = tuple(n for n, m in self._trainer.named_modules() if isinstance(m, keyed))
        self._rows = tuple(n for n, m in self._trainer.named_modules() if isinstance(m, WeightedBatchNorm))
        self._bodies: dict[bool, tuple[nn.Module, frozenset[str]]] = {}
        self._slots: dict[int, _Slots] = {}
        self.autocast: torch.dtype | None = None
        """The type of matrix products and convolutions in training, where it is not the params' own (bf16)."""
        self._functional_dropout = False
        self.draws_its_own = False
        self.gives: tuple[int, ...] = ()
        """The shape of what one row gives, `(classes,)` where that is logits."""
        self._probe()

    @property
    def module(self) -> nn.Module:
        """The architecture itself, for those who ask about its layers."""
        return self._evaluator

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return next(iter(self.like.values()), torch.zeros(())).device

    @property
    def parameters(self) -> int:
        """How many numbers train."""
        return sum(self.like[name].numel() for name in self.trainable)

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
            tensors[FUNCTIONAL_KEY] = key
        return Net(self, tensors, training=True)

    def run(self, tensors: Params, x: Tensor, training: bool, features: bool = False, half: bool = False) -> Tensor:
        module, call = self._trainer if training else self._evaluator, tensors
        if features:
            module, known = self._body(training)
            call = {name: t for name, t in tensors.items() if name in known or name == FUNCTIONAL_KEY}
        return self._cast(module, call, self._arguments(x), training, _floating(tensors) if half else None)

    def head(self, tensors: Params, features: Tensor, training: bool, half: bool = False) -> Tensor:
        """The logits that the head makes of features."""
        name = self._named_head()
        module = (self._trainer if training else self._evaluator).get_submodule(name)
        call = {n.removeprefix(f"{name}."): t for n, t in tensors.items() if n.startswith(f"{name}.")}
        call |= {FUNCTIONAL_KEY: tensors[FUNCTIONAL_KEY]} if FUNCTIONAL_KEY in tensors else {}
        return self._cast(module, call, ((features,), {}), training, _floating(tensors) if half else None)

    def check_head(self) -> None:
        """Refuse a model that does not end in its head, or whose head shares weights with another layer."""
        name, x = self._named_head(), self.blank(2)
        tied = [n for n, _ in self.module.get_submodule(name).named_parameters() if f"{name}.{n}" not in self.like]
        with torch.no_grad():
            logits, _ = self.bind(self.like).with_features(x)
            if tied or not torch.allclose(logits, self.bind(self.like)(x), atol=1e-4):
                raise UnfedError(
                    f"The model does not end in its head {name!r}, or shares the head's weights with another layer;"
                    " use retrain or sealed."
                )

    def _named_head(self) -> str:
        self._head = self._head or head_of(self._evaluator)
        return self._head

    def _cast(
        self, module: nn.Module, call: Params, given: Arguments, training: bool, half: torch.dtype | None
    ) -> Tensor:
        """What the module gives, computed in the training's type and returned in `half`, if given."""
        if half is not None and self.autocast is not None:
            with torch.autocast(self.device.type, self.autocast):
                return self._call(module, call, given, training).to(half)
        return self._call(module, call, given, training)

    def _call(self, module: nn.Module, tensors: Params, given: Arguments, training: bool) -> Tensor:
        if training and self._functional_dropout:
            key = tensors[FUNCTIONAL_KEY]
            tensors = {name: t for name, t in tensors.items() if name != FUNCTIONAL_KEY}
            with FunctionalDropout(key):
                return logits_in(functional_call(module, tensors, *given))
        if torch.compiler.is_compiling():
            return logits_in(functional_call(module, tensors, *given))
        if id(module) not in self._slots:
            self._slots[id(module)] = _Slots(module)
        return logits_in(self._slots[id(module)](tensors, *given))

    def _arguments(self, x: Tensor) -> Arguments:
        """What the module is called with, by place and by name."""
        return ((x,), {}) if self.inputs is None else self.inputs.arguments(x)

    def blank(self, rows: int) -> Tensor:
        """Rows of nothing, as a source would give them."""
        if self.inputs is not None:
            return self.inputs.blank(rows, self.device, _floating(self.like))
        return torch.zeros((rows, *self.shape), device=self.device, dtype=_floating(self.like))

    def _body(self, training: bool) -> tuple[nn.Module, frozenset[str]]:
        """The module with an identity for a head, and its tensor names.

        It needs no hooks, so it works under vmap and compile.
        """
        if training not in self._bodies:
            body = _without(self._trainer if training else self._evaluator, self._named_head())
            names = dict(body.named_parameters()) | dict(body.named_buffers())
            self._bodies[training] = body, frozenset(names)
        return self._bodies[training]

    def _probe(self) -> None:
        """One forward pass in train mode: does the module call dropout by hand, or draw numbers of its own?

        A module that takes no floats, but whole numbers, reads tokens.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            before = torch.get_rng_state()
            try:
                seen = self._tried()
            except _MISFITS as error:
                given, self.inputs = self.inputs, self.inputs or whole_numbers(self.shape)
                try:
                    seen = self._tried()
                except _MISFITS:
                    self.inputs = given
                    raise UnfedError(
                        f"The model does not accept a batch of inputs of shape {self.shape}"
                        f" ({(str(error).splitlines() or ['it said nothing'])[0]}); choose a model that fits the data."
                    ) from error
            self._functional_dropout = seen.calls > 0
            self.draws_its_own = not torch.equal(before, torch.get_rng_state())
        if self.draws_its_own:
            warnings.warn(
                "This model draws its own random numbers, so the batched engine and bit-equal resume are off; use"
                " nn.Dropout or F.dropout.",
                UnfedWarning,
                stacklevel=3,
            )

    def _tried(self) -> FunctionalDropout:
        """A forward pass in train mode over rows of nothing, and what was seen of dropout in it."""
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        tensors = {n: t.clone() for n, t in self.like.items()} | {f"{n}.key": zero for n in self._keys}
        seen, known = FunctionalDropout(zero), {name for name, _ in self._trainer.named_parameters()}
        with seen:
            out = functional_call(self._trainer, tensors, *self._arguments(self.blank(2)))
        grown = next((name for name, _ in self._trainer.named_parameters() if name not in known), None)
        if grown is not None:
            raise UnfedError(
                f"The model makes {grown!r} only when it is first called; make it in __init__, or call the model once"
                " on a batch first."
            )
        self.gives = tuple(logits_in(out).shape[1:])
        return seen


_MISFITS = (RuntimeError, ValueError, IndexError, TypeError)
"""What a module raises whose input is not what it wants."""


def _without(module: nn.Module, name: str) -> nn.Module:
    """The module with an identity in the place of one submodule.

    It shares all its tensors with the module, because a copy of them cannot be made while a step is traced.
    """
    first, _, rest = name.partition(".")
    found = copy.copy(module)
    found._modules = dict(module._modules)
    found._modules[first] = _without(module.get_submodule(first), rest) if rest else nn.Identity()
    return found


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

    def __call__(self, tensors: Params, args: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> Any:
        own = [(table, key, table[key]) for name in tensors for table, key in self._places[name]]
        try:
            for name, tensor in tensors.items():
                for table, key in self._places[name]:
                    table[key] = tensor
            return self._module(*args, **named)
        finally:
            # A layer may put a new tensor in the place of a buffer: it is handed out, as `functional_call` does.
            for name in tensors:
                table, key = self._places[name][0]
                tensors[name] = table[key]
            for table, key, tensor in own:
                table[key] = tensor


def _floating(params: Mapping[str, Tensor]) -> torch.dtype:
    return next((t.dtype for t in params.values() if t.is_floating_point()), torch.float32)


# --- what one forward pass of a network costs, in floating-point operations: two per multiply-add ---------------------


Flops = int | str
"""A count, or the words that say why there is none."""


def forward_flops(template: Template) -> Flops:
    """FLOPs of one forward pass of one sample, two per multiply-add; or why they could not be counted.

    Counted without fused kernels, of which the counter knows nothing: of an LSTM or an encoder layer it would see the
    head behind it, and call that the whole.
    """
    x = template.blank(1)
    counter = _Counter()
    with torch.no_grad(), _unfused(), counter:
        template.bind(template.like)(x)
    if counter.unknown:
        return not_measured(f"no formula for {listed(sorted(counter.unknown))}")
    return counter.flops


@contextmanager
def _unfused() -> Iterator[None]:
    """Attention, recurrent layers and encoder layers as the products they are made of."""
    libraries: list[Any] = [torch.backends.cudnn, torch.backends.mkldnn]
    before, fast = [one.enabled for one in libraries], torch.backends.mha.get_fastpath_enabled()
    try:
        for one in libraries:
            one.enabled = False  # `cudnn.flags` would also set how precise products are
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for one, enabled in zip(libraries, before, strict=True):
            one.enabled = enabled
        torch.backends.mha.set_fastpath_enabled(fast)


def _of_vectors(at: int) -> Any:
    """Two FLOPs for each entry of the operand at this place."""
    return lambda *shapes, **rest: 2 * prod(shapes[at])


_FORMULAS: dict[Any, Any] = flop_registry | {
    torch.ops.aten.mv: shape_wrapper(_of_vectors(0)),
    torch.ops.aten.addmv: shape_wrapper(_of_vectors(1)),
    torch.ops.aten.dot: shape_wrapper(_of_vectors(0)),
    torch.ops.aten.vdot: shape_wrapper(_of_vectors(0)),
}
"""PyTorch's own formulas, and products that it leaves out."""

_PRODUCTS = re.compile(
    r"(?<!_thnn_fused_)(rnn|lstm|gru)|attention|transformer|linear$|mm(_|$)|mv$|dot$|cdist|fft|linalg_(?!vector_norm)"
)
"""Operations of PyTorch's own that multiply and add, by what their names hold. All others work entry by entry, and so
do `_thnn_fused_lstm_cell` and its like, whose products come before them."""


class _Counter(TorchDispatchMode):
    """Adds up what products cost, and notices operations that may be some and have no formula.

    It counts as `torch.utils.flop_counter.FlopCounterMode` does, which cannot be used without importing PyTorch's
    compiler: that takes longer than a small training.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.unknown: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to be skipped by the compiler, PyTorch would import it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given, packet = kwargs or {}, func.overloadpacket
        if func is not torch.ops.prim.device.default:
            with self:  # an operation that is made of others, as these: each is counted
                parts = func.decompose(*args, **given)
            if parts is not NotImplemented:
                return parts
        own, name = func.namespace in ("aten", "prim", "prims"), str(packet.__name__)
        if packet not in _FORMULAS and (not own or _PRODUCTS.search(name)):
            self.unknown.add(name if own else f"{func.namespace}::{name}")
        out = func(*args, **given)
        if packet in _FORMULAS:
            self.flops += int(_FORMULAS[packet](*args, **given, out_val=out))
        return out
