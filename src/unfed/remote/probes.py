"""Every way of undoing, tried on a foreign app's model by its server, on rows that the server holds.

    Evidence(DIR, undo=Probes(Net, retain=(x, y), test=(x, y)))

`Net` builds the app's model again; `retain` are rows like those of the clients that stay, `forget` rows like the
leaver's, where the server has any (else whatever needs them is not measured). The attacks, their rows and their budget
are those of `unfed probe` (measures/undo), on the model after and, as the yardstick, on the model before. `classes` are
the classes that left, for the lift of their bias. A planted backdoor is not known here, and prepared rows cannot be
stamped, so synthetic triggers are not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from unfed.data import TensorSource
from unfed.errors import UnfedError
from unfed.measures.undo.flip import Knowledge
from unfed.measures.undo.measure import Effort, ProbedModels, undo
from unfed.measures.undo.scene import Scene, View
from unfed.model.functional import Template
from unfed.model.layers import choose
from unfed.model.params import Params, params_of
from unfed.model.perturb import Perturbed
from unfed.remote.messages import said
from unfed.remote.negating import in_order
from unfed.values import as_json

Rows = tuple[Tensor, Tensor]
NO_RETRAIN = "nothing was trained from scratch without the leaver"


class Probes:
    """A model factory and rows, with which a server tries to bring a leaver back."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        retain: Rows,
        test: Rows | None = None,
        forget: Rows | None = None,
        *,
        layers: Iterable[str | int] = ("first",),
        classes: Iterable[int] = (),
        effort: Effort = Effort(),  # noqa: B008  (frozen)
    ) -> None:
        """`layers`: as given to `negate` · `classes`: those that left · `effort`: how hard it tries."""
        if not len(retain[0]):
            raise UnfedError("Probes needs at least one row like those of the clients that stay; give it some.")
        self._model, self._effort, self._classes = model, effort, tuple(classes)
        self._module = model()
        self._retain, self._test, self._forget = retain, test, forget
        for rows in (retain, test, forget):
            self._try(rows)
        self._knowledge = Knowledge("The unlearning", Perturbed("negate", choose(self._module, tuple(layers), False)))

    def _try(self, rows: Rows | None) -> None:
        """See that the model takes such rows, before anything is unlearned."""
        if rows is None or not len(rows[0]):
            return
        try:
            with torch.no_grad():
                self._model().eval()(rows[0][:1])
        except Exception as error:
            raise UnfedError(f"The probes' model cannot read the probes' rows ({said(error)}); mend either.") from error

    def check(self, arrays: Params) -> None:
        """Refuse, before any client is asked to train, arrays that are not of the probes' model."""
        like = params_of(self._module)
        for name, array in in_order(self._module, arrays).items():
            if array.shape != like[name].shape:
                raise UnfedError(
                    f"The app's {name!r} has the shape {tuple(array.shape)}, in the probes' model it has"
                    f" {tuple(like[name].shape)}; give Probes the app's own model."
                )

    def found(self, before: Params, after: Params) -> dict[str, Any]:
        """What every attack brought back, as JSON has it."""
        models = ProbedModels(in_order(self._module, after), in_order(self._module, before), NO_RETRAIN)
        measured = undo(self._scene(), models, self._knowledge, self._effort)
        return {"measured": as_json(measured), "effort": as_json(asdict(self._effort))}

    def _scene(self) -> Scene:
        named = {"retain": self._retain, "test": self._test, "forget": self._forget}
        classes = 1 + max(int(rows[1].max()) for rows in named.values() if rows is not None and len(rows[1]))
        view = {name: _view(rows, classes) for name, rows in named.items()}
        retain = view["retain"]
        assert retain is not None
        nothing = View(retain.source, retain.rows[:0])
        template = Template(self._module, tuple(self._retain[0].shape[1:]))
        return Scene(
            template, retain, view["forget"] or nothing, view["test"], None, self._fresh, classes=self._classes
        )

    def _fresh(self, seed: int) -> Params:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return params_of(self._model())


def _view(rows: Rows | None, classes: int) -> View | None:
    if rows is None or not len(rows[0]):
        return None
    return View(TensorSource(*rows, classes=classes), torch.arange(len(rows[0])))
