"""What a query of a snapshot costs: `strobe sql` against Spark's reader, and the second query against the first.

    python bench/sql.py                 1 million keys: cold, warm, and after 1% of them have changed
    python bench/sql.py --keys 5000000  and the peak of memory, which is to stay within 2 GB
    python bench/sql.py --quick         50,000 keys

What an invariant costs a job is in `bench/ledger.py --sides strobe-invariant,strobe`.

One stage keeps a count and a text per key in RocksDB. The query is an aggregate over all keys. Strobe answers in a
process of its own, with an empty cache, which it fills after the answer; Spark's reader in a session that is warm, and
in one that must start. Then 1% of the keys change, and the next snapshot is queried, with the cache of the first.
"The question alone" is the query without the process's start and imports, and with filling the cache at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._keys import Counting
from bench._report import figure
from strobe.hosts.spark.checkpoint.layout import lay_out_stage
from strobe.hosts.spark.jvm.session import spark_session
from strobe.model.ids import NodeId
from strobe.store.locate import locate

ASK = """
import sys, time, resource
import strobe
strobe.open_snapshot
began = time.perf_counter()
cut = strobe.open_snapshot(sys.argv[1], sys.argv[2])
count = cut.sql("select count(*) as n from state.counts").to_pylist()[0]["n"]
answered = time.perf_counter()
cut.close()
ended = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(answered - began, ended - began, peak, count, cut.cache.decoded, time.process_time())
"""


@dataclass(frozen=True)
class Asked:
    """Seconds of the whole process, from its start to the answer, and of the question alone; seconds of processor time;
    peak in KB; rows, and how many of them were decoded."""

    whole: float
    answered: float
    alone: float
    processor: float
    peak: int
    rows: int
    decoded: int


def ask(snapshot: str, home: Path, cache: Path) -> Asked:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", ASK, snapshot, str(home)],
        env={**os.environ, "STROBE_CACHE": str(cache)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    whole = time.perf_counter() - began
    answered, alone, peak, count, decoded, processor = done.stdout.split()
    after = float(alone) - float(answered)
    return Asked(whole, whole - after, float(alone), float(processor), int(peak), int(count), int(decoded))


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def by_spark(spark: SparkSession, home: Path, snapshot: str) -> None:
    found = locate(snapshot, home)
    with tempfile.TemporaryDirectory() as scratch:
        lay_out_stage(found, found.load(), NodeId("counts"), Path(scratch))
        rows = spark.read.format("statestore").load(scratch)
        rows.selectExpr("count(*)", "sum(value.count)").collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-sql")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    keys = 50_000 if args.quick else args.keys
    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    began = time.perf_counter()
    spark = spark_session("strobe-bench-sql", "local[2]")
    start = time.perf_counter() - began
    counting = Counting(args.dir / "job", spark)
    job = counting.started_with(keys)
    home = args.dir / "job" / "home"
    try:
        cache = args.dir / "cache"
        one = ask(f"counting/{int(job.checkpoint())}", home, cache)
        changed = np.random.default_rng(1).choice(np.arange(keys, dtype=np.int64), keys // 100, replace=False)
        before = job.status().stages[1].batch
        counting.put("changed", changed)
        while (job.status().stages[1].batch or 0) <= (before or 0) or job.status().stages[1].lag_rows:
            if job.wait(0.1):
                raise SystemExit(f"the job ended: {job.error}")
        second = int(job.checkpoint())
        cold = min((ask(f"counting/{second}", home, args.dir / f"cold{n}") for n in range(2)), key=lambda a: a.whole)
        warm = min(timed(lambda: by_spark(spark, home, f"counting/{second}")) for _ in range(2))
        two = min((ask(f"counting/{second}", home, cache) for _ in range(2)), key=lambda a: a.alone)
    finally:
        job.stop()
        spark.stop()
    figures = {
        "strobe, cold, from the start of its process to the answer": cold.answered,
        "… to the end of the process, which keeps what was decoded": cold.whole,
        "… processor time": cold.processor,
        "Spark's reader in a warm session": warm,
        "Spark's reader in a session that must start": warm + start,
        "the question alone, first snapshot": one.alone,
        "the question alone, the next one after 1% has changed": two.alone,
    }
    print(f"{keys:,} keys, {cold.rows:,} counted")
    for what, seconds in figures.items():
        print(f"  {seconds:8.2f} s  {what}")
    print(f"  {two.decoded:8,}    of {two.rows:,} rows decoded for the second question")
    print()
    print(f"  {'figure':<52} {'found':>9}  target")
    for what, found, target in (
        ("cold, against Spark's reader in a warm session", f"{warm / cold.answered:.1f} ×", "at least 3 × (1 M keys)"),
        ("cold, against one that must start", f"{(warm + start) / cold.answered:.1f} ×", "at least 10 × (1 M keys)"),
        ("the same, to the end of its process", f"{(warm + start) / cold.whole:.1f} ×", ""),
        ("the next snapshot after 1%, of the first question", f"{two.alone / one.alone:.1%}", "at most 10%"),
        ("peak of memory", f"{max(cold.peak, one.peak, two.peak) / 1024:,.0f} MB", "at most 2,048 MB (5 M keys)"),
    ):
        print(f"  {what:<52} {found:>9}  {target}")
    figure("sql.py", "cold, against Spark's reader in a warm session", warm / cold.answered, at_least=3, unit=" ×")
    figure("sql.py", "cold, against one that must start", (warm + start) / cold.answered, at_least=10, unit=" ×")
    figure("sql.py", "the next snapshot after 1%, of the first question", two.alone / one.alone, at_most=0.1)
    peak = max(cold.peak, one.peak, two.peak) / 1024
    figure("sql.py", "peak of memory", peak, at_most=2048, unit=" MB")


if __name__ == "__main__":
    main()
