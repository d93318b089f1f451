"""When a batch without rows is added to a query's log at its start: exactly when Spark would have run one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.checkpoint import empty_batch
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.stage.due_batch import Waits, settle
from strobe.model.ids import NodeId

TIMED = Waits(watermark=True)
CHANNEL = {"channel": "events", "version": 3}
FILES = {"logOffset": 7}


class Log(ChannelLog):
    """A channel with rows at these versions."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows

    def refresh(self) -> int:
        return 0

    def commits(self, after: int, upto: int | None = None):  # type: ignore[no-untyped-def]
        return [type("Commit", (), {"files": ("x",)}) for version in self.rows if version > after]


def batch(checkpoint: Path, number: int, *sources: object, watermark: int, earned: int | None) -> None:
    """Batch `number` in the log, judged by `watermark`; committed, if it has `earned` one for the next."""
    head = {"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "2"}}
    for name, lines in (
        ("offsets", [head, *sources]),
        ("commits", [{"nextBatchWatermarkMs": earned}] if earned is not None else []),
    ):
        (checkpoint / name).mkdir(exist_ok=True)
        if lines:
            (checkpoint / name / str(number)).write_text("\n".join(["v1", *map(json.dumps, lines)]))


def never(last: int) -> None:
    raise AssertionError("what the channels hold is known")


def test_a_watermark_that_has_moved_makes_one_due_that_reads_nothing(tmp_path: Path) -> None:
    batch(tmp_path, 4, CHANNEL, watermark=100, earned=250)
    assert settle(tmp_path, TIMED, {NodeId("events"): Log(2, 3)}, never) == 5
    added = spark_checkpoint.read_offsets(tmp_path, 5)
    assert (added.watermark_ms, added.sources, added.partitions) == (250, (CHANNEL,), 2)
    assert added.timestamp_ms > 1
    assert settle(tmp_path, TIMED, {NodeId("events"): Log(2, 3)}, never) is None, "it is in the log, and not run"


@pytest.mark.parametrize(
    ("earned", "waits", "rows"),
    [(100, TIMED, ()), (250, Waits(), ()), (250, TIMED, (4,)), (None, TIMED, ()), (250, Waits(clock=True), (4,))],
    ids=["not-moved", "nobody-waits", "rows-wait", "not-committed", "rows-wait-for-the-clock"],
)
def test_otherwise_the_log_is_left_alone(
    tmp_path: Path, earned: int | None, waits: Waits, rows: tuple[int, ...]
) -> None:
    """With rows to read Spark runs them next, with the same watermark; one in between would make more of them late."""
    batch(tmp_path, 3, CHANNEL, watermark=50, earned=100)
    batch(tmp_path, 4, CHANNEL, watermark=100, earned=earned)
    assert settle(tmp_path, waits, {NodeId("events"): Log(*rows)}, never) is None
    assert spark_checkpoint.last_logged(tmp_path) == 4


def test_an_operator_that_waits_for_the_clock_is_always_due(tmp_path: Path) -> None:
    batch(tmp_path, 4, CHANNEL, watermark=100, earned=0)
    assert settle(tmp_path, Waits(clock=True), {NodeId("events"): Log()}, never) == 5
    assert spark_checkpoint.read_offsets(tmp_path, 5).watermark_ms == 100, "a watermark never goes back"


def test_of_a_source_that_is_no_channel_spark_is_asked_whether_it_has_rows(tmp_path: Path) -> None:
    batch(tmp_path, 4, FILES, watermark=100, earned=250)
    asked: list[int] = []
    assert settle(tmp_path, TIMED, {}, asked.append) == 5
    assert asked == [4]


def test_rows_that_spark_finds_are_read_next(tmp_path: Path) -> None:
    batch(tmp_path, 4, FILES, watermark=100, earned=250)

    def find(last: int) -> None:
        batch(tmp_path, last + 1, {"logOffset": 8}, watermark=250, earned=None)

    assert settle(tmp_path, TIMED, {}, find) is None
    assert spark_checkpoint.read_offsets(tmp_path, 5).sources == ({"logOffset": 8},)


def test_a_query_that_has_done_nothing_owes_nothing(tmp_path: Path) -> None:
    assert settle(tmp_path, Waits(watermark=True, clock=True), {}, never) is None
    assert empty_batch.add(tmp_path, 0) is None
