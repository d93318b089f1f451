"""Columns of a channel that change between two runs: rows on their way keep what they mean.

A source whose stage's function is another one in each version; behind it a stage with state, and one that hands on
what it gets. Both hang in their first batch, so that rows written by one version are read by the next.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.channel.columns import Renamed
from strobe.hosts.spark.channel.old_files import NUMBERS
from strobe.hosts.spark.job.rehearse import dry_run
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from strobe.store.locate import locate
from tests.support.spark.jobs import PATIENCE, Overtaking, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows
from tests.support.spark.restoring import BOUNDED, start

pytestmark = pytest.mark.spark

RAW = "id BIGINT, region STRING, amount INT, tag STRING"
FIRST = ("id", "region", "amount", "struct(tag, amount as n) as about", "tag as note")
SECOND = (
    "id",
    "region as area",
    "cast(amount as bigint) as amount",
    "struct(tag, cast(amount as bigint) as n, id as more) as about",
    "'EUR' as currency",
)
RENAMED: Renamed = {"region": "area", "note": None}
REGIONS = ("n", "e", "s", "w")


class Seen:
    """What stage `rows` has handed on. `closed`: batches hang; `broken`: they fail."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.held: set[str] = set()
        self.broken = False
        self.rows: list[dict[str, Any]] = []

    def sink(self, uid: str) -> strobe.ForeachBatchSink:
        def take(batch: DataFrame, batch_id: int) -> None:
            got = [row.asDict(recursive=True) for row in batch.collect()]
            if got and self.broken:
                raise ValueError("not yet")
            while got and self.closed.is_set():
                self.held.add(uid)
                threading.Event().wait(0.02)
            if uid == "rows":
                self.rows += got

        return strobe.ForeachBatchSink(take)


def write(data: Path, files: range) -> Path:
    data.mkdir(exist_ok=True)
    for n in files:
        rows = [{"id": 10 * n + i, "region": REGIONS[i % 4], "amount": 100 * n + i, "tag": f"t{i}"} for i in range(10)]
        tmp = data / f".{n}"
        tmp.write_text("\n".join(map(json.dumps, rows)))
        os.utime(tmp, (1_700_000_000 + n, 1_700_000_000 + n))  # Spark reads them in this order
        tmp.rename(data / f"{n:03d}.json")
    return data


def pipeline(
    data: Path, seen: Seen, columns: tuple[str, ...], key: str, *, bounded: bool = True, renamed: Renamed | None = None
) -> strobe.Pipeline:
    config = Overtaking(interval=None, retained=10, mode="unaligned")
    found = strobe.Pipeline("changing", checkpoint=config, restart=strobe.RestartPolicy(attempts=0))

    @found.stage(uid="events", trigger=BOUNDED if bounded else None, renamed=renamed)
    def events(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.schema(RAW).option("maxFilesPerTrigger", 1).json(str(data))
        return lines.selectExpr(*columns)

    @found.stage(uid="rows", reads="events", to=seen.sink("rows"), max_rows_per_batch=1)
    def rows(events: DataFrame) -> DataFrame:
        return events

    @found.stage(
        uid="totals", reads="events", output_mode="update", max_rows_per_batch=1,
        to=[seen.sink("totals"), strobe.DeltaSink("totals", key="key")],
    )  # fmt: skip
    def totals(events: DataFrame) -> DataFrame:
        return events.groupBy(F.col(key).alias("key")).agg(F.sum("amount").alias("total"), F.count("*").alias("n"))

    return found


def totals_of(root: Path) -> list[tuple[Any, ...]]:
    return delta_rows(root / "totals", "select key, total::BIGINT, n::BIGINT from t order by 1")


def expected_totals(files: int) -> list[tuple[str, int, int]]:
    sums = {r: [100 * n + i for n in range(files) for i in range(10) if REGIONS[i % 4] == r] for r in REGIONS}
    return sorted((r, sum(amounts), len(amounts)) for r, amounts in sums.items())


def expected_row(number: int, *, old: bool) -> dict[str, Any]:
    n, i = divmod(number, 10)
    return {
        "id": number, "area": REGIONS[i % 4], "amount": 100 * n + i, "currency": None if old else "EUR",
        "about": {"tag": f"t{i}", "n": 100 * n + i, "more": None if old else number},
    }  # fmt: skip


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda r: int(r["id"]))


def test_rows_in_flight_are_read_with_the_columns_of_the_new_file(spark: SparkSession, tmp_path: Path) -> None:
    data, seen = write(tmp_path / "in", range(3)), Seen()
    seen.broken = True
    job = start(pipeline(data, seen, FIRST, "region"), tmp_path, spark)
    eventually(lambda: job.state.over, "the stages behind fail")
    job.wait()
    written = 10 * len(list((tmp_path / "home/jobs/changing/channels/events/data").glob("*/*-*")))
    assert written >= 10
    seen.broken = False
    write(data, range(3, 5))

    def refused(columns: tuple[str, ...], key: str, renamed: Renamed | None, *words: str) -> None:
        with pytest.raises(Misuse) as error:
            start(pipeline(data, seen, columns, key, renamed=renamed), tmp_path, spark)
        assert all(word in str(error.value) for word in words), str(error.value)

    refused(SECOND, "area", None, "'region'", "renamed=")
    refused(("id", "region", "cast(amount as smallint) as amount"), "region", None, "'amount' was int")
    refused(SECOND, "region", RENAMED, "'totals'", "region")  # a column that is gone and that a stage uses
    refused(SECOND, "currency", RENAMED, "totals", "grouped by region, and now groups by currency")
    refused(("id", "region", "tag as amount"), "region", None, "'amount' was int, and is string now")
    assert not (tmp_path / "home/jobs/changing/channels/events" / NUMBERS).exists()

    finish(start(pipeline(data, seen, SECOND, "area", renamed=RENAMED), tmp_path, spark))
    assert by_id(seen.rows) == [expected_row(n, old=n < written) for n in range(50)]
    assert totals_of(tmp_path) == expected_totals(5)
    # The file stays as it is, and then the column that was dropped comes back: old rows do not have it.
    seen.rows.clear()
    write(data, range(5, 6))
    finish(start(pipeline(data, seen, (*SECOND, "tag as note"), "area", renamed=RENAMED), tmp_path, spark))
    assert [r["note"] for r in by_id(seen.rows)] == [f"t{i}" for i in range(10)]
    assert totals_of(tmp_path) == expected_totals(6)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint in place", "fork of a checkpoint"])
def test_a_snapshot_is_restored_into_other_columns_and_back(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    data, seen = write(tmp_path / "in", range(4)), Seen()
    seen.closed.set()
    job = start(pipeline(data, seen, FIRST, "region", bounded=False), tmp_path, spark)
    eventually(lambda: stage(job, "events").batch >= 3 and seen.held == {"rows", "totals"}, "both hang", job)
    snapshot = _taken(job, seen, "checkpoint" if "checkpoint" in kind else str(tmp_path / "savepoint"))
    assert locate(snapshot, tmp_path / "home").load().rows_in_flight >= 40
    eventually(lambda: len(seen.rows) == 40 and stage(job, "totals").batch >= 3, "all is read", job)
    job.stop()
    fork = "fork" in kind
    home, base = ("fork", "fork") if fork else ("home", "")
    origin = (str(tmp_path),) if fork else ()
    if not fork:  # there is a branch with other columns that is left
        write(data, range(4, 5))
        finish(start(pipeline(data, seen, SECOND, "area", renamed=RENAMED), tmp_path, spark))
    write(data, range(4, 6))
    if kind == "fork of a checkpoint":
        snapshot = str(locate(snapshot, tmp_path / "home").where)
    seen.rows.clear()
    second = pipeline(data, seen, SECOND, "area", renamed=RENAMED)
    options = RestoreOptions(snapshot)
    (channel,) = dry_run(second, restore=options, home=str(tmp_path / home), base=tmp_path / base, spark=spark).channels
    assert any("'region' is called 'area' now" in change for change in channel.changes)
    assert any("'currency'" in change and "null" in change for change in channel.changes)
    finish(start(second, tmp_path, spark, home=home, base=base, snapshot=snapshot, sinks_from=origin))
    got = by_id(seen.rows)
    read_before = 40 - len([r for r in got if r["currency"] is None])
    assert read_before <= 10
    assert got == [expected_row(n, old=n < 40) for n in range(read_before, 60)]
    assert totals_of(tmp_path / base) == expected_totals(6)
    # And with the file as it was first, on another line of history.
    seen.rows.clear()
    if fork:
        home = base = "again"
    first = pipeline(data, seen, FIRST, "region")
    finish(start(first, tmp_path, spark, home=home, base=base, snapshot=snapshot, sinks_from=origin))
    assert [r["note"] for r in by_id(seen.rows)] == [f"t{n % 10}" for n in range(read_before, 60)]
    assert totals_of(tmp_path / base) == expected_totals(6)


def _taken(job: strobe.Job, seen: Seen, where: str) -> str:
    """A snapshot that falls behind the first batch of both stages."""
    take: Callable[[], str] = (lambda: f"changing/{job.checkpoint()}") if where == "checkpoint" else (
        lambda: str(job.savepoint(where))
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        eventually(lambda: bool(job.status().checkpoints), "the snapshot is under way", job)
        seen.closed.clear()
        return taking.result(PATIENCE)
