"""Chromium, driven by Playwright: the program that is on the machine, never one that is fetched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

from tests.servers.chromium import find
from tests.services import variable

# As root there is no sandbox; everything else is what a browser would load from elsewhere.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def chromium() -> str | None:
    return os.environ.get(variable("chromium")) or find()


@contextlib.contextmanager
def start_browser(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def looking(browser: Browser, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """A page that has shown who it is. What it logs as an error, and what it asks of other machines, is a failure."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if _is_problem(said.type, said.text) else None)
    own = url.partition("?")[0].rstrip("/")
    page.on("request", lambda asked: None if asked.url.startswith((own, "data:")) else problems.append(asked.url))
    try:
        page.goto(url)
        page.wait_for_selector("h1")
        yield page
        assert not problems
    finally:
        context.close()


def _is_problem(kind: str, text: str) -> bool:
    return kind == "error" and "Failed to load resource" not in text and "ERR_" not in text
