"""The one importer of users' code: what it takes to be run, and one sentence for whatever is wrong with it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import unfed
from unfed import data, plugins
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.methods import METHODS, FineTune, find
from unfed.methods import register as register_method
from unfed.model import networks
from unfed.runs.run import Run
from worlds import Small

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from unfed.methods import Method, State

@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "My Own"
    cite: ClassVar[str] = "this test"

    def begin(self, server):
        return State(server.params)

    def rounds(self, unlearning, training):
        return 2
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes a module `users_own` that can be imported; whoever imports it leaves a file `ran` behind."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> Path:
        ran = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
        (tmp_path / "users_own.py").write_text(ran + textwrap.dedent(text))
        sys.modules.pop("users_own", None)
        return tmp_path / "users_own.py"

    yield write
    sys.modules.pop("users_own", None)


USERS: dict[str, Callable[[str], Any]] = {
    "method": lambda name: find(name),
    "model": lambda name: networks.build(name, shape=(1, 8, 8), classes=10, seed=0),
    "data set": lambda name: data.load(name),
}


@pytest.mark.parametrize("what", USERS)
def test_nothing_is_imported_without_leave(what: str, own: Callable[..., Any], tmp_path: Path) -> None:
    own("def thing(): pass")
    with pytest.raises(UnfedError, match="names code, 'users_own:thing', .* add --allow-code if you trust it"):
        USERS[what]("users_own:thing")
    assert not (tmp_path / "ran").exists()
    with plugins.allow_code(), pytest.raises(UnfedError):
        USERS[what]("users_own:thing")
    assert (tmp_path / "ran").exists()


WRONG = {
    "def thing(:": "The module 'users_own' of the {what} .* cannot be imported .SyntaxError: .*users_own.py, line 3",
    "1 / 0": "cannot be imported .ZeroDivisionError: division by zero.; mend it",
    "import no_such_thing": "cannot be imported .ModuleNotFoundError: No module named 'no_such_thing'",
    "raise SystemExit(3)": "cannot be imported .SystemExit: 3",
    "thin = 1": "has no 'thing', which should be the {what}; .*Did you mean 'thin'",
    "thing = 1": "The {what} 'users_own:thing' is a int; it must be",
}


@pytest.mark.parametrize("what", USERS)
@pytest.mark.parametrize("text", WRONG)
def test_the_same_mistake_is_the_same_sentence_whatever_it_was_for(
    what: str, text: str, own: Callable[..., Any], allow_code: None
) -> None:
    own(text)
    with pytest.raises(UnfedError, match=WRONG[text].format(what=what)):
        USERS[what]("users_own:thing")


@pytest.mark.parametrize("what", ["model", "data set"])
def test_what_a_users_function_raises_is_a_sentence_with_its_name(
    what: str, own: Callable[..., Any], allow_code: None
) -> None:
    own("def thing(): raise KeyError('weights')")
    with pytest.raises(UnfedError, match="'users_own:thing' failed .KeyError: 'weights'.; call it by itself"):
        USERS[what]("users_own:thing")


def test_a_method_must_be_a_class_of_methods(own: Callable[..., Any], allow_code: None) -> None:
    own("class thing: pass")
    with pytest.raises(UnfedError, match="is the class thing; it must be a subclass of Method"):
        find("users_own:thing")


def test_a_method_in_a_file_is_loaded_once_and_hides_no_module_of_that_name(tmp_path: Path, allow_code: None) -> None:
    import json

    file = tmp_path / "json.py"
    file.write_text(METHOD)
    kind = find(str(file))
    assert find(str(file)) is kind and sys.modules["json"] is json
    file.write_text(METHOD.replace("My Own", "Another"))
    assert find(str(file)).title == "Another"


def test_leave_for_one_name_is_leave_for_no_other_and_ends_with_the_block(own: Callable[..., Any]) -> None:
    own("def thing(): raise ValueError('called')")
    only = plugins.allow_only({"users_own:other"}, "ask")
    with plugins.allow_code(), only, pytest.raises(UnfedError, match="not run unasked; ask."):
        USERS["data set"]("users_own:thing")
    with plugins.allow_only({"users_own:thing"}), pytest.raises(UnfedError, match="ValueError: called"):
        USERS["data set"]("users_own:thing")
    with pytest.raises(UnfedError, match="not run unasked"):
        USERS["data set"]("users_own:thing")


def test_a_method_of_an_installed_package_needs_leave_too(
    monkeypatch: pytest.MonkeyPatch, own: Callable[..., Any], tmp_path: Path
) -> None:
    from importlib import metadata

    own(METHOD)
    point = metadata.EntryPoint(name="theirs", value="users_own:Mine", group="unfed.methods")
    monkeypatch.setattr(metadata, "entry_points", lambda group, name: [point] if name == "theirs" else [])
    with pytest.raises(UnfedError, match="methods.run names code, 'theirs'"):
        Config.parse({"methods": {"run": ["theirs"]}})
    with pytest.raises(UnfedError, match="names code, 'theirs'"):
        find("theirs")
    assert not (tmp_path / "ran").exists()
    with plugins.allow_code():
        assert Config.parse({"methods": {"run": ["theirs"]}}).method("theirs").title == "My Own"


def test_methods_of_this_package_are_nobody_elses_code() -> None:
    path = "unfed.methods.nr_freeze:NRFreeze"
    assert Config.parse({"methods": {"run": ["retrain", path]}}).method(path).title == "NR-Freeze"


def test_what_a_program_registers_is_its_own_code_and_needs_no_leave() -> None:
    class Registered(FineTune):
        name = "registered"

    register_method(Registered)
    try:
        assert isinstance(Config.parse({"methods": {"run": ["registered"]}}).method("registered"), Registered)
    finally:
        METHODS.pop("registered")


def test_a_config_is_refused_by_file_key_and_name(tmp_path: Path, own: Callable[..., Any]) -> None:
    own("")
    file = tmp_path / "experiment.toml"
    for key in ("data.name", "model.name", "methods.mine.use"):
        file.write_text(f'{key} = "users_own:thing"')
        with pytest.raises(UnfedError, match=f"^{key} in {file} names code, 'users_own:thing'"):
            Config.read(file)
    file.write_text('training.record = ["users_own:thing"]')
    with pytest.raises(UnfedError, match=f"^training.record in {file} names code, 'users_own:thing'"):
        Config.read(file)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def with_own_method(tmp_path: Path, own: Callable[..., Any], small: Small) -> Path:
    """A finished run of a method of somebody's own, after which its code is gone."""
    file = own(METHOD)
    with unfed.allow_code():
        config = small("methods.run=['mine']", f"methods.mine.use='{file}'", "training.rounds=1")
        run = Run.create(config, tmp_path / "run")
        run.execute()
        run.forget(unfed.Request("later", clients=("1",)), "mine", until="recovered")
    file.unlink()
    (tmp_path / "ran").unlink()
    return tmp_path / "run"


def test_a_run_with_a_method_of_somebodys_own_is_read_without_its_code(with_own_method: Path) -> None:
    """Title, needs and rounds were written down when the method was chosen."""
    run = Run.open(with_own_method)
    assert [(job.label, rounds) for job, rounds in run.jobs()] == [("train", 1), ("mine", 2), ("mine", 2)]
    info = run.info()
    assert info.methods["mine"].to_json() == {"title": "My Own", "needs": ["retain"], "rounds": 2}
    assert [job.needs for job in info.jobs] == [(), ("retain",), ("retain",)]
    assert unfed.write_report(run).exists() and run.saved(request="later", method="mine")


def test_a_run_that_says_nothing_of_its_methods_shows_their_names(with_own_method: Path) -> None:
    import json

    file = with_own_method / "run.json"
    about = json.loads(file.read_text())
    del about["methods"]
    about["config"]["methods"]["run"] = ["mine", "retrain"]
    file.write_text(json.dumps(about))
    run = Run.open(with_own_method)
    assert run.about("mine").to_json() == {"title": "mine", "needs": None, "rounds": 3}
    assert run.about("retrain").to_json() == {"title": "Retrain", "needs": ["init", "retain"], "rounds": 1}


# --- the path ---------------------------------------------------------------------------------------------------------


def test_the_current_folder_comes_off_the_path_and_what_python_needs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/somewhere", "."])
    plugins.leave_current_folder()
    assert sys.path == ["/somewhere"]
    packages = Path(pytest.__file__).parent.parent
    monkeypatch.chdir(packages)
    monkeypatch.setattr(sys, "path", [str(packages)])
    plugins.leave_current_folder()
    assert sys.path == [str(packages)]


@pytest.mark.parametrize("how", ["module", "empty entry of PYTHONPATH"])
def test_a_stray_file_in_the_current_folder_is_not_imported(how: str, tmp_path: Path) -> None:
    for name in ("matplotlib", "typer", "rich", "pydantic", "torch", "numpy", "my_own"):
        (tmp_path / f"{name}.py").write_text(f"from pathlib import Path\nPath('ran {name}').touch()\n")
    source = str(Path(unfed.__file__).parent.parent)
    path = source if how == "module" else f":{source}:"
    script = "import sys; sys.path[:1] = []; from unfed.__main__ import main; main()"
    begin = ["-m", "unfed"] if how == "module" else ["-c", script]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *begin, "run", "demo", "--set", "model.name=my_own:make"]
    leave = how == "module"
    done = subprocess.run(
        [*command, "--allow-code"] if leave else command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2 and ("has no 'make'" if leave else "names code") in done.stderr, done.stderr
    assert [path.name for path in tmp_path.glob("ran *")] == (["ran my_own"] if leave else [])
