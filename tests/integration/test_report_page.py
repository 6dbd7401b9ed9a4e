"""The page of `ctrain report` in a real browser: Chromium without a network. Every page is watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ctrain_runtime.base import run_files
from ctrain_runtime.report import page as module
from ctrain_runtime.report.subject import Subject, examine
from samples.browser import Open, launched, watched
from samples.reports import HOSTILE, a_subject, lines


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    with watched(browser) as visit:
        yield visit


def made(path: Path, *subjects: Subject) -> Path:
    path.write_text(module.page(subjects), encoding="utf-8")
    return path


def width(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def test_a_failed_run_of_a_hostile_program(visit: Open, tmp_path: Path) -> None:
    metrics = lines(700, 710, 650) + '{"step": 4, "' + HOSTILE.replace('"', "").replace("\x1b", "") + '": 1}\n'
    subject = a_subject(tmp_path / "one", 0, 1, metrics=metrics, log=f"No module named 'x'\n{HOSTILE}\n", nodes=1)
    (subject.run.path / run_files.STACKS).mkdir(exist_ok=True)
    (subject.run.path / run_files.STACKS / "rank1.txt").write_text(f"in step\n{HOSTILE}")
    seen = visit(made(tmp_path / "page.html", examine(subject.run, subject.record, HOSTILE)))
    assert seen.evaluate("typeof hacked") == "undefined"
    expect(seen.locator("img, script")).to_have_count(0)
    expect(seen.get_by_text("rank 1 on gpu00 failed first: exit code 1", exact=True)).to_be_visible()
    expect(seen.locator("pre").first).to_contain_text("<script>hacked=1</script>")
    expect(seen.get_by_text("in step")).to_be_hidden()
    seen.get_by_text("rank1", exact=True).click()
    expect(seen.get_by_text("in step")).to_be_visible()
    box = seen.locator("polyline").first.bounding_box()
    assert box is not None
    assert box["width"] > 100
    assert seen.viewport_size is not None
    assert width(seen) == seen.viewport_size["width"]


def test_two_runs_on_a_telephone_in_the_dark(visit: Open, tmp_path: Path) -> None:
    runs = [
        a_subject(tmp_path / name, 0, metrics=lines(*[100.0 * nodes] * 3), nodes=nodes)
        for name, nodes in (("small", 1), ("large", 2))
    ]
    seen = visit(made(tmp_path / "page.html", *runs), color_scheme="dark", viewport={"width": 390, "height": 800})
    assert width(seen) == 390
    assert seen.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    expect(seen.get_by_role("row", name="large").last).to_contain_text("100% of ideal")
    expect(seen.locator(".legend").first).to_have_text("smalllarge")
    colors = seen.locator("polyline").evaluate_all("lines => lines.map(line => getComputedStyle(line).stroke)")
    assert len(set(colors[:2])) == 2
    expect(seen.get_by_text("sha256:9f2c41d0a7e3").first).to_be_hidden()
    seen.get_by_text("More of small").click()
    expect(seen.get_by_text("sha256:9f2c41d0a7e3").first).to_be_visible()


def test_a_sweep_on_a_telephone(visit: Open, tmp_path: Path) -> None:
    runs = [a_subject(tmp_path / f"s-{n}", int(n == 4), metrics=lines(700, 710), nodes=1) for n in range(1, 7)]
    seen = visit(made(tmp_path / "page.html", *runs), viewport={"width": 390, "height": 800})
    assert width(seen) == 390
    cells = seen.locator("table").first.locator("th").evaluate_all("cells => cells.map(cell => cell.clientWidth)")
    assert min(cells) > 80
    expect(seen.get_by_text("rank 0 on gpu00 failed first: exit code 1", exact=True)).to_be_hidden()
    seen.get_by_text("s-4 failed").click()
    expect(seen.get_by_text("rank 0 on gpu00 failed first: exit code 1", exact=True)).to_be_visible()
