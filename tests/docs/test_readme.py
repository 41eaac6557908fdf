"""What the README shows works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import unfed
from unfed.model.networks import build

README = Path(__file__).parents[2] / "README.md"


def blocks() -> Any:
    return re.findall(r"```python\n((?!# my_model).*?)```", README.read_text(), re.DOTALL)


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks()[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    # Fewer rounds; so few make no model that could lose much, and a gate would refuse it.
    few = {
        'training.rounds=20"': 'training.rounds=2", "gate.max_drop=100.0"',
        "unlearning.rounds=8": "unlearning.rounds=1",
        "until=8": "until=1",
    }
    for printed, tried in few.items():
        assert printed in code
        code = code.replace(printed, tried)
    exec(code, {})
    out = capsys.readouterr().out
    assert "not" in out and "retrain" in out and out.strip().endswith("report.html")
    assert (tmp_path / "runs/readme/report.html").exists()


def test_one_line_negates_a_module_in_place() -> None:
    model = build("cnn-tiny", shape=(1, 8, 8), classes=3, seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    space = {"unfed": unfed, "model": model}
    dry = blocks()[1].splitlines()[0]
    exec(dry, space)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    chosen = unfed.negate(model, dry_run=True)
    assert [c.name for c in chosen] == ["conv1.weight"] and "first" in chosen[0].why
    unfed.negate(model)
    for name, p in model.named_parameters():
        assert torch.equal(p, -before[name] if name == "conv1.weight" else before[name])
    unfed.negate(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_negating_a_convolution_and_its_norm_warns() -> None:
    model = build("cnn-tiny", shape=(1, 8, 8), classes=3, seed=0)
    with pytest.warns(unfed.UnfedWarning, match="cancel"):
        unfed.negate(model, ["conv1.weight", "conv1.bias", "norm1.weight"], dry_run=True)


def test_every_public_name_is_there() -> None:
    for name in unfed.__all__:
        assert getattr(unfed, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = unfed.nothing


def test_the_readmes_commands_are_the_makefiles() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
