"""Processes that die at every disk operation, and disks that are full: what is gone on with must end as if nothing was.

    make chaos                                      each operation of each command: killed, disk full (half an hour)
    make chaos CHAOS_STEP=10                        every tenth operation
    make chaos CHAOS_WAYS="killed torn drawn full"  all ways to stop

A command is given in a forked child, so that PyTorch is imported once. Before its k-th disk operation (a file opened
for writing, synced, renamed, cut or removed; a folder made or removed) the child is killed by SIGKILL; or killed after
half of what it wrote was lost; or told from then on that the disk is full; or killed at a moment drawn at random. Then
the same command is given again, and what it leaves is compared with what the undisturbed command left: models byte for
byte, the trajectory but for its seconds, every request; and `check` must find the folder whole. Two processes that work
in one folder at once, one of them killed, are tried too, and fifty who hand in signed requests at once, by commands
and to a service that is killed meanwhile.
"""

from __future__ import annotations

import argparse
import collections
import errno
import json
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))

import common
import signed

from unfed.report import figures
from unfed.runs.run import Run

KILLED, TORN, DRAWN, FULL = "killed", "killed with half of it lost", "killed at a drawn moment", "disk full"
WAYS = {"killed": KILLED, "torn": TORN, "drawn": DRAWN, "full": FULL}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
TAKING = {"open", "fsync", "os.mkdir"}
"""Operations that a full disk refuses: what gives room back still works."""
LIMIT = 120.0
"""Seconds after which a child is taken to hang."""


# --- a child whose disk fails -----------------------------------------------------------------------------------------


class Disk:
    """Counts the disk operations of this process below a folder, and fails at one of them."""

    def __init__(self, folder: Path, at: int, how: str) -> None:
        self.folder, self.at, self.how, self.seen = str(folder.resolve()), at, how, 0
        self.on = True
        self._sync = os.fsync
        os.fsync = cast(Any, self._synced)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(path, (str, bytes, os.PathLike)) and isinstance(flags, int) and flags & WRITES:
                self._operation(event, path)
        elif event in EVENTS and isinstance(args[0], (str, bytes, os.PathLike)):
            self._operation(event, args[0])

    def _synced(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        self._operation("fsync", os.readlink(f"/proc/self/fd/{number}"), number)
        os.fstat(number)  # a process is killed here, the power is not cut: nothing need wait for the disk

    def _operation(self, event: str, path: Any, descriptor: int | None = None) -> None:
        if not os.path.abspath(os.fsdecode(path)).startswith(self.folder):
            return
        self.seen += 1
        if self.at == 0 or self.seen < self.at:
            return
        if self.how == FULL:
            if event not in TAKING:
                return
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(path))
        if self.seen == self.at:
            self.on = False
            if self.how == TORN and descriptor is not None and not os.path.isdir(path):
                lose(descriptor)
            os.kill(os.getpid(), signal.SIGKILL)


def lose(descriptor: int) -> None:
    """Half of a file's last line, or half of the file: what a disk may lose that was not synced."""
    size = os.fstat(descriptor).st_size
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:
        data = file.read()
    begin = data[:-1].rfind(b"\n") + 1 if data[:1] == b"{" else 0
    os.truncate(f"/proc/self/fd/{descriptor}", (begin + size) // 2)


@dataclass
class End:
    """How a child ended: the signal, or its exit code and words; and how many disk operations it made."""

    signal: int
    code: int | None
    said: str
    operations: int
    fault: str | None


def start(words: Sequence[str], here: Path, at: int = 0, how: str = KILLED) -> tuple[int, Path]:
    """Give a command in a child; its process and the file that it will say its end in."""
    answer = here / f".end-{os.urandom(4).hex()}"
    child = os.fork()
    if child:
        return child, answer
    try:
        os.chdir(here)
        disk = Disk(here, at, how)
        found = common.give(*words)
        disk.on = False
        os.fsync = disk._sync
        fault = found.fault
        end = End(0, found.code, (found.err or found.out)[-400:], disk.seen, fault)
        answer.write_bytes(pickle.dumps(end))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def wait(child: int, answer: Path, kill_after: float | None = None) -> End:
    deadline = time.monotonic() + LIMIT
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # nobody has waited for it yet: its number is still its own
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return End(0, None, "", 0, f"it hung for {LIMIT:.0f} s")
        time.sleep(0.002)
    if os.WIFSIGNALED(status):
        return End(os.WTERMSIG(status), None, "", 0, None)
    if not answer.exists():
        return End(0, None, "", 0, "it ended without an answer")
    end = pickle.loads(answer.read_bytes())  # our own child's words
    answer.unlink()
    assert isinstance(end, End)
    return end


# --- what is tried ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A command, and the folder it begins in."""

    name: str
    words: tuple[str, ...]
    template: str
    every: int = 1
    """Stopped at every n-th of its operations only, where it works long between two."""


SERVED = "logged and served"

CASES = (
    Case("run", ("run", "tiny.toml", "--quiet"), "nothing"),
    Case("resume", ("resume", "run", "--quiet"), "begun"),
    Case("forget", ("forget", "run", "--method", "not", "--client", "1", "--until", "2", "--quiet"), "trained"),
    Case("forget again", ("forget", "run", "--class", "3", "--method", "ft", "--until", "1", "--quiet"), "served"),
    Case("forget signed", ("forget", "run", "--request", "leave.json", "--until", "2", "--quiet"), "logged"),
    Case("purge logged", ("purge", "run", "--request", "leaves", "--yes"), SERVED),
    Case("serve together", ("resume", "run", "--quiet"), "two wait"),
    Case("bundle", ("bundle", "run", "--request", "leaves", "-o", "evidence.json", "--page", "officer.html"), SERVED),
    Case("withdraw", ("withdraw", "run", "client-1"), "waiting"),
    Case("purge", ("purge", "run", "--request", "client-1", "--yes"), "served"),
    Case("prune", ("prune", "run", "--samples", "none"), "served"),
    Case("probe", ("probe", "run", "--quick", "--quiet"), "served", every=4),
    Case("report", ("report", "run"), "served"),
    Case("compare", ("compare", "run", "run-2", "-o", "both.html"), "two"),
    Case("export", ("export", "run", "-o", "out.safetensors"), "served"),
    Case("negate", ("negate", "out.safetensors", "-o", "negated.safetensors"), "exported"),
    Case("convert", ("convert", "model.pt", "-o", "converted.safetensors"), "exported"),
)


def templates(root: Path) -> None:
    """The folders that commands begin in."""
    import torch

    from unfed.config.config import Config

    # Pictures are drawn in memory and take longer than all the rest; a page without them is written like any other.
    for name in ("lines", "cost_bars", "scatter"):
        setattr(figures, name, lambda *args, **named: None)
    tiny = {**common.TINY, "partition": {"clients": 2}}
    nothing = root / "nothing"
    nothing.mkdir()
    (nothing / "tiny.toml").write_text(common.TOML.replace("clients = 3", "clients = 2"))
    Run.create(Config.parse(tiny), root / "begun" / "run")
    common.made(root / "trained" / "run", partition={"clients": 2})
    shutil.copytree(root / "trained", root / "served")
    with common.inside(root / "served"):
        common.give("forget", "run", "--method", "not", "--client", "1", "--until", "1", "--quiet")
    shutil.copytree(root / "trained", root / "waiting")
    # Filed while another process works in the folder, so that it waits.
    with common.inside(root / "waiting"), Run.open(root / "waiting" / "run").folder.lock():
        common.give("forget", "run", "--method", "not", "--client", "1", "--until", "1", "--quiet")
    shutil.copytree(root / "served", root / "two")
    shutil.copytree(root / "trained" / "run", root / "two" / "run-2")
    shutil.copytree(root / "served", root / "exported")
    with common.inside(root / "exported"):
        common.give("export", "run", "-o", "out.safetensors")
        torch.save({"conv1.weight": torch.ones(2, 1, 3, 3)}, "model.pt")

    signed.templates(root)


TIMES = {"seconds", "created", "changed", "begun", "finished_at", "at"}


def plain(value: Any) -> Any:
    """The same JSON without moments and durations; of a purge only that it happened is kept."""
    if isinstance(value, dict):
        return {k: v is not None if k == "purged" else plain(v) for k, v in value.items() if k not in TIMES}
    return [plain(v) for v in value] if isinstance(value, list) else value


def ordered(model: bytes) -> tuple[Any, bytes]:
    """A model file with its header as JSON: in `convert` safetensors draws the order of the metadata."""
    size = int.from_bytes(model[:8], "little")
    return json.loads(model[8 : 8 + size]), model[8 + size :]


def outcome(here: Path) -> dict[str, Any]:
    """What a command left: models and other files by their bytes, trajectories and requests but for their times."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in here.rglob("*") if p.is_file()):
        name = str(path.relative_to(here))
        if "trust" in path.parts:
            found |= signed.outcome(path, name)
        elif path.name == "handed-out.jsonl":  # a page has the day in it, and so has its digest
            lines = [plain(json.loads(line)) for line in path.read_text().splitlines()]
            found[name] = [line if line["what"] == "export" else line | {"sha256": ""} for line in lines]
        elif path.suffix == ".jsonl":
            found[name] = [plain(json.loads(line)) for line in path.read_text().splitlines()]
        elif "requests" in path.parts and path.suffix == ".json":
            found[name] = plain(json.loads(path.read_text()))
        elif path.suffix == ".safetensors" and "state" not in path.parts:
            found[name] = ordered(path.read_bytes())
        elif path.suffix in (".html", ".pt", ".toml"):
            found[name] = True  # a page has the day in it
        elif path.name == "evidence.json":
            found[name] = signed.proven(path)
        elif "undo" in path.parts and path.suffix == ".json":
            found[name] = plain(json.loads(path.read_text()))
        elif path.suffix in (".tmp", ".part"):
            found[name] = "a temporary file was left behind"
    return found


def difference(found: dict[str, Any], truth: dict[str, Any]) -> str | None:
    for name in sorted(found.keys() | truth.keys(), key=lambda name: (name.endswith(".tmp"), name)):  # the worst first
        if name not in found:
            return f"{name} is missing"
        if name not in truth:
            return re.sub(r"[.][0-9]+[.]tmp$", ".N.tmp", name) + " is left over"
        if found[name] != truth[name]:
            return f"{name} differs"
    return None


class Campaign:
    """Counts what was tried and what went wrong."""

    def __init__(self, root: Path, seed: int, deadline: float = float("inf")) -> None:
        self.deadline = deadline
        self.root, self.chance, self.took = root, random.Random(seed), 0.0
        self.tried: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, int] = {}
        templates(root)

    def fresh(self, template: str) -> Path:
        here = self.root / "here"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.root / template, here)
        return here

    def note(self, what: str, fault: str | None) -> None:
        if fault is not None:
            self.faults[f"{what}: {fault}"] = self.faults.get(f"{what}: {fault}", 0) + 1
            if os.environ.get("CHAOS_SHOW"):
                print(f"{what}: {fault}", flush=True)

    def case(self, case: Case, ways: Sequence[str], step: int = 1, begin: int = 1) -> None:
        """One command, stopped at each of its operations."""
        here = self.fresh(case.template)
        begun = time.monotonic()
        end = wait(*start(case.words, here))
        self.took = time.monotonic() - begun
        truth = outcome(here)
        if end.fault or end.code != 0:
            self.note(case.name, f"undisturbed it does not work: {end.fault or end.said}")
            return
        for how in ways:
            for at in range(begin, end.operations + 1, step * case.every):
                if time.monotonic() < self.deadline:
                    self.stopped(case, how, at, truth)
                    if os.environ.get("CHAOS_SHOW") and self.tried.total() % 20 == 0:
                        print(f"{self.tried.total()} stops so far, {len(self.faults)} kinds of fault", flush=True)

    def stopped(self, case: Case, how: str, at: int, truth: dict[str, Any]) -> None:
        here = self.fresh(case.template)
        if how == DRAWN:
            first = wait(*start(case.words, here), kill_after=self.chance.uniform(0, self.took))
        else:
            first = wait(*start(case.words, here, at, how))
        what = f"{case.name}, {how}"
        if how == FULL:
            self.tried[f"{case.name}: full disks"] += 1
            self.note(what, first.fault or (None if first.code in (0, 2, 3) else f"exit code {first.code}"))
        elif first.signal == signal.SIGKILL:
            self.tried[f"{case.name}: kills"] += 1
        else:  # a run need not make the same number of operations again (a heartbeat comes by the clock)
            self.tried[f"{case.name}: ended before"] += 1
        words = case.words
        if case.name == "run" and (here / "runs" / "tiny" / "run.json").exists():
            words = ("resume", "runs/tiny", "--quiet")  # `run` itself would begin another folder beside a finished one
        again = wait(*start(words, here))
        if case.name == "forget signed" and signed.ANSWERED in again.said:
            again = wait(*start(("resume", "run", "--quiet"), here))  # handed in twice it is a replay
        if again.fault or again.code != 0:
            self.note(what, f"given again: {again.fault or again.said.strip().splitlines()[-1:]}")
            return
        for look in ("status", "check"):
            with common.inside(here):
                looked = common.give(look, "run" if (here / "run").exists() else "runs/tiny")
            self.note(what, looked.fault or (None if looked.code == 0 else f"{look}: {looked.err}"))
        self.note(what, difference(outcome(here), truth))

    def both(self, at: int, how: str) -> None:
        """Two processes ask for two clients in one folder; one of them is stopped. No request may be lost."""
        here = self.fresh("trained")
        one = ("forget", "run", "--client", "0", "--method", "ft", "--until", "1", "--quiet")
        two = ("forget", "run", "--class", "1", "--method", "ft", "--until", "1", "--quiet")
        children = [start(one, here, at, how), start(two, here)]
        ends = [wait(*child) for child in children]
        self.tried["two processes: pairs"] += 1
        self.tried["two processes: kills"] += ends[0].signal == signal.SIGKILL
        for end in ends:
            self.note("two processes", end.fault)
        for words in (one, two):
            end = wait(*start(words, here))
            self.note("two processes", end.fault or (None if end.code == 0 else f"given again: {end.said[-160:]}"))
        run = Run.open(here / "run")
        states = {entry.request.id: entry.state for entry in run.folder.book().entries}
        self.note("two processes", None if sorted(states.values()) == ["fulfilled"] * 2 else f"the requests: {states}")

    def submitters(self, count: int) -> None:
        """So many processes hand in a signed request each, at once: every one is answered, and none is lost."""
        here = self.fresh("logged")
        names = signed.requests(here, count)
        with Run.open(here / "run").folder.lock():  # somebody is at work, so they only file
            children = [start((*signed.handing_in(name), "--quiet"), here) for name in names]
            ends = [wait(*child) for child in children]
        self.tried["submitters at once"] += count
        for end in ends:
            self.note("submitters", end.fault or (None if end.code == 0 else end.said[-160:]))
        self.note("submitters", signed.lost(here, names))

    def services(self, count: int, kills: int) -> None:
        """So many submit to a service that is killed after 0, 1, … answers: what was acknowledged is not lost."""
        import serving  # what it needs is an extra

        for after in range(0, count, max(1, count // kills)):
            if time.monotonic() > self.deadline:
                return
            here = self.fresh("logged")
            found, faults = serving.trial(here, count, after, start)
            self.tried["service: kills"] += 1
            self.tried["service: acknowledged before the kill"] += found
            for fault in faults:
                self.note("service", fault)

    def said(self, seconds: float) -> int:
        kills, full = (
            sum(times for name, times in self.tried.items() if name.endswith(kind)) for kind in ("kills", "full disks")
        )
        for name, times in sorted(self.tried.items()):
            print(f"{times:7d} {name}")
        print(
            f"{kills:7d} kills, {full} full disks, {self.tried['two processes: pairs']} pairs of processes"
            f" in {seconds:.0f} s; {len(self.faults)} kinds of fault"
        )
        for fault, times in sorted(self.faults.items()):
            print(f"  {times} × {fault}")
        return 1 if self.faults else 0


def campaign(
    ways: Sequence[str], step: int, seed: int, cases: Sequence[str] = (), minutes: float = float("inf")
) -> int:
    """Every case, stopped in each of these ways at every n-th operation; the exit code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unfed-chaos-") as scratch:
        found = Campaign(Path(scratch), seed, begun + 60 * minutes)
        try:
            for case in CASES:
                if (not cases or case.name in cases) and time.monotonic() < found.deadline:
                    found.case(case, [WAYS[way] for way in ways], step, 1 + seed % step)
            for at in range(1 + seed % step, 60, 3 * step) if not cases or "two" in cases else ():
                if time.monotonic() < found.deadline:
                    found.both(at, KILLED)
            if (not cases or "submitters" in cases) and time.monotonic() < found.deadline:
                found.submitters(50)
            if "service" in cases or not cases:
                found.services(50, 5)
        except KeyboardInterrupt:
            print("Interrupted; so far:")
        return found.said(time.monotonic() - begun)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=(os.environ.get("CHAOS_WAYS") or "killed full").split()
    )
    parser.add_argument(
        "--step", type=int, default=int(os.environ.get("CHAOS_STEP") or 1), help="only every n-th operation"
    )
    parser.add_argument("--seed", type=int, default=0, help="which operations, where not all are tried; drawn moments")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then, whatever is left to try")
    parser.add_argument("--cases", nargs="*", default=[], help="names of cases, `two`, `submitters` or `service`")
    return parser.parse_args()


if __name__ == "__main__":
    asked = read_arguments()
    sys.exit(campaign(asked.ways, asked.step, asked.seed, asked.cases, asked.minutes))
