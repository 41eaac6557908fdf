"""`make mutants`: is there a test for every line that makes a method what it is?

    the killers, unmutated, must pass ─► for each mutant: a copy of the tree with one text replaced ─► its killers
                                                                    one fails: killed          all pass: survived

The working tree is never touched. This process imports PyTorch once and forks for every mutant, so that a mutant costs
what its tests cost; it never imports unfed itself, so that every child imports the copy it was made for. A mutant is
killed by a failing test and by nothing else: an error while tests are collected, or a time limit, is no verdict.

    python tools/mutants.py                  all of them; exits with 1 if one survives, 2 if there is no verdict
    python tools/mutants.py pgd clip         only those in whose file, reason or killers all of these words occur
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from mutations import EQUIVALENT, MUTANTS, Mutant, mutated  # noqa: E402

# What tests need beside the source: some read the pages, the examples and the tools.
PARTS = ("src", "tests", "tools", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
SKIPPED = shutil.ignore_patterns(".*", "*.egg-info", "build")
# Imported before the first fork. Anything but unfed may stand here.
HEAVY = (
    *("torch", "torch.func", "torch.utils.flop_counter", "torch._dynamo", "numpy", "scipy.optimize", "sklearn"),
    *("sklearn.linear_model", "sklearn.model_selection", "sklearn.datasets", "pydantic", "safetensors.torch"),
    *("hypothesis", "hypothesis.strategies", "pytest", "rich", "typer", "jinja2", "PIL.Image"),
)
# No options of the project's own (it may ask for several processes), and nothing that only costs time.
QUICKLY = ("-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:unraisableexception")
ENVIRONMENT = {
    **{"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},  # as tests/conftest.py has it, before PyTorch is imported
    **{"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "1"},  # CI: hypothesis repeats its examples
}
WRONG_TREE = 99


@dataclass
class Child:
    """One pytest in a process of its own."""

    pid: int
    what: Mutant | None
    tree: Path
    log: Path
    began: float


@dataclass(frozen=True)
class Verdict:
    """How a mutant fared."""

    mutant: Mutant
    word: str
    seconds: float
    log: str = ""


def linked(base: Path, where: Path) -> Path:
    """A copy of the base tree that shares every file with it; what is changed in it must be put in anew."""
    shutil.copytree(base, where, copy_function=os.link)
    return where


def tree_of(base: Path, mutant: Mutant, where: Path) -> Path:
    """The tree with one text replaced."""
    file = linked(base, where) / "src" / "unfed" / mutant.file
    changed = mutated(file.read_text(encoding="utf-8"), mutant)
    file.unlink()  # a link: writing through it would change the base
    file.write_text(changed, encoding="utf-8")
    for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        stale.unlink()
    return where


def start(tree: Path, killers: Sequence[str], log: Path, what: Mutant | None) -> Child:
    """Fork, and run these tests on this tree."""
    pid = os.fork()
    if pid == 0:
        _work(tree, killers, log)
    return Child(pid, what, tree, log, time.monotonic())


def _work(tree: Path, killers: Sequence[str], log: Path) -> None:
    code = 3
    try:
        os.setsid()  # so that what a test starts can be ended with it
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(tree)
        source = str(tree / "src")
        os.environ["PYTHONPATH"] = source
        sys.path[:] = [source, *(p for p in sys.path if p not in (str(ROOT / "tests"), str(ROOT / "tools")))]
        del sys.modules["mutations"]
        import pytest

        code = int(pytest.main([*QUICKLY, *(f"tests/{k}" for k in killers)]))
        found = sys.modules.get("unfed")
        if found is None or not str(found.__file__).startswith(source):
            print(f"unfed was imported from {getattr(found, '__file__', 'nowhere')}, not from {source}")
            code = WRONG_TREE
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(children: list[Child], limit: float) -> tuple[Child, int]:
    """Wait for the next of them: (child, exit code), the code -1 for one that was out of time."""
    while True:
        for child in children:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return child, 3 if code < 0 else code
            if time.monotonic() - child.began > limit:
                os.killpg(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                return child, -1
        time.sleep(0.02)


def unmutated(base: Path, killers: Sequence[str], jobs: int, limit: float) -> str:
    """Run all killers on the tree as it is; the log of the first that fails, or nothing."""
    by_file: dict[str, list[str]] = {}
    for killer in killers:
        by_file.setdefault(killer.partition("::")[0], []).append(killer)
    waiting = [tests[0].split("::")[:1] if any("::" not in t for t in tests) else tests for tests in by_file.values()]
    running: list[Child] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            tests = waiting.pop()
            running.append(start(base, tests, base.parent / f"base-{len(waiting)}.log", None))
        child, code = ended(running, limit)
        running.remove(child)
        if code != 0:
            for other in running:
                os.killpg(other.pid, signal.SIGKILL)
                os.waitpid(other.pid, 0)
            return child.log.read_text(encoding="utf-8", errors="replace")[-4000:]
    return ""


def last_words(log: str) -> str:
    """What the failing test said, in a line."""
    return next((line[1:].strip() for line in log.splitlines() if line.startswith("E ")), "")


def judged(base: Path, mutants: Sequence[Mutant], jobs: int, limit: float, verbose: bool = False) -> list[Verdict]:
    """Every mutant's verdict, printed as it comes."""
    waiting, running, verdicts = list(enumerate(mutants)), list[Child](), list[Verdict]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number, mutant = waiting.pop(0)
            tree = tree_of(base, mutant, base.parent / str(number))
            running.append(start(tree, mutant.killers, base.parent / f"{number}.log", mutant))
        child, code = ended(running, limit)
        running.remove(child)
        assert child.what is not None
        word = {0: "survived", 1: "killed", -1: "no verdict: out of time"}.get(code, f"no verdict: pytest said {code}")
        log = child.log.read_text(encoding="utf-8", errors="replace")
        verdicts.append(
            Verdict(child.what, word, time.monotonic() - child.began, "" if code in (0, 1) else log[-2000:])
        )
        print(f"[{len(verdicts)}/{len(mutants)}] {word:<9} {verdicts[-1].seconds:5.1f} s  {child.what}", flush=True)
        if verbose:
            print(f"        {last_words(log)[:150]}", flush=True)
        shutil.rmtree(child.tree)
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Bend one line at a time and see that a test fails.")
    parser.add_argument("words", nargs="*", help="only mutants in which all of these words occur")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--verbose", action="store_true", help="also what the killer said")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one mutant")
    wanted = parser.parse_args(arguments)
    if not hasattr(os, "fork"):
        print("Mutants are tried in forked processes, which this system does not have; use Linux, macOS or WSL.")
        return 2

    def meant(mutant: Mutant) -> bool:
        text = f"{mutant} {' '.join(mutant.killers)}".lower()
        return all(word.lower() in text for word in wanted.words)

    mutants = [m for m in MUTANTS if meant(m)]
    equivalent = [m for m in EQUIVALENT if meant(m)]
    if not mutants and not equivalent:
        print("No mutant answers to these words.")
        return 2
    os.environ |= ENVIRONMENT
    began = time.monotonic()
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "unfed" not in sys.modules, "a child could not import its own copy any more"
    with tempfile.TemporaryDirectory(prefix="mutants-") as home:
        base = Path(home) / "base"
        base.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, base / part, ignore=SKIPPED)
            elif (ROOT / part).exists():
                shutil.copy2(ROOT / part, base / part)
        killers = list(dict.fromkeys(k for m in (*mutants, *equivalent) for k in m.killers))
        print(f"{len(killers)} killers, unmutated ...", flush=True)
        failed = unmutated(base, killers, wanted.jobs, 10 * wanted.limit)
        if failed:
            print(f"{failed}\nA killer fails without any mutant; mend it first.")
            return 2
        print(f"they pass ({time.monotonic() - began:.0f} s)", flush=True)
        verdicts = judged(base, [*mutants, *equivalent], wanted.jobs, wanted.limit, wanted.verbose)
    survivors = [v for v in verdicts if v.word == "survived" and v.mutant not in equivalent]
    refuted = [v for v in verdicts if v.word == "killed" and v.mutant in equivalent]
    undecided = [v for v in verdicts if v.word not in ("survived", "killed")]
    for title, some in (("survived", survivors), ("called equivalent, but killed", refuted), ("no verdict", undecided)):
        for verdict in some:
            print(f"{title}: {verdict.mutant} — {', '.join(verdict.mutant.killers)}")
            if verdict.log:
                print(verdict.log)
    killed = sum(v.word == "killed" for v in verdicts) - len(refuted)
    print(
        f"{len(mutants)} mutants: {killed} killed, {len(survivors)} survived, {len(undecided)} without a verdict;"
        f" {len(equivalent)} more are proved equivalent. {time.monotonic() - began:.0f} s on {wanted.jobs} processes."
    )
    return 1 if survivors or refuted else 2 if undecided else 0


if __name__ == "__main__":
    sys.exit(main())
