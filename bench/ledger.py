"""The ledger as two stages under Strobe against the same two queries chained by hand in plain Spark.

    python bench/ledger.py                      10 million transfers, 100,000 accounts, three rounds
    python bench/ledger.py --quick              a small one, to see that it works
    python bench/ledger.py --sides strobe-invariant,strobe --rounds 5
                                                with an invariant checked on each checkpoint (target: at least 0.95)

Both sides run alternately, each in a fresh process, on the same files: two files a batch, RocksDB state, local[2], two
shuffle partitions. Ratios are of transfers per second, and of processor time for all of them with the start of Spark,
which is more reliable on a shared machine: above 1, the first side is better. Every run's balances are checked
against DuckDB's. A side is a process of its own, so that none profits from a JVM that another has warmed up.
`strobe-chained` computes the first stage in the query of the second, without a channel. `plain` has Spark's default
checkpoint files, `plain-tuned` the same file manager as Strobe.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._chain import Metered
from bench._report import figure
from bench._sides import run_side

ACCOUNTS = 100_000
DDL = "id BIGINT, src INT, dst INT, amount BIGINT, ts TIMESTAMP"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SIDES = ("strobe", "strobe-chained", "strobe-no-checkpoints", "plain", "plain-tuned")
INVARIANT = "strobe-invariant"  # a checkpoint every second, and the invariant on each
TARGETS = (  # one side, another, and the least ratio of their transfers a second
    (INVARIANT, "strobe", 0.95),
    ("strobe-chained", "plain-tuned", 1.3),
    ("strobe", "plain-tuned", 1.05),
)
NO_MONEY_IS_MADE = """
    select sum(x) as total
    from (select balance as x from state.balances union all select delta from in_flight.postings) having total <> 0
"""


def write_data(directory: Path, files: int, rows: int, seed: int = 1) -> None:
    """`files` Parquet files of `rows` transfers (id, src, dst, amount, ts). Kept if they are already there."""
    done = directory / f"{files}x{rows}-{seed}"
    if done.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    rng = np.random.default_rng(seed)
    for index in range(files):
        src = rng.integers(0, ACCOUNTS, rows, dtype=np.int32)
        table = pa.table(
            {
                "id": np.arange(index * rows, (index + 1) * rows, dtype=np.int64),
                "src": src,
                "dst": (src + rng.integers(1, ACCOUNTS, rows, dtype=np.int32)) % np.int32(ACCOUNTS),
                "amount": rng.integers(1, 1000, rows, dtype=np.int64),
                "ts": pa.array(
                    1_700_000_000_000_000 + np.arange(rows, dtype=np.int64) * 10 + index * rows * 10,
                    pa.timestamp("us", tz="UTC"),
                ),
            }
        )
        pq.write_table(table, directory / f"{index:05d}.parquet")
    done.touch()


def check(data: Path, balances: Path, *, delta: bool) -> None:
    """The sum over all balances is 0, and each balance is DuckDB's."""
    source = f"read_parquet('{data}/*.parquet')"
    with duckdb.connect() as db:
        db.execute(
            f"""create table expected as select account, sum(d)::BIGINT as balance from (
            select src as account, -amount as d from {source} union all select dst, amount from {source}) group by 1"""
        )
        if delta:
            from deltalake import DeltaTable

            db.register("written", DeltaTable(str(balances)).to_pyarrow_table())
            rows = "written"
        else:
            rows = f"read_parquet('{balances}/*/*.parquet')"
        # Every update of an account is a row; the one with the most postings is the last.
        db.execute(
            f"create table actual as select account, arg_max(balance, n)::BIGINT as balance from {rows} group by 1"
        )
        difference = db.execute("select count(*) from (from expected except from actual)").fetchone()
        total = db.execute("select sum(balance) from actual").fetchone()
    assert difference == (0,), f"{difference} balances differ from DuckDB's"
    assert total == (0,), f"the balances add up to {total}"


def postings(transfers: Any) -> Any:
    from pyspark.sql import functions as F

    both = F.array(
        F.struct(F.col("src").alias("account"), (-F.col("amount")).alias("delta")),
        F.struct(F.col("dst").alias("account"), F.col("amount").alias("delta")),
    )
    return transfers.select("id", F.explode(both).alias("p")).select("id", "p.account", "p.delta")


def balances(postings: Any) -> Any:
    from pyspark.sql import functions as F

    return postings.groupBy("account").agg(F.sum("delta").alias("balance"), F.count("*").alias("n"))


def transfers(spark: Any, data: Path) -> Any:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 2).parquet(f"{data}/*.parquet")


def run_strobe(
    data: Path, work: Path, interval: float | None, *, asked: bool = False, chain: bool = False
) -> dict[str, Any]:
    import strobe
    from strobe.hosts.spark.job.job import start_job

    config = strobe.CheckpointConfig(interval=interval, retained=1)
    pipeline = strobe.Pipeline("bench", checkpoint=config, partitions=2, chain=chain)
    pipeline.stage(uid="postings", trigger={"availableNow": True})(lambda spark: postings(transfers(spark, data)))
    pipeline.stage(uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink(str(work / "balances")))(
        balances
    )
    if asked:
        pipeline.invariant("no money is made", sql=NO_MONEY_IS_MADE)
    began, metered = time.time(), Metered()
    job = start_job(pipeline, home=str(work / "home"), master="local[2]")
    started = time.time()
    job.wait()
    assert job.state is strobe.JobState.FINISHED, job.error
    status, processor = job.status(), metered.seconds()
    ends = ("balances" if chain else "postings", "balances")
    assert list(job.runners) == list(dict.fromkeys(ends))
    first, last = (job.home.path(job.home.layout.stage_checkpoint(uid, 1)) for uid in ends)  # type: ignore[arg-type]
    check(data, work / "balances", delta=True)
    complete = [c for c in status.checkpoints if c.status == "complete"]
    return {
        **_times(began, started, last, first),
        "processor": processor,
        "checkpoints": len(complete),
        "sync_ms": max((c.sync_ms for c in complete), default=0.0),
        "batches": status.stages[1].batch + 1,
        **(_asked(work / "home") if asked else {}),
    }


def _asked(home: Path) -> dict[str, Any]:
    from strobe.store.verdicts import read_verdicts

    verdicts = read_verdicts(home, "bench")
    wrong = [verdict.sentence for verdict in verdicts if verdict.outcome.value not in ("holds", "skipped")]
    assert verdicts, "no verdict"
    assert not wrong, wrong[0]
    return {"verdicts": len(verdicts), "asking_s": sum(verdict.seconds for verdict in verdicts)}


def run_plain(data: Path, work: Path, tuned: bool) -> dict[str, Any]:
    """The same two queries, chained by hand with a directory of Parquet files between them."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    if tuned:
        from strobe.hosts.spark.jvm.session import FILE_MANAGER

        settings["spark.sql.streaming.checkpointFileManagerClass"] = FILE_MANAGER
    builder = SparkSession.builder.master("local[2]").appName("plain")
    for key, value in settings.items():
        builder = builder.config(key, value)
    began, metered = time.time(), Metered()
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    channel = work / "channel"
    first = (
        postings(transfers(spark, data)).writeStream.format("parquet").option("path", str(channel))
        .option("checkpointLocation", str(work / "c1")).trigger(availableNow=True).start()
    )  # fmt: skip
    rows = spark.readStream.schema("id BIGINT, account INT, delta BIGINT").parquet(str(channel))

    def write(batch: Any, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(work / "balances" / str(batch_id)))

    second = (
        balances(rows).writeStream.outputMode("update").foreachBatch(write)
        .option("checkpointLocation", str(work / "c2")).start()
    )  # fmt: skip
    started = time.time()
    first.awaitTermination()
    second.processAllAvailable()
    second.stop()
    processor = metered.seconds()
    spark.stop()
    check(data, work / "balances", delta=False)
    times = _times(began, started, work / "c2", work / "c1")
    return {**times, "processor": processor, "batches": len(_commits(work / "c2"))}


def _commits(checkpoint: Path) -> list[Path]:
    return sorted((p for p in (checkpoint / "commits").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def _times(began: float, started: float, last: Path, first: Path) -> dict[str, float]:
    """`seconds`: from the start of the first query to the last batch, by the times of Spark's own files, so that both
    sides are measured alike. `steady`: from the first query's first commit on. `session`: until all queries run."""
    end = _commits(last)[-1].stat().st_mtime
    warm = _commits(first)[0].stat().st_mtime
    start = (first / "metadata").stat().st_mtime
    return {"session": started - began, "seconds": end - start, "steady": end - warm}


def print_side(side: str, data: Path, work: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if side.startswith("strobe"):
        interval = None if side.endswith("no-checkpoints") else 1.0
        result = run_strobe(data, work, interval, asked=side == INVARIANT, chain=side == "strobe-chained")
    else:
        result = run_plain(data, work, side == "plain-tuned")
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "strobe-bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=(*SIDES, INVARIANT), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print_side(args.side, args.data, args.work)
        return
    if args.quick:
        args.files, args.rows, args.rounds, args.sides = 4, 20_000, 1, "strobe-chained,strobe,plain"
    sides = args.sides.split(",")
    data = args.dir / "data"
    write_data(data, args.files, args.rows)
    total = args.files * args.rows
    rates: dict[str, list[float]] = {side: [] for side in sides}
    costs: dict[str, list[float]] = {side: [] for side in sides}
    for round_ in range(args.rounds):
        for side in sides if round_ % 2 == 0 else reversed(sides):
            result = run_side(__file__, side, args.dir / "work", "--data", data)
            rates[side].append(total / result["seconds"])
            costs[side].append(result["processor"])
            more = ", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items())
            print(f"round {round_ + 1}  {side:<22} {rates[side][-1]:>10,.0f} transfers/s   ({more})", flush=True)
    print()
    base, cost = statistics.median(rates[sides[0]]), statistics.median(costs[sides[0]])
    for side in sides[1:]:
        other, spent = statistics.median(rates[side]), statistics.median(costs[side])
        print(f"{sides[0]} / {side}: {base / other:.2f}   (medians {base:,.0f} and {other:,.0f} transfers/s)")
        print(f"  processor time, likewise: {spent / cost:.2f}   (medians {cost:.1f} and {spent:.1f} s)")
    for one, against, least in TARGETS:
        if one in rates and against in rates:
            found = statistics.median(rates[one]) / statistics.median(rates[against])
            figure("ledger.py", f"{one} / {against}, transfers a second", found, at_least=least)


if __name__ == "__main__":
    main()
