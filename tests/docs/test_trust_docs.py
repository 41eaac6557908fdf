"""The page on signed requests is true: its commands and its code run as they stand."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from unfed.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/trust.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_on_trust_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = blocks("toml")
    Path("federation.toml").write_text(config)
    for line in "".join(blocks("sh")).splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        try:
            main()
        except SystemExit as end:
            assert not end.code, f"{line}: {capsys.readouterr().err}"
    assert "is the one that was signed for" in capsys.readouterr().out
    for code in blocks("python"):
        exec(compile(code, "trust.md", "exec"), {})
