"""The contract suite itself: sinks that keep the contract pass, and each way of breaking it is caught."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from strobe.hosts.spark.connectors.base import Part, Sink, SinkContext, TransactionalSink
from strobe.model.cut import Json
from strobe.model.errors import Fenced
from strobe.testing import SinkContract, check_contract

pytestmark = pytest.mark.spark


def put(target: Path, text: str) -> None:
    fresh = target.with_name("." + target.name)
    fresh.write_text(text)
    os.rename(fresh, target)


class Lines(TransactionalSink):
    """A directory with a file of JSON lines for each part."""

    def describe(self) -> str:
        return "lines"

    def open(self, context: SinkContext) -> None:
        self.out, self.staged = context.base / "out", context.staging
        for directory in (self.out, self.staged):
            directory.mkdir(parents=True, exist_ok=True)

    def text(self, batch: DataFrame) -> str:
        return "".join(json.dumps(row.asDict()) + "\n" for row in batch.collect())

    def write(self, batch: DataFrame, batch_id: int) -> None:
        put(self.staged / f"{batch_id:08d}", self.text(batch))

    def prepare(self, part: Part) -> Json:
        return None

    def content(self, part: Part) -> str:
        return "".join((self.staged / f"{b:08d}").read_text() for b in range(part.after + 1, part.through + 1))

    def target(self, part: Part) -> Path:
        return self.out / f"{part.timeline:04d}-{part.through:08d}"

    def commit(self, part: Part, prepared: Json) -> None:
        if not self.target(part).exists():
            put(self.target(part), self.content(part))
        for batch in range(part.after + 1, part.through + 1):
            (self.staged / f"{batch:08d}").unlink(missing_ok=True)

    def abort(self, part: Part, prepared: Json) -> None:
        pass


class Table(Sink):
    """A table in SQLite: each batch in one transaction with the mark that says so."""

    def describe(self) -> str:
        return "table"

    def open(self, context: SinkContext) -> None:
        self.context = context
        self.db = sqlite3.connect(context.base / "db", isolation_level=None)
        self.db.execute("CREATE TABLE IF NOT EXISTS t (k, v)")
        self.db.execute("CREATE TABLE IF NOT EXISTS marks (timeline, batch)")
        self.db.execute("CREATE TABLE IF NOT EXISTS drivers (incarnation)")
        self.db.execute("INSERT INTO drivers VALUES (?)", (context.incarnation,))

    def write(self, batch: DataFrame, batch_id: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        with self.transaction():
            self.fence()
            if not self.has(batch_id):
                self.db.executemany("INSERT INTO t VALUES (?, ?)", rows)
                self.mark(batch_id)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def fence(self) -> None:
        if self.db.execute("SELECT max(incarnation) FROM drivers").fetchone()[0] > self.context.incarnation:
            raise Fenced("a newer one is there")

    def has(self, batch_id: int) -> bool:
        marks = self.db.execute("SELECT * FROM marks WHERE timeline = ? AND batch = ?", self.key(batch_id))
        return marks.fetchone() is not None

    def mark(self, batch_id: int) -> None:
        self.db.execute("INSERT INTO marks VALUES (?, ?)", self.key(batch_id))

    def key(self, batch_id: int) -> tuple[int, int]:
        return self.context.timeline, batch_id

    def close(self) -> None:
        self.db.close()


class _Ours(SinkContract):
    session: SparkSession
    sink: type[Sink]

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        self.session = spark

    def spark(self) -> SparkSession:
        return self.session

    def make_sink(self, where: Path) -> Sink:
        return self.sink()

    def sources(self, sink: Sink) -> set[str]:
        return {__file__}


class LinesContract(_Ours):
    sink: type[Sink] = Lines
    ordered = True

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        for file in sorted(where.glob("out/[0-9]*")):
            yield from (tuple(json.loads(line).values()) for line in file.read_text().splitlines() if line)


class TableContract(_Ours):
    sink: type[Sink] = Table
    fenced = True

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        db = sqlite3.connect(where / "db")
        try:
            return db.execute("SELECT k, v FROM t ORDER BY rowid").fetchall()
        finally:
            db.close()

    def crash(self, sink: Sink) -> None:
        sink.close()


class TestLines(LinesContract):
    """A sink that delivers on snapshot and keeps the contract."""


class TestTable(TableContract):
    """A sink that delivers on batch and keeps the contract."""


# ── broken ones ─────────────────────────────────────────────────────────────────────────────────────────────────────


class VisibleWhenStaged(Lines):
    def write(self, batch: DataFrame, batch_id: int) -> None:
        super().write(batch, batch_id)
        put(self.out / f"0000-{batch_id:08d}", self.text(batch))

    def commit(self, part: Part, prepared: Json) -> None:
        pass


class VisibleWhenPrepared(Lines):
    def prepare(self, part: Part) -> Json:
        put(self.target(part), self.content(part))
        return None


class VisibleTwice(Lines):
    def commit(self, part: Part, prepared: Json) -> None:
        put(self.out / f"{len(list(self.out.iterdir())):04d}", self.content(part))


class VisibleHalf(Lines):
    def commit(self, part: Part, prepared: Json) -> None:
        if not self.target(part).exists():
            with self.target(part).open("w", buffering=1) as file:
                for line in self.content(part).splitlines():
                    file.write(line + "\n")


class ForgetsTooEarly(Lines):
    def commit(self, part: Part, prepared: Json) -> None:
        if self.target(part).exists():
            return
        text = self.content(part)
        for batch in range(part.after + 1, part.through + 1):
            (self.staged / f"{batch:08d}").unlink(missing_ok=True)
        put(self.target(part), text)


class StagesTwice(Lines):
    def write(self, batch: DataFrame, batch_id: int) -> None:
        with (self.staged / f"{batch_id:08d}").open("a") as file:
            file.write(self.text(batch))


class CommitsAllThatIsStaged(Lines):
    def content(self, part: Part) -> str:
        return "".join(f.read_text() for f in sorted(self.staged.glob("[0-9]*")) if int(f.name) > part.after)


class KeepsPartsInMemory(Lines):
    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.prepared: dict[str, str] = {}

    def prepare(self, part: Part) -> Json:
        self.prepared[part.handle] = self.content(part)
        return None

    def content(self, part: Part) -> str:
        return self.prepared.get(part.handle, "") if part.handle in self.prepared else super().content(part)[:0]


class CommitsTheNewestOnly(Lines):
    def prepare(self, part: Part) -> Json:
        self.newest = part
        return None

    def commit(self, part: Part, prepared: Json) -> None:
        super().commit(getattr(self, "newest", part), prepared)


class ThrowsAwayAtAStart(Lines):
    def recover(self, parts: Iterable[Part]) -> None:
        for file in self.staged.iterdir():
            file.write_text("")


class KnowsNoTimeline(Lines):
    def target(self, part: Part) -> Path:
        return self.out / f"0001-{part.through:08d}"


class BackToFront(Lines):
    def target(self, part: Part) -> Path:
        return self.out / f"{9999 - part.through:08d}-{part.timeline}"


class DropsEqualRows(Lines):
    def commit(self, part: Part, prepared: Json) -> None:
        have = {line for f in self.out.glob("[0-9]*") for line in f.read_text().splitlines()}
        if not self.target(part).exists():
            lines = [line for line in self.content(part).splitlines() if line not in have]
            put(self.target(part), "\n".join(lines))


class SaysNoJson(Lines):
    def prepare(self, part: Part) -> Json:
        return {"at": self.out}


class ReadsItsOwnWordsOnly(Lines):
    """What `prepare` said comes from the manifest, perhaps to another object; this one expects its own."""

    def prepare(self, part: Part) -> Json:
        self.said = {"text": self.content(part), "whole": (1, 2)}
        return self.said

    def commit(self, part: Part, prepared: Json) -> None:
        assert prepared["whole"] == (1, 2)
        super().commit(part, prepared)


class ChokesOnNothing(Lines):
    def commit(self, part: Part, prepared: Json) -> None:
        if not self.content(part) and not self.target(part).exists():
            raise ValueError("nothing to write")
        super().commit(part, prepared)


class NoMark(Table):
    def mark(self, batch_id: int) -> None:
        pass


class MarkFirst(Table):
    def write(self, batch: DataFrame, batch_id: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        self.fence()
        if not self.has(batch_id):
            self.mark(batch_id)
            with self.transaction():
                self.db.executemany("INSERT INTO t VALUES (?, ?)", rows)


class MarkLast(Table):
    def write(self, batch: DataFrame, batch_id: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        self.fence()
        if not self.has(batch_id):
            with self.transaction():
                self.db.executemany("INSERT INTO t VALUES (?, ?)", rows)
            self.mark(batch_id)


class RowByRow(Table):
    def write(self, batch: DataFrame, batch_id: int) -> None:
        self.fence()
        if not self.has(batch_id):
            for row in batch.collect():
                self.db.execute("INSERT INTO t VALUES (?, ?)", tuple(row))
            self.mark(batch_id)


class NoTimeline(Table):
    def key(self, batch_id: int) -> tuple[int, int]:
        return 1, batch_id


class NoFence(Table):
    def fence(self) -> None:
        pass


class LosesNothingsMark(Table):
    """Takes an empty batch for one that it has not had, and says so to Strobe."""

    def last_batch(self) -> int | None:
        return 99


class ByBatchIdOfThisLife(Table):
    """Remembers in memory which batch it has had."""

    last = -1

    def has(self, batch_id: int) -> bool:
        had, self.last = batch_id <= self.last, max(self.last, batch_id)
        return had


BROKEN = [
    VisibleWhenStaged, VisibleWhenPrepared, VisibleTwice, VisibleHalf, ForgetsTooEarly, StagesTwice,
    CommitsAllThatIsStaged, KeepsPartsInMemory, CommitsTheNewestOnly, ThrowsAwayAtAStart, KnowsNoTimeline, BackToFront,
    DropsEqualRows, SaysNoJson, ReadsItsOwnWordsOnly, ChokesOnNothing, NoMark, MarkFirst, MarkLast, RowByRow,
    NoTimeline, NoFence, LosesNothingsMark, ByBatchIdOfThisLife,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_sink_that_breaks_the_contract_is_caught(broken: type[Sink], spark: SparkSession) -> None:
    contract: _Ours = LinesContract() if issubclass(broken, Lines) else TableContract()
    contract.session, contract.sink = spark, broken
    with pytest.raises(Exception):  # noqa: B017  (some fail by an error of their own)
        check_contract(contract)


def test_what_is_wrong_is_told_with_the_calls_that_led_there(spark: SparkSession) -> None:
    contract = LinesContract()
    contract.session, contract.sink = spark, VisibleWhenPrepared
    with pytest.raises(AssertionError) as caught:
        check_contract(contract)
    assert "too much: (0, 'batch 0')" in str(caught.value)
    assert "1. start incarnation 1, timeline 1\n  2. write batch 0\n" in str(caught.value)
    assert "prepare snapshot 1: batches 0" in str(caught.value)
    assert re.match(r"  \d+\. ", str(caught.value).splitlines()[-1]), "the calls come last, numbered"


def test_a_sink_that_keeps_it_passes_all_that_applies(spark: SparkSession) -> None:
    contract = TableContract()
    contract.session = spark
    passed = check_contract(contract)
    assert "test_a_reader_never_sees_half_of_it" in passed
    assert "test_a_part_is_visible_once_however_often_it_is_committed" not in passed
