"""Input files that cannot be read stop a stage by name, or are left out: named, counted, the same in every run."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.checkpoint import bad_files as notes
from strobe.hosts.spark.checkpoint.bad_files import BadFile, BadFiles
from strobe.hosts.spark.checkpoint.source_files import files_of_batch, leave_out
from strobe.hosts.spark.stage.bad_files import FileInputs, UnreadableInput
from strobe.model.errors import Misuse
from tests.corpus.jobs import dying_at
from tests.support.spark.jobs import stage
from tests.support.spark.ledger_data import delta_rows
from tests.support.spark.restoring import BOUNDED, start

CONFIG = strobe.CheckpointConfig(interval=None, retained=100)


def eager(attempts: int) -> strobe.RestartPolicy:
    return strobe.RestartPolicy(attempts=attempts, first_pause=0.05, longest_pause=0.05)


def ended(pipeline: strobe.Pipeline, root: Path, spark: SparkSession, **options: Any) -> strobe.Job:
    """The job, behind its end; nothing of it is left in the session."""
    job = start(pipeline, root, spark, **options)
    try:
        assert job.wait(300), job.status()
    finally:
        job.stop()
    return job


def finished(pipeline: strobe.Pipeline, root: Path, spark: SparkSession, **options: Any) -> strobe.Job:
    job = ended(pipeline, root, spark, **options)
    assert job.state is strobe.JobState.FINISHED, job.error
    return job


def put(path: Path, content: bytes, *, at: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(content)
    if at is not None:
        os.utime(hidden, (at, at))
    hidden.rename(path)


# ── with Spark ──────────────────────────────────────────────────────────────────────────────────────────────────────


def orders(root: Path, bad_files: str, attempts: int = 1) -> strobe.Pipeline:
    """Orders in four formats, two files of each a batch, and how many there are of each kind."""
    pipeline = strobe.Pipeline("orders", checkpoint=CONFIG, restart=eager(attempts))

    @pipeline.stage("orders", trigger=BOUNDED, bad_files=bad_files, to=strobe.DeltaSink("orders"))
    def read(spark: SparkSession) -> DataFrame:
        reader = (
            spark.readStream.schema("kind STRING, n BIGINT").option("maxFilesPerTrigger", 2).option("mode", "FAILFAST")
        )
        text = reader.json(str(root / "json")).union(reader.csv(str(root / "csv")))
        return text.union(reader.parquet(str(root / "parquet"))).union(reader.orc(str(root / "orc")))

    @pipeline.stage("counts", reads="orders", output_mode="update", to=strobe.DeltaSink("counts", key="kind"))
    def counts(orders: DataFrame) -> DataFrame:
        return orders.groupBy("kind").count()

    return pipeline


def columnar(kind: str, first: int, scratch: Path) -> bytes:
    table = pa.table({"kind": [kind] * 50, "n": pa.array(range(first, first + 50), pa.int64())})
    pq.write_table(table, scratch) if kind == "parquet" else orc.write_table(table, scratch)
    return scratch.read_bytes()


def counted(root: Path) -> dict[Any, Any]:
    return dict(delta_rows(root / "counts", 'select kind, "count" from t'))


@pytest.mark.spark
def test_broken_files_stop_the_stage_or_are_left_out_whole_also_after_a_kill_and_a_restore(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, scratch = tmp_path / "in", tmp_path / "scratch"
    put(data / "json/a b.json", b'{"kind": "json", "n": 1}\n')
    put(data / "csv/a.csv", b"csv,1\n")
    put(data / "parquet/a.parquet", columnar("parquet", 0, scratch))
    put(data / "orc/a.orc", columnar("orc", 0, scratch))
    finished(orders(data, "fail"), tmp_path, spark)
    assert counted(tmp_path) == {"json": 1, "csv": 1, "parquet": 50, "orc": 50}

    put(data / "json/b c.json", b'{"kind": "json", "n": 2}\n{"kind": "js\n')
    put(data / "json/d.json", b'{"kind": "json", "n": 3}\n')
    put(data / "csv/b.csv.gz", gzip.compress(b"".join(b"csv,%d\n" % n for n in range(5000)))[:-900])
    put(data / "parquet/b.parquet", columnar("parquet", 50, scratch)[:-60])
    put(data / "parquet/c.parquet", columnar("parquet", 100, scratch))
    put(data / "orc/b.orc", os.urandom(500))
    bad = {str(data / name) for name in ("json/b c.json", "csv/b.csv.gz", "parquet/b.parquet", "orc/b.orc")}

    job = ended(orders(data, "fail", attempts=0), tmp_path, spark)
    assert job.state is strobe.JobState.FAILED
    assert any(f"Its input file {name} cannot be read: " in job.error for name in bad), job.error
    assert 'bad_files="set_aside"' in job.error

    with caplog.at_level(logging.WARNING, "strobe"), dying_at("batch.in-channel", 1) as died:
        job = finished(orders(data, "set_aside"), tmp_path, spark)
    assert died == ["batch.in-channel of orders"], "the batch was run again after it had lost its bad files"
    good = {"json": 2, "csv": 1, "parquet": 100, "orc": 50}
    assert counted(tmp_path) == good
    shown = stage(job, "orders")
    assert (shown.bad_files, {file.file for file in shown.latest_bad_files}) == (4, bad)
    assert all(file.reason and file.time for file in shown.latest_bad_files)
    for name in bad:
        assert f"{name} is set aside" in caplog.text

    restored = finished(orders(data, "set_aside"), tmp_path, spark, snapshot="orders/1", partitions=3)
    assert counted(tmp_path) == good
    assert stage(restored, "orders").bad_files == 4

    put(data / "csv/b.csv.gz", gzip.compress(b"csv,2\n"))  # mended under the same name: it has been seen
    put(data / "csv/e.csv", b"csv,5\n")
    again = finished(orders(data, "fail"), tmp_path, spark, snapshot="orders")  # a snapshot from behind it
    assert counted(tmp_path) == {**good, "csv": 2}
    assert stage(again, "orders").bad_files == 4, "they stay known when files stop the stage again"


@pytest.fixture
def compacting(spark: SparkSession) -> Iterator[None]:
    """Every third entry of a log of files has all those before it."""
    key = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(key, "3")
    yield
    spark.conf.unset(key)


@pytest.mark.spark
@pytest.mark.usefixtures("compacting")
def test_the_first_and_the_only_file_of_a_batch_can_be_left_out_and_the_list_of_files_can_be_compacted(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "in"

    def run() -> strobe.Job:
        pipeline = strobe.Pipeline("lines", checkpoint=CONFIG, restart=eager(0))

        @pipeline.stage("lines", trigger=BOUNDED, bad_files="set_aside", to=strobe.DeltaSink("lines"))
        def lines(spark: SparkSession) -> DataFrame:
            reader = spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1).option("mode", "FAILFAST")
            return reader.json(str(data))

        return finished(pipeline, tmp_path, spark)

    for n in range(6):
        put(data / f"{n}.json", b'{"n": %d}' % n if n in (1, 4) else b'{"n": "', at=1_700_000_000 + n)
    first = run()
    assert stage(first, "lines").bad_files == 4
    for n in range(6, 9):
        put(data / f"{n}.json", b'{"n": %d}' % n if n != 8 else b"{", at=1_700_000_000 + n)
    assert stage(run(), "lines").bad_files == 5
    assert delta_rows(tmp_path / "lines", "select n from t order by 1") == [(1,), (4,), (6,), (7,)]


@pytest.mark.spark
def test_a_file_that_is_deleted_before_it_was_read_is_not_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "in"
    taken: list[int] = []

    def numbers(bad_files: str, sink: strobe.Sink, *, ignore: bool = False) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("numbers", checkpoint=CONFIG, restart=eager(0))

        @pipeline.stage("numbers", trigger=BOUNDED, bad_files=bad_files, to=sink)
        def read(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("n BIGINT").option("IgnoreMissingFiles", ignore).json(str(data))

        return pipeline

    def lose(batch: DataFrame, batch_id: int) -> None:
        min(data.glob("*.json"), key=lambda path: path.name).unlink()
        raise ValueError("not yet")

    def take(batch: DataFrame, batch_id: int) -> None:
        taken.extend(row.n for row in batch.collect())

    put(data / "a.json", b'{"n": 1}')
    put(data / "b.json", b'{"n": 2}')
    ended(numbers("fail", strobe.ForeachBatchSink(lose)), tmp_path, spark)
    job = ended(numbers("fail", strobe.ForeachBatchSink(take)), tmp_path, spark)
    assert job.state is strobe.JobState.FAILED
    assert f"Its input file {data / 'a.json'} cannot be read: it is gone" in job.error
    assert taken == []
    job = finished(numbers("set_aside", strobe.ForeachBatchSink(take)), tmp_path, spark)
    assert taken == [2]
    assert [file.file for file in stage(job, "numbers").latest_bad_files] == [str(data / "a.json")]

    put(data / "0.json", b'{"n": 0}')
    put(data / "3.json", b'{"n": 3}')
    ended(numbers("fail", strobe.ForeachBatchSink(lose)), tmp_path, spark)
    finished(numbers("fail", strobe.ForeachBatchSink(take), ignore=True), tmp_path, spark)
    assert taken == [2, 3], "unless the reader says that they may be"

    rates = strobe.Pipeline("rates")
    rates.stage("r", bad_files="set_aside", to=strobe.DeltaSink("r"))(lambda s: s.readStream.format("rate").load())
    with pytest.raises(Misuse, match="reads no files"):
        start(rates, tmp_path, spark, home="other")


# ── without Spark ───────────────────────────────────────────────────────────────────────────────────────────────────


def checkpoint(root: Path, batches: list[list[str]], *, compact: int | None = None) -> Path:
    """Of a query with one file source; each batch adds an entry to its log, and the last has not run."""
    for name in ("offsets", "commits", "sources/0"):
        (root / name).mkdir(parents=True)
    entries: list[str] = []
    for number, names in enumerate(batches):
        lines = [json.dumps({"path": f"file:///in/{n}", "timestamp": 1, "batchId": number}) for n in names]
        entries += lines
        log = root / "sources/0" / (f"{number}.compact" if number == compact else str(number))
        log.write_text("\n".join(["v1", *(entries if number == compact else lines)]))
        head = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
        (root / f"offsets/{number}").write_text(f'v1\n{head}\n{{"logOffset":{number}}}')
        (root / f"commits/{number}").write_text("v1\n{}")
    (root / f"commits/{len(batches) - 1}").unlink()
    return root


@pytest.mark.parametrize("compact", [None, 1])
def test_only_the_batch_that_has_not_run_loses_the_file(tmp_path: Path, compact: int | None) -> None:
    root = checkpoint(tmp_path / "c", [["a", "b"], ["c", "d%20e"]], compact=compact)
    for _ in range(2):
        leave_out(root, 1, ["file:///in/d%20e", "file:///in/a"])
        assert files_of_batch(root, 1) == ("file:///in/c",)
        assert files_of_batch(root, 0) == ("file:///in/a", "file:///in/b")
    log = root / "sources/0" / ("1.compact" if compact else "1")
    *_, last = (json.loads(line) for line in log.read_text().splitlines()[1:])
    assert last["batchId"] == 1, "Spark takes the last line for one of the newest entry"
    assert "d%20e" in log.read_text(), "it is never new"


def failure(name: str, cause: str = "java.io.EOFException: Unexpected end", kind: str = "NO_HINT") -> Exception:
    what = f"[FAILED_READ_FILE.{kind}] Encountered error while reading file file:///in/{name}. SQLSTATE: KD001"
    return Exception(f"Py4JJavaError: {what}\n\tat org.apache.spark\nCaused by: {cause}\n\tat java.io\n")


def inputs(root: Path, *, bad_files: str = "set_aside", written: int = 0) -> FileInputs:
    pipeline = strobe.Pipeline("p")
    pipeline.stage("s", bad_files=bad_files)(lambda spark: spark)
    (spec,) = pipeline.stages.values()
    result: Any = None
    return FileInputs(spec, result, root, SYSTEM, written=lambda: written, setting=lambda key, default: default)


def fails(files: FileInputs, error: Exception) -> bool:
    return files.goes_on_without(files.named(error) or error)


def test_a_file_is_set_aside_when_its_batch_has_failed_on_it_twice(tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "c", [["a"], ["b", "b.json"]])
    files = inputs(root)
    found = [(fails(files, failure(name)), [f.name for f in files.bad.files]) for name in ("b.json", "b", "b.json")]
    assert found == [(True, []), (True, []), (True, ["/in/b.json"])]
    assert files_of_batch(root, 1) == ("file:///in/b", "file:///in/b.json")
    inputs(root).begin_life()  # of this driver, or of one that comes after its death
    assert files_of_batch(root, 1) == ("file:///in/b",)
    assert [f.reason for f in inputs(root).bad.files] == []
    again = inputs(root)
    again.begin_life()
    assert [(f.name, f.reason, f.batch) for f in again.bad.files] == [("/in/b.json", "EOFException: Unexpected end", 1)]


def test_a_file_that_may_not_be_read_is_set_aside_too(tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "c", [["a"], ["b"]])
    denied = failure("b", "java.io.FileNotFoundException: /in/b (Permission denied)", "FILE_NOT_EXIST")
    files = inputs(root)
    assert [fails(files, denied) for _ in range(2)] == [True, True]
    assert files.bad.count == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, failure("a")),  # of a batch that has run
        ({}, Exception("ValueError in file:///in/b.")),  # somebody's code
        ({}, failure("b", "java.net.SocketTimeoutException: Read timed out")),
        ({}, failure("b", "java.io.FileNotFoundException: /in/b (Too many open files)")),
        ({"bad_files": "fail"}, failure("b")),
        ({"written": 1}, failure("b")),  # others have rows of this batch
    ],
)
def test_what_is_no_bad_file_is_left_to_fail(tmp_path: Path, options: dict[str, Any], error: Exception) -> None:
    root = checkpoint(tmp_path / "c", [["a"], ["b"]])
    files = inputs(root, **options)
    assert [fails(files, error) for _ in range(3)] == [False] * 3
    assert files.bad == BadFiles()


def test_the_error_says_what_to_do(tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "c", [["a"], ["b%20c"]])
    seen = str(inputs(root, bad_files="fail").named(failure("b%20c")))
    assert seen.startswith("Its input file /in/b c cannot be read: EOFException: Unexpected end.")
    assert 'bad_files="set_aside"' in seen
    assert "put it back as it was" in str(inputs(root, written=1).named(failure("b%20c")))


def test_many_files_that_are_gone_are_set_aside_and_counted_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MOST", 2)
    root = checkpoint(tmp_path / "c", [list("abcde")])
    files = inputs(root, written=-1)
    tries = 0
    while files_of_batch(root, 0) and tries < 9:
        assert files.goes_on_without(UnreadableInput(files_of_batch(root, 0), "gone", ""))
        files.begin_life()
        tries += 1
    assert (files.bad.count, tries) == (5, 4)
    assert [f.name for f in files.bad.files] == ["/in/d", "/in/e"]


def test_a_snapshot_has_what_was_set_aside_by_then(tmp_path: Path) -> None:
    root = tmp_path / "c"
    root.mkdir()
    for batch in (3, 7, 150, 151):
        notes.add(root, batch, [BadFile(f"file:///in/{batch}", "broken", "2031-05-17T09:30:00.250Z", batch)])
    assert [(notes.read(root, batch).count) for batch in (49, 50, 150, 200)] == [2, 2, 3, 4]
    assert notes.newest(root, 6) is None, "older than any batch that can be asked for"
    notes.renumber(root, 150)
    assert notes.read(root, 0).count == 3


def test_other_words_are_refused() -> None:
    with pytest.raises(Misuse, match="bad_files='set-aside' is not legal") as refused:
        strobe.Pipeline("p").stage("s", bad_files="set-aside")(lambda spark: spark)
    assert "set_aside" in refused.value.next
