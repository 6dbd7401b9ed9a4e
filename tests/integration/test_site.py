"""The documentation as a site, in a real browser without a network: it searches, and a telephone can show it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from samples.browser import Open, launched, watched

expect.set_options(timeout=60_000)  # a busy machine takes its time
TELEPHONE = {"viewport": {"width": 390, "height": 800}}


@pytest.fixture(scope="module")
def site(checkout: Path) -> Path:
    """As `make docs` makes it, for which a broken link is an error."""
    done = subprocess.run(["make", "docs"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout / "build/site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, site: Path) -> Iterator[Open]:
    with watched(browser, site) as visit:
        yield visit


def search(page: Page, words: str) -> None:
    box = page.get_by_role("textbox", name="Search")
    box.fill(words)
    box.press("Enter")


def test_the_first_page_leads_to_the_index(visit: Open, site: Path) -> None:
    page = visit(site / "index.html")
    expect(page.get_by_role("heading", name="Where to begin")).to_be_visible()


def test_search_finds_an_option_and_leads_to_it(visit: Open, site: Path) -> None:
    page = visit(site / "docs/index.html")
    search(page, "preemption requeue")
    first = page.locator("#search-results li a").first
    expect(first).to_be_visible()
    page.locator("#search-results li a", has_text="Outlive failures").first.click()
    expect(page.get_by_role("heading", name="Requeue", exact=False).first).to_be_attached()


@pytest.mark.parametrize(("name", "text"), [("store", "Tests run the commands"), ("jobs", "not all of them are run")])
def test_a_page_tells_whether_tests_run_its_commands(visit: Open, site: Path, name: str, text: str) -> None:
    page = visit(site / f"docs/{name}.html")
    expect(page.get_by_text(text)).to_be_visible()


def test_the_navigation_has_every_kind_of_page(visit: Open, site: Path) -> None:
    page = visit(site / "docs/jobs.html")
    captions = page.locator(".sidebar-tree .caption-text").all_text_contents()
    assert captions == ["Tutorials", "How to", "Reference", "Explanation", "Change ctrain", "More"]


def test_a_telephone_shows_every_page_without_scrolling_sideways(visit: Open, site: Path) -> None:
    files = sorted(site.glob("docs/**/*.html"))
    assert len(files) > 30
    page = visit(files[0], **TELEPHONE)
    wide = []
    for file in files:
        page.goto(file.as_uri())
        if int(page.evaluate("document.documentElement.scrollWidth")) > 390:
            wide.append(file.name)
    assert wide == []


def test_a_telephone_has_the_navigation_behind_a_button(visit: Open, site: Path) -> None:
    page = visit(site / "docs/index.html", **TELEPHONE)
    link = page.locator(".sidebar-tree").get_by_role("link", name="Jobs", exact=True)
    expect(link).not_to_be_in_viewport()
    page.locator(".mobile-header .nav-overlay-icon").click()
    expect(link).to_be_visible()
    link.click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
