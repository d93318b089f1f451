"""Two jobs never write to one place, however they spell it, and neither do two stages of one job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructField, StructType

import strobe
from strobe.hosts.spark.connectors.base import Sink, SinkContext
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.connectors.files.sink import FileSink
from strobe.hosts.spark.connectors.ownership import claim
from strobe.model.errors import Misuse
from strobe.model.ids import Incarnation, NodeId, Timeline

SCHEMA = StructType([StructField("k", LongType()), StructField("v", LongType())])
APPEND = {"delta.appendOnly": "true"}
SINKS: dict[str, Callable[..., Sink]] = {
    "append": DeltaSink,
    "upsert": lambda path, **how: DeltaSink(path, key="k", **how),
    "partitioned": lambda path, **how: DeltaSink(path, partition_by="k", **how),
    "upsert, partitioned": lambda path, **how: DeltaSink(path, key=["k", "v"], partition_by="k", **how),
    "with properties": lambda path, **how: DeltaSink(path, properties=APPEND, **how),
    "files": FileSink,
}


def context(
    root: Path, home: str = "home", *, job: str = "ledger", stage: str = "gold", incarnation: int = 1, timeline: int = 1
) -> SinkContext:
    of_job = root / home / "jobs" / job
    return SinkContext(
        job, NodeId(stage), f"{stage}/0", Timeline(timeline), Incarnation(incarnation), SCHEMA, "append", root,
        of_job / "sinks" / stage / "0" / f"t{timeline}", identity=of_job / "identity",
    )  # fmt: skip


def opened(sink: Sink, where: SinkContext) -> Sink:
    sink.open(where)
    return sink


def content(place: Path) -> dict[str, bytes]:
    return {str(f.relative_to(place)): f.read_bytes() for f in place.rglob("*") if f.is_file()}


@pytest.fixture(params=["on_batch", "on_snapshot"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("first", "second"), [(a, b) for a in SINKS for b in SINKS if (a == "files") == (b == "files")]
)
def test_a_second_job_is_refused_whatever_the_two_are(tmp_path: Path, first: str, second: str, delivery: str) -> None:
    opened(SINKS[first]("out", delivery=delivery), context(tmp_path, incarnation=3))
    other = {"job": "copy of ledger"} if first == second else {"home": "other"}
    before = content(tmp_path / "out")
    with pytest.raises(Misuse) as refused:
        opened(SINKS[second]("out"), context(tmp_path, **other))  # type: ignore[arg-type]
    assert f"belongs to stage 'gold' of job 'ledger' in the home {tmp_path}/home" in str(refused.value)
    assert "Give this sink another path" in str(refused.value)
    assert content(tmp_path / "out") == before
    opened(SINKS[first]("out", delivery=delivery), context(tmp_path, incarnation=4))


@pytest.mark.parametrize("kind", SINKS)
def test_a_restore_says_so_before_anything_is_touched(tmp_path: Path, kind: str) -> None:
    opened(SINKS[kind]("out"), context(tmp_path))
    before = content(tmp_path / "out")
    outlook = SINKS[kind]("out").outlook(None, context(tmp_path, "other"), fork=False, again=False)
    assert outlook.problem is not None
    assert "belongs to stage 'gold' of job 'ledger'" in outlook.problem.what
    own = SINKS[kind]("out").outlook(None, context(tmp_path, timeline=2), fork=False, again=False)
    assert own.problem is None
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("kind", SINKS)
def test_a_job_whose_home_was_deleted_does_not_begin_again_on_its_old_rows(tmp_path: Path, kind: str) -> None:
    opened(SINKS[kind]("out"), context(tmp_path))
    shutil.rmtree(tmp_path / "home")
    with pytest.raises(Misuse, match=r"That job is no longer there\. To start from the beginning, delete or move away"):
        opened(SINKS[kind]("out"), context(tmp_path))


@pytest.mark.parametrize("kind", SINKS)
def test_a_project_that_was_moved_is_the_same_job_and_its_copy_is_not(tmp_path: Path, kind: str) -> None:
    opened(SINKS[kind](tmp_path / "out"), context(tmp_path))
    (tmp_path / "home").rename(tmp_path / "moved")
    opened(SINKS[kind](tmp_path / "out"), context(tmp_path, "moved", incarnation=2))
    os.symlink(tmp_path / "moved", tmp_path / "link")
    opened(SINKS[kind](tmp_path / "out"), context(tmp_path, "link", incarnation=3))
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    with pytest.raises(Misuse, match="of which this is a copy"):
        opened(SINKS[kind](tmp_path / "out"), context(tmp_path, "copied", incarnation=4))


@pytest.mark.parametrize("kind", ["upsert", "append", "files"])
def test_a_stage_under_a_new_uid_takes_over_what_nobody_else_writes(tmp_path: Path, kind: str) -> None:
    opened(SINKS[kind]("out"), context(tmp_path, stage="gold"))
    opened(SINKS[kind]("out"), context(tmp_path, stage="golden", incarnation=2))
    with pytest.raises(Misuse, match="belongs to stage 'golden'"):
        opened(SINKS[kind]("out"), context(tmp_path, "other"))


def test_a_stage_does_not_take_the_batches_of_another_for_its_own(tmp_path: Path) -> None:
    sink = DeltaSink("out")
    opened(sink, context(tmp_path, stage="gold"))
    assert sink._writer is not None
    sink._writer.append((), 7, even_if_empty=True)
    with pytest.raises(Misuse, match=r"of stage 'golden' was written by stage 'gold' of this job"):
        opened(DeltaSink("out"), context(tmp_path, stage="golden", incarnation=2))
    opened(DeltaSink("out"), context(tmp_path, stage="golden", incarnation=2, timeline=2))  # after a restore


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_table_of_somebody_else_is_taken_as_it_is(tmp_path: Path, kind: str) -> None:
    write_deltalake(str(tmp_path / "out"), pa.table({"k": pa.array([1], pa.int64()), "v": pa.array([1], pa.int64())}))
    opened(SINKS[kind]("out"), context(tmp_path))
    assert DeltaTable(str(tmp_path / "out")).to_pyarrow_table().num_rows == 1


def test_a_refused_sink_has_claimed_nothing(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "out"), pa.table({"k": ["text"]}))
    with pytest.raises(Misuse, match="the table has no column v"):
        opened(DeltaSink("out", key="k"), context(tmp_path))
    assert not (tmp_path / "out/_strobe").exists()


def test_of_many_that_begin_at_once_one_has_the_place(tmp_path: Path) -> None:
    def attempt(number: int) -> int | None:
        try:
            claim(tmp_path / "t", context(tmp_path, f"home{number}"), "a table", written=False)
            return number
        except Misuse:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [n for n in pool.map(attempt, range(16)) if n is not None]
    assert len(won) == 1
    claim(tmp_path / "t", context(tmp_path, f"home{won[0]}"), "a table", written=True)


# ── one job ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def two(one: Sink, other: Sink) -> strobe.Pipeline:
    pipeline = strobe.Pipeline("p")
    for uid, sink in (("a", one), ("b", other)):
        pipeline.stage(uid, to=sink)(lambda spark: spark)
    return pipeline


@pytest.mark.parametrize("make", [DeltaSink, FileSink])
@pytest.mark.parametrize(
    "spelling",
    ["out/t", "./out/t", "out/t/", "out//t", "out/../out/t", "link/t", "to_table", "{base}/out/t",
     "{base}/link/../out/t", "file://{base}/out/t", "file:{base}/out/t", "file://localhost{base}/out/t/", "file://{base}/out/%74"],
)  # fmt: skip
def test_two_stages_do_not_write_to_one_place_however_it_is_spelled(
    tmp_path: Path, make: Callable[..., Sink], spelling: str
) -> None:
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path / "out", tmp_path / "link")
    os.symlink(tmp_path / "out/t", tmp_path / "to_table")
    pipeline = two(DeltaSink("out/t", key="k"), make(spelling.format(base=tmp_path)))
    with pytest.raises(Misuse, match="Stages 'a' and 'b' of pipeline 'p' write to the same"):
        pipeline.check(tmp_path)
    two(DeltaSink("out/t", key="k"), make("out/t2")).check(tmp_path)


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="write to the same"):
        two(DeltaSink(Path("t")), FileSink(tmp_path / "t")).check(tmp_path)


@pytest.mark.parametrize("make", [DeltaSink, FileSink])
@pytest.mark.parametrize("path", ["s3://bucket/t", "S3A://bucket/t", "hdfs:/t", "file://host/t", "", 5, None, b"t"])
def test_what_is_no_directory_is_refused_where_it_is_said(make: Callable[..., Sink], path: Any) -> None:
    with pytest.raises(Misuse, match="is not the path of a directory"):
        make(path)


@pytest.mark.parametrize("make", [DeltaSink, FileSink])
@pytest.mark.parametrize("inner", ["out/t/x", "out/t/deep/er", "link/t/x", "{base}/out/t/.strobe"])
def test_no_sink_writes_into_the_directory_of_another(tmp_path: Path, make: Callable[..., Sink], inner: str) -> None:
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path / "out", tmp_path / "link")
    sinks = [make(inner.format(base=tmp_path)), DeltaSink("out/t")]
    for pair in (sinks, sinks[::-1]):
        with pytest.raises(Misuse, match=r"write into each other's directories: .*, and around it Delta"):
            two(*pair).check(tmp_path)
    two(make("out/t"), DeltaSink("out/t2/x")).check(tmp_path)


@pytest.mark.parametrize("make", [DeltaSink, FileSink])
@pytest.mark.parametrize("path", ["~", "~/t", "~me/t", Path("~/t")])
def test_a_home_is_not_guessed(make: Callable[..., Sink], path: Any) -> None:
    with pytest.raises(Misuse, match="only a shell takes ~ for somebody's home"):
        make(path)
    make("~t")  # the name of a file as good as any
