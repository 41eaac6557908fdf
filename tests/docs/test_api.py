"""The Python reference: each public name says what it takes, gives and raises, and its example runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import unfed
from unfed.config.config import Config

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text(encoding="utf-8")
SMALL: tuple[str, ...] = (
    "data.train_size=600",
    "data.test_size=200",
    "model.name=cnn-tiny",
    "training.rounds=3",
    "training.batch=64",
)
SMALL += ("unlearning.rounds=2", "gate.max_drop=100", "partition.clients=5")


def shown() -> Iterator[tuple[str, list[str]]]:
    """What the page shows: the last part of each name, and which members of it."""
    for name, below in re.findall(r"^::: (\S+)((?:\n    .*)*)", PAGE, re.MULTILINE):
        members = re.search(r"members: \[(.*)\]", below)
        yield name.rpartition(".")[2], members[1].split(", ") if members else []


def sections(what: Any) -> dict[str, str]:
    """The sections of a docstring by their headings; the text before the first is ''."""
    parts = re.split(r"^(Args|Returns|Raises|Examples):$", inspect.getdoc(what) or "", flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def raises(function: Any) -> bool:
    """Whether a function's own lines raise, or check what they are given."""
    body = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    calls = {node.func.id for node in ast.walk(body) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return "expect" in calls or any(isinstance(node, ast.Raise) for node in ast.walk(body))


def lacking(what: Any, example: bool) -> list[str]:
    """What a docstring does not say."""
    found, missing = sections(what), []
    if not found[""].strip():
        missing.append("what it is")
    if example and ">>> " not in found.get("Examples", ""):
        missing.append("Examples")
    own = inspect.isfunction(what) or (inspect.isclass(what) and "__dataclass_fields__" in vars(what))
    if not own or what is unfed.Result:  # exceptions take a sentence, configs have a page, results are not made by hand
        return missing
    signature = inspect.signature(what)
    taken = [name for name in signature.parameters if name != "self"]
    missing += [name for name in taken if not re.search(rf"^    {name}: ", found.get("Args", ""), re.MULTILINE)]
    known = re.findall(r"^    (\w+): ", found.get("Args", ""), re.MULTILINE)
    missing += [f"no parameter {name}" for name in known if name not in taken]
    if inspect.isfunction(what) and signature.return_annotation not in (None, "None") and "Returns" not in found:
        missing.append("Returns")
    if "Raises" not in found and (inspect.isclass(what) or raises(what)):
        missing.append("Raises")
    return missing


@pytest.mark.parametrize("name", unfed.__all__)
def test_a_public_name_says_what_it_takes_gives_and_raises_with_an_example(name: str) -> None:
    what = getattr(unfed, name)
    members = dict(shown())
    assert name in members, f"docs/reference/api.md does not show {name}"
    assert lacking(what, example=True) == []
    for member in members[name]:
        below = getattr(what, member)
        if not isinstance(below, property):
            assert lacking(below, example=False) == [], member


def test_what_a_docstring_lacks_is_noticed() -> None:
    def bare(one: int, two: int = 0) -> int:
        """Do something.

        Args:
            one: A number.
            three: Another.
        """
        raise ValueError

    assert lacking(bare, example=True) == ["Examples", "two", "no parameter three", "Returns", "Raises"]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What examples begin from: a small run of the demo, a model and its data."""
    preset = Config.preset
    with pytest.MonkeyPatch.context() as patch:

        def small(name: str, sets: Sequence[str] = ()) -> Config:
            return preset(name, [*SMALL, *sets])

        patch.setattr(Config, "preset", staticmethod(small))
        patch.chdir(tmp_path_factory.mktemp("examples"))
        unfed.Run.create(Config.preset("demo"), "runs/demo").execute()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        x = torch.randn(40, 4)
        yield {"unfed": unfed, "model": model, "x": x, "y": torch.arange(40) % 2}


@pytest.mark.parametrize("name", unfed.__all__)
def test_the_example_of_a_public_name_runs(name: str, space: dict[str, Any], recwarn: pytest.WarningsRecorder) -> None:
    example = textwrap.dedent(sections(getattr(unfed, name))["Examples"].strip("\n"))
    shutil.copytree("runs/demo", f"runs/{name}")
    names = {**space, "run": unfed.Run.open(f"runs/{name}")}
    parsed = doctest.DocTestParser().get_doctest(example, names, name, None, None)
    runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), list[str]()
    assert parsed.examples and runner.run(parsed, out=said.append).failed == 0, "".join(said)
