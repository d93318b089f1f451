"""The page over a job that really runs: its graph, a barrier that waits for a stage, orders, and what stays."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.home.history import read_history
from strobe.hosts.spark.job.job import start_job
from tests.web.browser import looking
from tests.web.pages import Served

PATIENCE = 180_000  # milliseconds


class Door:
    """Batches of the last stage wait here while it is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if not self.open.is_set():
            self.waiting.set()
        assert self.open.wait(300)


def pipeline(door: Door) -> strobe.Pipeline:
    checkpoint = strobe.CheckpointConfig(interval=None, retained=2, mode="aligned")  # waits for a batch that hangs
    made = strobe.Pipeline("shop", checkpoint=checkpoint, chain=False)

    @made.stage(uid="orders")
    def orders(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").option("rowsPerSecond", 20).load()

    @made.stage(uid="parity", reads="orders", output_mode="update", to=strobe.ForeachBatchSink(door))
    def parity(orders: DataFrame) -> DataFrame:
        return orders.groupBy((F.col("value") % 2).alias("odd")).count()

    return made


def test_a_running_job_on_the_page(spark: SparkSession, browser: Browser, tmp_path: Path) -> None:
    door, home = Door(), tmp_path / "home"
    job = start_job(pipeline(door), home=str(home), spark=spark, base=tmp_path)
    try:
        with Served(home) as served, looking(browser, served.url) as page:
            page.get_by_role("link", name="shop", exact=True).click()
            expect(page.locator(".box")).to_have_count(2, timeout=PATIENCE)
            stage = page.locator('[data-stage="parity"]')
            expect(stage).to_contain_text(re.compile(r"batch \d"), timeout=PATIENCE)
            stage.click()
            panel = page.get_by_role("complementary")
            expect(panel).to_contain_text("rows in total", timeout=PATIENCE)
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Checkpoint").click()
            page.get_by_role("button", name="Take it").click()
            expect(page.get_by_role("dialog")).to_contain_text("Checkpoint 1 is complete", timeout=PATIENCE)
            page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
            stage.click()  # what it is, is in a snapshot
            expect(panel).to_contain_text("kind aggregate", timeout=PATIENCE)
            page.keyboard.press("Escape")

            # A barrier goes as far as the stage whose batch does not end, and on when it does.
            door.open.clear()
            assert door.waiting.wait(300)
            page.get_by_role("button", name="Checkpoint").click()
            page.get_by_role("button", name="Take it").click()
            strip = page.locator(".barrier")
            expect(strip).to_contain_text("through 1 of 2 stages", timeout=PATIENCE)
            expect(strip).to_contain_text("parity waits for orders")
            expect(page.locator('[data-stage="orders"]')).to_have_attribute("data-phase", "acknowledged")
            page.screenshot(path=tmp_path / "barrier.png")
            door.open.set()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("Checkpoint 2 is complete", timeout=PATIENCE)
            dialog.get_by_role("link").click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("checkpoint")
            expect(page.locator(".fall[role=row]")).to_have_count(2)

            page.evaluate("() => { location.hash = '/job/shop'; }")
            page.get_by_role("button", name="Savepoint").click()
            page.get_by_role("button", name="Take it").click()
            expect(page.get_by_role("dialog")).to_contain_text("Savepoint 3 is complete", timeout=PATIENCE)
            page.get_by_role("dialog").get_by_role("button", name="Close").last.click()

            page.get_by_role("button", name="Cancel").click()
            page.get_by_role("button", name="Cancel it").click()
            expect(page.locator(".title .state")).to_have_text("canceled", timeout=PATIENCE)
            page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
            page.get_by_role("link", name="Checkpoints").click()
            expect(page.locator("tbody tr")).to_have_count(3)
            expect(page.locator("tbody")).to_contain_text("savepoint · kept")
    finally:
        door.open.set()
        job.stop()
    past = read_history(home / "jobs" / "shop" / "history.jsonl")
    assert [(p.snapshot, p.kind, p.status) for p in past] == [
        (1, "checkpoint", "complete"),
        (2, "checkpoint", "complete"),
        (3, "savepoint", "complete"),
    ]
    for p in past:
        assert sum(p.phases.values()) == pytest.approx(p.duration_ms, abs=1)
