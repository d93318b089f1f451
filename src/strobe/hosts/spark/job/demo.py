"""The demonstration: a ledger that is killed in the middle of a checkpoint, resumes, and is checked by somebody else.

Everything is real: Parquet files as source, five streaming queries, Delta tables between and behind them, SIGKILL. The
final tables are compared, row by row, with what DuckDB computes from the same files in one go.
"""

# ruff: noqa: S608  (the queries are made of this module's own words)
from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.pipeline.config import CheckpointConfig
from strobe.hosts.spark.pipeline.pipeline import Pipeline

__all__ = ["INVARIANT", "QUERY", "Comparison", "compare", "demo_pipeline", "write_transfers"]

DDL = "id BIGINT, src INT, dst INT, amount BIGINT, ts TIMESTAMP"
WINDOW_SECONDS = 10
LIMIT = 2500
INVARIANT = "no money is made"
# Whatever was transferred has left one account and arrived at another: in the state, or on its way there.
_TOTAL = """
    select sum(x) as total
    from (select balance as x from state.balances union all select delta from in_flight.postings)
    having total <> 0"""
QUERY = "select count(*) as accounts, max(balance) as richest, sum(balance) as total from state.balances"


def write_transfers(directory: Path, *, files: int, rows: int, accounts: int, seed: int) -> int:
    """Seeded transfers; event time moves on by one window per file. Returns how many."""
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    start = 1_700_000_000
    for index in range(files):
        first = index * rows
        base = (start + index * WINDOW_SECONDS) * 1_000_000
        src = [rng.randrange(accounts) for _ in range(rows)]
        table = pa.table(
            {
                "id": pa.array(range(first, first + rows), pa.int64()),
                "src": pa.array(src, pa.int32()),
                "dst": pa.array([(s + 1 + rng.randrange(accounts - 1)) % accounts for s in src], pa.int32()),
                "amount": pa.array([rng.randrange(1, 101) for _ in range(rows)], pa.int64()),
                "ts": pa.array(
                    [base + rng.randrange(WINDOW_SECONDS * 1_000_000) for _ in range(rows)],
                    pa.timestamp("us", tz="UTC"),
                ),
            }
        )
        hidden = directory / f".{index:05d}"
        pq.write_table(table, hidden)
        hidden.rename(directory / f"{index:05d}.parquet")
    return files * rows


def demo_pipeline(data: Path, *, interval: float = 1.0) -> Pipeline:
    """transfers → postings → balances, plus suspects → flagged, which joins back to transfers."""
    pipeline = Pipeline("demo", checkpoint=CheckpointConfig(interval=interval, retained=3), partitions=2)

    @pipeline.stage(uid="transfers", trigger={"availableNow": True})
    def transfers(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(data))

    @pipeline.stage(uid="postings", reads="transfers", to=DeltaSink("out/postings"))
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        return debit.union(transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta")))

    @pipeline.stage(uid="balances", reads="postings", output_mode="update", to=DeltaSink("out/balances", key="account"))
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"), F.count("*").alias("postings"))

    @pipeline.stage(uid="suspects", reads="transfers")
    def suspects(transfers: DataFrame) -> DataFrame:
        spent = (
            transfers.withWatermark("ts", f"{WINDOW_SECONDS} seconds")
            .groupBy(F.window("ts", f"{WINDOW_SECONDS} seconds"), F.col("src"))
            .agg(F.sum("amount").alias("spent"))
        )
        found = spent.where(F.col("spent") > LIMIT)
        return found.select("src", "spent", F.col("window.start").alias("since"), F.col("window.end").alias("until"))

    @pipeline.stage(uid="flagged", reads=["suspects", "transfers"], to=DeltaSink("out/flagged"))
    def flagged(suspects: DataFrame, transfers: DataFrame) -> DataFrame:
        s = suspects.withWatermark("since", "1 hour").alias("s")
        t = transfers.withWatermark("ts", "1 hour").alias("t")
        same = F.expr("s.src = t.src AND t.ts >= s.since AND t.ts < s.until")
        return t.join(s, same).select("t.id", "t.src", "t.amount", "s.spent")

    pipeline.invariant(INVARIANT, sql=_TOTAL)
    return pipeline


@dataclass(frozen=True)
class Comparison:
    """A table against what it must be: rows that are missing from it, and rows that it has too often or wrongly."""

    table: str
    rows: int
    lost: int
    duplicated: int


def compare(root: Path) -> list[Comparison]:
    """Every final table against DuckDB's own computation over the source files."""
    source = f"read_parquet('{root}/in/*.parquet')"
    posting = (
        f"select id, src as account, -amount as delta from {source} union all select id, dst, amount from {source}"
    )
    # A window is closed, and its suspects known, once event time is a window past its end: the last two stay open.
    since = f"to_timestamp(floor(epoch(ts) / {WINDOW_SECONDS}) * {WINDOW_SECONDS})"
    spent = f"""
        select src, sum(amount)::BIGINT as spent, {since} as since
        from {source} group by 1, 3 having sum(amount) > {LIMIT}"""
    wanted = {
        "postings": posting,
        "balances": f"select account, sum(delta)::BIGINT as balance, count(*) as postings from ({posting}) group by 1",
        "flagged": f"""
            select t.id, t.src, t.amount, s.spent from {source} t join ({spent}) s on t.src = s.src
            and t.ts >= s.since and t.ts < s.since + interval {WINDOW_SECONDS} seconds
            where s.since + interval {2 * WINDOW_SECONDS} seconds <= (select max(ts) from {source})""",
    }
    return [_compare(root, table, query) for table, query in wanted.items()]


def _compare(root: Path, table: str, query: str) -> Comparison:
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        db.register("actual", DeltaTable(str(root / "out" / table)).to_pyarrow_table())
        db.execute(f"create table expected as {query}")
        columns = [row[0] for row in db.execute("describe expected").fetchall()]
        names = ", ".join(columns)
        lost = _count(db, f"select {names} from expected except all select {names} from actual")
        more = _count(db, f"select {names} from actual except all select {names} from expected")
        return Comparison(table, _count(db, "select * from actual"), lost, more)


def _count(db: Any, query: str) -> int:
    return int(db.execute(f"select count(*) from ({query})").fetchone()[0])
