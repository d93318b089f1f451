"""The page in a real browser, over homes that were made without Spark. Pictures go to the test's directory."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from strobe.hosts.spark.snapshot.metrics import StateStatus
from strobe.model.errors import Failed
from strobe.web.opening import doorway
from tests.web.browser import looking
from tests.web.homes import (
    LEDGER,
    a_manifest,
    a_stage,
    a_status,
    put_history,
    put_manifest,
    put_runtime,
    running,
    under_way,
    wide,
)
from tests.web.pages import Served

Steps = dict[str, tuple[str, Sequence[str], Sequence[str]]]
HOSTILE = "<img src=x onerror=\"document.body.id='broken'\">"
expect.set_options(timeout=60_000)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    put_history(tmp_path, "ledger", 12, fails=5)
    for snapshot in (11, 12):
        put_manifest(tmp_path, a_manifest("ledger", snapshot))
    put_runtime(tmp_path, "ledger")
    return tmp_path


@pytest.fixture
def served(home: Path) -> Iterator[Served]:
    with Served(home) as page:
        yield page


def go(page: Page, route: str) -> None:
    page.evaluate("route => { location.hash = route; }", route)


def fits(page: Page) -> None:
    """Nothing sticks out: no page has to be moved sideways."""
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


ROUTES = {
    "jobs": "/",
    "job": "/job/ledger",
    "snapshots": "/job/ledger/snapshots",
    "snapshot": "/job/ledger/snapshots/12",
}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_each_page_fits_wide_and_narrow_light_and_dark(
    served: Served, browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    with looking(browser, served.url, width=width, dark=dark) as page:
        for name, route in ROUTES.items():
            go(page, route)
            expect(page.locator("h1")).to_have_count(1)
            expect(page.locator("[aria-busy]")).to_have_count(0)
            fits(page)
            page.screenshot(path=tmp_path / f"{name}-{width}{'-dark' if dark else ''}.png")


def test_the_token_does_not_stay_in_the_address(served: Served, browser: Browser) -> None:
    with looking(browser, served.url) as page:
        assert "token" not in page.url
        assert page.evaluate("document.cookie") == ""


def test_a_file_leads_to_the_page_and_to_nothing_else(served: Served, browser: Browser) -> None:
    """As `strobe ui --open` does it: the browser comes from elsewhere, and is known nevertheless."""
    with doorway(served.url) as door, browser.new_context() as context:
        page = context.new_page()
        page.goto(door)
        page.wait_for_url(f"http://127.0.0.1:{served.port}/")
        expect(page.get_by_role("link", name="ledger")).to_be_visible(timeout=15_000)


def test_a_job_is_found_by_keyboard_alone(home: Path, browser: Browser) -> None:
    with (
        running(home, "ledger", lambda b: a_status("ledger")),
        Served(home) as served,
        looking(browser, served.url) as page,
    ):
        page.get_by_role("link", name="ledger").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="ledger", level=1)).to_be_visible()
        page.get_by_role("button", name=re.compile("^balances:")).focus()
        page.keyboard.press("Enter")
        panel = page.get_by_role("complementary", name="Stage balances")
        expect(panel).to_be_visible()
        expect(panel.get_by_text("rows per second")).to_be_visible()
        page.keyboard.press("Escape")
        expect(panel).to_have_count(0)


def test_a_stage_shows_its_state_store_and_its_settings_as_words(home: Path, browser: Browser) -> None:
    status = a_status("ledger")
    state = StateStatus(1000, 2048, rows_updated=3, rows_removed=0, commit_ms=1.5, rocksdb_gets=17)
    status["stages"][2] |= {"state_store": asdict(state), "busy": 0.957}
    with (
        running(home, "ledger", lambda b: status) as held,
        Served(home) as served,
        looking(browser, served.url) as page,
    ):
        held.publish(settings={"balances": {"output_mode": "update", "max_rows_per_batch": "500"}})
        go(page, "/job/ledger")
        box = page.locator('[data-stage="balances"]')
        expect(box).to_contain_text("2.0 KiB")
        box.click()
        panel = page.get_by_role("complementary", name="Stage balances")
        expect(panel.get_by_role("heading", name="State store")).to_be_visible()
        expect(panel).to_contain_text("rocksdb gets17")
        expect(panel).to_contain_text("busy96 %")
        expect(panel).not_to_contain_text("{")
        expect(panel).to_contain_text("max rows per batch500")


def test_what_changes_is_seen_without_reloading_and_nothing_jumps(home: Path, browser: Browser) -> None:
    status = a_status("ledger")
    with running(home, "ledger", lambda b: status), Served(home) as served, looking(browser, served.url) as page:
        go(page, "/job/ledger")
        box = page.locator('[data-stage="postings"]')
        expect(box).to_contain_text("batch 41")
        before = box.bounding_box()
        status["stages"][1]["batch"] = 42
        status["checkpoints"] = under_way("ledger", {})["checkpoints"]
        expect(box).to_contain_text("batch 42")
        expect(page.locator(".barrier.on")).to_be_visible()
        assert box.bounding_box() == before


def test_a_barrier_is_seen_travelling(home: Path, browser: Browser) -> None:
    ahead: Steps = {uid: ("ahead", [], reads) for uid, reads in LEDGER.items()}
    aligning: Steps = {"transfers": ("storing", [], []), "flagged": ("aligning", ["transfers"], ["suspects"])}
    storing: Steps = {**dict.fromkeys(LEDGER, ("acknowledged", [], [])), "flagged": ("storing", [], [])}
    steps = iter([ahead, {**ahead, **aligning}, {**storing, "balances": ("storing", [], [])}])
    now = {"status": under_way("ledger", next(steps))}
    with running(home, "ledger", lambda b: now["status"]), Served(home) as served, looking(browser, served.url) as page:
        go(page, "/job/ledger")
        strip = page.locator(".barrier")
        expect(strip).to_contain_text("checkpoint 4 is under way: the barrier is through 0 of 5 stages")
        now["status"] = under_way("ledger", next(steps))
        expect(strip).to_contain_text("flagged waits for suspects")
        expect(page.locator('[data-stage="flagged"]')).to_have_class(re.compile("mood-held"))
        expect(page.locator('[data-wire="transfers>suspects"]')).to_have_class(re.compile("barrier-inside"))
        expect(page.locator('[data-wire="transfers>flagged"]')).to_have_class(re.compile("barrier-arrived"))
        now["status"] = under_way("ledger", next(steps))
        expect(strip).to_contain_text("through 3 of 5 stages")
        expect(page.locator('[data-wire="suspects>flagged"]')).to_have_class(re.compile("barrier-passed"))
        now["status"] = a_status("ledger")
        expect(strip).to_contain_text("No snapshot is under way.")


def test_a_job_that_dies_while_one_looks_is_shown_from_its_snapshot(home: Path, browser: Browser) -> None:
    with Served(home) as served, looking(browser, served.url) as page:
        with running(home, "ledger", lambda b: a_status("ledger")) as job:
            go(page, "/job/ledger")
            expect(page.locator(".title .state")).to_have_text("running")
            job.publish(state="failed", error="stage 'balances' failed for good: ValueError: no (orders.py, line 7)")
        expect(page.locator(".title .state")).to_have_text("finished")
        expect(page.get_by_role("alert")).to_contain_text("orders.py, line 7")
        expect(page.get_by_role("button", name="Checkpoint")).to_be_disabled()
        expect(page.locator('[data-stage="balances"]')).to_be_visible()


def test_the_end_of_strobe_ui_itself_is_said(home: Path, browser: Browser) -> None:
    served = Served(home)
    with looking(browser, served.url) as page:
        expect(page.get_by_role("link", name="ledger")).to_be_visible()
        served.__exit__(None, None, None)
        expect(page.get_by_role("alert")).to_contain_text("The connection to strobe ui is lost")


def test_names_errors_and_rows_are_only_words(home: Path, browser: Browser) -> None:
    stages = [a_stage(HOSTILE, error=HOSTILE, surprise=HOSTILE), a_stage("</script><svg onload=alert(1)>")]
    channels = [
        {"producer": HOSTILE, "consumer": stages[1]["uid"], "feedback": False, "rows_waiting": 1, "commits_waiting": 1}
    ]
    status = a_status("ledger", stages=stages, channels=channels, error=HOSTILE)
    put_runtime(home, "later", error=HOSTILE, state="failed")
    with running(home, "ledger", lambda b: status), Served(home) as served, looking(browser, served.url) as page:
        expect(page.locator(".trouble").first).to_contain_text(HOSTILE)
        go(page, "/job/ledger")
        page.locator(".box").first.click()
        expect(page.locator(".stage .error")).to_have_text(HOSTILE)
        expect(page.locator(".stage h2")).to_have_text(HOSTILE)
        go(page, f"/job/{HOSTILE}")
        expect(page.locator(".trouble")).to_be_visible()
        assert page.locator("main img").count() == 0
        assert page.evaluate("document.body.id") == ""


def test_a_violated_invariant_is_seen_on_both_pages(home: Path, browser: Browser) -> None:
    verdict = {"on_violation": "warn", "snapshot": 12, "violations": 1, "skipped": 0}
    status = a_status("ledger", invariants=[
        {"name": "zero-sum", "outcome": "violated", "sentence": "invariant 'zero-sum' is violated", **verdict},
        {"name": "late", "outcome": "failed", "sentence": "", **verdict},
        {"name": "no-debt", "outcome": "holds", "sentence": "", **verdict},
    ])  # fmt: skip
    with running(home, "ledger", lambda b: status), Served(home) as served, looking(browser, served.url) as page:
        expect(page.locator("tbody")).to_contain_text("1 invariant violated")
        go(page, "/job/ledger")
        expect(page.get_by_role("alert").first).to_contain_text("invariant 'zero-sum' is violated")
        expect(page.get_by_role("alert").last).to_contain_text("Invariant 'late' could not be evaluated at snapshot 12")
        expect(page.locator(".invariant")).to_have_text("Invariant 'no-debt': holds at snapshot 12")


def test_an_order_is_explained_confirmed_and_answered(home: Path, browser: Browser) -> None:
    given: list[dict[str, Any]] = []
    go_on = threading.Event()

    def stop(body: dict[str, Any]) -> Any:
        given.append(body)
        assert go_on.wait(60)
        return {"job": "ledger", "snapshot": 13, "path": "/backup/x", "root": "ab" * 32, "bytes_total": 4096,
                "rows_in_flight": 17}  # fmt: skip

    with (
        running(home, "ledger", lambda b: a_status("ledger"), stop=stop),
        Served(home) as served,
        looking(browser, served.url) as page,
    ):
        go(page, "/job/ledger")
        page.get_by_role("button", name="Stop").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("If the savepoint fails, the job goes on.")
        dialog.get_by_role("button", name="Leave it").click()
        expect(dialog).to_have_count(0)
        assert given == []
        page.get_by_role("button", name="Stop").click()
        dialog.get_by_label(re.compile("Drain")).check()
        dialog.get_by_label(re.compile("Where to")).fill("/backup/x")
        expect(dialog.locator("code").first).to_have_text("strobe stop ledger --savepoint /backup/x --drain")
        dialog.get_by_role("button", name="Stop it").click()
        expect(dialog).to_contain_text("under way")
        go_on.set()
        expect(dialog).to_contain_text("Savepoint 13 is complete: 4.0 KiB, 17 rows in flight.")
    assert given == [{"directory": "/backup/x", "drain": True}]


def test_an_order_that_is_refused_says_what_to_do(home: Path, browser: Browser) -> None:
    def refuse(body: dict[str, Any]) -> Any:
        raise Failed(
            "The checkpoint failed: stage 'balances' was lost.", untouched="The job goes on.", next="Ask again."
        )

    with (
        running(home, "ledger", lambda b: a_status("ledger"), checkpoint=refuse),
        Served(home) as served,
        looking(browser, served.url) as page,
    ):
        go(page, "/job/ledger")
        page.get_by_role("button", name="Checkpoint").click()
        page.get_by_role("button", name="Take it").click()
        expect(page.get_by_role("alert")).to_contain_text("stage 'balances' was lost.")
        expect(page.get_by_role("alert")).to_contain_text("The job goes on. Ask again.")


def test_read_only_has_no_orders(home: Path, browser: Browser) -> None:
    with (
        running(home, "ledger", lambda b: a_status("ledger")),
        Served(home, read_only=True) as served,
        looking(browser, served.url) as page,
    ):
        expect(page.locator(".tag")).to_have_text("read-only")
        go(page, "/job/ledger")
        for name in ("Checkpoint", "Savepoint", "Stop", "Cancel"):
            expect(page.get_by_role("button", name=name)).to_be_disabled()


def test_sixty_stages_are_drawn_and_can_be_read(home: Path, browser: Browser, tmp_path: Path) -> None:
    put_manifest(home, a_manifest("wide", 3, wide(60)))
    with Served(home) as served, looking(browser, served.url) as page:
        go(page, "/job/wide")
        expect(page.locator(".box")).to_have_count(60)
        height = page.locator('[data-stage="stage-00"] .name').evaluate("e => e.getBoundingClientRect().height")
        assert height >= 9
        fits(page)
        page.screenshot(path=tmp_path / "wide.png")


def test_ten_thousand_snapshots_are_shown_page_by_page(home: Path, browser: Browser) -> None:
    put_history(home, "ledger", 10_000, fails=97)
    with Served(home) as served, looking(browser, served.url) as page:
        go(page, "/job/ledger/snapshots")
        expect(page.locator(".title")).to_contain_text("snapshots tried, 103 failed")
        expect(page.locator("tbody tr")).to_have_count(100)
        page.get_by_role("button", name="Show 100 older").click()
        expect(page.locator("tbody tr")).to_have_count(200)
        expect(page.get_by_text("stage 'balances' was lost").first).to_be_visible()


def test_one_snapshot_says_where_its_time_went_and_whether_it_can_be_restored(served: Served, browser: Browser) -> None:
    with looking(browser, served.url) as page:
        go(page, "/job/ledger/snapshots/12")
        expect(page.locator(".fall[role=row]")).to_have_count(len(LEDGER))
        expect(page.get_by_text("restorable")).to_be_visible()
        expect(page.locator(".tiles")).to_contain_text("Channel")  # … is gone: this home has none
        expect(page.locator("code").first).to_have_text(re.compile("[0-9a-f]{64}"))


@pytest.mark.parametrize(("route", "words"), [
    ("/job/ledger/snapshots/99", "Job 'ledger' has no snapshot 99."),
    ("/job/nope", "There is no job 'nope'"),
    ("/system/nope", "There is no job 'nope'"),
    ("/somewhere", "There is no such page."),
])  # fmt: skip
def test_an_address_that_leads_nowhere_says_so(served: Served, browser: Browser, route: str, words: str) -> None:
    with looking(browser, served.url) as page:
        go(page, route)
        expect(page.locator("main")).to_contain_text(words)


def test_a_wrong_token_is_said_on_the_page(served: Served, browser: Browser) -> None:
    with looking(browser, served.url.replace(served.access.token, "wrong")) as page:
        expect(page.locator("body")).to_contain_text("The token is wrong.")
