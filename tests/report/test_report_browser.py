"""The page in a real browser: no errors, fits a phone, readable in light and dark, by keyboard, on paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pages import known, render
from test_population_measures import Made
from test_report import fake_run
from unfed.measures.population import Resampling, judge
from unfed.paper import build, pictures
from unfed.paper.items import items as paper_items
from unfed.paper.pictures import Curve
from unfed.paper.views import results
from unfed.paper.views.base import Section, TextTable
from unfed.report.rules import rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
# Where a browser is required (CI), its absence is a failure and not a skip.
REQUIRED = bool(os.environ.get("UNFED_REQUIRE_BROWSER"))
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="there is no chromium here; apt-get install chromium"),
    pytest.mark.figures,
]


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
        line["serialised_bytes"] = line["wire_bytes"] + 9_000  # as a run with Flower has it: one column more
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
    assert pictures.count() == 7  # four curves and three costs; FT has no average gap, so there is no scatter
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
    assert [tables.nth(index).is_visible() for index in range(3)] == [False, False, True], "the model on the disk first"
    page.locator("#rule-0-last").focus()
    page.keyboard.press("ArrowLeft")
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
    assert seen["light"][0] == "rgb(250, 249, 246)" and seen["dark"][0] == "rgb(19, 22, 25)"
    assert seen["light"][1] != seen["dark"][1]


def test_print_shows_every_table(browser: Browser, report: Path) -> None:
    page, _ = visit(browser, report)
    page.emulate_media(media="print")
    tables = page.locator(".tabs > section")
    assert all(tables.nth(index).is_visible() for index in range(3))
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 between its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    page.close()


def test_gap_against_cost_is_drawn_where_there_are_gaps(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(*fake_run()), encoding="utf-8")
    page, problems = visit(browser, path)
    assert problems == [] and page.locator("figure svg[role=img]").count() == 9
    page.close()


def test_a_population_is_drawn_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    run, lines = fake_run()
    judged = judge(Made(8, 30, shift=2.0), {"not": "NoT", "ft": "FT"}, effort=Resampling(draws=20, permutations=20))
    path = tmp_path / "report.html"
    path.write_text(render({**run, "population": {"r1": {"request": "r1", **judged}}}, lines), encoding="utf-8")
    page, problems = visit(browser, path, width=390)
    assert problems == [] and page.locator("#how-sure figure svg[role=img]").count() == 4  # distances, three ROCs
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_a_keyboard_finds_the_way_in_and_the_explanations(browser: Browser, report: Path) -> None:
    page, _ = visit(browser, report)
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    assert skip.evaluate("e => e === document.activeElement") and skip.bounding_box()["y"] >= 0  # type: ignore[index]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.tip')"):
            break
    focused = page.evaluate(
        "(() => { const e = document.activeElement, s = getComputedStyle(e);"
        " const told = document.getElementById(e.getAttribute('aria-describedby'));"
        " return [e.className, s.outlineStyle, told.textContent] })()"
    )
    assert focused[:2] == ["tip", "solid"] and len(focused[2]) > 40
    page.keyboard.press("Enter")
    assert page.locator(".pop:popover-open").count() == 1 and page.locator(".pop:popover-open").is_visible()
    page.keyboard.press("Escape")
    assert page.locator(".pop:popover-open").count() == 0
    page.close()


@pytest.mark.parametrize("width", [390, 1200])
def test_every_explanation_opens_inside_the_window(browser: Browser, report: Path, width: int) -> None:
    page, problems = visit(browser, report, width=width)
    tips = page.locator(".tip:visible")
    assert tips.count() >= 9
    for index in range(tips.count()):
        tips.nth(index).focus()
        page.keyboard.press("Enter")
        box = page.locator(".pop:popover-open").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900
        page.keyboard.press("Escape")
    assert problems == []
    page.close()


# Every visible text against the first background behind it, by the formula of WCAG 2.
CONTRAST = """() => {
  const parse = c => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n };
  const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || !e.checkVisibility() || e.closest('.sr, title, desc')) continue;
    const style = getComputedStyle(e);
    let behind = e, ground = parse('rgb(255, 255, 255)');
    while (behind) {
      const found = parse(getComputedStyle(behind).backgroundColor);
      if (found[3] === 1) { ground = found; break; }
      behind = behind.parentElement;
    }
    const [a, b] = [light(parse(e.closest('svg') ? style.fill : style.color)), light(ground)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([text.slice(0, 40), ((a + 0.05) / (b + 0.05)).toFixed(2)]);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(browser: Browser, report: Path, scheme: str) -> None:
    page, _ = visit(browser, report, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(CONTRAST) == []
    page.close()


def test_it_prints_in_full(browser: Browser, report: Path) -> None:
    page, problems = visit(browser, report)
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= 3
    page.emulate_media(media="print")
    assert page.locator("pre").last.is_visible(), "what is folded on the screen is open on paper"
    assert not page.locator(".top nav").is_visible()
    assert problems == []
    page.close()


PAPER_STYLE = """(pairs) => pairs.map(([what, name]) => {
  const found = document.querySelector(what);
  return found ? getComputedStyle(found)[name] : `there is no ${what}`;
})"""


def test_on_paper_no_small_table_is_split_and_a_long_one_says_its_heads_again(browser: Browser, report: Path) -> None:
    """The box of a button is drawn once: where a table goes on, on the next page, its head would lack the word."""
    page, _ = visit(browser, report, scheme="dark")
    page.emulate_media(media="print")
    asked = {
        (".tabs > section", "breakInside"): "avoid",
        (".wide:not(.tall)", "breakInside"): "avoid",
        (".wide.tall", "breakInside"): "auto",
        ("thead .tip", "display"): "contents",
        ("tbody th", "position"): "static",
        ("summary", "listStyleType"): "none",
        (":root", "colorScheme"): "light",
        ("pre.config", "columnCount"): "3",
    }
    assert page.evaluate(PAPER_STYLE, [list(pair) for pair in asked]) == list(asked.values())
    page.close()


def test_a_table_that_goes_on_below_is_shaded_there(browser: Browser, report: Path) -> None:
    """A telephone shows no bar, and the edge may fall between two rows: a shade that stays, a cover that moves."""
    page, _ = visit(browser, report, 390)
    style = "e => [getComputedStyle(e).backgroundAttachment, getComputedStyle(e).backgroundImage.includes('to top')]"
    assert page.locator(".wide.tall").first.evaluate(style) == ["local, scroll, local, scroll, scroll", True]
    page.close()


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the paper's items: rows with what the paper reports, a plain table, a picture alone, a pair of them."""
    run, lines = fake_run(seeds=(0, 1))
    items = paper_items()
    found = [replace(row, request="digits, CNN") for row in rows(lines)]
    points = [(float(t), 40.0 / (t + 1)) for t in range(40)]
    curve = pictures.curves(
        [Curve("FT", points), Curve("NoT", points)], "digits, CNN", "round", "gap", item="f4", rooted=True
    )
    shares = {"FT": [("10 %", 1.0)], "NoT": [("10 %", 2.0)]}
    bars = [pictures.groups(shares, up, "share", item="f6") for up in ("gap", "FLOPs")]
    layers = [Curve("NoT", [(f"encoder.layers.encoder_layer_{i}.mlp", 0.9) for i in range(12)])]
    sections = [
        replace(results.table(items["table-1"], {}), rows=tuple(found)),
        Section(
            items["table-7"],
            grids=(TextTable(("Data and model", "t"), (("digits, CNN", "29"),)),),
            said=("Mind this.",),
        ),
        Section(items["figure-4"], pictures=(curve,)),
        Section(items["figure-6"], pictures=tuple(bars)),
        Section(items["figure-3"], pictures=(pictures.curves(layers, "ViT", "layer", "CKA", item="f3", bottom=0.0),)),
    ]
    path = tmp_path_factory.mktemp("paper") / "paper.html"
    path.write_text(build.render(sections, "digits", ["seed=0"], known(run)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [320, 768, 1200])
def test_the_papers_page_opens_quietly_and_fits(browser: Browser, paper: Path, width: int) -> None:
    page, problems = visit(browser, paper, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.locator("figure svg[role=img]")
    assert drawn.count() == 4
    for index in range(4):
        box = drawn.nth(index).bounding_box()
        assert box is not None and 200 < box["width"] < 760
    assert page.locator("section#table-1 details td").count() > 34 * 8 - 1  # what the paper reports
    page.close()


def test_the_papers_page_has_a_way_to_every_item(browser: Browser, paper: Path) -> None:
    page, _ = visit(browser, paper)
    for link in page.locator("nav a").all():
        assert page.locator(str(link.get_attribute("href"))).count() == 1
    page.close()
