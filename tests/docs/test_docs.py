"""The documentation is true: generated pages are up to date, examples run, links lead somewhere."""

import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import unfed
from command_line import Started, script
from unfed.client.objectives import OBJECTIVES
from unfed.config.config import Config
from unfed.methods import METHODS
from unfed.methods import find as load
from unfed.testing.conformance import check

ROOT = Path(__file__).parents[2]


def block(page: Any, kind: Any) -> Any:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_reference_pages_are_what_the_code_says() -> None:
    code, said = Started(ROOT, "--check", run=script(ROOT / "tools/reference.py")).ended()
    assert code == 0, said


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/index.html").exists()
    page = (tmp_path / "site/equations/index.html").read_text()
    assert page.count("<tr>") > 60 and 'class="filter"' in page and "filter.js" in page  # the CSV file as a table


def test_the_tutorials_config_is_valid() -> None:
    config = Config.parse(tomllib.loads(block("tutorial/first-run.md", "toml")[0]))
    assert config.requests()[0].classes == (3,)


@pytest.mark.slow
def test_the_method_of_the_how_to_keeps_the_contract(tmp_path: Path, allow_code: None) -> None:
    path = tmp_path / "shrink.py"
    path.write_text(block("how-to/method.md", "python")[0])
    try:
        found = check(load(str(path)), ["data.train_size=200", "data.test_size=60"])
        assert [claim for claim in found if not claim.held] == []
    finally:
        METHODS.pop("shrink", None)


def test_a_method_of_the_how_to_with_a_loss_of_its_own_is_handed_over(tmp_path: Path, allow_code: None) -> None:
    path = tmp_path / "focal.py"
    path.write_text(block("how-to/method.md", "python")[2])
    x = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    call = partial(unfed.unlearn, torch.nn.Linear(4, 2).double(), data=(x, torch.arange(60) % 2), forget=[0, 1])
    try:
        ways: list[Any] = [{"method": load(str(path)), "gamma": gamma} for gamma in (2.0, 0.0)] + [{"method": "not"}]
        focal, plain, nots = (call(**way, epochs=2, lr=0.05).model.state_dict()["weight"] for way in ways)
    finally:
        METHODS.pop("focal", None)
        OBJECTIVES.pop("focal", None)
    assert torch.dist(plain, nots) < torch.dist(focal, nots) / 10, "without γ it is cross-entropy, and NoT"


def test_every_method_has_a_page() -> None:
    missing = [name for name in METHODS if not (ROOT / f"docs/methods/{name}.md").exists()]
    assert missing == []


def pages() -> Any:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    return [ROOT / name for name in tracked] or [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def anchors(page: Any) -> Any:
    """The headings of a page, as the site and GitHub make them into anchors."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_relative_link_of_every_page_leads_somewhere() -> None:
    broken = []
    for page in pages():
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = page if not file else (page.parent / file)
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(menu) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))


def test_nothing_cites_a_page_that_is_not_in_the_repository() -> None:
    """Reasons stand in docs/explanation/decisions.md; notes that only their writers have are no reference."""
    cited = re.compile("METHODS" + r"(\.md| §| \d)|(CONTRACT|BEYOND|REVIEW|DESIGN)" + r"(\.md| §)")
    places = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in (".md", ".toml", ".yml")]
    for folder in ("src", "tests", "docs", "tools", "examples", "benchmarks"):
        kinds = (".py", ".md", ".toml", ".j2", ".sh", ".ipynb")
        places += [p for p in (ROOT / folder).rglob("*") if p.suffix in kinds]
    found = [str(p.relative_to(ROOT)) for p in places if cited.search(p.read_text(encoding="utf-8"))]
    assert found == []
