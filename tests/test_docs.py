"""The documentation is true: generated pages are up to date, examples run, links lead somewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from unfed.config import Config
from unfed.conformance import check
from unfed.methods import METHODS
from unfed.methods import find as load

ROOT = Path(__file__).parent.parent


def block(page, kind):
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_reference_pages_are_what_the_code_says():
    done = subprocess.run([sys.executable, "tools/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_build_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/index.html").exists()


def test_the_tutorials_config_is_valid():
    config = Config.parse(tomllib.loads(block("tutorial/first-run.md", "toml")[0]))
    assert config.requests()[0].classes == (3,)


def test_the_method_of_the_how_to_keeps_the_contract(tmp_path, allow_code):
    path = tmp_path / "shrink.py"
    path.write_text(block("how-to/method.md", "python")[0])
    try:
        assert [claim for claim in check(load(str(path))) if not claim.held] == []
    finally:
        METHODS.pop("shrink", None)


def test_every_method_has_a_page():
    missing = [name for name in METHODS if not (ROOT / f"docs/methods/{name}.md").exists()]
    assert missing == []
