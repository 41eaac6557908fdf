"""Which tensors a model has, which of them an address means (L_neg), and which pairs undo each other.

    paper               what the paper negates: conv+dense<=150 on EfficientNet, `first` on every other network
    first               the first convolution, dense or embedding weight that trains (never a class token, a bias or a
                        norm scale); where all parameters are frozen, the first counts
    hidden              every convolution, dense or embedding weight that trains, but those of the head alone
    conv1.weight        a tensor by its name
    conv1               a module: its weight
    encoder.*.weight    a glob over parameter names
    0                   the paper's index: the position in list(model.parameters())
    fc.weight[0:10]     some rows of one tensor
    conv+dense<=150     a set: convolution and dense weights whose index is at most 150

`choose` reads a module. `choose_in` has only names and shapes (a model file): it *judges* the kind of a tensor by them,
and says so. Whatever depends on the order needs the file's `order` metadata, because safetensors sorts tensors by
alignment and name.

Partners are pairs of tensors that leave the function as it was when both are negated:

    γ · norm(C(x))          (−γ) · norm(−C(x))        a layer, and the scale of the normalisation right after it
    N(tanh(C(x)))           (−N)(tanh(−C(x)))         two layers with an odd activation between them
    B · A · x               (−B) · (−A) · x           the two halves of a low-rank adapter
    softmax(Q · Kᵀ) · V     (−Q) · (−K)ᵀ              queries and keys, values and what follows them

Biases that are not negated with them make this nearly so instead of exactly. "After" and "between" are judged by the
order of definition; attention is PyTorch's own (`nn.MultiheadAttention`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList

from unfed.errors import UnfedError, listed, nearest
from unfed.model.networks import head_of
from unfed.model.params import Params

# --- what a model's tensors are: their kinds, their order, and the names they answer to -------------------------------


CONV, DENSE, EMBEDDING, NORM, BIAS, OTHER, REPARAMETRISED = (
    "convolution", "dense", "embedding", "normalisation", "bias", "other", "re-parametrised",
)  # fmt: skip
WEIGHTS = (CONV, DENSE, EMBEDDING)
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_TOKENS = re.compile(r"(^|[._])(pos(ition(al)?)?[._](emb|enc)|wpe\b|(cls|class|dist|mask|register)_(token|embedding))")
_ADAPTER = re.compile(r"(^|\.)lora_(?:embedding_)?(?P<half>[AB])(?=\.|$)")
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class ListedTensor:
    """A tensor as it stands in the table."""

    name: str
    shape: tuple[int, ...]
    kind: str
    index: int | None
    transposed: bool = False
    frozen: bool = False


@dataclass(frozen=True)
class TensorTable:
    """What an address is looked up in.

    It has the tensors in parameter order, other names for them, and what is no parameter.
    """

    tensors: dict[str, ListedTensor]
    aliases: dict[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    judged: bool = False
    ordered: bool = True
    network: str | None = None
    """The module's class; unknown where there are only names."""
    head: frozenset[str] | None = None
    """What belongs to the head and to nothing else; unknown where there are only names, or no head."""


def table_of(module: nn.Module) -> TensorTable:
    """Parameters in the paper's order; a tied weight counts once and answers to all its names."""
    modules = dict(module.named_modules())
    training = any(p.requires_grad for p in module.parameters())
    tensors: dict[str, ListedTensor] = {}
    first_name: dict[int, str] = {}
    for index, (name, parameter) in enumerate(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        kind = _kind(modules[owner], leaf, parameter.ndim)
        transposed = isinstance(modules[owner], _ConvTransposeNd)
        still = training and not parameter.requires_grad
        tensors[name] = ListedTensor(name, tuple(parameter.shape), kind, index, transposed, still)
        first_name[id(parameter)] = name
    aliases = {name: first_name[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    buffers = frozenset(name for name, _ in module.named_buffers(remove_duplicate=False))
    head = _head_alone(module, aliases)
    return TensorTable(tensors, aliases, frozenset(modules) - {""}, buffers, network=type(module).__name__, head=head)


def _head_alone(module: nn.Module, aliases: Mapping[str, str]) -> frozenset[str] | None:
    """The tensors that only the head has.

    A weight that it shares with a layer before it is that layer's too.
    """
    try:
        inside = head_of(module) + "."
    except UnfedError:
        return None
    elsewhere = {first for name, first in aliases.items() if not name.startswith(inside)}
    return frozenset(aliases.values()) - elsewhere


def _kind(owner: nn.Module, leaf: str, ndim: int) -> str:
    """What a parameter is to its module; a layer of an unknown class is judged by its `weight`'s axes."""
    if isinstance(owner, ParametrizationList):
        return REPARAMETRISED
    if "bias" in leaf:
        return BIAS
    if ndim == 2 and _ADAPTER.search(leaf):
        return DENSE
    if isinstance(owner, _NORMS):
        return NORM
    if isinstance(owner, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
        return DENSE if "weight" in leaf else OTHER
    if isinstance(owner, _ConvNd | nn.Linear | nn.Bilinear | nn.Embedding | nn.EmbeddingBag):
        if leaf != "weight":
            return REPARAMETRISED if leaf.startswith("weight_") else OTHER
        dense_or = EMBEDDING if isinstance(owner, nn.Embedding | nn.EmbeddingBag) else DENSE
        return CONV if isinstance(owner, _ConvNd) else dense_or
    if leaf == "weight" and ndim >= 2 and "norm" not in type(owner).__name__.lower():
        return DENSE if ndim == 2 else CONV
    return OTHER


def table_from(
    shapes: Mapping[str, tuple[int, ...]], order: Sequence[str] | None, tied: Mapping[str, str]
) -> TensorTable:
    """The same from names and shapes; without an order, no tensor has an index."""
    if order is not None and sorted(order) != sorted(shapes):
        raise UnfedError(
            "The file's `order` metadata does not list the tensors it holds, so it was changed after it was written;"
            " write the file again."
        )
    names = list(shapes if order is None else order)
    buffers = frozenset(name for name in names if name.rpartition(".")[2] in _BUFFERS)
    counted = [name for name in names if name not in buffers and name not in tied]
    tensors = {
        name: ListedTensor(
            name, tuple(shapes[name]), _judged_kind(name, len(shapes[name])), None if order is None else i
        )
        for i, name in enumerate(counted)
    }
    aliases = {name: name for name in counted} | dict(tied)
    parents = frozenset(".".join(parts[:i]) for parts in (n.split(".") for n in names) for i in range(1, len(parts)))
    return TensorTable(tensors, aliases, parents, buffers, judged=True, ordered=order is not None)


def adapter_of(name: str) -> tuple[str, str] | None:
    """Which low-rank adapter ΔW = B·A a tensor belongs to, and which half of it ("A", "B") it is."""
    match = _ADAPTER.search(name)
    return None if match is None else (name[: match.start()] + name[match.end() :], match["half"])


def _adapters(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The halves A and B of every low-rank adapter of which both are among these tensors."""
    halves: dict[str, dict[str, str]] = {}
    for name in names:
        if (found := adapter_of(name)) is not None:
            halves.setdefault(found[0], {})[found[1]] = name
    yield from ((both["A"], both["B"]) for both in halves.values() if len(both) == 2)


def _judged_kind(name: str, ndim: int) -> str:
    """The kind of a tensor by its name and shape, when there is no module to ask."""
    lower = name.lower()
    if "bias" in lower.rpartition(".")[2]:
        return BIAS
    if not lower.endswith("weight") or ndim < 2 or _TOKENS.search(lower):
        return NORM if lower.endswith("weight") and ndim == 1 else OTHER
    if ndim > 2:
        return CONV
    return EMBEDDING if re.search(r"embed|wte|\bemb\b", lower) else DENSE


# --- pairs of tensors that turn each other back: where both are negated, the function is as it was --------------------


@dataclass(frozen=True)
class Choice:
    """One tensor, or rows [a, b) of one tensor, and the reason it was chosen."""

    name: str
    rows: tuple[int, int] | None = None
    why: str = ""


def partners(module: nn.Module) -> Iterator[tuple[Choice, Choice]]:
    """Every such pair of a module."""
    known = table_of(module).aliases

    def part(layer: str, leaf: str, rows: tuple[int, int] | None = None) -> Choice:
        return Choice(known[f"{layer}.{leaf}".lstrip(".")], rows)

    for layer, _, norm, _ in normalised(module):
        yield part(layer, "weight"), part(norm, "weight")
    yield from ((part(one, "weight"), part(other, "weight")) for one, other in _with_odd_between(module))
    yield from ((Choice(a), Choice(b)) for a, b in _adapters(known.values()))
    for name, layer in module.named_modules():
        if isinstance(layer, nn.MultiheadAttention):
            width = layer.embed_dim
            if layer.in_proj_weight is not None:
                query, key, value = (part(name, "in_proj_weight", (i * width, (i + 1) * width)) for i in range(3))
            else:
                query, key, value = (part(name, f"{which}_proj_weight") for which in "qkv")
            yield query, key
            yield value, part(name, "out_proj.weight")


def comes_back(was: Tensor, first: Tensor, before: Tensor, after: Tensor) -> bool:
    """Whether some rows that the first request moved are what they were, by what was done last."""
    was, first, before, after = (t.reshape(t.shape[0] if t.dim() else 1, -1) for t in (was, first, before, after))
    back = (first != was).any(1) & (before != after).any(1) & (after == was).all(1)
    return bool(back.any())


def turned_by_partners(module: nn.Module, was: Params, before: Params, after: Params) -> set[str]:
    """The negated tensors whose partners were negated last."""

    def negated(params: Params, part: Choice) -> bool:
        old, new = (t[part.name][slice(*part.rows or (None,))] for t in (was, params))
        return bool((new == -old).reshape(old.shape[0], -1).all(1).any())

    found = set[str]()
    for one, other in partners(module):
        for ours, theirs in ((one, other), (other, one)):
            stays = negated(before, ours) and negated(after, ours)
            if stays and negated(after, theirs) and not negated(before, theirs):
                found.add(ours.name)
    return found


def normalised(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Every layer that is followed by a normalisation with a scale: name and module of both."""
    leaves = [(name, part) for name, part in module.named_modules() if next(part.children(), None) is None]
    for (layer, affine), (norm, scale) in pairwise(leaves):
        if _normalises(scale, affine):
            yield layer, affine, norm, scale


def _with_odd_between(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Every two layers with an odd activation between them, and nothing that is not odd.

    An activation that only `forward` calls is not seen, so one must be there: else a ReLU may be where nothing is.
    """
    before, odd = "", False
    for name, part in module.named_modules():
        if isinstance(part, _ConvNd | nn.Linear):
            if before and odd:
                yield before, name
            before, odd = name, False
        elif isinstance(part, _ODD):
            odd = True
        elif next(part.children(), None) is None and not isinstance(part, _PASSING):
            before, odd = "", False


_ODD = (nn.Tanh, nn.Hardtanh, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink)
# What hands a sign on: nothing, linear maps, and normalisations up to their bias.
_LINEAR = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_PASSING = (*_LINEAR, _NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def _normalises(norm: nn.Module, layer: nn.Module) -> bool:
    """Whether `norm` has a scale and as many channels as `layer` puts out."""
    if getattr(norm, "weight", None) is None or not isinstance(layer, _ConvNd | nn.Linear):
        return False
    width, axis = (layer.out_channels, 0) if isinstance(layer, _ConvNd) else (layer.out_features, -1)
    if isinstance(norm, _NormBase):
        return norm.num_features == width
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels == width
    return isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.normalized_shape[axis] == width


# --- addressing tensors: which ones are L_neg? ------------------------------------------------------------------------


PAPERS_LAST = 150
_SETS = {"conv": CONV, "dense": DENSE, "embedding": EMBEDDING, "norm": NORM}
_BOUNDS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
_ROWS = re.compile(r"(?P<base>.+)\[(?P<start>-?\d*):(?P<stop>-?\d*)\]")
_SET = re.compile(r"(?P<kinds>[a-z]+(\s*\+\s*[a-z]+)*)\s*((?P<bound><=|>=|<|>)\s*(?P<index>\d+))?")
_HOW_TO_LIST = "list the names with `unfed negate FILE --layers '*' --dry-run`"


def choose(module: nn.Module, addresses: Sequence[str | int], include_bias: bool = False) -> tuple[Choice, ...]:
    """The parameters of a module that the addresses mean, in parameter order; no address chooses nothing."""
    return _choose(table_of(module), addresses, include_bias)


def choose_in(
    names_and_shapes: Mapping[str, tuple[int, ...]],
    addresses: Sequence[str | int],
    include_bias: bool = False,
    *,
    order: Sequence[str] | None = None,
    tied: Mapping[str, str] | None = None,
) -> tuple[Choice, ...]:
    """The same from names and shapes alone.

    Kinds are judged by them, and `first` and indices need `order`.

    `tied` maps the second name of a tied weight to its first: both are chosen, or loading would undo one by the other.
    """
    tied = tied or {}
    table = table_from(names_and_shapes, order, tied)
    chosen = list(_choose(table, addresses, include_bias))
    for other, first in tied.items():
        chosen += [replace(c, name=other, why=f"tied to {first}") for c in chosen if c.name == first]
    return tuple(chosen)


def weights_of(module: nn.Module) -> tuple[str, ...]:
    """The convolution and dense weights, attention projections included: what FCU fuses."""
    return tuple(t.name for t in table_of(module).tensors.values() if t.kind in (CONV, DENSE))


def head_tensors(module: nn.Module) -> tuple[str, ...]:
    """The head's own tensors that train, weight and bias; one that an earlier layer shares is not."""
    table = table_of(module)
    if table.head is None:
        raise UnfedError("Which layer is the head is not known here; set the class attribute head_name of the module.")
    return tuple(tensor.name for tensor in table.tensors.values() if tensor.name in table.head and not tensor.frozen)


def frozen(module: nn.Module, choices: Sequence[Choice]) -> list[str]:
    """The sentence for chosen tensors that training will not touch, where there are some."""
    tensors = table_of(module).tensors
    still = [choice.name for choice in choices if tensors[choice.name].frozen]
    if not still:
        return []
    shown = [*still[:3], f"{len(still) - 3} more"] if len(still) > 4 else still
    return [
        f"The layers to be perturbed include what is frozen here, which no training will bring back: {listed(shown)};"
        " choose layers that train (such as 'first'), or unfreeze these."
    ]


def cancellations(module: nn.Module, choices: Sequence[Choice]) -> list[str]:
    """One sentence per pair of chosen tensors whose negations undo each other: (−N)(−C)(x) = N(C(x)).

    A normalisation is odd in its input, so the scale's sign turns the sign of all its input back. That needs the whole
    affine map before it negated: weight and bias, or the weight of a layer without bias. "Before it" is judged by
    definition order.
    """
    table = table_of(module)
    whole = {c.name for c in choices if c.rows is None or c.rows == (0, table.tensors[c.name].shape[0])}

    def negated(layer: str, leaf: str) -> bool:
        return table.aliases.get(f"{layer}.{leaf}".lstrip(".")) in whole

    sentences = []
    for layer, affine, norm, scale in normalised(module):
        if not (negated(layer, "weight") and negated(norm, "weight")):
            continue
        if affine.bias is None or negated(layer, "bias"):
            when = " in training mode" if isinstance(scale, _NormBase) and scale.track_running_stats else ""
            sentences.append(
                f"Negating {layer} together with the scale {norm}.weight of the normalisation right after it cancels"
                f" exactly{when}, so nothing is unlearned there; negate one of the two."
            )
    return sentences


def refuse_both_halves(choices: Sequence[Choice]) -> None:
    """Refuse to negate both halves of a low-rank adapter: (−B)(−A) = B·A, so nothing would be forgotten."""
    for a, b in _adapters(choice.name for choice in choices):
        raise UnfedError(
            f"{a!r} and {b!r} are the halves of one adapter, ΔW = B·A, so negating both changes nothing; negate only"
            " one (layers = '*lora_A*')."
        )


def _choose(table: TensorTable, addresses: Sequence[str | int], include_bias: bool) -> tuple[Choice, ...]:
    if isinstance(addresses, str | int):  # a lone string would otherwise be read letter by letter
        addresses = [addresses]
    found = [choice for address in addresses for choice in _resolve(table, address)]
    if include_bias:
        found += [bias for choice in found for bias in _bias_of(table, choice)]
    position = {name: i for i, name in enumerate(table.tensors)}
    unique = {(c.name, c.rows): c for c in reversed(found)}
    chosen = sorted(unique.values(), key=lambda c: (position[c.name], c.rows or (0, 0)))
    for one, other in pairwise(chosen):
        if one.name == other.name and (one.rows is None or other.rows is None or one.rows[1] > other.rows[0]):
            raise UnfedError(
                f"Two addresses choose the same rows of {one.name!r}, which would be perturbed twice;"
                " keep one of them, or give them separate rows."
            )
    return tuple(replace(c, why=c.why + ", judged by name and shape") if table.judged else c for c in chosen)


def _resolve(table: TensorTable, address: str | int) -> list[Choice]:
    """The choices of one address, tried from the most to the least literal reading."""
    text = str(address).strip()
    if match := _ROWS.fullmatch(text):
        return [_some_rows(table, text, match)]
    if text == "first":
        return [_first(table)]
    if text == "paper":
        return _papers(table)
    if text == "hidden":
        return _hidden(table)
    if re.fullmatch(r"-?\d+", text):
        return [_at_index(table, int(text))]
    if text in table.aliases:
        name = table.aliases[text]
        return [Choice(name, None, "named" if name == text else f"tied to {text}, which was named")]
    if text in table.buffers:
        raise UnfedError(f"{text!r} is a buffer, which training rewrites, not a parameter; address a parameter.")
    if text in table.modules:
        return [_weight_of(table, text)]
    if (match := _SET.fullmatch(text)) and set(_kinds(match)) <= set(_SETS):
        return _in_set(table, text, match)
    matching = [name for name in table.tensors if fnmatchcase(name, text)]
    if not matching:
        known = [*table.aliases, *table.modules, "first", "paper", "hidden"]
        raise UnfedError(f"There is no layer or tensor {text!r}; {_HOW_TO_LIST}.{nearest(text, known)}")
    return [Choice(name, None, f"matches {text!r}") for name in matching]


def _first(table: TensorTable) -> Choice:
    _needs_order(table, "first")
    skipped = 0
    for tensor in table.tensors.values():
        if tensor.frozen:
            skipped += tensor.kind in WEIGHTS
            continue
        _refuse_reparametrised(tensor)
        if tensor.kind in WEIGHTS:
            behind = f" after {skipped} frozen ones" if skipped else ""
            return Choice(tensor.name, None, f"the first {tensor.kind} weight{behind}, parameter index {tensor.index}")
    raise UnfedError(f"There is no convolution, dense or embedding weight to be 'first'; {_HOW_TO_LIST}.")


def _papers(table: TensorTable) -> list[Choice]:
    """The paper's L_neg.

    Its EfficientNet has 213 parameters: of one with no more than 151 nothing would be left.
    """
    if table.network is None:
        raise UnfedError("'paper' needs to know the network, which this file does not record; name tensors instead.")
    large = table.network == "EfficientNet" and len(table.tensors) > PAPERS_LAST + 1
    return _resolve(table, f"conv+dense<={PAPERS_LAST}" if large else "first")


def _hidden(table: TensorTable) -> list[Choice]:
    """Every layer that learnt, but the last.

    The head's weights speak of classes, whatever the features are.
    """
    if table.head is None:
        raise UnfedError("'hidden' needs to know which layer is the head, which is not recorded here; name tensors.")
    learnt = [t for t in table.tensors.values() if not t.frozen and t.name not in table.head]
    for tensor in learnt:
        _refuse_reparametrised(tensor)
    found = [Choice(t.name, None, f"a hidden {t.kind} weight") for t in learnt if t.kind in WEIGHTS]
    if not found:
        raise UnfedError(f"There is no hidden layer that trains; {_HOW_TO_LIST}.")
    return found


def _at_index(table: TensorTable, index: int) -> Choice:
    _needs_order(table, str(index))
    names = list(table.tensors)
    if not 0 <= index < len(names):
        raise UnfedError(
            f"There is no parameter index {index}: the model has {len(names)} parameters, 0 to {len(names) - 1};"
            f" {_HOW_TO_LIST}."
        )
    return Choice(names[index], None, f"parameter index {index}")


def _weight_of(table: TensorTable, module: str) -> Choice:
    weight = table.aliases.get(f"{module}.weight")
    if weight is None:
        inside = [name for name in table.tensors if name.startswith(f"{module}.")][:4]
        remedy = f"name one of its tensors, such as {listed(inside)}" if inside else "name a module that has one"
        raise UnfedError(f"The module {module!r} has no weight of its own; {remedy}.")
    return Choice(weight, None, f"the weight of {module}")


def _kinds(match: re.Match[str]) -> list[str]:
    return [kind.strip() for kind in match["kinds"].split("+")]


def _in_set(table: TensorTable, text: str, match: re.Match[str]) -> list[Choice]:
    """`conv+dense<=150`: all weights of some kinds, the index bounded."""
    kinds = [_SETS[kind] for kind in _kinds(match)]
    bounded = match["bound"] is not None
    if bounded:
        _needs_order(table, text)
    chosen = []
    for tensor in table.tensors.values():
        if bounded and not _BOUNDS[match["bound"]](tensor.index or 0, int(match["index"])):
            continue
        _refuse_reparametrised(tensor)
        if tensor.kind in kinds:
            at = f", parameter index {tensor.index}" if table.ordered else ""
            chosen.append(Choice(tensor.name, None, f"a {tensor.kind} weight in {text!r}{at}"))
    if not chosen:
        raise UnfedError(f"No tensor is in the set {text!r}; {_HOW_TO_LIST}.")
    return chosen


def _some_rows(table: TensorTable, text: str, match: re.Match[str]) -> Choice:
    chosen = _resolve(table, match["base"])
    if len(chosen) != 1:
        raise UnfedError(f"{text!r} takes rows of {len(chosen)} tensors; name one tensor before the bracket.")
    name = chosen[0].name
    height = table.tensors[name].shape[0] if table.tensors[name].shape else 0
    start, stop = int(match["start"] or 0), int(match["stop"] or height)
    if not (-height <= start <= height and -height <= stop <= height):
        raise UnfedError(f"{text!r} reaches outside {name!r}, which has {height} rows; stay within 0:{height}.")
    a, b, _ = slice(start, stop).indices(height)
    if a >= b:
        raise UnfedError(f"{text!r} is empty; choose a start below its stop, within 0:{height}.")
    return Choice(name, (a, b), f"rows {a}:{b}, {chosen[0].why}")


def _bias_of(table: TensorTable, choice: Choice) -> list[Choice]:
    """The bias beside a chosen weight, the same rows of it; nothing when there is none."""
    owner, dot, leaf = choice.name.rpartition(".")
    name = owner + dot + leaf.replace("weight", "bias")
    if name == choice.name or name not in table.tensors:
        return []
    weight, bias = table.tensors[choice.name], table.tensors[name]
    if choice.rows is not None and (weight.transposed or bias.shape[:1] != weight.shape[:1]):
        raise UnfedError(
            f"The rows of {choice.name!r} are not the rows of {name!r}; choose the whole weight or leave the bias out."
        )
    return [Choice(name, choice.rows, f"the bias beside {choice.name}")]


def _needs_order(table: TensorTable, address: str) -> None:
    if not table.ordered:
        weights = [t.name for t in table.tensors.values() if t.kind in WEIGHTS]
        shown = [*weights[:6], f"{len(weights) - 6} more"] if len(weights) > 6 else weights
        raise UnfedError(
            f"{address!r} needs the order of the layers, which this file does not record; name the tensor instead:"
            f" {listed(shown) or 'it holds no weight'}."
        )


def _refuse_reparametrised(tensor: ListedTensor) -> None:
    """`first` must not skip a weight that hides behind weight_norm.

    It would choose the second layer, silently.
    """
    if tensor.kind == REPARAMETRISED:
        raise UnfedError(
            f"{tensor.name!r} is a part of a re-parametrised weight; remove the parametrisation first"
            " (torch.nn.utils.parametrize.remove_parametrizations), or name the tensor."
        )
