"""How long it takes to go from 2 partitions of state to 8 and back, against the size of the state.

    python bench/rescale.py                     10,000, 1 million and 5 million keys, three rounds each
    python bench/rescale.py --quick             5,000 and 20,000 keys, one round

One stage counts rows per key in RocksDB. The job is stopped and started again with another number of partitions. The
time for rewriting the state, from the job's own log, is shown beside that of a plain start of the same job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import SparkSession

from bench._keys import NOTHING, Counting, steps
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
from strobe.hosts.spark.restore.plan import RestoreOptions


def start_and_stop(counting: Counting, options: RestoreOptions) -> tuple[float, float]:
    """Seconds of the whole start, and of rewriting the state in it."""
    with steps() as said:
        began = time.monotonic()
        job = counting.start(options)
        whole = time.monotonic() - began
    rewritten = said.between("is repartitioned", "starts (1 of") if options.partitions else 0.0
    job.stop()
    return whole, rewritten


def rescale(root: Path, spark: SparkSession, keys: int, rounds: int) -> None:
    counting = Counting(root / f"{keys}", spark)
    counting.started_with(keys).stop()
    plain, up, down = [], [], []
    for _ in range(rounds):
        plain.append(start_and_stop(counting, NOTHING)[0])
        up.append(start_and_stop(counting, RestoreOptions(partitions=8))[1])
        down.append(start_and_stop(counting, RestoreOptions(partitions=2))[1])
    shutil.rmtree(counting.root)
    start, eight, two = (statistics.median(x) for x in (plain, up, down))
    print(
        f"{keys:>9,} keys  2→8 {eight:6.2f} s {keys / eight:11,.0f} keys/s   8→2 {two:6.2f} s "
        f"{keys / two:11,.0f} keys/s   a start without rescaling {start:5.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 1_000_000, 5_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-rescale")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.keys, args.rounds = [5_000, 20_000], 1
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    os.environ["JAVA_HOME"] = str(find_java())
    spark = spark_session("rescale", "local[2]", log=args.dir / "spark.log")
    try:
        for keys in args.keys:
            rescale(args.dir, spark, keys, args.rounds)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
