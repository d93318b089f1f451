"""From SIGKILL to the first new committed batch, against plain Spark restarting the same queries.

    python bench/recovery.py                    three rounds, both sides alternately
    python bench/recovery.py --quick            one round

Each side runs a generated source, postings and balances (RocksDB state) until some batches are done, is killed with
SIGKILL, and starts again at once. The time is split into three: until the session is up (Python and JVM), until every
query is started (restore), until the last query has committed a new batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCHES = 5


def postings(rows: Any) -> Any:
    return rows.selectExpr("value % 1000 as account", "value as delta")


def balances(rows: Any) -> Any:
    return rows.groupBy("account").sum("delta").toDF("account", "balance")


def say(**facts: float) -> None:
    print(json.dumps(facts), flush=True)


def strobe_side(work: Path) -> None:
    import strobe
    from strobe.hosts.spark.job.job import start_job
    from strobe.hosts.spark.jvm.session import spark_session

    pipeline = strobe.Pipeline("recovery", checkpoint=strobe.CheckpointConfig(interval=1.0))
    pipeline.stage(uid="postings")(
        lambda spark: postings(spark.readStream.format("rate").option("rowsPerSecond", 1000).load())
    )
    pipeline.stage(uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink(str(work / "out")))(
        lambda postings: balances(postings)  # noqa: PLW0108  (the parameter's name is the stage that it reads)
    )
    spark = spark_session("recovery", "local[2]", log=work / "spark.log")
    say(session=time.time())
    job = start_job(pipeline, home=str(work / "home"), spark=spark)
    say(started=time.time())
    job.wait()


def plain_side(work: Path) -> None:
    from pyspark.sql import SparkSession

    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.stateStore.providerClass", rocksdb)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    say(session=time.time())
    rows = postings(spark.readStream.format("rate").option("rowsPerSecond", 1000).load())
    (work / "channel").mkdir(exist_ok=True)
    first = rows.writeStream.format("parquet").option("path", str(work / "channel"))
    first.option("checkpointLocation", str(work / "c1")).start()
    read = spark.readStream.schema("account BIGINT, delta BIGINT").parquet(str(work / "channel"))

    def write(batch: Any, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(work / "out" / str(batch_id)))

    second = balances(read).writeStream.outputMode("update").foreachBatch(write)
    query = second.option("checkpointLocation", str(work / "c2")).start()
    say(started=time.time())
    query.awaitTermination()


def commits(side: str, work: Path) -> int:
    path = work / ("home/jobs/recovery/stages/balances/t1/spark" if side == "strobe" else "c2") / "commits"
    return max((int(p.name) for p in path.iterdir() if p.name.isdigit()), default=-1) if path.is_dir() else -1


def life(side: str, work: Path, batches: int) -> dict[str, float]:
    """Start the side, let it commit this many new batches, kill it. The times from its start."""
    before = commits(side, work)
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, __file__, "--side", side, "--dir", str(work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert process.stdout is not None
    try:
        session = json.loads(process.stdout.readline())["session"]
        started = json.loads(process.stdout.readline())["started"]
        while commits(side, work) <= before:
            time.sleep(0.01)
        first = time.time()
        while commits(side, work) < before + batches:
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {"session": session - began, "restore": started - session, "first": first - started, "all": first - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench-recovery")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=["strobe", "plain"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        (strobe_side if args.side == "strobe" else plain_side)(args.dir)
        return
    sides = ("strobe", "plain")
    for side in sides:
        shutil.rmtree(args.dir / side, ignore_errors=True)
        (args.dir / side).mkdir(parents=True)
        life(side, args.dir / side, BATCHES)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(1 if args.quick else args.rounds):
        for side in sides:
            times = life(side, args.dir / side, BATCHES)
            found[side].append(times)
            split = f"session {times['session']:.1f}, restore {times['restore']:.1f}, first batch {times['first']:.1f}"
            print(f"{side:<7} {times['all']:5.1f} s from SIGKILL to the first new batch  ({split})", flush=True)
    medians = {side: statistics.median(t["all"] for t in found[side]) for side in sides}
    print(f"strobe / plain: {medians['strobe'] / medians['plain']:.2f}  (below 1 Strobe is back sooner)")


if __name__ == "__main__":
    main()
