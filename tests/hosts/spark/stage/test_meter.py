"""A stage's figures over time: every batch is counted once, and shares and rates are those of the last minute."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from strobe.hosts.spark.stage.meter import WINDOW, Rate, StageMeter

START = 1_800_000_000.0


def progress(batch: int, *, at: float = 0.0, took: int = 1000, rows: int = 10, run: str = "a", late: int = 0) -> Any:
    when = datetime.fromtimestamp(START + at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "runId": run, "batchId": batch, "timestamp": when, "numInputRows": rows,
        "durationMs": {"addBatch": took - 1, "triggerExecution": took},
        "eventTime": {"watermark": "2024-01-01T00:00:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 3, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": late,
             "customMetrics": {"rocksdbGetCount": 7, "rocksdbSstFileSize": 2}},
            {"numRowsTotal": 4, "memoryUsedBytes": 11, "customMetrics": {"rocksdbGetCount": 1}},
        ],
    }  # fmt: skip


def test_a_batch_counts_once_however_often_it_is_looked_at() -> None:
    meter = StageMeter(START)
    for batch in (0, 0, 1, 0, 1):
        meter.take(progress(batch, late=2))
    assert (meter.batches, meter.rows, meter.late_rows) == (2, 20, 4)


def test_a_batch_that_runs_again_after_a_restart_counts_again() -> None:
    meter = StageMeter(START)
    meter.take(progress(5))
    meter.take(progress(5, run="b"))
    assert meter.batches == 2


def test_a_report_without_a_batch_counts_for_nothing() -> None:
    idle = {**progress(1), "durationMs": {"latestOffset": 1, "triggerExecution": 1}}
    meter = StageMeter(START)
    assert meter.take(idle) is None
    assert meter.take(progress(1)) is not None, "the batch of that number is still to come"


def test_state_is_that_of_all_operators() -> None:
    meter = StageMeter(START)
    report = meter.take(progress(0))
    assert report is not None
    assert report.state is not None
    assert (report.state.rows, report.state.bytes, report.state.rocksdb_gets) == (7, 111, 8)
    assert report.state.rocksdb_sst_bytes == 2


def test_the_watermark_before_the_first_row_is_none() -> None:
    none = {**progress(0), "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}
    report = StageMeter(START).take(none)
    assert report is not None
    assert report.watermark is None


def test_busy_is_the_share_of_the_time_since_the_start_that_batches_took() -> None:
    meter = StageMeter(START)
    assert meter.busy(START, None) is None
    meter.take(progress(0, at=0, took=2000))
    meter.take(progress(1, at=5, took=1000))
    assert meter.busy(START + 10, None) == pytest.approx(0.3)


def test_busy_forgets_what_is_longer_ago_than_a_minute() -> None:
    meter = StageMeter(START)
    meter.take(progress(0, at=0, took=30_000))
    assert meter.busy(START + WINDOW + 15, None) == pytest.approx(15 / WINDOW)
    assert meter.busy(START + WINDOW + 31, None) == 0


def test_a_batch_that_runs_for_long_makes_the_stage_busy_before_it_ends() -> None:
    meter = StageMeter(START)
    meter.take(progress(0, at=0, took=1000))
    assert meter.busy(START + 10, START + 5) == pytest.approx(0.6)
    assert meter.busy(START + 10, START) == pytest.approx(1.0), "nothing counts twice"


def test_a_rate_is_that_of_the_last_minute() -> None:
    rate = Rate()
    assert rate.per_second is None
    for second in range(200):
        rate.sample(float(second), 10 * second if second < 100 else 1000)
    assert rate.per_second == 0
    rate.sample(200.0, 1600)
    assert rate.per_second == pytest.approx(10)


def test_a_count_that_begins_again_gives_no_negative_rate() -> None:
    rate = Rate()
    for at, count in ((0.0, 100), (1.0, 200), (2.0, 10), (3.0, 20)):
        rate.sample(at, count)
    assert rate.per_second == 10
