"""NoT's perturbation for arrays of a foreign app: by its module, or by the arrays' names.

PyTorch is imported where there is a module. A client whose app names arrays, in the file that it shares with the
server, starts again for every message and does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from unfed.errors import UnfedError

if TYPE_CHECKING:
    from torch import nn

    from unfed.model.params import Params

Perturb = Callable[["Params"], "Params"]


def negate(module: nn.Module, layers: Iterable[str | int] = ("first",), include_bias: bool = False) -> Perturb:
    """NoT's perturbation (Eq. 3) as a function of a state dict.

    The chosen layers of this architecture are negated.

    Arrays that an app numbers '0', '1', … are taken for the module's state dict in its order, if their shapes agree.
    """
    from unfed.model.layers import choose, refuse_both_halves
    from unfed.model.params import params_of
    from unfed.model.perturb import negate as negated

    if not _is_module(module):
        raise UnfedError(f"negate takes the model itself, as in negate(Net()), not {module!r:.80}.")
    chosen = choose(module, tuple(layers), include_bias)
    refuse_both_halves(chosen)
    own, state = params_of(module), module.state_dict(keep_vars=True)
    # A tied weight stands in a state dict under each of its names: all of them are the same number.
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    aliases = {name: [other for other, t in state.items() if t is places[name]] or [name] for name in own}

    def changed(arrays: Params) -> Params:
        keys = _keys(arrays, state)
        missing = [name for name in own if name not in keys]
        if missing:
            raise UnfedError(
                f"The arrays have no {missing[0]!r}, so they are not of this model; give negate the right one, or name"
                f" the arrays to negate: negate_arrays({next(iter(arrays), '0')!r})."
            )
        odd = next((name for name in own if arrays[keys[name]].shape != own[name].shape), None)
        if odd is not None:
            shapes = f"{tuple(arrays[keys[odd]].shape)}, the model with {tuple(own[odd].shape)}"
            raise UnfedError(f"The arrays have {odd!r} with the shape {shapes}; give negate the clients' own model.")
        new = negated({name: arrays[keys[name]] for name in own}, chosen)
        out = dict(arrays)
        for name, value in new.items():
            for alias in aliases[name]:
                out[keys.get(alias, alias)] = value
        return out

    return _not(changed)


def method_of(perturb: Perturb | None) -> str:
    """What a perturbation is called among unfed's methods: NoT, none at all (FT), or the app's own."""
    return "ft" if perturb is None else str(getattr(perturb, "method", "perturb"))


def _not(perturb: Perturb) -> Perturb:
    perturb.method = "not"  # type: ignore[attr-defined]
    return perturb


def applied(perturb: Perturb, arrays: Params) -> Params:
    """What a perturbation makes of an app's arrays."""
    if _is_module(perturb) or not callable(perturb):
        raise UnfedError("perturb must be a function of a state dict, as negate(Net()) is, and not the model itself.")
    found = perturb(arrays)
    missing = next((name for name in arrays if name not in (found or ())), None)
    if missing is not None:
        raise UnfedError(f"What perturb returned has no {missing!r}; return all arrays, those that are as before too.")
    return found


def _is_module(what: object) -> bool:
    from torch.nn import Module

    return isinstance(what, Module)


def in_order(module: nn.Module, arrays: Params) -> Params:
    """An app's arrays under the names that the module's params have."""
    from unfed.model.params import params_of

    keys = _keys(arrays, dict(module.state_dict(keep_vars=True)))
    if missing := [name for name in params_of(module) if name not in keys]:
        raise UnfedError(f"The arrays have no {missing[0]!r}, so they are not of this model; give the app's own.")
    return {name: arrays[keys[name]] for name in params_of(module)}


def _keys(arrays: Params, state: Params) -> dict[str, str]:
    """A state dict's name → the array's."""
    return dict(zip(state, arrays, strict=False)) if _numbered(arrays, state) else {name: name for name in arrays}


def _numbered(arrays: Params, state: Params) -> bool:
    """Whether arrays are a state dict whose names got lost on the way through a list of NumPy arrays."""
    if list(arrays) != [str(place) for place in range(len(state))]:
        return False
    return all(old.shape == new.shape for old, new in zip(state.values(), arrays.values(), strict=True))


def negate_arrays(*names: str) -> Perturb:
    """NoT's perturbation (Eq. 3) where there is no module: these arrays, negated (`negate_arrays("0")`)."""
    if not names:
        raise UnfedError("negate_arrays takes the names of the arrays to negate, as in negate_arrays('0').")

    def changed(arrays: Params) -> Params:
        missing = next((name for name in names if name not in arrays), None)
        if missing is not None:
            raise UnfedError(f"There is no array {missing!r} to negate; there are {', '.join(map(repr, arrays))}.")
        whole = next((name for name in names if not arrays[name].is_floating_point()), None)
        if whole is not None:
            raise UnfedError(f"The array {whole!r} holds {arrays[whole].dtype}, which are no weights; name another.")
        return {name: -value if name in names else value for name, value in arrays.items()}

    return _not(changed)
