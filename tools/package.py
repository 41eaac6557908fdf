"""`make package`: sdist and wheel into dist/, looked into, and the wheel used from another folder.

    a copy of the tree ─► sdist ─► wheel made from the sdist ─► a fresh environment ─► `python -m unfed demo`, in small
                           │        │
                           │        └ holds every file of src/unfed, and nothing else but its metadata
                           └ holds every file of the repository

The fresh environment holds the wheel and nothing else; for what unfed needs it looks into the environment that runs
this tool, so nothing is downloaded. Exits with 1 and one sentence per fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST, WORK = ROOT / "dist", ROOT / "build" / "package"
FOLDERS = ("src", "tests", "docs", "tools", "examples", "benchmarks", ".ci", ".github")
NOT_OURS = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
# Two rounds each: it is the package that is tried here, not the methods.
DEMO = ("demo", "--methods", "not", "--set", "training.rounds=2", "--set", "unlearning.rounds=2", "--out", "run")


class Fault(Exception):
    """What is wrong with the package, in one sentence."""


def main() -> int:
    try:
        source = copied()
        sdist, wheel = built(source)
        faults = [*missing_in_sdist(source, sdist), *wrong_in_wheel(source, wheel)]
        if faults:
            raise Fault("\n".join(faults))
        used(wheel)
    except Fault as fault:
        print(fault, file=sys.stderr)
        return 1
    print(f"{sdist.name} and {wheel.name} lie in {DIST}; the demo ran from the wheel.")
    return 0


def copied() -> Path:
    """The tree without what was made in it: an old build must not reach a new package."""
    shutil.rmtree(WORK, ignore_errors=True)
    source = WORK / "source"
    source.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=NOT_OURS)
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy2(file, source / file.name)
    return source


def built(source: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made from it, with the pinned setuptools of this environment."""
    for old in DIST.glob("unfed-*"):
        old.unlink()
    # Not from the root: a folder named `build` lies there.
    say([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(source)], WORK)
    (sdist,), (wheel,) = DIST.glob("unfed-*.tar.gz"), DIST.glob("unfed-*.whl")
    return sdist, wheel


def missing_in_sdist(source: Path, sdist: Path) -> Iterator[str]:
    """One sentence for every file of the repository that the sdist lacks."""
    with tarfile.open(sdist) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    for file in files_of(source):
        if file not in held:
            yield f"{sdist.name} lacks {file}; name it in MANIFEST.in."


def wrong_in_wheel(source: Path, wheel: Path) -> Iterator[str]:
    """One sentence for every file of the package that the wheel lacks, and for every file that is none of it."""
    with zipfile.ZipFile(wheel) as packed:
        held = set(packed.namelist())
    wanted = {f"unfed/{file}" for file in files_of(source / "src" / "unfed")}
    for file in sorted(wanted - held):
        yield f"{wheel.name} lacks {file}; name it under [tool.setuptools.package-data] in pyproject.toml."
    for file in sorted(held - wanted):
        if not file.partition("/")[0].endswith(".dist-info"):
            yield f"{wheel.name} holds {file}, which is not in src/unfed; take it out of pyproject.toml."
    if not any(file.endswith("/LICENSE") for file in held):
        yield f"{wheel.name} lacks the licence; see license-files in pyproject.toml."


def files_of(folder: Path) -> list[str]:
    """The files below a folder, with forward slashes; what building left in it does not count."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(f.as_posix() for f in files if not any(part.endswith(".egg-info") for part in f.parts))


def used(wheel: Path) -> None:
    """Install the wheel where nothing else is, and run a small demo from a folder of its own."""
    home = WORK / "environment"
    venv.create(home, with_pip=False)
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    say([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], WORK)
    # A folder that a .pth names comes last, and .pth files in it are not read: unfed's editable install stays out.
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    others = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (own / "what-unfed-needs.pth").write_text("".join(f"{folder}\n" for folder in others), encoding="utf-8")
    elsewhere = WORK / "elsewhere"
    elsewhere.mkdir()
    found = Path(say([str(python), "-c", "import unfed; print(unfed.__file__)"], elsewhere).strip())
    if not found.is_relative_to(home):
        raise Fault(f"unfed was imported from {found}, not from the wheel.")
    print(say([str(python.with_name("unfed")), "--version"], elsewhere).strip())
    say([str(python), "-m", "unfed", *DEMO], elsewhere)
    if not (elsewhere / "run" / "report.html").is_file():
        raise Fault("The demo from the wheel left no report.")


def say(command: Sequence[str], where: Path) -> str:
    """Run a command, without the paths of this process; what it printed, or a fault with all of it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    if done.returncode:
        raise Fault(f"{done.stdout}\n{' '.join(command)} ended with {done.returncode}.")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
