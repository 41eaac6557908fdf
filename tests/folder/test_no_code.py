"""Nothing that is read is run: a canary is put under every key that can hold a name, and every command is given."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

from command_line import called
from flower_grid import InProcessGrid
from unfed import methods, plugins, storage
from unfed.cli.main import app
from unfed.client.plan import Phase, Plan
from unfed.config.config import Config
from unfed.config.reading import table_in
from unfed.data import datasets
from unfed.errors import UnfedError
from unfed.flower.transport import GridTransport
from unfed.methods import METHODS
from unfed.model import networks
from unfed.model.params import params_of
from unfed.remote.client import describe
from unfed.remote.messages import CENSUS, TRAIN, Ask, Failure
from unfed.remote.transport import Messenger
from unfed.runs.run import Run
from unfed.testing import conformance
from unfed.trust.signing import SigningKey

TINY: dict[str, Any] = {
    "name": "tiny",
    "partition": {"clients": 2},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 1, "batch": 256},
    "unlearning": {"rounds": 1},
    "request": {"id": "r1", "clients": ["0"]},
    "methods": {"run": ["not"]},
    "evaluation": {"attack": False, "samples": False},
    "device": "cpu",
}

CANARY = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unfed.methods import FineTune

Path(RAN).touch()

def run(*args, **kwargs):
    Path(RAN).touch()

@dataclass(frozen=True)
class Bird(FineTune):
    name: ClassVar[str] = "bird"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("made") / "run"
    Run.create(Config.parse(TINY), folder).execute()
    return folder


@pytest.fixture
def canary(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a run, in which a canary sits on the path and beside it; whoever imports or calls it is seen."""
    elsewhere = tmp_path / "installed"
    elsewhere.mkdir()
    for place in (elsewhere, tmp_path):
        (place / "canary.py").write_text(CANARY.replace("RAN", repr(str(tmp_path / "ran"))))
    SigningKey.drawn().write(tmp_path / "bundle.key")
    shutil.copytree(made, tmp_path / "run")
    shutil.copytree(made, tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(elsewhere))
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)
    sys.modules.pop("canary", None)


@pytest.fixture
def unfed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Gives a command in this process: (exit code, stderr)."""

    def give(*words: str) -> tuple[int, str]:
        code, _, told = called(list(words), monkeypatch, capsys)
        return code, told

    return give


def ran(folder: Path) -> bool:
    """Whether the canary was touched; it is made ready for the next time."""
    seen = (folder / "ran").exists()
    (folder / "ran").unlink(missing_ok=True)
    sys.modules.pop("canary", None)
    for name in [name for name in sys.modules if name.startswith("unfed_file_canary")]:
        del sys.modules[name]
    return seen


# --- every command ----------------------------------------------------------------------------------------------------

WORK = {
    "resume": ["resume", "run", "--quiet"],
    "forget": ["forget", "run", "--client", "1", "--until", "1", "--quiet"],
    "evaluate": ["evaluate", "run", "--json"],
    "probe": ["probe", "run", "--quick", "--quiet"],
    "serve": ["serve", "run"],
}
"""Commands that work in a run folder, and so may need its code."""

READ = {
    "status": ["status", "run"],
    "check": ["check", "run"],
    "report": ["report", "run", "--format", "md"],
    "compare": ["compare", "run", "other", "--format", "md"],
    "export": ["export", "run", "--method", "train", "-o", "out.safetensors"],
    "flower costs": ["flower", "costs", "run"],
    "withdraw": ["withdraw", "run", "client-1", "--allow-code"],
    "lineage": ["lineage", "run", "--affected", "1"],
    "purge": ["purge", "run", "--request", "client-1", "--yes", "--allow-code"],
    "prune": ["prune", "run"],
    "index": ["index", "."],
    "bundle": ["bundle", "run", "--request", "client-1", "--key", "bundle.key", "-o", "bundle.json"],
}
"""Commands that only read a run folder; of `withdraw` and `purge`, which change it, the same is asked."""

LOGGED = {
    "keys roster": ["keys", "roster", "run", "0=client.pub", "--operator", "operator.key"],
    "request check": ["request", "check", "run", "request.json"],
    "request refuse": ["request", "refuse", "run", "client-1", "--reason", "we must keep it"],
    "log check": ["log", "check", "run"],
}
"""Commands that read what a run folder has of signed requests; they too run nothing."""

CONFIGS = {
    "run": ["run", "tiny.toml", "--quiet"],
    "population": ["population", "tiny.toml", "--models", "2", "--quiet"],
    "demo": [],
    "paper": [],
    "sweep": [],
}
"""Commands that take a config, or changes to one."""

NAMED = {"methods show": ["methods", "show"], "methods check": ["methods", "check"]}
"""Commands that take a method's name."""

OTHERS = {"negate", "convert", "data list", "data verify", "data download", "flower init", "methods"}
OTHERS |= {"request revoke", "verify", "new"}
OTHERS |= {"keys new", "request sign", "judge", "bench"}
"""Commands that read neither a config nor a run folder."""


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_every_command_is_walked_and_those_that_read_cannot_be_told_to_run_code() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    found = dict(commands(root))
    assert found.keys() | {"methods"} == {
        *(WORK | READ | LOGGED | CONFIGS | NAMED),
        *OTHERS,
    }, "a command was added: say here whether it works, reads, takes a config or a name, or none of these"
    able = {name for name, command in found.items() if any("--allow-code" in p.opts for p in command.params)}
    assert able == WORK.keys() | CONFIGS.keys() | NAMED.keys() | {"withdraw", "purge", "bench"}, (
        "what changes a run takes it"
    )
    for name in READ | LOGGED:
        assert any(p.name in ("run", "runs") for p in found[name].params)


def test_commands_that_read_build_no_method_no_model_and_no_data(
    canary: Path, unfed: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unfed("forget", "run", "--method", "not", "--client", "1", "--until", "1", "--quiet")[0] == 0
    shutil.rmtree("other")
    shutil.copytree("run", "other")
    for name in ("operator", "client"):
        assert unfed("keys", "new", name)[0] == 0
    assert unfed("keys", "roster", "run", "--operator", "operator.key")[0] == 0
    own = ("--key", "operator.key", "--to", "operator.pub", "--client", "0", "-o", "request.json")
    assert unfed("request", "sign", *own, "--log", "run/trust/checkpoints.jsonl")[0] == 0

    def built(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"built {args}")

    for module, name in ((plugins, "load"), (methods.base, "_load"), (networks, "build"), (datasets, "load")):
        monkeypatch.setattr(module, name, built)
    for name in ("method", "recorded"):
        monkeypatch.setattr(Config, name, built)
    for name in ("method", "build"):
        monkeypatch.setattr(type(Config().methods), name, built)
    monkeypatch.setattr(Run, "world", built)
    (file,) = (canary / "run/requests").iterdir()
    edit(file, lambda entry: {**entry, "described": None})  # what was not written down is not known
    for name, words in (READ | LOGGED).items():
        code, said = unfed(*("operator.key" if word == "bundle.key" else word for word in words))  # the log's own
        known = {"withdraw": "is fulfilled", "request refuse": "client-1"}.get(name)
        assert code == 0 or (known and known in said), f"{name}: {said}"
    code, said = unfed("report", "run")
    assert code == 0, said


# --- every key --------------------------------------------------------------------------------------------------------


def keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of a config that can hold a name: where, and a function from the name to a value there."""
    for name, field in model.model_fields.items():
        inner = table_in(field.annotation)
        if inner is not None:
            yield from keys(inner, (*path, name))
            continue
        declared: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        kind = TypeAdapter(declared)
        for shape in (lambda n: n, lambda n: [n], lambda n: {"x": n}):
            try:
                kind.validate_python(shape("canary:run"))
            except ValidationError:
                continue
            yield (*path, name), shape
            break


def hyperparameters() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every hyperparameter of every method that takes a word or a list of them."""
    for label, kind in METHODS.items():
        for option, *_ in kind.options():
            for shape in (lambda n: n, lambda n: [n]):
                try:
                    TypeAdapter(kind).validate_python({option: shape("canary:run")})
                except ValidationError:
                    continue
                yield ("methods", label, option), shape
                break


KEYS = [
    *keys(Config),
    *hyperparameters(),
    (("methods", "zz", "use"), lambda n: n),
    (("methods", "not", "use"), lambda n: n),
]
CODE = {"data.name", "model.name", "methods.run", "methods.zz.use", "methods.not.use", "training.record"}
"""The keys under which a name is code; under the others it is a word, or wrong."""


def test_the_walk_finds_the_keys_that_hold_names() -> None:
    found = {".".join(path) for path, _ in KEYS}
    assert found >= CODE | {"name", "data.root", "model.options", "request.id", "request.samples", "methods.not.layers"}


def put(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The values with one more, at a path."""
    raw = json.loads(json.dumps(raw))
    table = raw
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if inner is None:
            inner = table[part] = {}
        table = inner[0] if isinstance(inner, list) else inner
    table[path[-1]] = value
    return raw


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    storage.write_json(file, change(storage.read_json(file, "file")))


def write(file: Path, values: dict[str, Any]) -> None:
    file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in values.items()))


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items() if v is not None) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def at(key: str) -> tuple[tuple[str, ...], Any]:
    return next((path, shape) for path, shape in KEYS if ".".join(path) == key)


@pytest.mark.parametrize("key", sorted(CODE))
@pytest.mark.parametrize("name", ["canary:run", "canary:Bird", "canary.py"])
def test_code_is_not_run_without_leave(
    key: str, name: str, canary: Path, unfed: Callable[..., tuple[int, str]]
) -> None:
    """In run.json every command is given, in a TOML file and on the command line those that take a config."""
    path, shape = at(key)
    edit(canary / "run/run.json", lambda about: {**about, "config": put(about["config"], path, shape(name))})
    for command, words in (WORK | READ).items():
        code, said = unfed(*words)
        assert not ran(canary), command
        if command in WORK:
            assert code == 2 and f"{key} in run/run.json names code, {name!r}" in said and "--allow-code" in said, said
    write(canary / "tiny.toml", put(TINY, path, shape(name)))
    code, said = unfed(*CONFIGS["run"])
    assert code == 2 and not ran(canary) and f"{key} in tiny.toml names code, {name!r}" in said, said
    for words in (["run", "demo"], ["demo"], ["paper", "table-1"], ["sweep", "demo", "--over", "seed=0,1"]):
        code, said = unfed(*words, "--set", f"{key}={toml(shape(name))}")
        assert code == 2 and not ran(canary) and f"{key} names code" in said, said


@pytest.mark.parametrize("key", [".".join(path) for path, _ in KEYS if ".".join(path) not in CODE])
def test_under_every_other_key_a_name_is_a_word(key: str, canary: Path, unfed: Callable[..., tuple[int, str]]) -> None:
    path, shape = at(key)
    with contextlib.suppress(UnfedError):
        write(canary / "tiny.toml", put(TINY, path, shape("canary:run")))
        Config.read(canary / "tiny.toml")
    edit(canary / "run/run.json", lambda about: {**about, "config": put(about["config"], path, shape("canary:run"))})
    for words in (READ["status"], WORK["resume"]):
        unfed(*words)
    assert not ran(canary)


@pytest.mark.parametrize("key", sorted(CODE))
def test_with_leave_it_runs(key: str, canary: Path, unfed: Callable[..., tuple[int, str]]) -> None:
    """For a client or a class that nobody knows, which is found out after all code was loaded."""
    path, shape = at(key)
    for name in ("canary:run",) if key in ("data.name", "model.name") else ("canary:Bird", "canary.py"):
        write(canary / "tiny.toml", put(put(TINY, ("request", "clients"), ["nobody"]), path, shape(name)))
        assert unfed(*CONFIGS["run"], "--allow-code")[0] == 2
        assert ran(canary)
        edit(canary / "run/run.json", lambda about: {**about, "config": put(about["config"], path, shape(name))})  # noqa: B023
        assert unfed("forget", "run", "--class", "99", "--allow-code")[0] == 2
        assert ran(canary)


@pytest.mark.parametrize("name", ["canary:Bird", "canary.py"])
def test_a_methods_name_on_the_command_line_runs_nothing_without_leave(
    name: str, canary: Path, unfed: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "check", lambda kind, sets: [])
    for words in (*NAMED.values(), [*WORK["forget"], "--method"]):
        code, said = unfed(*words, name)
        assert code == 2 and "names code" in said and not ran(canary), said
        code, said = unfed(*words, name, "--allow-code")
        assert code == 0 and ran(canary), said
    code, said = unfed("bench", name)  # with leave it would take minutes
    assert code == 2 and "names code" in said and not ran(canary), said


# --- what else is read ------------------------------------------------------------------------------------------------


def test_a_request_file_runs_nothing_without_leave(canary: Path, unfed: Callable[..., tuple[int, str]]) -> None:
    """Whoever wrote it, and whatever it says of itself; nor is a request lost because leave was not given."""
    assert unfed(*WORK["forget"])[0] == 0
    (file,) = (canary / "run/requests").iterdir()
    waiting = {"method": "canary:Bird", "state": "open", "served": None, "described": None}
    edit(file, lambda entry: {**entry, **waiting})
    before = file.read_bytes()
    for command, words in (WORK | READ).items():
        if command != "withdraw":
            code, said = unfed(*words)
            assert not ran(canary), command
            named = f"method in run/requests/{file.name} names code, 'canary:Bird'"
            if command in ("purge", "bundle"):  # it refuses, because the request is open, and not because of the name
                assert code == 2 and "'client-1' is open" in said, said
            else:
                assert (code == 2 and named in said) if command in WORK else code == 0, said
            assert file.read_bytes() == before, command
    code, said = unfed(*WORK["resume"], "--allow-code")
    assert code == 0 and ran(canary), said


@pytest.mark.parametrize(
    "change",
    [
        {"method": "../../../out"},
        {"method": "/OUT"},
        {"request": {"id": "../../out", "clients": ["1"]}},
        {"request": {"id": "/OUT", "clients": ["1"]}},
        {"seed": "../../out"},
        {"number": "../out"},
    ],
    ids=str,
)
def test_a_request_file_leads_nowhere_outside_its_run(
    change: dict[str, Any], canary: Path, unfed: Callable[..., tuple[int, str]]
) -> None:
    assert unfed(*WORK["forget"])[0] == 0
    (file,) = (canary / "run/requests").iterdir()
    change = json.loads(json.dumps(change).replace("/OUT", str(canary / "out")))
    edit(file, lambda entry: {**entry, "state": "open", "served": None, **change})
    (canary / "run/filed.jsonl").unlink()  # who writes one file can take another away
    there = sorted(canary.rglob("*"))
    for command, words in (WORK | READ).items():
        if command == "index":  # it shows what it can, and says of the rest why not
            continue
        code, said = unfed(*words, "--allow-code") if command in WORK else unfed(*words)
        if command not in ("flower costs", "prune"):  # they do not look at requests
            assert code == 2 and file.name in said.replace("\n", ""), (command, code, said)
    assert sorted(canary.rglob("*")) == there
    assert unfed(*READ["index"])[0] == 0 and file.name in (canary / "index.html").read_text(encoding="utf-8")
    entered = {canary / "other" / name for name in (".requests.lock", "handed-out.jsonl")}
    assert {*canary.rglob("*")} == {*there, canary / "index.html", *entered}


def strings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the strings are."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from strings(inner, (*path, key))


def with_canary(value: Any, path: tuple[Any, ...]) -> Any:
    changed = json.loads(json.dumps(value))
    table = changed
    for part in path[:-1]:
        table = table[part]
    table[path[-1]] = "canary:run"
    return changed


def test_what_run_json_says_beside_the_config_runs_nothing(canary: Path, unfed: Callable[..., tuple[int, str]]) -> None:
    about = json.loads((canary / "run/run.json").read_text())
    places = [path for path in strings(about) if path[0] != "config"]
    everywhere = functools.reduce(with_canary, places, about)
    for changed in (*(with_canary(about, path) for path in places), everywhere):
        storage.write_json(canary / "run/run.json", changed)
        for words in (WORK | READ).values() if changed is everywhere else (READ["status"],):
            with contextlib.suppress(Exception):  # what is wrong with it is another matter
                unfed(*words)
            assert not ran(canary), words


def test_what_a_model_file_says_of_itself_runs_nothing(canary: Path, unfed: Callable[..., tuple[int, str]]) -> None:
    file = canary / "run/models/0/train.safetensors"
    params, about = storage.load(file)
    storage.save(file, params, functools.reduce(with_canary, strings(about), about))
    for words in (
        ["evaluate", "run", "--model", str(file), "--json"],
        ["negate", str(file), "-o", "negated.safetensors"],
        READ["export"],
    ):
        unfed(*words)
        assert not ran(canary), words


NODES: list[dict[str, Any]] = [
    {"partition-id": 0},
    {"partition-id": 0, "data": "digits"},
    {"client": "north", "data": "digits"},
    {"client": "north"},
]


SENT = ("data.name", "data.root", "model.name", "model.options", "poison.client")
"""Keys whose tables a node reads; what a server says under all others is put into one message."""


@pytest.mark.parametrize("node", NODES, ids=str)
def test_no_message_of_a_server_runs_anything_that_the_node_does_not_name(
    node: dict[str, Any], canary: Path, allow_code: None
) -> None:
    """Neither a census nor a plan, under no key of the experiment, those that a node does not read included. That the
    server may run code, as here, is no leave at a node."""
    plain = json.loads(describe(Config.parse(TINY), 0, (1, 8, 8), 10, 1))
    params = params_of(networks.build("cnn-tiny", shape=(1, 8, 8), classes=10, seed=0))
    unread = [(path, shape) for path, shape in KEYS if path[0] not in plain["config"]]
    messages = {key: put(plain["config"], at(key)[0], at(key)[1]("canary:run")) for key in SENT}
    rest = functools.reduce(lambda raw, key: put(raw, key[0], key[1]("canary:run")), unread, plain["config"])
    assert {path[0] for path, _ in unread} >= {"methods", "training", "request"}
    for what, config in {**messages, "the rest": rest}.items():
        text = json.dumps({**plain, "config": config})
        train = Ask(TRAIN, "0", text, body=Plan(0, 1, (Phase(),)).to_json(), tensors={"params": params})
        for ask in (Ask(CENSUS, "0", text), train):
            (answer,) = Messenger(GridTransport(InProcessGrid([node])), 5).send({1000: ask}).answers.values()
            assert not ran(canary), (what, ask.kind)
            if what == "the rest":
                assert not isinstance(answer, Failure), answer


def test_a_node_runs_what_it_names_itself(canary: Path) -> None:
    text = describe(Config.kept({**TINY, "data": {"name": "canary:run"}}), 0)
    ask = Ask(CENSUS, "0", text)
    grid = InProcessGrid([{"partition-id": 0, "data": "canary:run"}])
    (answer,) = Messenger(GridTransport(grid), 5).send({1000: ask}).answers.values()
    assert ran(canary) and isinstance(answer, Failure) and "must return (train, test)" in answer.reason
