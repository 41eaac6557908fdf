"""Inputs that nobody would write, by the thousand: every one must end in a sentence, never in a traceback.

    make fuzz                     two minutes
    make fuzz FUZZ_MINUTES=60     an hour
    make fuzz FUZZ_SEED=7         other inputs

Hypothesis draws configs, arguments, damaged run folders, model files, sample lists, replies of Flower nodes, signed
requests, proofs and damaged logs; commands are given inside this process. An input is fine if its command ends with
exit code 0, 2 or 3, or, below the command line, with an `UnfedError`. The counts are printed at the end; the exit code
is 1 if anything else happened.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import common
import evidence
import forged
import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from unfed.config.config import Config
from unfed.data import SampleList
from unfed.errors import UnfedError

BATCH = {"configs, their text": 200, "configs, their values": 200, "sample lists": 200, "evidence bundles": 200}
"""Inputs of one kind before it is the next kind's turn, more of those that are cheap; 25 of the others."""

Attempt = Callable[[Any], str | None]
"""What is done with one input; what is wrong, in one line, or None."""


# --- what is drawn ----------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    *(None, True, 0, -1, 1, 3, 10**6, 10**30, -(10**30), 0.5, 1e300, float("inf"), float("nan"), -0.0),
    *("", " ", "x", "²", "../../x", "/dev/null", "a" * 300, "\x1b[31m", "[red]x[/red]", "\u202e", "%s{}", "auto", "0"),
    *([], [[]], {}, {"": ""}, {"x": [1]}, ["x"] * 3, [1, "a", None], "os:system", "evil.py", "\x00", "nan", "1e999"),
]
odd = st.one_of(st.sampled_from(ODD), st.text(max_size=6), st.integers(), st.floats(), st.booleans())
nested = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
deep = st.sampled_from(["[" * 3000, '{"a":' * 3000, "[" * 200_000, '"' + "x" * 5000, "9" * 5000, "-", "NaN", "\ud800"])


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """The same bytes with a few mistakes: changed, cut, doubled, or replaced by something else."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        length = draw(st.integers(0, 12))
        how = draw(st.sampled_from(["set", "cut", "end", "insert", "double", "deep"]))
        if how == "set" and found:
            found[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del found[at : at + length]
        elif how == "end":
            del found[at:]
        elif how == "insert":
            found[at:at] = draw(st.binary(max_size=8))
        elif how == "double":
            found[at:at] = found[at : at + 40]
        else:
            found[at:at] = draw(deep).encode(errors="surrogatepass")
    return bytes(found)


def changed(value: Any, chance: random.Random, new: Any) -> Any:
    """The same JSON with one value, anywhere in it, replaced or taken out."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.12:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], chance, new)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [changed(v, chance, new) if i == at else v for i, v in enumerate(value)]
    return new


# --- configs ----------------------------------------------------------------------------------------------------------


def config_text(data: st.DataObject, here: Path) -> str | None:
    """A TOML file with mistakes."""
    file = here / "fuzzed.toml"
    file.write_bytes(data.draw(damage(common.TOML.encode())))
    return refused(lambda: Config.read(file))


def config_values(data: st.DataObject, here: Path) -> str | None:
    """Any value under any key of a config, and changes by `--set`."""
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    raw = changed(Config.parse(common.TINY).to_json(), chance, data.draw(nested))
    sets = data.draw(st.lists(st.sampled_from(PATHS).flatmap(lambda key: odd.map(lambda v: f"{key}={v}")), max_size=2))
    return refused(lambda: Config.parse(raw if isinstance(raw, dict) else {}, sets))


def paths(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict) or not value:
        return [prefix]
    return [path for key, inner in value.items() for path in paths(inner, f"{prefix}.{key}" if prefix else key)]


PATHS = [*paths(Config().to_json()), "", "x", "training", "methods.not.layers", "methods.nope.use", "a.b.c.d", "="]


# --- arguments --------------------------------------------------------------------------------------------------------

WORDS = [
    *(
        "status",
        "report",
        "resume",
        "forget",
        "withdraw",
        "evaluate",
        "export",
        "negate",
        "convert",
        "compare",
        "methods",
    ),
    *("show", "flower", "costs", "data", "list", "verify", "run", "nope", "--", "-h"),
]
OPTIONS = [
    *(
        "--json",
        "--quiet",
        "--format",
        "--rule",
        "--client",
        "--class",
        "--samples",
        "--method",
        "--deleted",
        "--until",
    ),
    *("--id", "--expires", "--seed", "-o", "--out", "--model", "--layers", "--set", "--device", "--budget", "--accept"),
]
VALUES = [
    *("run", "empty", "model.safetensors", "list.csv", "nope", ".", "", "0", "1", "-1", "7", "1,2", "²", "99999999999"),
    *(
        "not",
        "ft",
        "retrain",
        "recovered",
        "md",
        "latex",
        "html",
        "last",
        "best-gap",
        "2020-01-31",
        "9999-12-31",
        "x" * 300,
    ),
    *("[red]", "\x1b[2J", "conv1", "first", "os:system", "evil.py", "1e300", "nan", "a\nb", "client-1", "out.x", "%"),
]


def arguments(data: st.DataObject, here: Path) -> str | None:
    """A command line of words that are known, in any order, beside words that are not."""
    word = st.one_of(st.sampled_from(VALUES), st.sampled_from(OPTIONS), st.text(max_size=5))
    words = [data.draw(st.sampled_from(WORDS)), *data.draw(st.lists(word, max_size=5))]
    if data.draw(st.booleans()):
        words.insert(1, "run")
    return common.give(*(w.replace("\x00", "") for w in words)).fault


# --- run folders ------------------------------------------------------------------------------------------------------

READING = (
    ["status", "run"],
    ["status", "run", "--json"],
    ["report", "run", "--format", "md"],
    ["compare", "run", "other", "--format", "md"],
    ["export", "run", "-o", "out.safetensors"],
    ["withdraw", "run", "client-1"],
    ["flower", "costs", "run"],
)
WORKING = (
    ["resume", "run", "--quiet"],
    ["evaluate", "run", "--json"],
    ["forget", "run", "--client", "2", "--until", "1", "--quiet"],
    ["report", "run"],
)


def run_folder(data: st.DataObject, here: Path) -> str | None:
    """A run folder of which one file was edited, cut, emptied, doubled or deleted; read, or worked in."""
    shutil.rmtree(here / "run")
    shutil.copytree(here / "whole", here / "run")
    files = sorted(path for path in (here / "run").rglob("*") if path.is_file())
    for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        how = data.draw(st.sampled_from(["edit", "edit", "edit", "damage", "damage", "empty", "delete", "folder"]))
        if how == "edit" and file.suffix in (".json", ".jsonl"):
            lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
            chance, new = random.Random(data.draw(st.integers(0, 2**32))), data.draw(nested)
            at = chance.randrange(len(lines) or 1)
            lines[at : at + 1] = [json.dumps(changed(json.loads(lines[at]), chance, new))] if lines else []
            file.write_text("\n".join(lines) + "\n")
        elif how == "empty":
            file.write_bytes(b"")
        elif how == "delete":
            file.unlink()
        elif how == "folder":
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(data.draw(damage(file.read_bytes())))
    words = data.draw(st.sampled_from(READING * 4 + WORKING))
    return common.give(*words).fault


# --- files of others --------------------------------------------------------------------------------------------------


def model_file(data: st.DataObject, here: Path) -> str | None:
    """A safetensors file with mistakes in its header or its numbers, or no safetensors file at all."""
    whole = (here / "model.safetensors").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    if data.draw(st.booleans()):  # a header that is JSON, and wrong
        chance = random.Random(data.draw(st.integers(0, 2**32)))
        text = json.dumps(changed(json.loads(whole[8 : 8 + size]), chance, data.draw(nested))).encode()
        length = data.draw(st.sampled_from([len(text), len(text), len(text) + 8, 2**40, 0]))
        found = length.to_bytes(8, "little") + text + whole[8 + size :]
    else:
        found = data.draw(damage(whole[: 8 + size])) + whole[8 + size :]
    (here / "fuzzed.safetensors").write_bytes(found)
    words = data.draw(
        st.sampled_from(
            [
                ["negate", "fuzzed.safetensors", "-o", "out.safetensors"],
                ["negate", "fuzzed.safetensors", "-o", "out.safetensors", "--layers", "conv1.weight"],
                ["convert", "fuzzed.safetensors", "-o", "out.safetensors"],
                ["evaluate", "run", "--model", "fuzzed.safetensors", "--json"],
            ]
        )
    )
    (here / "out.safetensors").unlink(missing_ok=True)
    return common.give(*words).fault


def sample_list(data: st.DataObject, here: Path) -> str | None:
    """A list of samples with mistakes."""
    file = here / "fuzzed.csv"
    rows = data.draw(st.lists(st.tuples(odd, odd), max_size=4))
    text = "client,position\n0,1\n2,3\n" + "".join(f"{a},{b}\n" for a, b in rows)
    file.write_bytes(data.draw(damage(text.encode(errors="surrogatepass"))))
    return refused(lambda: SampleList.read(file).samples)


# --- replies ----------------------------------------------------------------------------------------------------------


def replies() -> Callable[[st.DataObject, Path], str | None]:
    """Every reply of one of three Flower nodes, changed on its way; None where Flower is not installed."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

    import worlds
    from flower_grid import InProcessGrid, flower_world, grid_of
    from unfed.federation.state import State

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    config = Config.parse(common.TINY)
    grid: InProcessGrid = grid_of(config)

    def tampered(data: st.DataObject) -> Callable[[Message, Message], Message]:
        def change(question: Message, reply: Message) -> Message:
            if not reply.has_content():
                return reply
            for name, record in list(reply.content.items()):
                how = data.draw(st.sampled_from(["leave", "leave", "value", "key", "drop", "other"]))
                if how == "drop":
                    del reply.content[name]
                elif how == "other":
                    reply.content[name] = ConfigRecord({"x": data.draw(st.text(max_size=4))})
                elif isinstance(record, ArrayRecord) and how in ("value", "key"):
                    arrays = dict(record)
                    key = data.draw(st.sampled_from(sorted(arrays)))
                    old = arrays.pop(key)
                    if how == "key":
                        arrays[data.draw(st.text(min_size=1, max_size=4))] = old
                    else:
                        arrays[key] = Array(
                            data.draw(st.sampled_from([old.dtype, "float31", "int8", ""])),
                            data.draw(st.sampled_from([tuple(old.shape), (), (2**40,), (-1,), (3, 3)])),
                            data.draw(st.sampled_from([old.stype, "torch.pickle", ""])),
                            data.draw(st.one_of(st.just(old.data), damage(old.data[:200]))),
                        )
                    reply.content[name] = ArrayRecord(arrays)
                elif isinstance(record, (MetricRecord, ConfigRecord)) and len(record):
                    key = data.draw(st.sampled_from(sorted(record)))
                    numbers = st.sampled_from([0, -1, 10**12, 2**60, 0.5, 1e308, float("nan"), [1, 2], [1e308]])
                    words = st.one_of(numbers, st.text(max_size=5), st.booleans(), st.binary(max_size=5))
                    values: dict[str, Any] = dict(record)
                    values[key] = data.draw(numbers if isinstance(record, MetricRecord) else words)
                    reply.content[name] = type(record)(values)
            return reply

        return change

    def attempt(data: st.DataObject, here: Path) -> str | None:
        grid.tamper, grid.sent, grid.replies = {}, [], []
        spoilt = tampered(data)
        if data.draw(st.booleans()):
            grid.tamper[1001] = spoilt  # from the census on
        world: Any = None

        def work() -> None:
            nonlocal world
            world = flower_world(config, grid)
            grid.tamper[1001] = spoilt
            server = worlds.serve(world, ())
            state = server.recover(State(server.params))
            world.evaluator([])(state.params)

        return refused(work)

    return attempt


# --- the campaign -----------------------------------------------------------------------------------------------------


def refused(work: Callable[[], object]) -> str | None:
    """Nothing is wrong where it works, or is refused in a sentence."""
    try:
        work()
    except UnfedError as error:
        return None if str(error).strip() else "an error without words"
    except Exception as error:
        return common.place(error)
    return None


KINDS: dict[str, Callable[[st.DataObject, Path], str | None]] = {
    "configs, their text": config_text,
    "configs, their values": config_values,
    "command lines": arguments,
    "run folders": run_folder,
    "model files": model_file,
    "sample lists": sample_list,
    "signed requests": lambda data, here: refused(lambda: forged.hand_in(data, here, damage, changed, nested)),
    "proofs and answers": lambda data, here: refused(lambda: forged.believe(data, here, changed, nested)),
    "logs": lambda data, here: forged.look_into(data, here, damage, changed, nested),
    "evidence bundles": lambda data, here: refused(lambda: evidence.verify(data, here, damage, changed, nested)),
    "calls of the service": lambda data, here: refused(lambda: evidence.send(data, here, damage, changed, nested)),
}


def campaign(seconds: float, seed: int, most: int | None = None, kinds: Sequence[str] = ()) -> int:
    """Try inputs for this long (or so many of each kind), print what was tried and what went wrong; the exit code."""
    tried: collections.Counter[str] = collections.Counter()
    faults: dict[tuple[str, str], int] = {}
    known = dict(KINDS)
    try:
        known["replies of nodes"] = replies()
    except ImportError:
        print("Flower is not installed: no replies.")
    chosen = [name for name in known if not kinds or any(word in name for word in kinds)]
    with tempfile.TemporaryDirectory(prefix="unfed-fuzz-") as scratch, common.inside(Path(scratch)):
        here = Path(scratch)
        common.made(here / "whole")
        common.give("forget", "whole", "--method", "not", "--client", "1", "--until", "1", "--quiet")
        shutil.copytree(here / "whole", here / "run")
        shutil.copytree(here / "whole", here / "other")
        (here / "empty").mkdir()
        (here / "list.csv").write_text("client,position\n0,1\n")
        common.give("export", "run", "-o", "model.safetensors")
        begun, number = time.monotonic(), 0
        while chosen and (number == 0 or time.monotonic() - begun < seconds):
            for name in chosen:
                budget = min(BATCH.get(name, 25), 10**9 if most is None else most - tried[name])
                if budget > 0:
                    batch(name, known[name], here, budget, f"{seed}-{number}", tried, faults)
            number += 1
            if os.environ.get("FUZZ_SHOW"):
                print(f"{tried.total()} so far, {len(faults)} kinds of fault", flush=True)
            if most is not None and all(tried[name] >= most for name in chosen):
                break
        took = time.monotonic() - begun
    for name in chosen:
        print(f"{tried[name]:7d} {name}")
    print(f"{tried.total():7d} inputs in {took:.0f} s, seed {seed}; {len(faults)} kinds of fault")
    for (name, fault), times in sorted(faults.items()):
        print(f"  {times} × {name}: {fault}")
    return 1 if faults else 0


def batch(
    name: str,
    kind: Callable[[st.DataObject, Path], str | None],
    here: Path,
    count: int,
    seed: str,
    tried: collections.Counter[str],
    faults: dict[tuple[str, str], int],
) -> None:
    """Some inputs of one kind; a fault is written down and the campaign goes on."""

    @hypothesis.seed(int.from_bytes(f"{name} {seed}".encode(), "big"))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = kind(data, here)
        tried[name] += 1
        if fault is not None:
            faults[name, fault] = faults.get((name, fault), 0) + 1
            if faults[name, fault] == 1 and os.environ.get("FUZZ_SHOW"):
                print(f"{name}: {fault}", flush=True)

    one()


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("FUZZ_MINUTES") or 2))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("FUZZ_SEED") or 0))
    parser.add_argument("--most", type=int, help="inputs of each kind, whatever the time")
    parser.add_argument("kinds", nargs="*", help="words of the kinds to try; default all")
    return parser.parse_args()


if __name__ == "__main__":
    asked = read_arguments()
    sys.exit(campaign(60 * asked.minutes if asked.most is None else 1e9, asked.seed, asked.most, asked.kinds))
