"""The project's own habits: one version, one list of checks, declared packages, and tools that see what is missing."""

from __future__ import annotations

import ast
import csv
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import unfed

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Code:
    """What the checks below ask about a file of the package."""

    path: Path
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    parameters: Mapping[str, int]
    """Of every function, how many a caller may give."""
    docs: tuple[tuple[str, str], ...]
    """Whose it is, and the first line, of every docstring."""
    long: frozenset[str]
    """Messages of too many words."""


DEFINED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def package() -> list[Code]:
    """Every file of the package, parsed once for all checks."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        defined = [node for node in nodes if isinstance(node, DEFINED)]
        functions = [node for node in defined if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        docs = [(getattr(node, "name", "module"), doc) for node in defined if (doc := ast.get_docstring(node))]
        found.append(
            Code(
                path,
                tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
                {node.name: parameters(node) for node in sorted(functions, key=parameters)},
                tuple((name, doc.splitlines()[0]) for name, doc in docs),
                frozenset(long_messages(nodes)),
            )
        )
    return found


# --- the version ------------------------------------------------------------------------------------------------------


def test_the_version_stands_in_one_place_and_the_pages_that_repeat_it_agree() -> None:
    pyproject = tomllib.loads(text("pyproject.toml"))
    assert "version" not in pyproject["project"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "unfed.__version__"}
    assert tool("release").version_of(ROOT) == unfed.__version__
    assert f"\nversion: {unfed.__version__}\n" in text("CITATION.cff")
    newest = re.search(r"^## (\S+) ", text("CHANGELOG.md"), re.M)
    assert newest is not None and newest[1] == unfed.__version__


def release_tree(folder: Path, day: str = "2027-01-02", cited: str = "0.2.0") -> Path:
    (folder / "src" / "unfed").mkdir(parents=True)
    (folder / "src" / "unfed" / "__init__.py").write_text('__version__ = "0.2.0"\n', encoding="utf-8")
    (folder / "CITATION.cff").write_text(f"title: x\nversion: {cited}\n", encoding="utf-8")
    changes = f"# Changelog\n\n## 0.2.0 ({day})\nNew.\n\n- **This**: one.\n\n## 0.1.0 (2026-12-01)\nOld.\n"
    (folder / "CHANGELOG.md").write_text(changes, encoding="utf-8")
    return folder


def test_a_releases_notes_are_its_section_of_the_changelog(tmp_path: Path) -> None:
    release, tree = tool("release"), release_tree(tmp_path)
    assert list(release.disagreements("v0.2.0", tree)) == []
    assert release.notes("0.2.0", tree) == "New.\n\n- **This**: one."


def test_a_release_is_refused_where_tag_changelog_or_citation_say_something_else(tmp_path: Path) -> None:
    release = tool("release")
    assert "The tag is v0.3.0" in next(release.disagreements("v0.3.0", release_tree(tmp_path / "tag")))
    unnamed = list(release.disagreements("v0.2.0", release_tree(tmp_path / "day", day="unreleased")))
    assert len(unnamed) == 1 and "CHANGELOG.md has no heading `## 0.2.0 (YYYY-MM-DD)`" in unnamed[0]
    cited = list(release.disagreements("v0.2.0", release_tree(tmp_path / "cited", cited="0.1.0")))
    assert cited == ["CITATION.cff does not say version: 0.2.0."]


# --- the same checks everywhere ---------------------------------------------------------------------------------------


def commands(workflow: str) -> list[str]:
    """What a workflow runs, with its matrix written out."""
    found = []
    for job in yaml.safe_load(text(f".github/workflows/{workflow}"))["jobs"].values():
        parts = job.get("strategy", {}).get("matrix", {}).get("part", [""])
        steps = [step["run"] for step in job["steps"] if "run" in step]
        found += [step.replace("${{ matrix.part }}", part) for part in parts for step in steps]
    return found


def test_a_hosted_ci_runs_every_part_of_the_script_and_nothing_of_its_own() -> None:
    listed = re.search(r'^PARTS="(.+)"$', text(".ci/run"), re.M)
    assert listed is not None
    run = commands("ci.yml")
    parts = [part for command in run if command.startswith(".ci/run ") for part in command.split()[1:]]
    assert sorted(parts) == sorted(listed[1].split())
    assert [command for command in run if not command.startswith(".ci/run ")] == [
        "make test-flower-version FLOWER=${{ matrix.flower }}",
        "make test-nvflare",
        "make coverage",
    ]
    assert ".ci/run package" in commands("release.yml")


def test_workflows_name_actions_by_digest_and_grant_what_a_job_needs() -> None:
    for name in ("ci.yml", "release.yml"):
        used = re.findall(r"uses: (\S+)(.*)", text(f".github/workflows/{name}"))
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action, _ in used), name
        assert all(re.fullmatch(r" # v[\d.]+", version) for _, version in used), "a person reads the version"
    release = yaml.safe_load(text(".github/workflows/release.yml"))
    assert release["permissions"] == {}
    writing = {
        name: [what for what, how in job["permissions"].items() if how == "write"]
        for name, job in release["jobs"].items()
    }
    assert writing == {"build": ["id-token", "attestations"], "publish": ["id-token"], "announce": ["contents"]}


def test_what_a_release_is_made_with_is_locked_by_hashes() -> None:
    lock = text(".github/release.txt")
    pinned = re.split(r"\n(?=[a-z0-9])", lock)[1:]
    assert len(pinned) > 20 and all("--hash=sha256:" in one for one in pinned)
    wanted = re.findall(r"^([a-z-]+)", text(".github/release.in"), re.M)
    assert wanted and all(re.search(rf"^{one}==", lock, re.M) for one in wanted)
    assert "--find-links" not in lock and "://" not in lock, "no index, no machine's own folder"


@pytest.mark.parametrize("failing", ["nothing", "lint", "package", "test-flower-short", "test"])
def test_the_script_runs_every_part_once_and_fails_where_one_does(failing: str, tmp_path: Path) -> None:
    """With a `make` that only writes down what it was asked for."""
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/asked\n[ "$1" != {failing} ]\n')
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    for stub in ("make", "chromium"):
        (tmp_path / stub).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True)
    asked = (tmp_path / "asked").read_text().split()
    assert (ended.returncode == 0) == (failing == "nothing"), ended.stderr
    assert asked[0] == ".venv/dev.stamp", "what all of them need is installed before two of them begin"
    wanted = ["lint", "package", "test-flower-short", "test"]
    if failing == "nothing":
        assert sorted(asked[1:]) == sorted(wanted)
    else:
        assert asked.count(failing) == (2 if failing == "test-flower-short" else 1)


def test_a_commit_is_held_to_what_ci_calls_lint() -> None:
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make lint"]
    assert re.search(r"^    lint\) make lint ;;$", text(".ci/run"), re.M)


# --- what is declared -------------------------------------------------------------------------------------------------


def imported(stdlib: bool = False) -> dict[str, str]:
    """Top-level packages (or modules of Python's own) that unfed imports anywhere, each with one file that does."""
    found: dict[str, str] = {}
    for code in package():
        for node in code.imports:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found |= {name.partition(".")[0]: str(code.path.relative_to(ROOT)) for name in names}
    return {n: file for n, file in found.items() if (n in sys.stdlib_module_names) == stdlib and n != "unfed"}


USED = ("flower", "nvflare", "trust", "serve", "tune", "parquet")
"""Extras whose packages are imported, each when it is asked for."""


def modules_of(package: str) -> set[str]:
    """The top-level modules of a package, where it is installed."""
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return set()
    return {path.parts[0].removesuffix(".py") for path in found.files or () if path.suffix == ".py"}


def test_every_package_that_unfed_imports_is_declared() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in USED for line in extras[name])]
    declared = {re.split(r"[\[<>=!~; ]", line)[0].lower().replace("_", "-") for line in wanted}
    declared |= {"triton"}  # comes with PyTorch where there is one, and is asked for before it is imported
    declared |= {"ray"}  # comes with Flower's own extra, flwr[simulation], in the version that this wants
    inside = {top for name in declared for top in (name, *modules_of(name))}
    for name, file in imported().items():
        assert {name, name.lower().replace("_", "-")} & inside, f"{file} imports {name}, which pyproject.toml lacks"


def test_every_pinned_package_runs_on_the_first_python_that_the_project_promises() -> None:
    pins = dict(line.split("==") for line in text("constraints.txt").splitlines() if not line.startswith("#"))
    first = tomllib.loads(text("pyproject.toml"))["project"]["requires-python"].removeprefix(">=")
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    for found in distributions():
        if pinned.get(canonicalize_name(found.name)) == found.version and (wanted := found.metadata["Requires-Python"]):
            assert first in SpecifierSet(wanted), f"{found.name} {found.version} wants Python {wanted}: pin an older"


def test_nothing_is_imported_that_only_posix_has() -> None:
    absent = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
    found = {name: file for name, file in imported(stdlib=True).items() if name in absent}
    # A file that is being written is locked where there are locks; elsewhere nothing is swept, which the guard says.
    assert found == {"fcntl": "src/unfed/storage.py"}
    assert 'if sys.platform != "win32":\n    import fcntl\n' in text("src/unfed/storage.py")


# --- how code reads ---------------------------------------------------------------------------------------------------

EXEMPT = (
    "unfed/flower/unlearn.py:__init__",  # what an app may say of an unlearning, all but three by name
    "unfed/engines/compiled/*.py:*",  # kernels
    "unfed/model/networks/*.py:__init__",  # a network's options
    "unfed/cli/run.py:demo",  # callbacks of the command line: their parameters are its options
    "unfed/cli/run.py:run",
    "unfed/cli/studies.py:sweep",
    "unfed/cli/studies.py:population",
    "unfed/cli/studies.py:bench",
    "unfed/cli/paper.py:paper",
    "unfed/cli/looking.py:probe",
    "unfed/cli/requests.py:forget",
    "unfed/cli/evidence.py:request_sign",
    "unfed/central/call.py:unlearn",  # the public call, keyword-only
)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller may give; `self` and `cls` are nobody's to give."""
    given = function.args
    named = [a for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg not in ("self", "cls")]
    return len(named) + (given.vararg is not None) + (given.kwarg is not None)


def test_no_function_has_more_than_seven_parameters_but_for_those_that_must() -> None:
    many = [
        f"{code.path.relative_to(ROOT / 'src').as_posix()}:{name}"
        for code in package()
        for name, count in code.parameters.items()
        if count > 7
    ]
    assert [name for name in many if not any(fnmatch(name, pattern) for pattern in EXEMPT)] == []
    assert [pattern for pattern in EXEMPT if not any(fnmatch(name, pattern) for name in many)] == []


def test_no_module_is_over_800_lines() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 800} == {}


def test_no_import_is_a_circle_not_even_one_that_only_a_type_checker_reads() -> None:
    """The front door, `unfed` itself, is left out: it names what lies in the rooms and loads none of it."""
    named = {".".join(code.path.relative_to(ROOT / "src").with_suffix("").parts): code for code in package()}
    modules = {name.removesuffix(".__init__"): code for name, code in named.items()}
    graph: dict[str, set[str]] = {}
    for name, code in modules.items():
        for node in code.imports:
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found = (inner & modules.keys()) | ({node.module} if inner - modules.keys() else set())
            elif isinstance(node, ast.Import):
                found = {alias.name for alias in node.names} & modules.keys()
            else:
                continue
            graph.setdefault(name, set()).update(found - {"unfed"})
    graph.pop("unfed")
    assert len(list(TopologicalSorter(graph).static_order())) > 100


def test_a_docstrings_first_line_is_a_sentence_of_less_than_100_characters() -> None:
    found = [(f"{code.path.name}:{name}", line) for code in package() for name, line in code.docs]
    assert len(found) > 1000
    assert [where for where, line in found if len(line) >= 100] == []
    assert [where for where, line in found if not line.endswith((".", "?", "!"))] == []
    assert [
        line for _, line in found if re.search(r"at (its|the) desk|the day demands|of that day|sat here", line)
    ] == []


LONGEST = 30
"""Words of a message. The rule is about 25; a name or a number that is filled in counts as one."""


def spoken(node: ast.expr) -> str:
    """A text as far as it is written down; what is filled in is one word."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "_"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(spoken, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return spoken(node.left) + spoken(node.right)
    if isinstance(node, ast.IfExp):
        return max(spoken(node.body), spoken(node.orelse), key=lambda said: len(said.split()))
    return "_"


def long_messages(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Errors and warnings of too many words, and any other text of which one sentence has too many."""
    apart = {child for node in nodes if isinstance(node, ast.JoinedStr) for child in ast.walk(node)}
    apart |= {node.value for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            raised = name.endswith("Error") or name in ("Refused", "Unanswered", "NotRecovered", "Halted", "Unreadable")
            said = spoken(node.args[0]) if raised or name in ("warn", "warning") else ""
            yield from [said] if len(said.split()) > LONGEST else []
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and node not in apart):
            sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z`_])", spoken(node))
            yield from [one for one in sentences if len(one.split()) > LONGEST]


def test_no_message_is_longer_than_a_reader_wants() -> None:
    """What is wrong, then the one next step."""
    many = " ".join(["word"] * LONGEST)
    for code, found in (
        (f'raise UnfedError("{many}")', set()),
        (f'raise UnfedError(f"{many} {{name}}.")', {f"{many} _."}),
        (f'warnings.warn("First. {many}")', {f"First. {many}"}),
        (f'def f():\n    """{many} more."""\n    return f"{many} {{more}}"', {f"{many} _"}),
    ):
        assert set(long_messages([*ast.walk(ast.parse(code))])) == found
    said = {
        f"{code.path.relative_to(ROOT)}: {one}"
        for code in package()
        for one in code.long
        if "aquarium_fish" not in one  # the names of CIFAR-100's classes
    }
    assert said == set()


def tracked(root: Path, folder: str) -> list[Path]:
    """The files of a folder that git knows; all of them where there is no repository."""
    found = subprocess.run(["git", "ls-files", "-z", folder], cwd=root, capture_output=True, text=True, check=False)
    if found.returncode:
        return sorted(path for path in (root / folder).rglob("*") if path.is_file())
    return [path for name in found.stdout.split("\0") if name and (path := root / name).exists()]


def test_a_new_record_of_make_speed_is_no_record_until_it_is_added(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    for name in ("kept.txt", "new.txt"):
        (tmp_path / "records" / name).touch()
    assert [path.name for path in tracked(tmp_path, "records")] == ["kept.txt", "new.txt"], "no repository"
    for words in (("init", "-q"), ("add", "records/kept.txt")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert [path.name for path in tracked(tmp_path, "records")] == ["kept.txt"]


def test_every_record_is_cited_by_some_page() -> None:
    """By its name, by a pattern, or as `…-rest-of-its-name` beside another; a record that no page needs is deleted.

    A record in words that a page cites may cite others in its turn.
    """
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    left, before = sorted(tracked(ROOT, "benchmarks/records")), "records/|…"
    while pages:
        said = "\n".join(page.read_text(encoding="utf-8") for page in pages)
        named = re.findall(rf"(?:{before})([\w*.…-]+\.(?:jsonl|json|csv|txt|md))\b", said)
        patterns = {"*" + name.removeprefix("…") for name in named}
        found = [path for path in left if any(fnmatch(path.name, pattern) for pattern in patterns)]
        left = [path for path in left if path not in found]
        pages, before = [path for path in found if path.suffix == ".md"], "records/|…|`"
    assert [path.name for path in left] == []


def unexplained(root: Path, known: Sequence[str]) -> dict[str, list[str]]:
    """What is wrong with the index, by record: fields that are blank or missing, and rows without a record."""
    text = (root / "benchmarks/records/index.csv").read_text(encoding="utf-8")
    rows = {row["record"]: row for row in csv.DictReader(text.splitlines())}
    fields = ("commit", "command", "hardware", "seed")
    wrong = {name: [one for one in fields if not (rows.get(name, {}).get(one) or "").strip()] for name in known}
    return {name: one for name, one in wrong.items() if one} | {name: ["record"] for name in rows if name not in known}


def test_every_record_says_by_which_commit_command_hardware_and_seed_it_was_made() -> None:
    """In the index; what is not known is "not recorded", never blank."""
    found = [*tracked(ROOT, "benchmarks/records"), *tracked(ROOT, "results")]
    made = [
        path
        for path in found
        if path.name not in ("index.csv", "map.csv", "README.md")
        and path.parent.name != "tables"
        and "bench" not in path.relative_to(ROOT).parts  # these say it themselves
    ]
    for path in tracked(ROOT, "results/bench"):
        said = json.loads(path.read_text(encoding="utf-8"))
        assert all(said[name] for name in ("commit", "command", "hardware", "seeds", "date")), path.name
    assert len(made) > 70 and unexplained(ROOT, [path.relative_to(ROOT).as_posix() for path in made]) == {}


def test_a_record_without_one_of_the_four_fields_is_refused(tmp_path: Path) -> None:
    (tmp_path / "benchmarks/records").mkdir(parents=True)
    rows = (
        "record,commit,command,hardware,seed",
        "whole,abc,make,a core,0",
        "blank,abc,make, ,0",
        "gone,abc,make,a core,0",
    )
    (tmp_path / "benchmarks/records/index.csv").write_text("\n".join(rows))
    assert unexplained(tmp_path, ["whole", "blank", "absent"]) == {
        "blank": ["hardware"],
        "absent": ["commit", "command", "hardware", "seed"],
        "gone": ["record"],
    }


def test_no_record_names_a_folder_of_the_machine_it_was_made_on() -> None:
    kept = [*tracked(ROOT, "benchmarks/records"), *(ROOT / "results").rglob("*.json")]
    told = {
        path.name: re.findall(r"(?<![\w.])/(?:root|home|tmp|work)/[^\s\"]+", path.read_text("utf-8")) for path in kept
    }
    assert {name: found for name, found in told.items() if found} == {}


# --- the package ------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("src/unfed/__init__.py", "src/unfed/py.typed", "src/unfed/report/page.j2", "docs/index.md"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "source"


def wheel(folder: Path, *names: str) -> Path:
    with zipfile.ZipFile(folder / "unfed-1-py3-none-any.whl", "w") as packed:
        for name in (*names, "unfed-1.dist-info/METADATA", "unfed-1.dist-info/licenses/LICENSE"):
            packed.writestr(name, "")
    return folder / "unfed-1-py3-none-any.whl"


def test_a_wheel_that_lacks_a_template_or_holds_a_stray_file_is_seen(source: Path, tmp_path: Path) -> None:
    package, whole = tool("package"), ("unfed/__init__.py", "unfed/py.typed", "unfed/report/page.j2")
    assert list(package.wrong_in_wheel(source, wheel(tmp_path, *whole))) == []
    lacking = list(package.wrong_in_wheel(source, wheel(tmp_path, *whole[:2])))
    assert len(lacking) == 1 and "lacks unfed/report/page.j2; name it under" in lacking[0]
    stray = list(package.wrong_in_wheel(source, wheel(tmp_path, *whole, "tests/test_a.py")))
    assert len(stray) == 1 and "holds tests/test_a.py, which is not in src/unfed" in stray[0]


def test_an_sdist_that_lacks_a_page_is_seen(source: Path, tmp_path: Path) -> None:
    package, sdist = tool("package"), tmp_path / "unfed-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as packed:
        for name in ("src/unfed/__init__.py", "src/unfed/py.typed", "src/unfed/report/page.j2"):
            packed.addfile(tarfile.TarInfo(f"unfed-1/{name}"), io.BytesIO())
    assert list(package.missing_in_sdist(source, sdist)) == [
        "unfed-1.tar.gz lacks docs/index.md; name it in MANIFEST.in."
    ]


# --- what is not covered ----------------------------------------------------------------------------------------------


def measured(**files: dict[str, Any]) -> dict[str, Any]:
    """What coverage.py writes, as far as the page reads it."""
    for file in files.values():
        file.setdefault("missing_branches", [])
        file.setdefault("functions", {})
        file["summary"] = {"num_statements": 20}
    missing = sum(len(file["missing_lines"]) for file in files.values())
    totals = {"missing_lines": missing, "num_statements": 20 * len(files)}
    return {"meta": {"timestamp": "2026-11-15T12:00:00"}, "totals": totals, "files": files}


def test_the_page_lists_what_no_test_runs_and_only_counts_what_is_run_whole() -> None:
    never = {"executed_lines": [], "missing_lines": [11, 12, 13], "start_line": 10}
    some = {"executed_lines": [2], "missing_lines": [3], "start_line": 1}
    functions = {"Run.lost": never, "kept": some, "": {"executed_lines": [1], "missing_lines": [], "start_line": 1}}
    page = tool("uncovered").written(
        measured(
            whole={"missing_lines": []},
            little={"missing_lines": [], "missing_branches": [[5, 9], [7, -1]]},
            much={"missing_lines": [3, 11, 12, 13, 17, 18], "missing_branches": [[2, 3]], "functions": functions},
        )
    )
    assert "6 of 60 statements were not run; 1 of 3 files were run whole" in page
    assert page.index("| much | 6 | 20 |") < page.index("| little | 0 | 20 |")
    assert "## much\n- never called: `Run.lost` (10)\n- lines not run: 3, 17–18\n" in page
    assert "## little\n- ways never taken: 5 → 9, 7 → out\n" in page
    assert "whole |" not in page
