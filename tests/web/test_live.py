"""A system of live processes on the page, while it runs and afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.web.browser import looking
from tests.web.pages import Served

EXAMPLES = Path(__file__).parents[2] / "examples" / "live"
PATIENCE = 120_000  # milliseconds


def test_a_live_system_on_the_page(browser: Browser, tmp_path: Path) -> None:
    for name in ("bank.py", "bank.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    with (tmp_path / "bank.toml").open("a") as file:
        file.write('\n[invariants]\nsolvent = "select * from state.athens where balance < 0"\n')
    home = tmp_path / ".strobe"
    line = [sys.executable, "-m", "strobe.cli.main", "live", "up", "bank.toml", "--journal", "--home", str(home)]
    with (
        subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL) as system,
        Served(home) as served,
        looking(browser, served.url) as page,
    ):
        try:
            page.get_by_role("link", name="bank", exact=True).click(timeout=PATIENCE)
            expect(page.locator(".box")).to_have_count(3, timeout=PATIENCE)
            expect(page.locator(".title .state")).to_have_text("running", timeout=PATIENCE)
            expect(page.locator("main")).to_contain_text("invariant 'solvent' holds in snapshot", timeout=PATIENCE)
            page.get_by_role("button", name="Snapshot").click()
            page.get_by_role("button", name="Take it").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("is complete", timeout=PATIENCE)
            dialog.get_by_role("button", name="Close").last.click()
            page.get_by_role("button", name="Take down").click()
            page.get_by_role("button", name="Take it down").click()
            expect(dialog).to_contain_text("It is down", timeout=PATIENCE)
            dialog.get_by_role("button", name="Close").last.click()
            page.get_by_role("link", name="Space–time diagram").click()
            expect(page.locator(".diagram svg")).to_be_visible(timeout=PATIENCE)
            page.locator('.diagram path[stroke-opacity="0.5"]').first.dispatch_event("pointerover", {"bubbles": True})
            expect(page.locator(".diagram .front").first).to_be_attached()
            page.screenshot(path=tmp_path / "diagram.png")
            page.go_back()
            page.locator("tbody th a").first.click()
            expect(page.get_by_role("heading", name="States")).to_be_visible(timeout=PATIENCE)
            expect(page.get_by_role("heading", name="Where the time went")).to_be_visible()
            page.get_by_role("button", name="state.athens").click(timeout=PATIENCE)
            expect(page.locator(".found thead")).to_contain_text("balance", timeout=PATIENCE)
            assert system.wait(120) == 0
        finally:
            system.kill()
