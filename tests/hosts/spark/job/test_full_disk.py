"""A disk that is really full, under a job that runs: checkpoints fail and are counted, nothing is lost, and when there
is room again everything goes on by itself."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Failed
from tests.support.spark.jobs import check_checkpoints, eventually, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Disk:
    """A file system of 64 MiB."""

    root: Path

    def fill(self) -> None:
        """To the last byte."""
        with (self.root / "ballast").open("ab", buffering=0) as file:
            for size in (1 << 20, 1):
                while self._takes(file, size):
                    pass

    @staticmethod
    def _takes(file: RawIOBase, size: int) -> bool:
        try:
            file.write(b"x" * size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True

    def empty(self) -> None:
        (self.root / "ballast").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    command = [mount, "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(root)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield Disk(root)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_a_full_disk_fails_checkpoints_and_loses_nothing(spark: SparkSession, tmp_path: Path, disk: Disk) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=20)
    spare = write_transfers(tmp_path / "spare", files=3, rows=20)
    config = strobe.CheckpointConfig(interval=None, tolerable_failures=2)
    restart = strobe.RestartPolicy(attempts=100, longest_pause=1.0)
    pipeline = strobe.Pipeline("full", checkpoint=config, restart=restart, chain=False)
    through: set[int] = set()

    @pipeline.stage(uid="transfers")
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(
        uid="counted",
        reads="transfers",
        to=strobe.ForeachBatchSink(lambda batch, batch_id: through.update(row.id for row in batch.collect())),
    )
    def counted(transfers: DataFrame) -> DataFrame:
        return transfers.dropDuplicates(["id"])

    job = start_job(pipeline, home=str(disk.root / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: len(through) == 40, "the first rows", job)
        first = job.checkpoint(120)

        disk.fill()
        for failures in (1, 2):
            with pytest.raises(Failed, match="No space left on device"):
                job.checkpoint(120)
            status = job.status()
            assert (status.state, status.failed, status.failures_in_a_row) == ("running", failures, failures)
        assert job.store.list() == (first,)
        assert job.store.verify(first) == ()
        shutil.copy(spare / "00002.parquet", data / "00002.parquet")
        eventually(lambda: stage(job, "transfers").restarts > 0, "a batch that has no room", job)
        assert len(through) == 40

        disk.empty()
        eventually(lambda: len(through) == 60, "the rows that waited for room", job)
        assert job.checkpoint(120) > first
        assert job.status().failures_in_a_row == 0
        check_checkpoints(job)
    finally:
        job.stop()


def test_one_failure_more_than_tolerated_ends_the_job_and_the_same_run_resumes_it(
    spark: SparkSession, tmp_path: Path, disk: Disk
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    pipeline = strobe.Pipeline("full", checkpoint=strobe.CheckpointConfig(interval=None, tolerable_failures=0))
    through: list[int] = []

    @pipeline.stage(
        uid="alone",
        to=strobe.ForeachBatchSink(lambda batch, batch_id: through.extend(row.id for row in batch.collect())),
    )
    def alone(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    home = str(disk.root / "home")
    job = start_job(pipeline, home=home, base=tmp_path, spark=spark)
    try:
        eventually(lambda: len(through) == 20, "the rows", job)
        disk.fill()
        with pytest.raises(Failed, match="No space left on device"):
            job.checkpoint(120)
        assert job.wait(120)
        assert job.state is strobe.JobState.FAILED
        assert "No space left on device" in job.error
    finally:
        job.stop()
    with pytest.raises(Failed, match=r"cannot be used|cannot be written"):
        start_job(pipeline, home=home, base=tmp_path, spark=spark)
    disk.empty()
    job = start_job(pipeline, home=home, base=tmp_path, spark=spark)
    try:
        job.checkpoint(120)
        check_checkpoints(job)
    finally:
        job.stop()
    assert through == list(range(20))
