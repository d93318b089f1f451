"""What a savepoint and its restore cost: against the size of the state, a plain copy, and a job that takes none.

    python bench/savepoint.py                   10,000, 1 million and 5 million keys, three rounds each
    python bench/savepoint.py --quick           5,000 and 20,000 keys, one round, short windows

Times: one stage counts rows per key in RocksDB. In each round a savepoint is taken, its files are copied and synced by
a plain copy, the job is stopped and restored from the savepoint in place; so all three use the same disk under the same
load. `restore` is the time from the complete plan to the start of the first stage. What every start does comes before
that.

Throughput: the same stage reads files that never end. Windows without savepoints and windows in which one savepoint
follows the other take turns; the ratio is of rows per second, with against without.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from pyspark.sql import SparkSession

from bench._keys import Counting, consumed, plain_copy, steps
from strobe.hosts.spark.job.job import Job
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
from strobe.hosts.spark.restore.plan import RestoreOptions


def times(root: Path, spark: SparkSession, keys: int, rounds: int) -> None:
    counting = Counting(root / f"{keys}", spark)
    job = counting.started_with(keys)
    saves, copies, restores, size = [], [], [], 0
    for number in range(rounds):
        place = root / f"savepoint-{keys}-{number}"
        job.checkpoint()  # a job that has just started takes longer for its first snapshot, of either kind
        began = time.monotonic()
        job.savepoint(place)
        saves.append(time.monotonic() - began)
        began = time.monotonic()
        size = plain_copy(place, root / f"copy-{keys}-{number}")
        copies.append(time.monotonic() - began)
        job.stop()
        with steps() as said:
            job = counting.start(RestoreOptions(str(place)))
        restores.append(said.between("is laid out", "starts (1 of"))
        shutil.rmtree(root / f"copy-{keys}-{number}")
        shutil.rmtree(place)
    job.stop()
    save, copy, restore = (statistics.median(x) for x in (saves, copies, restores))
    print(
        f"{keys:>9,} keys  {size / 1e6:8.1f} MB  savepoint {save:6.2f} s {size / save / 1e6:7.1f} MB/s  "
        f"plain copy {copy:6.2f} s {size / copy / 1e6:7.1f} MB/s  restore {restore:6.2f} s "
        f"{size / restore / 1e6:7.1f} MB/s",
        flush=True,
    )
    shutil.rmtree(counting.root)


def throughput(root: Path, spark: SparkSession, keys: int, rows: int, rounds: int, seconds: float) -> None:
    counting = Counting(root / "throughput", spark)
    job = counting.started_with(keys)
    over = threading.Event()
    feeder = threading.Thread(target=_feed, args=(counting, job, keys, rows, over), name="feeder")
    feeder.start()
    try:
        _window(job, seconds, None)  # warm
        ratios = []
        for number in range(rounds):
            without, _ = _window(job, seconds, None)
            with_them, taken = _window(job, seconds, root / f"taken-{number}")
            ratios.append(with_them / without)
            print(f"without {without:9,.0f} rows/s   while {taken} are taken {with_them:9,.0f} rows/s", flush=True)
        print(f"with savepoints one after the other, {statistics.median(ratios):.2f} of the throughput without")
    finally:
        over.set()
        feeder.join()
        job.stop()
    shutil.rmtree(counting.root)


def _feed(counting: Counting, job: Job, keys: int, rows: int, over: threading.Event) -> None:
    """Keep the source ahead by some files. They are links to a few: writing them must not cost the job anything."""
    rng = np.random.default_rng(1)
    made = [counting.put(f"some-{i}", rng.integers(0, keys, rows, dtype=np.int64)) for i in range(8)]
    for number in itertools.count(len(made)):
        while keys + number * rows > (job.status().stages[0].rows_out or 0) + 20 * rows:
            if over.wait(0.02):
                return
        if over.is_set():
            return
        hidden = counting.data / f".{number}"
        os.link(made[number % len(made)], hidden)
        hidden.rename(counting.data / f"{number:08d}.parquet")


def _window(job: Job, seconds: float, savepoints: Path | None) -> tuple[float, int]:
    """Rows per second, and how many savepoints were taken."""
    began, before, taken = time.monotonic(), consumed(job), 0
    if savepoints is None:
        time.sleep(seconds)
    while time.monotonic() < began + seconds:
        assert savepoints is not None
        job.savepoint(savepoints / str(taken))
        taken += 1
    rate = (consumed(job) - before) / (time.monotonic() - began)
    if savepoints is not None:
        shutil.rmtree(savepoints)
    return rate, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 1_000_000, 5_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window of throughput")
    parser.add_argument("--rows", type=int, default=50_000, help="of a batch, for throughput")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-savepoint")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.keys, args.rounds, args.seconds, args.rows = [5_000, 20_000], 1, 4.0, 2_000
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    os.environ["JAVA_HOME"] = str(find_java())
    spark = spark_session("savepoint", "local[2]", log=args.dir / "spark.log")
    try:
        for keys in args.keys:
            times(args.dir, spark, keys, args.rounds)
        throughput(args.dir, spark, sorted(args.keys)[len(args.keys) // 2], args.rows, args.rounds, args.seconds)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
