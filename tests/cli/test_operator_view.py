"""What `strobe status` shows an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from strobe.cli.operator_view import job_view
from strobe.hosts.spark.snapshot.metrics import (
    Backlog,
    BadFileStatus,
    JobStatus,
    SinkStatus,
    StageStatus,
    SupervisorStatus,
    status_from_json,
    status_json,
)
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind

PLAIN = StageStatus("clicks", "running", 7, 1234.0, 5, 5, None, 120.0, None, 0)
RICH = replace(
    PLAIN, uid="per-minute", watermark="2031-05-17T09:30:00.000Z", busy=0.42, late_rows=1200,
    backlog=Backlog(rows=12_345, files=3, bytes=2_000_000),
)  # fmt: skip
STATUS = JobStatus(
    "shop", "running", 4711, 2, 1, "2031-05-17T09:30:00.250Z", 61.0, (PLAIN,), 3, 0, 0, next_checkpoint_s=7.6,
    checkpoints=(Progress(SnapshotId(4), Kind.CHECKPOINT, "complete", "2031-05-17T09:30:00.250Z", duration_ms=12.0),),
)  # fmt: skip


def shown(status: JobStatus, width: int = 80) -> str:
    console = Console(width=width, record=True)
    console.print(job_view(status))
    return console.export_text()


def test_what_does_not_apply_is_not_shown() -> None:
    text = shown(STATUS)
    for word in ("watermark", "busy", "backlog", "sink", "Spark's own page", "supervised"):
        assert word not in text
    assert "next checkpoint in 8 s" in text


def test_event_time_and_sources_are_whole_on_80_columns() -> None:
    text = shown(replace(STATUS, stages=(PLAIN, RICH)))
    assert "42%" in text
    (line,) = (line for line in text.splitlines() if "2031-05-17 09:30:00" in line)
    assert line.split() == [
        "per-minute", "2031-05-17", "09:30:00", "1,200", "12,345", "rows,", "3", "files,", "2.0", "MB",
    ]  # fmt: skip


def test_a_sink_shows_its_rate_and_what_it_has_set_aside() -> None:
    sink = SinkStatus("gold/0", "Delta table out/gold", 1, 0, rows=5000, rows_per_second=83.4, dead_letters=2)
    unknown = SinkStatus("own/0", "a function", 0, 0, delivery="on_batch")
    lines = shown(replace(STATUS, sinks=(sink, unknown))).splitlines()
    assert next(line.split()[1:5] for line in lines if line.startswith("gold/0")) == ["5,000", "83", "2", "1"]
    assert next(line.split()[1:5] for line in lines if line.startswith("own/0")) == ["–", "–", "–", "–"]


def test_bad_files_are_counted_and_the_last_is_named_on_a_terminal_that_it_cannot_change() -> None:
    bad = BadFileStatus("/in/b\x1b[2J.json", "EOFException: Unexpected end", "2031-05-17T09:29:00.000Z", 7)
    status = replace(STATUS, stages=(replace(PLAIN, bad_files=1200, latest_bad_files=(bad,)),))
    text = shown(status, 200)
    assert "bad files" in text
    said = "clicks: 1,200 input files are set aside, the last one at 2031-05-17T09:29:00.000Z: /in/b\\x1b[2J.json: EOF"
    assert said in text
    assert status_from_json(status_json(status)) == status


def test_sparks_own_page_and_the_supervisor_are_named() -> None:
    supervisor = SupervisorStatus(99, 2, 10, "killed by signal 9", "2031-05-17T09:29:00Z")
    text = shown(replace(STATUS, spark_ui="http://127.0.0.1:4040", supervisor=supervisor), 200)
    assert "http://127.0.0.1:4040" in text
    assert "supervised by process 99, restarts 2, the last at 2031-05-17T09:29:00Z: killed by signal 9" in text


def test_a_status_survives_its_way_over_the_control_api() -> None:
    status = replace(STATUS, stages=(PLAIN, RICH), sinks=(SinkStatus("a/0", "there", 1, 2),))
    sent: dict[str, Any] = {**status_json(status), "a field of a later version": 1}
    assert status_from_json(sent) == status


def test_in_a_narrow_terminal_a_sink_keeps_its_name() -> None:
    sinks = tuple(
        SinkStatus(f"{name}/0", f"Delta table out/{name} (upsert by account)", 0, 0, rows=1_000, rows_per_second=64.0)
        for name in ("balances", "flagged")
    )
    text = shown(replace(STATUS, sinks=sinks))
    for words in ("balances/0", "flagged/0", "rows/s", "dead letters", "in doubt"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80
