"""What a driver that was given up does in the very moment of the takeover: nothing of it is half visible, and nothing
that only looks like a job's own stands in its way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.shared import durable
from strobe.hosts.spark.connectors import staging as staging_module
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.connectors.files.sink import FileSink
from strobe.hosts.spark.connectors.kafka.commits import CommitLog
from strobe.hosts.spark.connectors.postgres.marks import Marks, owner_of
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.errors import Fenced, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

SCHEMA = StructType([StructField("k", LongType())])


def context(root: Path, incarnation: int) -> SinkContext:
    life = Incarnation(incarnation)
    return SinkContext("j", NodeId("s"), "s/0", Timeline(1), life, SCHEMA, "append", root, root / "home/t1")


def opened(root: Path, incarnation: int) -> FileSink:
    sink = FileSink("out")
    sink.open(context(root, incarnation))
    return sink


def two_files(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("a.parquet", "b.parquet"):
        (directory / name).write_bytes(b"rows")
    return directory


class WhileRemoving:
    """Half of a directory is removed, then somebody else acts, then the rest goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str, act: Any) -> None:
        real, self.acted = shutil.rmtree, False
        self.refused: Exception | None = None

        def rmtree(path: Any, *args: Any, **options: Any) -> None:
            if what in str(path) and not self.acted:
                self.acted = True
                for file in sorted(Path(path).rglob("*.parquet"))[:1]:
                    file.unlink()
                try:
                    act()
                except (Fenced, OSError) as error:
                    self.refused = error
            real(path, *args, **options)

        monkeypatch.setattr(shutil, "rmtree", rmtree)


def test_a_batch_that_is_shown_while_its_driver_is_replaced_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opened(tmp_path, 1)
    ready, target = two_files(old._work / "timeline=1"), tmp_path / "out/timeline=1"
    race = WhileRemoving(monkeypatch, f"/{old._work.name}", lambda: os.rename(ready, target))  # it has just looked
    opened(tmp_path, 2)
    assert race.acted
    assert race.refused is not None
    assert not target.exists()


def test_a_driver_that_was_given_up_removes_no_part_that_the_new_one_has_prepared(tmp_path: Path) -> None:
    old, part = opened(tmp_path, 1), Part("h", SnapshotId(1), Timeline(1), -1, 0)
    opened(tmp_path, 2)
    prepared = two_files(old._prepared(part))
    with pytest.raises(Fenced):
        old.abort(part, None)
    with pytest.raises(Fenced):
        old.recover([])
    assert len(list(prepared.iterdir())) == 2


def test_a_batch_that_is_staged_while_its_driver_is_replaced_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Staging(context(tmp_path, 1))
    fresh = two_files(old.directory / "tmp-new-1-batch-00000000")
    race = WhileRemoving(monkeypatch, fresh.name, lambda: old._move_in(fresh, old._own / "batch-00000000"))
    real = staging_module._entries
    monkeypatch.setattr(staging_module, "_entries", lambda p: sorted(real(p), key=lambda e: e.name, reverse=True))
    assert Staging(context(tmp_path, 2)).last_batch() is None
    assert race.acted
    assert race.refused is not None


@pytest.mark.parametrize(
    ("policy", "fine"), [({"compact"}, True), (None, True), ({"delete"}, False), ({"compact", "delete"}, False)]
)
def test_a_commits_topic_that_loses_records_is_refused(policy: set[str] | None, fine: bool) -> None:
    cluster: Any = SimpleNamespace(servers="k:9092", cleanup_policy=lambda topic: policy)
    log = CommitLog(cluster, "commits", "t")
    if fine:
        log.ensure(["commits"])
        return
    with pytest.raises(Misuse, match=r"cleanup\.policy"):
        log.ensure(["commits"])


def test_a_prepared_transaction_that_only_looks_like_the_sinks_own_is_left_alone(tmp_path: Path) -> None:
    marks = Marks(cast(Any, None), "public", "t", context(tmp_path, 1), "a" * 32)
    mine = marks.gid(Part("h", SnapshotId(3), Timeline(1), -1, 4), -1)
    asked: list[str] = []

    def execute(query: str, values: Any) -> Any:
        asked.append(query)
        return SimpleNamespace(fetchall=lambda: [(mine,), (f"{marks.prefix}1/3",), (f"{marks.prefix}x/y/z/w",)])

    found = list(marks.prepared(cast(Any, SimpleNamespace(execute=execute))))
    assert [(p.gid, p.snapshot, p.after, p.through) for p in found] == [(mine, 3, -1, 4)]
    assert "owner = current_user" in asked[0]


def test_the_name_that_postgres_knows_a_sink_by_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(durable, "fsync", lambda path: synced.append(path.name))
    name = owner_of(context(tmp_path, 1), "sink")
    assert set(synced) == {"home"}  # the content is synced by its descriptor (test_durable)
    assert owner_of(context(tmp_path, 2), "sink") == name


def test_a_copy_of_a_home_may_not_write_to_a_system_outside_while_the_original_is_there(tmp_path: Path) -> None:
    original, copied = tmp_path / "original", tmp_path / "copied"
    name = owner_of(context(original, 1), "Postgres table t")
    shutil.copytree(original, copied)
    for _ in range(2):
        with pytest.raises(Misuse, match=r"Postgres table t is written by .*original/home/owner.*copy of that one"):
            owner_of(context(copied, 2), "Postgres table t")
    assert owner_of(context(original, 3), "Postgres table t") == name


def test_a_home_that_was_moved_or_whose_original_is_gone_goes_on_writing(tmp_path: Path) -> None:
    name = owner_of(context(tmp_path / "first", 1), "sink")
    (tmp_path / "first").rename(tmp_path / "second")
    assert owner_of(context(tmp_path / "second", 2), "sink") == name
    shutil.copytree(tmp_path / "second", tmp_path / "third")
    shutil.rmtree(tmp_path / "second")
    assert owner_of(context(tmp_path / "third", 3), "sink") == name
    (tmp_path / "link").symlink_to(tmp_path / "third")
    assert owner_of(context(tmp_path / "link", 4), "sink") == name


def test_a_copy_that_has_become_a_job_of_its_own_may_write(tmp_path: Path) -> None:
    name = owner_of(context(tmp_path / "original", 1), "sink")
    shutil.copytree(tmp_path / "original", tmp_path / "copied")
    (tmp_path / "copied/home/owner").unlink()  # as the message says
    assert owner_of(context(tmp_path / "copied", 2), "sink") != name
