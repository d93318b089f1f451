"""A channel is a Delta table with one producer: what its writer promises and what its log says."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.spark.channel import entries as channel_entries
from strobe.hosts.spark.channel.log import LOG, entry_name
from strobe.hosts.spark.channel.writer import DATA, ChannelLog, ChannelWriter, Commit, DataFile, table_schema
from strobe.model.errors import Damaged, Failed, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

SCHEMA = StructType([StructField("n", LongType())])

Open = Callable[..., ChannelWriter]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "postings"


@pytest.fixture
def open_writer(path: Path) -> Open:
    def open_(incarnation: int = 1, timeline: int = 1, cut_to: int | None = None) -> ChannelWriter:
        return ChannelWriter(
            path,
            SCHEMA,
            job="ledger",
            producer=NodeId("postings"),
            timeline=Timeline(timeline),
            incarnation=Incarnation(incarnation),
            cut_to=cut_to,
        )

    return open_


def make_file(writer: ChannelWriter, batch: int, *values: int, name: str = "part-0") -> DataFile:
    relative = f"{DATA}/{writer.timeline}/{batch}-{writer.incarnation}/{name}.parquet"
    file = writer.path / relative
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), file)
    return DataFile(relative, len(values), file.stat().st_size)


def write(writer: ChannelWriter, batch: int, *values: int) -> Commit | None:
    return writer.append([make_file(writer, batch, *values)], batch)


def written(writer: ChannelWriter, batch: int, *values: int) -> Commit:
    commit = write(writer, batch, *values)
    assert commit is not None
    return commit


def rows(path: Path) -> list[int]:
    """What someone who knows nothing of Strobe reads."""
    return sorted(polars.read_delta(str(path))["n"].to_list())


def through(log: ChannelLog, after: int = 0, upto: int | None = None) -> list[int]:
    """What a consumer at position `after` reads, in order."""
    return [
        n
        for commit in log.commits(after, upto)
        for file in commit.files
        for n in pq.read_table(log.path / file.path)["n"].to_pylist()
    ]


def test_a_batch_is_one_commit_that_says_what_it_holds(open_writer: Open) -> None:
    writer = open_writer()
    commit = writer.append([make_file(writer, 7, 1, 2), make_file(writer, 7, 3, name="part-1")], 7)
    assert commit is not None
    assert (commit.batch, commit.rows, len(commit.files), commit.timeline) == (7, 3, 2, 1)
    assert commit.bytes == sum((writer.path / f.path).stat().st_size for f in commit.files)
    assert (commit.barrier, commit.ended) == (None, False)
    assert ChannelLog(writer.path).commits(0) == (commit,)


def test_commits_come_in_the_order_in_which_they_were_made(open_writer: Open) -> None:
    writer = open_writer()
    for batch in range(5):
        write(writer, batch, 10 * batch, 10 * batch + 1)
    assert through(writer.log) == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]


def test_a_consumer_reads_after_its_position_and_up_to_the_given_one(open_writer: Open) -> None:
    writer = open_writer()
    versions = [written(writer, batch, batch).version for batch in range(5)]
    assert through(writer.log, versions[0], versions[3]) == [1, 2, 3]
    assert through(writer.log, versions[4]) == []


def test_others_read_the_table_as_an_ordinary_delta_table(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    write(writer, 0, 1, 2)
    writer.place_barrier(SnapshotId(1))
    write(writer, 1, 3)
    writer.end()
    assert rows(path) == [1, 2, 3]
    assert sorted(DeltaTable(str(path)).to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3]
    with duckdb.connect() as db:
        db.register("postings", DeltaTable(str(path)).to_pyarrow_dataset())
        assert db.execute("select sum(n) from postings").fetchone() == (6,)


def test_a_replayed_batch_is_skipped(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    write(writer, 0, 1)
    assert write(writer, 0, 1) is None
    assert writer.has_batch(0)
    assert not writer.has_batch(1)
    assert rows(path) == [1]


def test_a_batch_replayed_by_the_next_incarnation_is_skipped(open_writer: Open, path: Path) -> None:
    write(open_writer(1), 0, 1)
    assert write(open_writer(2), 0, 1) is None
    assert rows(path) == [1]


def test_the_transaction_id_names_job_stage_and_timeline_but_not_the_incarnation(open_writer: Open, path: Path) -> None:
    write(open_writer(incarnation=41), 3, 1)
    assert DeltaTable(str(path)).transaction_version("strobe/ledger/postings/1") == 3


def test_an_empty_batch_makes_a_commit_only_when_asked(open_writer: Open) -> None:
    writer = open_writer()
    head = writer.log.head
    assert writer.append([], 0) is None
    assert writer.log.head == head
    commit = writer.append([], 1, even_if_empty=True)
    assert commit is not None
    assert (commit.batch, commit.rows, commit.files) == (1, 0, ())


def test_a_barrier_stands_after_what_was_written_before_it_and_before_the_rest(open_writer: Open) -> None:
    writer = open_writer()
    before = written(writer, 0, 1)
    barrier = writer.place_barrier(SnapshotId(5))
    after = written(writer, 1, 2)
    assert before.version < barrier.version < after.version
    assert (barrier.barrier, barrier.rows) == (5, 0)
    assert ChannelLog(writer.path).find_barrier(SnapshotId(5)) == barrier
    assert ChannelLog(writer.path).find_barrier(SnapshotId(6)) is None


def test_a_barrier_is_placed_once(open_writer: Open) -> None:
    writer = open_writer()
    first = writer.place_barrier(SnapshotId(5))
    write(writer, 0, 1)
    assert writer.place_barrier(SnapshotId(5)) == first
    assert open_writer(2).place_barrier(SnapshotId(5)) == first


def test_the_end_is_the_last_word_until_the_producer_writes_again(open_writer: Open) -> None:
    writer = open_writer()
    assert not writer.log.ended
    end = writer.end()
    assert end.ended
    assert writer.end() == end
    assert ChannelLog(writer.path).ended
    write(writer, 0, 1)
    assert not ChannelLog(writer.path).ended


def test_an_older_incarnation_is_fenced_off(open_writer: Open, path: Path) -> None:
    old = open_writer(1)
    write(old, 0, 1)
    open_writer(2)
    with pytest.raises(Failed, match="fenced off by incarnation 2"):
        write(old, 1, 2)
    with pytest.raises(Failed, match="fenced off by incarnation 2"):
        old.place_barrier(SnapshotId(1))
    with pytest.raises(Failed, match="fenced off by incarnation 2"):
        old.end()
    with pytest.raises(Failed, match="fenced off by incarnation 2"):
        open_writer(1)
    assert rows(path) == [1]


def test_a_fence_wins_or_loses_the_race_against_a_commit_but_nothing_comes_after_it(
    open_writer: Open, path: Path
) -> None:
    """Old incarnations write as fast as they can while newer ones take over: the log's incarnations never fall."""
    open_writer(1)
    fenced = []

    def run(incarnation: int) -> None:
        try:
            writer = open_writer(incarnation)
            for batch in range(incarnation * 1000, incarnation * 1000 + 300):
                writer.append([], batch, even_if_empty=True)
        except Failed as e:
            assert "fenced off" in str(e)  # noqa: PT017
            fenced.append(incarnation)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = sorted((path / LOG).glob("*.json"))[1:]
    incarnations = [json.loads(e.read_text().splitlines()[0])["commitInfo"]["strobe.incarnation"] for e in entries]
    assert incarnations == sorted(incarnations)
    assert 7 not in fenced
    assert ChannelLog(path).last_batch(Timeline(1)) == 7299


def test_two_threads_may_share_a_writer(open_writer: Open) -> None:
    writer = open_writer()

    def barriers() -> None:
        for snapshot in range(1, 101):
            writer.place_barrier(SnapshotId(snapshot))

    thread = threading.Thread(target=barriers)
    thread.start()
    for batch in range(100):
        writer.append([], batch, even_if_empty=True)
    thread.join()
    commits = ChannelLog(writer.path).commits(0)
    assert [c.batch for c in commits if c.batch is not None] == list(range(100))
    assert [c.barrier for c in commits if c.barrier is not None] == list(range(1, 101))


def test_a_cut_takes_the_table_back(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    write(writer, 0, 1)
    barrier = writer.place_barrier(SnapshotId(1))
    write(writer, 1, 2)
    write(writer, 2, 3)
    restored = open_writer(2, timeline=2, cut_to=barrier.version)
    assert rows(path) == [1]
    assert through(restored.log) == [1]
    assert restored.log.find_barrier(SnapshotId(1)) == barrier


def test_after_a_cut_the_same_batches_are_written_again(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    cut = written(writer, 0, 1).version
    write(writer, 1, 2)
    restored = open_writer(2, timeline=2, cut_to=cut)
    assert write(restored, 1, 20) is not None
    assert rows(path) == [1, 20]
    assert through(restored.log, cut) == [20]
    assert through(ChannelLog(path)) == [1, 20]


def test_a_cut_takes_back_barriers_and_the_end(open_writer: Open) -> None:
    writer = open_writer()
    cut = written(writer, 0, 1).version
    writer.place_barrier(SnapshotId(1))
    writer.end()
    restored = open_writer(2, timeline=2, cut_to=cut)
    assert restored.log.find_barrier(SnapshotId(1)) is None
    assert not restored.log.ended


def test_a_branch_that_was_left_can_be_returned_to(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    first = written(writer, 0, 1).version
    second = written(writer, 1, 2).version
    write(writer, 2, 3)
    write(open_writer(2, timeline=2, cut_to=first), 1, 20)
    again = open_writer(3, timeline=3, cut_to=second)
    assert rows(path) == [1, 2]
    write(again, 2, 30)
    assert rows(path) == [1, 2, 30]
    assert through(ChannelLog(path)) == [1, 2, 30]


def test_a_position_on_a_branch_that_was_left_is_refused(open_writer: Open) -> None:
    writer = open_writer()
    first = written(writer, 0, 1).version
    second = written(writer, 1, 2).version
    restored = open_writer(2, timeline=2, cut_to=first)
    with pytest.raises(Failed, match=f"Version {second} of channel postings belongs to a line of history"):
        restored.log.commits(second)
    with pytest.raises(Failed, match="belongs to a line of history"):
        restored.log.commits(first, second)


def test_a_cut_beyond_the_log_is_refused(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    write(writer, 0, 1)
    with pytest.raises(Failed, match="cannot be cut back to version 99"):
        writer.truncate_to(99)
    assert rows(path) == [1]


def test_a_cut_to_where_the_table_stands_changes_nothing(open_writer: Open) -> None:
    writer = open_writer()
    version = written(writer, 0, 1).version
    writer.truncate_to(version)
    assert writer.log.head == version


def test_a_position_beyond_the_log_is_refused(open_writer: Open) -> None:
    writer = open_writer()
    with pytest.raises(Failed, match="does not exist: its log ends at"):
        writer.log.commits(0, 99)


def test_trimmed_rows_are_gone_and_the_rest_is_not(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    versions = [written(writer, batch, batch).version for batch in range(4)]
    assert writer.trim(versions[1]) == 2
    assert rows(path) == [2, 3]
    assert through(writer.log, versions[1]) == [2, 3]
    assert through(ChannelLog(path), versions[1]) == [2, 3]


def test_a_consumer_that_needs_trimmed_rows_is_told_so(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    versions = [written(writer, batch, batch).version for batch in range(4)]
    writer.trim(versions[1])
    for log in (writer.log, ChannelLog(path)):
        with pytest.raises(Failed, match=f"trimmed up to {versions[1]}"):
            log.commits(versions[0])


def test_a_barrier_behind_the_trimmed_rows_needs_none_of_them(open_writer: Open) -> None:
    """A consumer that stands before a barrier but after the last rows has lost nothing."""
    writer = open_writer()
    last = written(writer, 0, 1).version
    barrier = writer.place_barrier(SnapshotId(1))
    writer.trim(barrier.version)
    assert writer.log.commits(last) == (barrier,)


def test_files_outlive_their_trim_until_the_next_one(open_writer: Open, path: Path) -> None:
    """A reader that opened the table just before the trim can finish."""
    writer = open_writer()
    first, second = written(writer, 0, 1), written(writer, 1, 2)
    reader = DeltaTable(str(path))
    writer.trim(first.version)
    assert sorted(reader.to_pyarrow_table()["n"].to_pylist()) == [1, 2]
    writer.trim(second.version)
    assert not (path / first.files[0].path).exists()
    assert not (path / first.files[0].path).parent.exists()
    assert (path / second.files[0].path).exists()


def test_a_cut_keeps_what_a_trim_left(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    versions = [written(writer, batch, batch).version for batch in range(4)]
    writer.trim(versions[0])
    restored = open_writer(2, timeline=2, cut_to=versions[2])
    assert rows(path) == [1, 2]
    assert through(restored.log, versions[0]) == [1, 2]


def test_a_trim_reaches_branches_that_were_left(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    first, second = written(writer, 0, 1), written(writer, 1, 2)
    restored = open_writer(2, timeline=2, cut_to=first.version)
    third = written(restored, 1, 3)
    restored.trim(second.version)
    restored.trim(second.version)
    assert not (path / second.files[0].path).exists()
    assert rows(path) == [3]
    assert through(restored.log, first.version) == [3]
    assert third.files == restored.log.referenced()


@pytest.fixture
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_entries, "CHECKPOINT_EVERY", 5)


@pytest.mark.usefixtures("frequent_checkpoints")
def test_the_log_shrinks_with_the_rows_and_nothing_is_forgotten(open_writer: Open, path: Path) -> None:
    writer = open_writer(4)
    for batch in range(40):
        version = written(writer, batch, batch).version
        writer.close()
    writer.place_barrier(SnapshotId(1))
    writer.trim(version)
    last = written(writer, 40, 40)
    writer.end()
    names = sorted(p.name for p in (path / LOG).glob("*.json"))
    assert entry_name(0) not in names
    assert len(names) < 12
    log = ChannelLog(path)
    assert log.commits(version)[-2] == last
    assert log.ended
    assert log.last_batch(Timeline(1)) == 40
    assert log.incarnation == 4
    assert rows(path) == [40]
    assert write(open_writer(5), 40, 40) is None


@pytest.mark.usefixtures("frequent_checkpoints")
def test_a_batch_trimmed_from_the_log_is_still_known_as_written(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    for batch in range(20):
        version = written(writer, batch, batch).version
        writer.close()
    writer.trim(version)
    assert not (path / LOG / entry_name(0)).exists()
    assert open_writer(2).has_batch(19)


@pytest.mark.usefixtures("frequent_checkpoints")
def test_an_index_that_slept_while_the_log_was_trimmed_finds_its_place(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    write(writer, 0, 0)
    slept = ChannelLog(path)
    for batch in range(1, 20):
        version = written(writer, batch, batch).version
        writer.close()
    writer.trim(version)
    last = written(writer, 20, 20)
    slept.refresh()
    assert slept.head == writer.log.head
    assert slept.commits(version) == (last,)


@pytest.mark.usefixtures("frequent_checkpoints")
def test_trimmed_files_leave_no_trace_in_log_checkpoints(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    for batch in range(30):
        version = written(writer, batch, batch).version
        writer.trim(version - 1)
        writer.close()
    newest = max((path / LOG).glob("*.checkpoint.parquet"))
    table = pq.read_table(newest)
    tombstones = [r for r in table["remove"].to_pylist() if r and r["path"]] if "remove" in table.column_names else []
    assert tombstones == []


def test_what_dead_attempts_left_is_swept_by_the_next_incarnation(open_writer: Open, path: Path) -> None:
    writer = open_writer(1)
    kept = written(writer, 0, 1).files[0]
    dead = make_file(writer, 1, 2)
    open_writer(2)
    assert not (path / dead.path).parent.exists()
    assert (path / kept.path).exists()


def test_what_a_left_branch_holds_is_not_swept(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    first = written(writer, 0, 1).version
    left = written(writer, 1, 2).files[0]
    open_writer(2, timeline=2, cut_to=first)
    open_writer(3, timeline=2)
    assert (path / left.path).exists()


def test_sync_reaches_every_file_entry_and_directory_once(
    open_writer: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    writer = open_writer()
    first = written(writer, 0, 1)
    writer.sync(first.version)
    file = first.files[0].path
    assert {file, os.path.dirname(file), DATA, ".", "..", LOG, f"{LOG}/{entry_name(first.version)}"} <= set(synced)
    synced.clear()
    second, third = written(writer, 1, 2), written(writer, 2, 3)
    writer.sync(second.version)
    assert second.files[0].path in synced
    assert file not in synced
    assert third.files[0].path not in synced
    assert f"{LOG}/{entry_name(third.version)}" not in synced
    synced.clear()
    writer.sync(second.version)
    assert synced == []


def test_sync_of_a_file_that_is_gone_fails_unless_it_was_trimmed(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    first, second = written(writer, 0, 1), written(writer, 1, 2)
    writer.trim(first.version)
    (path / first.files[0].path).unlink()
    assert writer.sync(first.version) == 0
    gone = path / second.files[0].path
    gone.unlink()
    with pytest.raises(Damaged) as damaged:
        writer.sync(second.version)
    assert f"Channel postings has lost a file: {gone} was deleted" in damaged.value.what
    assert "room" not in str(damaged.value)


def test_a_torn_log_entry_is_reported_as_damage(open_writer: Open, path: Path) -> None:
    torn = written(open_writer(), 0, 1).version
    (path / LOG / entry_name(torn)).write_bytes(b"")
    with pytest.raises(Damaged, match=f"Entry {torn} of the log of channel postings"):
        ChannelLog(path)


def test_a_restore_moves_torn_log_entries_aside(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    good = written(writer, 0, 1).version
    torn = written(writer, 1, 2).version
    write(writer, 2, 3)
    (path / LOG / entry_name(torn)).write_bytes(b'{"commitInfo":{"time')
    restored = open_writer(2, timeline=2, cut_to=good)
    write(restored, 1, 20)
    assert rows(path) == [1, 20]
    assert through(ChannelLog(path)) == [1, 20]


def test_rows_that_come_after_the_first_sync_keep_the_names_that_lead_to_them(
    open_writer: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first barrier may come before the first row, and before the directory that rows go to."""
    writer = open_writer()
    writer.sync(writer.place_barrier(SnapshotId(1)).version)
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    writer.sync(written(writer, 0, 1).version)
    assert {DATA, "."} <= set(synced)


def test_a_log_with_a_gap_is_damaged_and_nothing_follows_what_was_lost(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    good, lost = written(writer, 0, 1).version, written(writer, 1, 2).version
    write(writer, 2, 3)
    (path / LOG / entry_name(lost)).unlink()
    with pytest.raises(Damaged, match=f"Entry {lost} of the log of channel postings is gone"):
        ChannelLog(path)
    restored = open_writer(2, timeline=2, cut_to=good)
    write(restored, 1, 20)
    assert rows(path) == [1, 20]
    assert through(ChannelLog(path)) == [1, 20]


def test_entries_that_were_moved_aside_do_not_come_back(
    open_writer: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would follow what the restore has written since, after the next loss of power."""
    writer = open_writer()
    good, torn = written(writer, 0, 1).version, written(writer, 1, 2).version
    (path / LOG / entry_name(torn)).write_bytes(b"")
    there: list[list[str]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(path / LOG):
            there.append(sorted(os.listdir(path / LOG)))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    open_writer(2, timeline=2, cut_to=good)
    assert there[0][-1] == entry_name(good)


def test_a_restore_can_be_planned_from_a_log_that_is_torn_behind_the_cut(open_writer: Open, path: Path) -> None:
    writer = open_writer()
    good, torn = written(writer, 0, 1).version, written(writer, 1, 2).version
    (path / LOG / entry_name(torn)).write_bytes(b"")
    assert ChannelLog(path, torn_after=good).head == good
    with pytest.raises(Damaged):
        ChannelLog(path, torn_after=torn)


def test_a_full_disk_leaves_the_channel_as_it_was(
    open_writer: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer()
    write(writer, 0, 1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    file = make_file(writer, 1, 2)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(Failed, match="could not be written: No space left on device"):
        writer.append([file], 1)
    monkeypatch.undo()
    assert rows(path) == [1]
    assert writer.append([file], 1) is not None
    assert rows(path) == [1, 2]


def test_a_stage_that_changes_its_columns_is_refused(open_writer: Open, path: Path) -> None:
    open_writer()
    with pytest.raises(Misuse, match=r"Stage 'postings' now returns struct<m:bigint>"):
        ChannelWriter(
            path,
            StructType([StructField("m", LongType())]),
            job="ledger",
            producer=NodeId("postings"),
            timeline=Timeline(1),
            incarnation=Incarnation(2),
        )
    assert table_schema(path) == SCHEMA


def test_a_channel_at_a_url_is_refused() -> None:
    with pytest.raises(Misuse, match="is not a directory"):
        ChannelWriter(
            "s3://bucket/x", SCHEMA, job="j", producer=NodeId("p"), timeline=Timeline(1), incarnation=Incarnation(1)
        )
