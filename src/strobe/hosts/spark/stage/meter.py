"""A stage's figures over time, from Spark's account of each of its batches.

Spark says how one batch went, and forgets it after a hundred more. Here the batches are added up, each once, although
they are looked at again and again: a batch is known by the run of the query and its number. A report without a batch
(Spark makes one every few seconds when there is nothing to do) counts for nothing.

No clock and no Spark in here: time and reports come from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strobe.hosts.spark.snapshot.metrics import StateStatus
from strobe.store.times import utc_seconds

__all__ = ["WINDOW", "BatchReport", "Rate", "StageMeter", "batch_report", "state_status", "watermark"]

WINDOW: Final = 60.0  # seconds over which shares and rates are taken
_NO_WATERMARK: Final = "1970-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch. `began` in seconds since 1970; `phases` are Spark's, in milliseconds."""

    run: str
    batch: int
    began: float
    took_ms: float
    rows: int
    late_rows: int
    phases: Mapping[str, float] = field(default_factory=dict)
    watermark: str | None = None
    state: StateStatus | None = None

    @property
    def ended(self) -> float:
        return self.began + self.took_ms / 1000


def batch_report(progress: Mapping[str, Any]) -> BatchReport | None:
    """Spark's account as a record; None if it is not about a batch."""
    durations = dict(progress.get("durationMs") or {})
    if "addBatch" not in durations:
        return None
    took = float(durations.pop("triggerExecution", 0.0))
    operators = progress.get("stateOperators") or ()
    return BatchReport(
        run=str(progress["runId"]),
        batch=int(progress["batchId"]),
        began=utc_seconds(str(progress["timestamp"])),
        took_ms=took,
        rows=max(0, int(progress.get("numInputRows") or 0)),
        late_rows=sum(int(o.get("numRowsDroppedByWatermark") or 0) for o in operators),
        phases={name: float(ms) for name, ms in durations.items()},
        watermark=watermark(progress),
        state=state_status(progress),
    )


def watermark(progress: Mapping[str, Any]) -> str | None:
    said = (progress.get("eventTime") or {}).get("watermark")
    return None if said in (None, _NO_WATERMARK) else str(said)


def state_status(progress: Mapping[str, Any]) -> StateStatus | None:
    operators = progress.get("stateOperators") or ()
    if not operators:
        return None

    def total(name: str) -> int:
        return sum(int(o.get(name) or 0) for o in operators)

    def rocksdb(name: str) -> int:
        return sum(int((o.get("customMetrics") or {}).get(f"rocksdb{name}") or 0) for o in operators)

    return StateStatus(
        rows=total("numRowsTotal"),
        bytes=total("memoryUsedBytes"),
        rows_updated=total("numRowsUpdated"),
        rows_removed=total("numRowsRemoved"),
        commit_ms=float(total("commitTimeMs")),
        rocksdb_sst_bytes=rocksdb("SstFileSize"),
        rocksdb_pinned_bytes=rocksdb("PinnedBlocksMemoryUsage"),
        rocksdb_gets=rocksdb("GetCount"),
        rocksdb_puts=rocksdb("PutCount"),
        rocksdb_bytes_read=rocksdb("TotalBytesRead"),
        rocksdb_bytes_written=rocksdb("TotalBytesWritten"),
        rocksdb_cache_hits=rocksdb("ReadBlockCacheHitCount"),
        rocksdb_cache_misses=rocksdb("ReadBlockCacheMissCount"),
        rocksdb_compaction_ms=float(rocksdb("TotalCompactionLatencyMs")),
        rocksdb_stall_ms=float(rocksdb("WriterStallLatencyMs")),
    )


class Rate:
    """How fast a count grows: over the last `WINDOW` seconds, or since it was first looked at."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, count: int) -> None:
        samples = self._samples
        if samples and count < samples[-1][1]:
            samples.clear()  # it counts from nothing again
        samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW:
            samples.popleft()

    @property
    def per_second(self) -> float | None:
        """None until it was looked at twice."""
        if len(self._samples) < 2:
            return None
        (began, first), (now, last) = self._samples[0], self._samples[-1]
        return (last - first) / (now - began) if now > began else None


class StageMeter:
    def __init__(self, now: float) -> None:
        self.batches = self.rows = self.late_rows = 0
        self.last: BatchReport | None = None
        self.rows_in, self.rows_out = Rate(), Rate()
        self._since = now
        self._seen: dict[str, int] = {}  # the newest batch of each run
        self._spans: deque[tuple[float, float]] = deque()  # when batches ran

    def take(self, progress: Mapping[str, Any]) -> BatchReport | None:
        """Add a batch up; None if it is none, or is known already. Reports of one run come in order."""
        report = batch_report(progress)
        if report is None or report.batch <= self._seen.get(report.run, -1):
            return None
        self._seen = {report.run: report.batch}
        self.batches += 1
        self.rows += report.rows
        self.late_rows += report.late_rows
        self.last = report
        self._spans.append((report.began, report.ended))
        return report

    def busy(self, now: float, running_since: float | None) -> float | None:
        """Share of the last `WINDOW` seconds in which a batch ran; `running_since`: when the present one began."""
        begin = max(self._since, now - WINDOW)
        while self._spans and self._spans[0][1] < begin:
            self._spans.popleft()
        if now <= begin:
            return None
        last = self._spans[-1][1] if self._spans else begin
        inside = sum(max(0.0, min(end, now) - max(start, begin)) for start, end in self._spans)
        if running_since is not None:
            inside += max(0.0, now - max(running_since, last, begin))
        return round(min(1.0, inside / (now - begin)), 3)
