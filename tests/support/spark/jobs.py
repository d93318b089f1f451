"""What tests of whole jobs share: awaiting a moment of a running job, and judging the checkpoints that it took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.snapshot.metrics import StageStatus
from strobe.model.errors import Failed
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.consistency import check_manifest
from strobe.store.manifest import Manifest
from strobe.store.session import Session
from tests.support import waiting

PATIENCE = waiting.PATIENCE


class Overtaking(strobe.CheckpointConfig):
    """Savepoints have rows in flight, too, as they have where alignment takes too long, and in a loop."""

    def coordinator(self) -> CoordinatorSettings:
        return replace(super().coordinator(), everywhere=False)


def eventually(happened: Callable[[], bool], what: str, job: strobe.Job | None = None) -> None:
    """Wait until it has happened. With a job: as long as the job runs."""
    waiting.eventually(
        happened,
        what,
        over=lambda: f"the job is {job.state.value} {job.error}" if job is not None and job.state.over else "",
    )


@contextmanager
def full_store() -> Iterator[None]:
    """Meanwhile no snapshot gets its files into a store: the disk is full."""

    def full(self: Session, files: object) -> None:
        raise Failed("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "put_files", full)
        yield


def finish(job: strobe.Job) -> None:
    """A bounded job ends by itself."""
    assert job.wait(PATIENCE), job.status()
    assert job.state is strobe.JobState.FINISHED, job.error


def run_to_the_end(pipeline: Pipeline, home: Path, spark: SparkSession, **options: Any) -> None:
    """A bounded job, resumed or, with `options`, restored, in a session that others use, too: nothing of it is left
    there, whatever happens."""
    job = start_job(pipeline, home=str(home), spark=spark, restore=RestoreOptions(**options))
    try:
        finish(job)
    finally:
        job.stop()


def stage(job: strobe.Job, uid: str) -> StageStatus:
    return next(s for s in job.status().stages if s.uid == uid)


def all_read(job: strobe.Job, batches: int = 1) -> bool:
    """Whether every stage has run this many batches, and no rows wait for one. Batches alone do not tell: the first of
    a stage whose channel is still empty has no rows."""
    return all(s.batch >= batches - 1 and not s.lag_rows for s in job.status().stages)


def check_checkpoints(job: strobe.Job, *, whole: bool = False) -> list[Manifest]:
    """Every checkpoint that is kept is sound: its bytes, its cut, its rows. Of a `whole` job, one that has finished and
    kept all, the last one has nothing in flight. Returns their manifests, oldest first."""
    manifests = [job.store.load(snapshot) for snapshot in job.store.list()]
    previous: Manifest | None = None
    for manifest in manifests:
        assert check_manifest(manifest, previous) == ()
        assert job.store.verify(manifest.snapshot) == ()
        _check_rows(job.home.home, manifest)
        previous = manifest
    if whole:
        assert [m.snapshot for m in manifests] == [
            p.snapshot for p in job.status().checkpoints if p.status == "complete"
        ]
        assert previous is not None
        assert previous.rows_in_flight == 0
        for record in previous.channels.values():
            rows = channel_rows(job.home.home / str(record.location))
            assert record.barrier is not None
            assert max((v for v, n in rows.items() if n), default=0) <= record.barrier, "rows that no checkpoint has"
    return manifests


def _check_rows(home: Path, manifest: Manifest) -> None:
    """What a consumer had read and what was in flight to it are together what its producer had written."""
    for name, record in manifest.channels.items():
        rows = channel_rows(home / str(record.location))
        assert record.barrier is not None
        written = sum(n for version, n in rows.items() if version <= record.barrier)
        for consumer, flight in record.in_flight.items():
            read = sum(n for version, n in rows.items() if version <= manifest.nodes[consumer].inputs[name])
            waiting = sum(n for version, n in rows.items() if flight.after < version <= flight.through)
            assert flight.rows == waiting, f"snapshot {manifest.snapshot}: {name} to {consumer}"
            assert read + waiting == written, f"snapshot {manifest.snapshot}: {name} to {consumer}"


def channel_rows(path: Path) -> dict[int, int]:
    """Rows of each commit, from the log's own entries, those included whose rows are trimmed by now."""
    found: dict[int, int] = {}
    for entry in sorted((path / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        found[int(entry.stem)] = sum(json.loads(a["add"]["stats"])["numRecords"] for a in actions if "add" in a)
    return found
