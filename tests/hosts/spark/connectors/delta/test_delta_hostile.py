"""A Delta log that somebody else wrote: what it says of a table's files is checked before a file is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import strobe
from strobe.hosts.spark.connectors.base import SinkFate
from strobe.hosts.spark.connectors.delta.files import others_since
from strobe.hosts.spark.connectors.delta.restore import why_unreachable
from strobe.model.errors import Failed, Misuse
from tests.hostile.cases import alarm
from tests.hosts.spark.restore.test_hostile_snapshots import context


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """One file, of which the log says nothing but its name."""
    place = tmp_path / "table"
    write_deltalake(str(place), pa.table({"a": [1]}))
    entry = place / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def data_file(table: Path) -> Path:
    (file,) = table.glob("*.parquet")
    return file


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def a_link_to_a_pipe(file: Path) -> None:
    os.mkfifo(file.parent.parent / "pipe")
    file.symlink_to(file.parent.parent / "pipe")


def a_link_out(file: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), file.parent.parent / "other.parquet")
    file.symlink_to(file.parent.parent / "other.parquet")


def no_parquet(file: Path) -> None:
    file.write_bytes(b"PAR1, it says")


def a_directory(file: Path) -> None:
    file.mkdir()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def grown(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"PAR1")


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def other_bytes(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "rolled back"])
@pytest.mark.parametrize("spoil", [cut_off, grown, emptied, other_bytes])
def test_a_plan_finds_a_file_that_is_not_as_its_log_says(
    spoil: Callable[[Path], None], copied: bool, tmp_path: Path
) -> None:
    place = tmp_path / "job" / "out" if not copied else tmp_path / "theirs"
    write_deltalake(str(place), pa.table({"a": [1]}))
    spoil(data_file(place))
    position = {"path": str(place), "version": 0, "letters": None}
    found = strobe.DeltaSink("out").outlook(position, context(tmp_path / "job", None), fork=False, again=False)
    said = found.problem.what if found.problem is not None else found.warning
    assert data_file(place).name in said
    assert found.fate is (SinkFate.EMPTY if copied else SinkFate.ROLLED_BACK)


def test_a_link_in_a_table_stops_a_copy_of_it_when_it_is_planned(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    file = data_file(tmp_path / "t")
    file.rename(tmp_path / "t" / "there")
    file.symlink_to(tmp_path / "t" / "there")
    assert why_unreachable(tmp_path / "t", 0) is None
    why = why_unreachable(tmp_path / "t", 0, copied=True)
    assert why is not None
    assert "symbolic link" in why.what


def test_a_table_that_begins_empty_asks_nothing_of_the_one_that_cannot_be_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "theirs"), pa.table({"a": [1]}))
    (tmp_path / "theirs" / "_delta_log" / f"{0:020d}.json").write_text("torn")
    position = {"path": str(tmp_path / "theirs"), "version": 0, "letters": None}
    sink, job = strobe.DeltaSink("out"), context(tmp_path / "job", None)
    found = sink.outlook(position, job, fork=True, again=False)
    assert (found.fate, found.problem) == (SinkFate.EMPTY, None)
    assert "starts empty" in found.warning
    sink.restore(position, job, found.fate)  # as planned


def test_a_table_for_newer_writers_is_refused_when_it_is_planned(tmp_path: Path) -> None:
    place = tmp_path / "job" / "out"
    write_deltalake(str(place), pa.table({"a": [1]}))
    entry = place / "_delta_log" / f"{0:020d}.json"
    entry.write_text(entry.read_text().replace('"minWriterVersion":2', '"minWriterVersion":9'))
    position = {"path": str(place), "version": 0, "letters": None}
    found = strobe.DeltaSink("out").outlook(position, context(tmp_path / "job", None), fork=False, again=False)
    assert isinstance(found.problem, Misuse)
    assert "version 9 of Delta's protocol" in found.problem.what


def test_a_file_without_statistics_is_counted_by_its_footer(table: Path) -> None:
    assert why_unreachable(table, 0) is None


@pytest.mark.parametrize("made", [a_pipe, a_link_to_a_pipe, a_link_out, no_parquet, a_directory])
def test_what_is_no_data_file_is_neither_opened_nor_waited_for(made: Callable[[Path], None], table: Path) -> None:
    file = data_file(table)
    file.unlink()
    made(file)
    with alarm():
        why = why_unreachable(table, 0)
    assert isinstance(why, Failed)
    assert file.name in why.what


def entry_of(*lines: object) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


ADD = {"add": {"path": "x.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (entry_of({"commitInfo": None}, ADD), "an unnamed change"),
        (entry_of({"commitInfo": [1]}, ADD), "an unnamed change"),
        (entry_of({"txn": None}, ADD), "an unnamed change"),
        (entry_of({"txn": {"version": 1}}, ADD), "an unnamed change"),
        (entry_of(5, [], None, "add"), "an unnamed change"),
        (b"[" * 100_000, "an unnamed change"),
        (b"\xff\xfe{", "an unnamed change"),
        (entry_of({"commitInfo": {"operation": "WRITE"}}, ADD), "WRITE"),
        (entry_of({"commitInfo": {"operation": "SET TBLPROPERTIES"}}), ""),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_whatever_stands_in_a_log_that_others_changed_is_told(
    entry: bytes, said: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table / "_delta_log" / f"{1:020d}.json").write_bytes(entry)
    monkeypatch.setattr("strobe.hosts.spark.connectors.delta.files.DeltaTable", _Newest)
    told = others_since(table, 0)
    assert (said in told) if said else told == ""


class _Newest:
    """What deltalake says of a log whose entries it does not read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def version(self) -> int:
        return 1
