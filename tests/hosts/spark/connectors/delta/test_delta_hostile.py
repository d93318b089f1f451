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

from strobe.hosts.spark.connectors.delta.files import others_since
from strobe.hosts.spark.connectors.delta.restore import why_unreachable
from strobe.model.errors import Failed
from tests.hostile.cases import alarm


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
