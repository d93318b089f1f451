"""`mv project elsewhere`: the job goes on there, and its checkpoints can be restored there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.checkpoint.source_files import rewrite_source_logs
from strobe.hosts.spark.home.moved import Homes, find_moved, relocate_position
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.job.rehearse import dry_run
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.restorable import why_not_restorable
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.places import checkpoints_of
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import delta_rows

STAGE = NodeId("clicks")


# ── what has moved, and what has not ────────────────────────────────────────────────────────────────────────────────


def source(given: str, root: Path, *, pattern: bool = False) -> dict[str, Any]:
    return {"given": given, "root": str(root), "pattern": pattern}


def moved(
    before: dict[str, Any], after: dict[str, Any], homes: Homes | None = None, logs: Iterable[str] = ()
) -> tuple[dict[str, str], Misuse | None, list[str]]:
    warnings: list[str] = []
    at_home = Homes(Path("/elsewhere/.strobe"), Path("/elsewhere/.strobe"))
    found, problem = find_moved(STAGE, [before], [after], homes or at_home, lambda: logs, warnings=warnings)
    return found, problem, warnings


def test_a_directory_that_moved_along_with_the_home_is_the_same(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    (a / "in").mkdir(parents=True)  # a copy was made of the project: the original is still there
    homes = Homes(a / ".strobe", b / ".strobe")
    found, problem, warnings = moved(source(str(a / "in"), a / "in"), source(str(b / "in"), b / "in"), homes)
    assert (found, problem) == ({str(a / "in"): str(b / "in")}, None)
    assert warnings == [f"clicks: the files that it has read in {a / 'in'} are in {b / 'in'} now."]


def test_a_directory_of_which_the_old_place_is_gone_has_moved(tmp_path: Path) -> None:
    found, problem, _ = moved(source("in", tmp_path / "a"), source("in", tmp_path / "b"))
    assert (found, problem) == ({str(tmp_path / "a"): str(tmp_path / "b")}, None)


def log(path: Path, timestamp: int) -> str:
    return "v1\n" + json.dumps({"path": f"file://{path}", "timestamp": timestamp, "batchId": 0})


def test_other_files_under_the_same_names_are_not_taken_for_read(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/1.json").write_text("{}")
    time = (tmp_path / "b/1.json").stat().st_mtime_ns // 1_000_000
    before, after = source("in", tmp_path / "a"), source("in", tmp_path / "b")
    assert moved(before, after, logs=[log(tmp_path / "a/1.json", time)])[1] is None
    problem = moved(before, after, logs=[log(tmp_path / "a/1.json", time - 60_000)])[1]
    assert problem is not None
    assert "1.json there is of another time" in problem.what
    assert "cp -a" in problem.next


def test_standing_in_another_directory_is_no_move(tmp_path: Path) -> None:
    (tmp_path / "a/in").mkdir(parents=True)
    found, problem, _ = moved(source("in", tmp_path / "a/in"), source("in", tmp_path / "b/in"))
    assert found == {}
    assert problem is not None
    assert f"it has read {tmp_path / 'a/in'}, which is still there" in problem.what
    assert problem.next.startswith(f"Run it from {tmp_path / 'a'}")


def test_another_directory_is_refused_and_another_pattern_is_mentioned(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    _, problem, _ = moved(source("old", old), source("new", new))
    assert problem is not None
    assert "cannot change its directory" in problem.what
    found, problem, warnings = moved(source("old/*.csv", old, pattern=True), source("new/*.csv", new, pattern=True))
    assert (found, problem) == ({}, None)
    assert "every file there is a new one" in warnings[0]


def test_the_log_of_a_file_source_is_rewritten_once(tmp_path: Path) -> None:
    logs = tmp_path / "sources/0"
    logs.mkdir(parents=True)
    lines = ["v1", '{"path":"file:///a/in/f%201.json","timestamp":5,"batchId":0}',
             '{"path":"file:///a/inner/x.json","timestamp":5,"batchId":0}']  # fmt: skip
    (logs / "0").write_text("\n".join(lines))
    (logs / "9.compact").write_text("\n".join(lines))
    os.link(logs / "0", tmp_path / "linked")
    for _ in range(2):  # a crash between the two, and the directory now lies below the old one
        rewrite_source_logs(tmp_path, {"/a/in": "/a/in/deeper"})
        for name in ("0", "9.compact"):
            expected = [lines[0], lines[1].replace("/a/in/", "/a/in/deeper/"), lines[2]]
            assert (logs / name).read_text().split("\n") == expected
    assert (tmp_path / "linked").read_text().split("\n") == lines


def test_a_sink_moved_along_if_it_is_there(tmp_path: Path) -> None:
    homes = Homes(tmp_path / "a/.strobe", tmp_path / "b/.strobe")
    position = {"path": str(tmp_path / "a/out"), "version": 3}
    assert relocate_position(position, homes) == position
    (tmp_path / "b/out").mkdir(parents=True)
    assert relocate_position(position, homes) == {"path": str(tmp_path / "b/out"), "version": 3}
    assert relocate_position(position, homes, fork=True) == {"path": str(tmp_path / "b/out"), "version": 3}
    (tmp_path / "a/out").mkdir(parents=True)
    assert relocate_position(position, homes, fork=True) == position


# ── a job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def clicks(project: Path) -> strobe.Pipeline:
    """As in a file that finds its data beside itself."""
    pipeline = strobe.Pipeline("clicks", checkpoint=strobe.CheckpointConfig(interval=None, retained=10))

    @pipeline.stage(uid="clicks", trigger={"availableNow": True}, to=strobe.FileSink("all", format="json"))
    def read(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("page STRING, n INT").option("maxFilesPerTrigger", 1)
        return reader.json(str(project / "in"))

    @pipeline.stage(uid="pages", reads="clicks", output_mode="update", to=strobe.DeltaSink("pages", key="page"))
    def pages(clicks: DataFrame) -> DataFrame:
        return clicks.groupBy("page").agg(F.sum("n").cast("bigint").alias("n"))

    return pipeline


def put(project: Path, name: str, page: str, n: int) -> None:
    (project / "in").mkdir(parents=True, exist_ok=True)
    (project / "in" / name).write_text(json.dumps({"page": page, "n": n}) + "\n")


def run(project: Path, spark: SparkSession, snapshot: str | None = None) -> strobe.Job:
    home, restore = str(project / ".strobe"), RestoreOptions(snapshot=snapshot)
    job = start_job(clicks(project), home=home, base=project, spark=spark, restore=restore)
    finish(job)
    return job


def counted(project: Path) -> dict[str, int]:
    return dict(delta_rows(project / "pages", "select page, n::BIGINT from t"))


@pytest.mark.spark
def test_a_project_that_was_moved_goes_on_and_goes_back(spark: SparkSession, tmp_path: Path) -> None:
    first, second, third = tmp_path / "a project", tmp_path / "deeper/été", tmp_path / "copy"
    put(first, "1 of 3.json", "a", 1)
    put(first, "2.json", "b", 10)
    job = run(first, spark)
    early = job.store.list()[-1]

    second.parent.mkdir()
    first.rename(second)
    home = second / ".strobe"
    assert why_not_restorable(checkpoints_of(home, "clicks").load(early), home) is None
    put(second, "3.json", "a", 100)
    run(second, spark)
    assert counted(second) == {"a": 101, "b": 10}

    shutil.copytree(second, third)  # the original stays, and is not touched
    plan = dry_run(
        clicks(third), restore=RestoreOptions(snapshot=f"clicks/{early}"), home=str(third / ".strobe"), base=third,
        spark=spark,
    )  # fmt: skip
    assert plan.problems == ()
    put(third, "4.json", "b", 1000)
    run(third, spark, f"clicks/{early}")
    assert counted(third) == {"a": 101, "b": 1010}
    assert sorted(row["n"] for file in third.glob("all/batch=*/*.json") for row in _lines(file)) == [1, 10, 100, 1000]
    assert counted(second) == {"a": 101, "b": 10}
    assert sorted(row["n"] for file in second.glob("all/batch=*/*.json") for row in _lines(file)) == [1, 10, 100]


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]
