"""What the benchmarks of savepoints and rescaling share: a job that counts rows per key in RocksDB, filled by files."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.job.job import Job, start_job
from strobe.hosts.spark.restore.plan import RestoreOptions

NOTHING = RestoreOptions()


class Counting:
    """`rows` → `counts`, below one directory."""

    def __init__(self, root: Path, spark: SparkSession, files_per_batch: int = 1) -> None:
        shutil.rmtree(root, ignore_errors=True)
        self.root, self.data = root, root / "in"
        self.data.mkdir(parents=True)
        self._spark = spark
        self._files_per_batch = files_per_batch

    def start(self, options: RestoreOptions = NOTHING) -> Job:
        pipeline = strobe.Pipeline("counting", checkpoint=strobe.CheckpointConfig(interval=None))
        pipeline.stage(uid="rows")(self._rows)
        pipeline.stage(uid="counts", reads="rows", output_mode="update", to=strobe.DeltaSink(str(self.root / "out")))(
            lambda rows: rows.groupBy("key").agg({"text": "max", "key": "count"}).toDF("key", "text", "n")
        )
        return start_job(pipeline, home=str(self.root / "home"), spark=self._spark, restore=options)

    def put(self, name: str, keys: np.ndarray[Any, Any]) -> Path:
        """One file of rows with these keys, visible when it is whole."""
        hidden, path = self.data / f".{name}", self.data / f"{name}.parquet"
        pq.write_table(pa.table({"key": keys, "text": pa.array([f"row of key {k}" for k in keys])}), hidden)
        hidden.rename(path)
        return path

    def started_with(self, keys: int) -> Job:
        """The job, with one row of each key counted."""
        self.put("all", np.arange(keys, dtype=np.int64))
        job = self.start()
        while not (job.status().stages[1].state_rows == keys and consumed(job) == keys):
            if job.wait(0.1):
                raise SystemExit(f"the job ended: {job.error}")
        return job

    def _rows(self, spark: SparkSession) -> Any:
        source = spark.readStream.schema("key BIGINT, text STRING").option("maxFilesPerTrigger", self._files_per_batch)
        return source.parquet(str(self.data))


def consumed(job: Job) -> int:
    """Rows that the counting stage has read."""
    rows, counts = job.status().stages
    return (rows.rows_out or 0) - (counts.lag_rows or 0)


def plain_copy(source: Path, target: Path) -> int:
    """Copy a tree as `cp -r` does, and make it durable. Returns how many bytes."""
    total, made = 0, []
    for directory, _, names in os.walk(source):
        there = target / Path(directory).relative_to(source)
        there.mkdir(parents=True)
        for name in names:
            shutil.copyfile(Path(directory) / name, there / name)
            made.append(there / name)
            total += (there / name).stat().st_size
        made.append(there)
    for path in made:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    return total


class Steps(logging.Handler):
    """When the job logged each of its steps."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((time.monotonic(), record.getMessage()))

    def between(self, first: str, then: str) -> float:
        """Seconds from the first line with `first` in it to the next with `then`."""
        began = next(at for at, line in self.said if first in line)
        return next(at for at, line in self.said if at >= began and then in line) - began


@contextmanager
def steps() -> Iterator[Steps]:
    logger, seen = logging.getLogger("strobe.job"), Steps()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(seen)
    try:
        yield seen
    finally:
        logger.removeHandler(seen)
        logger.setLevel(level)
