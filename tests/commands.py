"""The command line as a process would call it, in this one."""

from __future__ import annotations

import sys

import pytest

from unfed.cli.main import main


def called(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["unfed", *words])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err
