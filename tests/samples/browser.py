"""A real browser: Chromium without a network, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

Open = Callable[..., Page]


@contextmanager
def launched() -> Iterator[Browser]:
    """The one that tests/cluster/install brings; without it, the test is skipped."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not program:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium: see tests/cluster/install")
        pytest.skip("no Chromium here: tests/cluster/install brings it")
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root can't have
        yield playwright.chromium.launch(executable_path=program, args=options)


@contextmanager
def watched(browser: Browser, site: Optional[Path] = None) -> Iterator[Open]:
    """visit(FILE, hash): a page of a browser that is new. A request for anything but the page itself, or files of
    its `site`, an error, or a word on the browser's console fails the test."""
    contexts, noticed = [], []

    def is_own(url: str, file: Path) -> bool:
        return url == file.as_uri() or (site is not None and url.startswith(f"{site.as_uri()}/"))

    def visit(file: Path, told: str = "", **options: Any) -> Page:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("console", lambda message: noticed.append(message.text))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("dialog", lambda dialog: noticed.append(dialog.message))
        page.on("request", lambda request: None if is_own(request.url, file) else noticed.append(request.url))
        page.goto(f"{file.as_uri()}#{told}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert noticed == []
