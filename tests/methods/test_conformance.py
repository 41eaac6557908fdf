"""The conformance kit passes honest methods and finds each kind of dishonest one."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unfed.errors import UnfedError
from unfed.methods import METHODS, register
from unfed.methods import find as load
from unfed.methods.base import Method
from unfed.testing.conformance import (
    _claimed,
    _is_counted,
    _keeps_its_lineage,
    _keeps_to_its_needs,
    _resumes,
    _runs,
    _Tried,
    check,
)
from worlds import Small

pytestmark = pytest.mark.usefixtures("allow_code")

HEAD = """
from dataclasses import dataclass, replace
from typing import ClassVar
import torch
from unfed.methods import Method, State, option
from unfed.client.plan import Phase


@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
    cite: ClassVar[str] = "nobody, nowhere"
    scopes: ClassVar[frozenset[str]] = frozenset({"client"})
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def make(body: str) -> type[Method]:
        path = tmp_path / "my_method.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    "))
        return load(str(path))

    yield make
    METHODS.pop("mine", None)


CLAIMS = {
    "declares what it is",
    "runs",
    "touches forgotten rows only if its needs say so",
    "resumes to the same bits",
    "is counted by the ledger",
    "is the same on both engines",
    "keeps what its lineage promises",
}
FEW = ("data.train_size=200", "data.test_size=60")
"""200 images to learn from: what a method keeps to does not depend on how many there are."""


def broken(kind: type[Method]) -> Any:
    return {claim.name.removesuffix(" (client)"): claim.saw for claim in check(kind, FEW) if not claim.held}


def seen(kind: type[Method], claim: Callable[[_Tried], str]) -> str:
    """What one claim of the kit says of a method that breaks it."""
    register(kind)
    found = _claimed("", claim, _Tried(kind, "client", FEW))
    assert not found.held
    return found.saw


@pytest.mark.slow
def test_not_keeps_every_claim_on_every_scope() -> None:
    claims = list(check(METHODS["not"], FEW))
    assert [c for c in claims if not c.held] == []
    assert {c.name.partition(" (")[0] for c in claims} == CLAIMS and len(claims) == 1 + 3 * 5 + 1


def test_an_honest_method_of_ones_own_passes(mine: Callable[..., Any]) -> None:
    kind = mine(
        """
        strength: float = option(0.5, "how much of the weights is kept", "ours")

        def begin(self, server):
            return State({n: self.strength * t if t.is_floating_point() else t for n, t in server.params.items()})
        """
    )
    assert broken(kind) == {}


@pytest.mark.slow
def test_touching_forgotten_rows_without_saying_so_is_found(mine: Callable[..., Any]) -> None:
    kind = mine(
        """
        def begin(self, server):
            plan = server.plan(0, replace(server.base, view="all"))
            return State(server.fedavg(server.params, plan, server.clients))
        """
    )
    assert "trained on" in seen(kind, _keeps_to_its_needs)


def test_hidden_state_is_found_by_resuming(mine: Callable[..., Any]) -> None:
    kind = mine(
        """
        def begin(self, server):
            server.secret = 0.5
            return State(server.params)

        def round(self, server, state):
            scale = getattr(server, "secret", 1.0)
            state = server.recover(state)
            return replace(state, params={n: scale * t for n, t in state.params.items()})
        """
    )
    assert "ends with another" in seen(kind, _resumes)


MOVED = """
lineage: ClassVar[str] = "{}"

def begin(self, server):
    return State({{n: 0.5 * t if t.is_floating_point() else t for n, t in server.params.items()}})
"""
UNSEEN = """
lineage: ClassVar[str] = "moved"

def begin(self, server):
    return State(server.params)

def round(self, server, state):
    plan = server.plan(state.round + 1)
    return replace(state, round=state.round + 1, params=server.fedavg(state.params, plan, server.retained))
"""


@pytest.mark.parametrize(
    ("body", "held", "says"),
    [
        (MOVED.format("goes on"), False, "away from its own; say moved or ends"),
        (UNSEEN, False, "none of its rounds is recorded"),
        (MOVED.format("moved"), True, "2 of its rounds were recorded"),
        (MOVED.format("ends"), True, "promises nothing"),
    ],
)
def test_a_lineage_that_does_not_hold_is_found(mine: Callable[..., Any], body: Any, held: Any, says: str) -> None:
    register(kind := mine(body))
    claim = _claimed("lineage", _keeps_its_lineage, _Tried(kind, "client", FEW))
    assert claim.held == held and says in claim.saw


def test_a_lineage_that_there_is_not_is_found(mine: Callable[..., Any]) -> None:
    assert (
        "its lineage must be one of anew, carried, ends" in broken(mine(MOVED.format("stays")))["declares what it is"]
    )


def test_a_broken_model_is_found(mine: Callable[..., Any]) -> None:
    kind = mine(
        """
        def begin(self, server):
            return State({n: t * float("nan") for n, t in server.params.items()}, done=True)
        """
    )
    assert "NaN" in seen(kind, _runs)


@pytest.mark.slow
def test_work_behind_the_ledgers_back_is_found(mine: Callable[..., Any]) -> None:
    kind = mine(
        """
        def begin(self, server):
            for block in server.engine.train(server.plan(0), server.params, server.retained, {}):
                pass
            return State(block.of(0))
        """
    )
    assert "the ledger says" in seen(kind, _is_counted)


def test_a_missing_declaration_is_found(mine: Callable[..., Any]) -> None:
    kind = mine(
        """
        needs: ClassVar[frozenset[str]] = frozenset({"luck"})
        strength: float = 0.5

        def begin(self, server):
            return State(server.params)
        """
    )
    (claim,) = check(kind)
    assert not claim.held and "'luck' is not known" in claim.saw and "'strength' lacks a meaning" in claim.saw


def test_files_that_hold_no_method_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="There is no file"):
        load(str(tmp_path / "none.py"))
    (tmp_path / "empty.py").write_text("x = 1")
    with pytest.raises(UnfedError, match="holds 0 methods"):
        load(str(tmp_path / "empty.py"))
    (tmp_path / "bad.py").write_text("import nothing_like_this")
    with pytest.raises(UnfedError, match="could not be loaded .ModuleNotFoundError"):
        load(str(tmp_path / "bad.py"))


def test_a_method_of_an_installed_package_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package registers its method as an entry point; here the list of entry points plays that package."""
    from importlib import metadata

    point = metadata.EntryPoint(name="theirs", value="unfed.methods.finetune:FineTune", group="unfed.methods")
    monkeypatch.setattr(metadata, "entry_points", lambda group, name: [point] if name == "theirs" else [])
    assert load("theirs").title == "FT"
    with pytest.raises(UnfedError, match="The method 'nobodys' is not known"):
        load("nobodys")


def test_a_method_of_this_package_is_looked_for_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the list of all installed packages takes longer than everything else about a config."""
    from importlib import metadata

    monkeypatch.setattr(metadata, "entry_points", lambda group, name: pytest.fail(f"{name} was looked for"))
    assert load("unfed.methods.nr_freeze:NRFreeze").title == "NR-Freeze"
    assert load("ft").title == "FT"


def test_a_method_in_a_file_can_be_run_by_its_path(tmp_path: Path, mine: Callable[..., Any], small: Small) -> None:
    from unfed.runs.run import Run

    mine("def begin(self, server):\n    return State(server.params)")
    path = tmp_path / "my_method.py"
    run = Run.create(small("methods.run=['mine']", f"methods.mine.use='{path}'", "training.rounds=1"), tmp_path / "run")
    run.execute()
    assert run.lines()[-1]["method"] == "mine"
