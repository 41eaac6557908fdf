"""The page in a real browser: no errors, nothing too wide for a phone, light and dark, tabs by keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from test_report import fake_run
from unfed.report.html import render

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
# Where a browser is required (CI), its absence is a failure and not a skip.
REQUIRED = bool(os.environ.get("UNFED_REQUIRE_BROWSER"))
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED, reason="there is no chromium here; apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long names and missing values included: they are what breaks a layout."""
    run, lines = fake_run(seeds=(0, 1))
    run["clients"].append("a-hospital-with-a-very-long-name-and-no-spaces-in-it-" * 3)
    for line in lines:
        if line["method"] == "ft":
            line["mia"] = "not measured: only 3 forget samples; the attack needs at least 10"
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(run, lines), encoding="utf-8")
    return path


def visit(browser: Browser, report: Path, width: int = 1200, scheme: str = "light") -> tuple[Page, list[str]]:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda asked: problems.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None
    )
    page.goto(report.as_uri())
    return page, problems


def test_it_opens_quietly_and_shows_sentence_and_pictures(browser: Browser, report: Path) -> None:
    page, problems = visit(browser, report)
    assert problems == []
    assert page.locator(".lead").first.is_visible()
    pictures = page.locator("figure svg[role=img]")
    assert pictures.count() == 7
    for index in range(7):
        box = pictures.nth(index).bounding_box()
        assert box is not None and box["width"] > 200 and box["height"] > 40
    page.close()


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_makes_the_page_scroll_sideways(browser: Browser, report: Path, width: int) -> None:
    page, _ = visit(browser, report, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_tabs_work_by_keyboard_and_show_one_table_each(browser: Browser, report: Path) -> None:
    page, _ = visit(browser, report)
    tables = page.locator(".tabs > section")
    assert [tables.nth(index).is_visible() for index in range(3)] == [True, False, False]
    page.locator("#rule-0-best-gap").focus()
    page.keyboard.press("ArrowRight")
    assert [tables.nth(index).is_visible() for index in range(3)] == [False, True, False]
    page.close()


def test_dark_mode_turns_the_page_and_its_pictures_dark(browser: Browser, report: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        page, _ = visit(browser, report, scheme=scheme)
        colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector("
        seen[scheme] = page.evaluate(colours + "'figure svg text')).fill]")
        assert len(page.screenshot(full_page=True)) > 20_000
        page.close()
    assert seen["light"][0] == "rgb(251, 251, 249)" and seen["dark"][0] == "rgb(20, 23, 26)"
    assert seen["light"][1] != seen["dark"][1]


def test_print_shows_every_table(browser: Browser, report: Path) -> None:
    page, _ = visit(browser, report)
    page.emulate_media(media="print")
    tables = page.locator(".tabs > section")
    assert all(tables.nth(index).is_visible() for index in range(3))
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 between its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    page.close()
