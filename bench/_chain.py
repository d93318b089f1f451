"""A chain of stages, under Strobe and as the same queries chained by hand, for `idle.py` and `depth.py`.

Rows come as small Parquet files into a directory. Each stage adds 1 to a column; the last writes a table. By hand, each
query writes a directory of Parquet files that the next one reads: Spark's file sink, with the same file manager for its
checkpoints as Strobe's. Each side is a process of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

SIDES = ("strobe", "plain")
CHAINED = "strobe-chained"  # as Strobe runs it by default: stages like these become one query
DDL = "id BIGINT, hops INT"
_TICKS = os.sysconf("SC_CLK_TCK")


class Chain(Protocol):
    """All of its stages run."""

    started: Spent

    def rows(self) -> int:
        """How many rows have come out at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of wall and of processor time, of this process and everything below it."""

    wall: float
    processor: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.processor - other.processor)


@dataclass(frozen=True, slots=True)
class Process:
    role: str
    processor: float  # with the children that it has waited for
    memory: float  # MB, with its share of what it shares (Pss)


def spent() -> Spent:
    return Spent(time.perf_counter(), sum(p.processor for p in processes(memory=False)))


class Metered(threading.Thread):
    """Processor time from here on, sampled: a JVM that has ended is counted as it was when it was last seen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._before = self._most = spent().processor
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self._most = max(self._most, spent().processor)

    def seconds(self) -> float:
        self._over.set()
        self.join()
        return max(self._most, spent().processor) - self._before


def processes(*, memory: bool = True) -> list[Process]:
    """This process and everything below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(_fields(entry)[1])
    family = [os.getpid()]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    found = []
    for pid in family:
        with contextlib.suppress(OSError):
            found.append(_process(Path(f"/proc/{pid}"), memory))
    return found


def _process(place: Path, memory: bool) -> Process:
    words = (place / "cmdline").read_bytes().split(b"\0")
    processor = sum(int(n) for n in _fields(place)[11:15]) / _TICKS
    lines = (place / "smaps_rollup").read_text().splitlines() if memory else []
    kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return Process(_role(int(place.name), words), processor, kilobytes / 1024)


def _role(pid: int, words: list[bytes]) -> str:
    if pid == os.getpid():
        return "driver"
    if words[0].endswith(b"java"):
        return "JVM"
    return "worker" if words[1:3] == [b"-m", b"pyspark.daemon"] else "reader"


def _fields(place: Path) -> list[str]:
    """The fields after the name in /proc/PID/stat: state, parent, …"""
    return (place / "stat").read_text().rpartition(")")[2].split()


def put_file(data: Path, number: int, rows: int = 10) -> None:
    first = number * rows
    table = pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "hops": pa.array([0] * rows, pa.int32())})
    hidden = data / f".{number}.tmp"
    pq.write_table(table, hidden)
    hidden.rename(data / f"{number:05d}.parquet")


def hop(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.select("id", (F.col("hops") + 1).cast("int").alias("hops"))


@contextlib.contextmanager
def chain(side: str, stages: int, data: Path, work: Path) -> Iterator[Chain]:
    data.mkdir(parents=True, exist_ok=True)
    started = _plain(stages, data, work) if side == "plain" else _strobe(stages, data, work, side == CHAINED)
    with started as running:
        yield running


@dataclass
class _Strobe:
    sink: Path
    started: Spent

    def rows(self) -> int:
        from deltalake import DeltaTable

        return DeltaTable(str(self.sink)).count() if (self.sink / "_delta_log").is_dir() else 0


@contextlib.contextmanager
def _strobe(stages: int, data: Path, work: Path, chained: bool) -> Iterator[Chain]:
    import strobe
    from strobe.hosts.spark.job.job import start_job
    from strobe.hosts.spark.jvm.session import spark_session

    pipeline = strobe.Pipeline("chain", partitions=2, chain=chained)  # if not: what a stage and its channel cost
    pipeline.stage(uid="s0")(lambda spark: hop(spark.readStream.schema(DDL).parquet(str(data))))
    for n in range(1, stages):
        to = strobe.DeltaSink(str(work / "out")) if n == stages - 1 else ()
        pipeline.stage(uid=f"s{n}", reads=f"s{n - 1}", to=to)(lambda **rows: hop(*rows.values()))
    spark = spark_session("chain", "local[2]")
    spark.range(1).count()
    began = spent()
    job = start_job(pipeline, home=str(work / "home"), spark=spark)
    for runner in job.runners.values():
        runner.await_running()
    try:
        yield _Strobe(work / "out", spent() - began)
    finally:
        job.stop()
        job.wait()
        spark.stop()


@dataclass
class _Plain:
    directory: Path
    started: Spent

    def rows(self) -> int:
        """The rows of the files that the sink has committed."""
        logs = [log for log in self.directory.glob("_spark_metadata/[0-9]*") if log.stat().st_size]
        lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
        files = {json.loads(line)["path"].removeprefix("file://") for line in lines}
        return sum(pq.read_metadata(file).num_rows for file in files)


def plain_session(more: Mapping[str, str] | None = None) -> Any:
    """Spark without Strobe, with the file manager that Strobe uses, and `more` settings."""
    from pyspark.sql import SparkSession

    from strobe.hosts.spark.jvm.session import FILE_MANAGER

    settings = {
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        **(more or {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("plain")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def _plain(stages: int, data: Path, work: Path) -> Iterator[Chain]:
    spark = plain_session()
    spark.range(1).count()
    places = [data, *(work / f"p{n}" for n in range(stages))]
    for place in places[1:]:
        place.mkdir()
    began = spent()
    queries = [
        hop(spark.readStream.schema(DDL).parquet(str(source))).writeStream.format("parquet").option("path", str(target))
        .option("checkpointLocation", f"{target}-checkpoint").start()
        for source, target in itertools.pairwise(places)
    ]  # fmt: skip
    # A query counts as running when it has looked at its source once: that is what Strobe waits for, too.
    looking = queries
    while looking:
        looking = [query for query in looking if query.status["message"] != "Waiting for data to arrive"]
        time.sleep(0.01)
    try:
        yield _Plain(places[-1], spent() - began)
    finally:
        for query in queries:
            query.stop()
        spark.stop()
