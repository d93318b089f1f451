"""A diamond of five stages, the demo's graph, under Strobe against the same queries chained by hand in plain Spark.

    python bench/diamond.py                     2 million transfers, three rounds
    python bench/diamond.py --join-format 4     both sides with Spark's newest layout of a join's state
    python bench/diamond.py --quick             a small one, to see that it works

transfers → postings → balances, and transfers → suspects → flagged, which joins back to transfers. By hand each query
writes a directory of Parquet files that the next ones read, with the same checkpoint file manager as Strobe has, and
there are no checkpoints of the whole graph; Strobe takes one every second. Both sides run alternately, each in a fresh
process, on the same files: two files a batch, RocksDB state, local[2], two shuffle partitions. Ratios are of transfers
per second and of processor time with the start of Spark: above 1, Strobe is better. Every run's tables are checked.

Most of the time goes into the join, which looks up the rows of an account one by one. That is Spark's work on both
sides, and its share grows with the number of transfers. The layout 4 of its state, which Spark has and does not use by
itself, reads them in one go.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._chain import Metered
from bench._report import figure
from bench._sides import run_side
from bench.ledger import ROCKSDB
from strobe.hosts.spark.job.demo import DDL, compare, demo_pipeline, write_transfers

ACCOUNTS = 1_000
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
SIDES = ("strobe", "plain-tuned")
STAGES = {
    "transfers": (), "postings": ("transfers",), "balances": ("postings",), "suspects": ("transfers",),
    "flagged": ("suspects", "transfers"),
}  # fmt: skip


def source(spark: Any, root: Path) -> Any:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 2).parquet(str(root / "in"))


def run_strobe(root: Path, work: Path, join_format: str) -> dict[str, Any]:
    import strobe
    from strobe.hosts.spark.job.job import start_job
    from strobe.model.ids import NodeId

    demo = demo_pipeline(root / "in", interval=1.0)
    conf = {JOIN_FORMAT: join_format}
    pipeline = strobe.Pipeline("demo", checkpoint=demo.checkpoint, partitions=2, conf=conf)
    for uid, spec in demo.stages.items():
        options: dict[str, Any] = {"reads": spec.reads, "output_mode": spec.output_mode, "to": spec.sinks}
        if uid == "transfers":
            pipeline.stage(uid, trigger=spec.trigger)(lambda spark: source(spark, root))
        else:
            pipeline.stage(uid, **options)(spec.function)
    began, metered = time.time(), Metered()
    job = start_job(pipeline, home=str(work / "home"), base=work, master="local[2]")
    started = time.time()
    job.wait()
    assert job.state is strobe.JobState.FINISHED, job.error
    processor = metered.seconds()
    (work / "in").symlink_to(root / "in")
    wrong = [each for each in compare(work) if each.lost or each.duplicated]
    assert not wrong, wrong
    places = [job.home.path(job.home.layout.stage_checkpoint(NodeId(uid), 1)) for uid in job.runners]  # type: ignore[arg-type]
    return {**times(began, started, places), "processor": processor, "checkpoints": job.status().completed}


def run_plain(root: Path, work: Path, join_format: str) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    from strobe.hosts.spark.jvm.session import FILE_MANAGER

    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        "spark.sql.shuffle.partitions": "2",
        JOIN_FORMAT: join_format,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    functions: dict[str, Any] = {str(u): s.function for u, s in demo_pipeline(root / "in").stages.items()}
    builder = SparkSession.builder.master("local[2]").appName("plain")
    for key, value in settings.items():
        builder = builder.config(key, value)
    began, metered = time.time(), Metered()
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for uid, reads in STAGES.items():
        inputs = {read: spark.readStream.schema(schemas[read]).parquet(str(work / read)) for read in reads}
        result = functions[uid](**inputs) if reads else source(spark, root)
        schemas[uid] = result.schema
        writer = result.writeStream.option("checkpointLocation", str(work / "checkpoints" / uid))
        if uid == "balances":
            writer = writer.outputMode("update").foreachBatch(
                lambda batch, n: batch.write.mode("overwrite").parquet(str(work / "balances" / str(n)))
            )
        else:
            writer = writer.format("parquet").option("path", str(work / uid))
        queries[uid] = (writer if reads else writer.trigger(availableNow=True)).start()
    started = time.time()
    queries["transfers"].awaitTermination()
    for uid, reads in STAGES.items():
        if reads:
            queries[uid].processAllAvailable()
    for query in queries.values():
        query.stop()
    processor = metered.seconds()
    spark.stop()
    check_plain(root, work)
    return {**times(began, started, (work / "checkpoints" / uid for uid in STAGES)), "processor": processor}


def check_plain(root: Path, work: Path) -> None:
    with duckdb.connect() as db:
        (rows,) = db.execute(f"select count(*) from '{root}/in/*.parquet'").fetchone() or (0,)
        posted = db.execute(f"select count(*), sum(delta)::BIGINT from '{work}/postings/*.parquet'").fetchone()
        total = db.execute(
            f"""select sum(balance)::BIGINT from (select arg_max(balance, postings) as balance
            from '{work}/balances/*/*.parquet' group by account)"""
        ).fetchone()
    assert posted == (2 * rows, 0), posted
    assert total == (0,), total


def times(began: float, started: float, checkpoints: Iterable[Path]) -> dict[str, float]:
    """`seconds`: from the start of the first query to the last batch of any, by the times of Spark's own files."""
    places = list(checkpoints)
    end = max(path.stat().st_mtime for place in places for path in (place / "commits").iterdir())
    return {"session": started - began, "seconds": end - (places[0] / "metadata").stat().st_mtime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-diamond")
    parser.add_argument("--join-format", choices=("2", "3", "4"), default="2", help="Spark's default is 2")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        run = run_strobe if args.side == "strobe" else run_plain
        print(json.dumps(run(args.dir, args.work, args.join_format)))
        return
    if args.quick:
        args.files, args.rows, args.rounds = 4, 5_000, 1
    subprocess.run(["rm", "-rf", str(args.dir)], check=True)
    total = write_transfers(args.dir / "in", files=args.files, rows=args.rows, accounts=ACCOUNTS, seed=1)
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    costs: dict[str, list[float]] = {side: [] for side in SIDES}
    for round_ in range(args.rounds):
        for side in SIDES if round_ % 2 == 0 else reversed(SIDES):
            result = run_side(__file__, side, args.dir / "work", "--dir", args.dir, "--join-format", args.join_format)
            rates[side].append(total / result["seconds"])
            costs[side].append(result["processor"])
            more = ", ".join(f"{k} {v:.1f}" for k, v in result.items())
            print(f"round {round_ + 1}  {side:<12} {rates[side][-1]:>10,.0f} transfers/s   ({more})", flush=True)
    (ours, plain), (cost, spent) = ([statistics.median(of[s]) for s in SIDES] for of in (rates, costs))
    figure("diamond.py", "a diamond of five stages, against queries chained by hand", ours / plain, at_least=1.2)
    print(f"\nstrobe / plain-tuned: {ours / plain:.2f}   (medians {ours:,.0f} and {plain:,.0f} transfers/s)")
    print(f"  processor time, likewise: {spent / cost:.2f}   (medians {cost:.1f} and {spent:.1f} s)")


if __name__ == "__main__":
    main()
