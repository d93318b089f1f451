"""How fast a large batch is upserted into a Delta table, against Spark writing the same rows twice as Parquet.

    python bench/upsert.py                  5 million rows in a batch, three rounds, a driver with a heap of 1 GB
    python bench/upsert.py --rows 50000000  another size
    python bench/upsert.py --quick          100,000 rows, one round
    python bench/upsert.py --small          what a small batch costs: merged in the driver, staged first, and by Spark

Everything runs in one process of its own, with one session on two cores whose JVM has the given heap, executors
included; both sides read the same Parquet files and take turns. *New*: no key of the batch is in the table. *Half*: the
table has as many rows, every second key of the batch is among them. *All*: every row of the table is replaced. Plain
Spark writes the rows, and then writes them once more, to new directories: the cost of keeping a staged copy.

A ratio compares rows per second with plain Spark's, by wall time and by processor time: the latter is more reliable on
a busy machine. The peak is of memory: the driver's Python, which must not grow with the rows, and its JVM.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import strobe
from bench._report import figure
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.connectors.delta import writing
from strobe.hosts.spark.jvm.session import spark_session
from strobe.model.ids import Incarnation, NodeId, Timeline

CASES = {"new": 1, "half": 2, "all": 0}  # how far the keys of the batch are from those of the table
SMALL = 1_000
TURNS = 25


def rows(spark: SparkSession, place: Path, first: int, number: int, step: int) -> DataFrame:
    frame = spark.range(first, first + number * step, step, 2).select(
        F.col("id"), (F.col("id") * 7919 % 100_000).alias("account"),
        (F.col("id") * 31 % 1000).cast("decimal(18,2)").alias("amount"),
        F.concat(F.lit("transfer "), F.col("id") % 1000).alias("note"),
        F.timestamp_micros(F.col("id") * 1000).alias("time"),
    )  # fmt: skip
    frame.write.parquet(str(place))
    return spark.read.parquet(str(place))


def opened(root: Path, frame: DataFrame) -> strobe.DeltaSink:
    sink = strobe.DeltaSink(str(root / "t"), key="id")
    root.mkdir()
    sink.open(
        SinkContext(
            "bench", NodeId("s"), "s/0", Timeline(1), Incarnation(1), frame.schema, "update", root, root / "home/t1"
        )
    )
    return sink


def processor_seconds(jvm: int) -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()
    return used.ru_utime + used.ru_stime + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def timed(jvm: int, run: Callable[[], object]) -> tuple[float, float]:
    cpu, start = processor_seconds(jvm), time.monotonic()
    run()
    return time.monotonic() - start, processor_seconds(jvm) - cpu


def measure(spark: SparkSession, root: Path, number: int, rounds: int) -> None:
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    writing.PLANNED, writing.FEW_ROWS = -1, -1  # type: ignore[misc]  # with --quick it would be a small batch
    batch = rows(spark, root / "batch", 0, number, 1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("plain", *CASES)}
    before = peak("self")

    def plain() -> None:
        for turn in range(2):
            batch.write.parquet(str(root / f"plain-{turn}"))

    tables = {
        "half": rows(spark, root / "half", 0, number, 2),
        "all": rows(spark, root / "all", 0, number, 1),
    }
    for turn in range(rounds + 1):
        for case in found:
            if case == "plain":
                took = timed(jvm, plain)
                for number_ in range(2):
                    shutil.rmtree(root / f"plain-{number_}")
            else:
                place = root / f"table-{case}"
                sink = opened(place, batch)
                if case in tables:
                    sink.write(tables[case], 0)
                took = timed(jvm, lambda sink=sink: sink.write(batch, 1))  # type: ignore[misc]
                sink.close()
                shutil.rmtree(place)
            if turn:  # the first run is a warm-up for Java's compiler
                found[case].append(took)
    clock, cpu = (statistics.median(t[i] for t in found["plain"]) for i in (0, 1))
    print(f"{number:,} rows in a batch; medians of {rounds}")
    print(f"  {'plain, twice':14} {clock:7.2f} s {cpu:7.2f} s of processor time")
    for case in CASES:
        own, own_cpu = (statistics.median(t[i] for t in found[case]) for i in (0, 1))
        ratios = f"ratio {clock / own:.2f}, of processor time {cpu / own_cpu:.2f}"
        print(f"  {case:14} {own:7.2f} s {own_cpu:7.2f} s   {ratios}")
        what = f"upsert of {number:,} rows, {case}, against plain Spark writing them twice"
        figure("upsert.py", what, clock / own, at_least=0.8)
    print(f"  peak: Python {before} MB before, {peak('self')} MB after; JVM {peak(jvm)} MB")


def measure_small(spark: SparkSession, root: Path) -> None:
    ways = {"driver": (1 << 62, 1 << 62), "staged": (-1, 1 << 62), "spark": (-1, -1)}
    frames = [rows(spark, root / f"small-{turn}", turn * SMALL // 2, SMALL, 1) for turn in range(TURNS)]
    sinks = {way: opened(root / way, frames[0]) for way in ways}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn, frame in enumerate(frames):
        for way, (planned, few) in ways.items():
            writing.PLANNED, writing.FEW_ROWS = planned, few  # type: ignore[misc]
            start = time.monotonic()
            sinks[way].write(frame, turn)
            found[way].append(time.monotonic() - start)
    print(f"{SMALL:,} rows in a batch, half of them there; medians of {TURNS}, without the first five")
    for way, took in found.items():
        files = len(list((root / way / "t").rglob("*.parquet")))
        print(f"  {way:8} {statistics.median(took[5:]) * 1000:7.0f} ms, {files} files written")


def main() -> None:
    parser = argparse.ArgumentParser(description="Upserts of a large batch into a Delta table.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default="1g", help="of the driver's JVM")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    number, rounds = (100_000, 1) if given.quick else (given.rows, given.rounds)
    if not given.inside:
        sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:], "--inside"], check=False).returncode)
    root = Path(tempfile.mkdtemp(prefix="upsert-"))
    spark = spark_session("upsert", "local[2]", extra={"spark.driver.memory": given.heap})
    try:
        if given.small:
            measure_small(spark, root)
        else:
            measure(spark, root, number, rounds)
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
