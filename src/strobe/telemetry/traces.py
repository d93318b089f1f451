"""Checkpoints of a job as traces, each a tree of spans (`telemetry.spans`), and its batches, each a span."""

from __future__ import annotations

from strobe.hosts.spark.job.observer import BatchDone, Event, SnapshotEnded
from strobe.store.times import utc_seconds
from strobe.telemetry.spans import Attributes, Spans

__all__ = ["Traces"]


class Traces:
    """Hear what a job's observer tells, by `hear`."""

    def __init__(self, job: str) -> None:
        self._spans = Spans({"strobe.job": job})
        self.stop = self._spans.stop

    def hear(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self._batch(event)
        elif isinstance(event, SnapshotEnded):
            self._snapshot(event)

    def _batch(self, event: BatchDone) -> None:
        report = event.report
        attributes: Attributes = {
            "strobe.stage": event.stage,
            "strobe.batch.id": report.batch,
            "strobe.batch.rows": report.rows,
            "strobe.batch.late_rows": report.late_rows,
            **{f"strobe.batch.{name}_ms": ms for name, ms in report.phases.items()},
        }
        if report.watermark is not None:
            attributes["strobe.watermark"] = report.watermark
        self._spans.span("batch", report.began, report.ended, attributes)

    def _snapshot(self, event: SnapshotEnded) -> None:
        progress = event.progress
        complete = progress.status == "complete"
        self._spans.snapshot(
            progress.kind.value,
            utc_seconds(progress.started),
            progress.duration_ms,
            {
                "strobe.snapshot.id": int(progress.snapshot),
                "strobe.snapshot.status": progress.status,
                "strobe.snapshot.bytes_new": progress.bytes_new,
                "strobe.snapshot.bytes_total": progress.bytes_total,
                "strobe.snapshot.rows_in_flight": progress.rows_in_flight,
                "strobe.snapshot.slowest": progress.slowest,
            },
            part="stage",
            parts=event.parts,
            manifest_ms=progress.manifest_ms if complete else None,
            failure=None if complete else progress.reason,
        )
