"""The service's pages and the officer's page in a real browser: quiet, readable on a phone, in the dark, on paper."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unfed.config.config import Config
from unfed.data import Request
from unfed.runs.run import Run
from unfed.trust import bundle, logbook, request
from unfed.trust.findings import findings, served
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Handling, Intake
from unfed.trust.service import Listener
from unfed.trust.signing import SigningKey
from unfed.trust.verdict import page as officers_page
from unfed.trust.verdict import verdict

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
REQUIRED = bool(os.environ.get("UNFED_REQUIRE_BROWSER"))
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED, reason="there is no chromium here; apt-get install chromium"
)
KEYS = {str(k): SigningKey.drawn() for k in range(4)}
OPERATOR = SigningKey.drawn()
LOG: dict[str, str] = {}
"""The federation that requests here are signed for."""
TINY: dict[str, Any] = {
    "name": "ward",
    "partition": {"clients": 6},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 1, "batch": 256},
    "unlearning": {"rounds": 3},
    "evaluation": {"attack": False, "recovered_within": 100},
    "gate": {"max_drop": 100},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a request that is fulfilled, one that was revoked, one that is owed and one that waits."""
    folder = tmp_path_factory.mktemp("browser")
    OPERATOR.write(folder / "operator.key")
    run = Run.create(Config.parse(TINY), folder / "ward")
    trust = TrustFolder.begin(run.folder.path, folder / "operator.key")
    trust.enrol({n: key.public for n, key in KEYS.items()})
    LOG["log"] = trust.log.origin
    with logbook.logged(run) as watch:
        run.execute(watch)
    desk = Intake(run, Handling("sealed", "3"))
    desk.submit(signed("0", "r-leaves"))
    with logbook.logged(run) as watch:
        run.execute(watch)
    desk.submit(signed("1", "r-changed-its-mind"))
    desk.revoke(request.revoke("r-changed-its-mind", "1", OPERATOR.id, KEYS["1"]).to_bytes())
    Intake(run, Handling("ft", "recovered")).submit(signed("2", "r-with-a-very-long-name-" + "x" * 30))
    run.queue.file(Request("unsigned-class", classes=(3,)), "ft", "1", 0)
    return folder


def signed(client: str, name: str) -> bytes:
    value = request.value({"clients": [client]}, client, OPERATOR.id, name=name) | LOG
    return request.sign(value, KEYS[client]).to_bytes()


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    listener = Listener(Intake(Run.open(home / "ward")), port=0)
    thread = threading.Thread(target=listener.listen)
    thread.start()
    yield listener.url
    listener.stop()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def visit(browser: Browser, url: str, width: int = 1200, scheme: Any = "light") -> tuple[Page, list[str]]:
    """A page at this width, and what it complains about."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    return page, problems


def test_the_queue_shows_who_stands_where_until_when_and_what_still_carries_it(browser: Browser, url: str) -> None:
    page, problems = visit(browser, url)
    assert page.get_by_role("heading", level=1).inner_text() == "Deletion requests of ward"
    assert "the model of request r-leaves" in page.locator("header").inner_text()
    rows = page.locator("tbody tr")
    assert rows.count() == 4
    said = [row.inner_text() for row in rows.all()]
    assert "fulfilled" in said[0] and "files" in said[0] and "UTC" in said[0]
    assert "withdrawn" in said[1] and "open" in said[2] and "it came unsigned" in said[3]
    if "UNFED_SCREENSHOT" in os.environ:
        page.screenshot(path=os.environ["UNFED_SCREENSHOT"] + "-queue.png")
    page.get_by_role("link", name="r-leaves").click()
    if "UNFED_SCREENSHOT" in os.environ:
        page.screenshot(path=os.environ["UNFED_SCREENSHOT"] + "-story.png", full_page=True)
    story = page.locator("ol.story").inner_text()
    for part in (
        "request was received",
        "acknowledged",
        "the model was perturbed",
        "round 3",
        "the gate",
        "into force",
    ):
        assert part in story, story
    assert "What still carries it" in page.content() and page.get_by_role("link", name="evidence bundle").is_visible()
    assert problems == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_on_a_phone(scheme: str, browser: Browser, url: str) -> None:
    page, problems = visit(browser, url, 360, scheme)
    for path in ("", "requests/r-leaves"):
        page.goto(url + path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"{path}: {wide}"
    assert problems == []
    page.close()


def test_the_queue_is_whole_on_paper(browser: Browser, url: str) -> None:
    """On a screen the table scrolls sideways; what does not fit on paper would be cut off."""
    page, _ = visit(browser, url, 720)  # A4 between its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.querySelector('table.queue').getBoundingClientRect().right") <= 720
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    if "UNFED_SCREENSHOT" in os.environ:
        page.pdf(path=os.environ["UNFED_SCREENSHOT"] + "-queue.pdf", format="A4")
    page.close()


def test_the_officers_page_prints(browser: Browser, home: Path, tmp_path: Path) -> None:
    run = Run.open(home / "ward")
    entry = served(run, "r-leaves")
    signed = bundle.sign(findings(run, entry), OPERATOR, bundle.from_log(run, entry))
    shown = verdict(signed.to_bytes(), [OPERATOR.public.pem])
    (tmp_path / "page.html").write_text(officers_page(shown, [OPERATOR.id]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 360, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360 and problems == []
    assert page.get_by_role("heading", level=2).all_inner_texts()[:6] == [
        "The decision",
        "Checklist",
        "The request",
        "Proven, by signatures and hashes",
        "Measured, on the operator's word",
        "Not shown",
    ]
    assert len(page.pdf()) > 10_000
    if "UNFED_SCREENSHOT" in os.environ:
        page.set_viewport_size({"width": 1000, "height": 900})
        page.screenshot(path=os.environ["UNFED_SCREENSHOT"] + "-officer.png", full_page=True)
    page.close()
