"""What sources still have: offsets of Kafka's kind, and files that Spark's log does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strobe.hosts.spark.snapshot.metrics import Backlog
from strobe.hosts.spark.stage.backlog import Directory, FileBacklog, offsets_behind


@pytest.mark.parametrize(
    ("latest", "end", "behind"),
    [
        ({"t": {"0": 10, "1": 5}}, {"t": {"0": 7, "1": 5}}, 3),
        ('{"t": {"0": 10}}', '{"t": {"0": 4}}', 6),
        ({"t": {"0": 10, "1": 4}}, {"t": {"0": 10}}, 4),
        ({"t": {"0": 3}}, {"t": {"0": 9}}, 0),
        (None, {"t": {"0": 1}}, None),
        ({"logOffset": 3}, {"logOffset": 2}, None),
        (17, 12, None),
        ({"channel": "a", "version": 3}, {"channel": "a", "version": 1}, None),
    ],
)
def test_offsets_that_count_by_partition_say_how_many_rows_wait(
    latest: object, end: object, behind: int | None
) -> None:
    assert offsets_behind([{"latestOffset": latest, "endOffset": end}]) == behind


def test_sources_that_cannot_tell_do_not_hide_those_that_can() -> None:
    kafka = {"latestOffset": {"t": {"0": 2}}, "endOffset": {"t": {"0": 1}}}
    assert offsets_behind([{"latestOffset": None, "endOffset": 3}, kafka, kafka]) == 2
    assert offsets_behind([]) is None


def log(checkpoint: Path, name: str, *files: Path) -> None:
    folder = checkpoint / "sources" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["v1", *(json.dumps({"path": f.as_uri(), "timestamp": 1, "batchId": 0}) for f in files)]
    (folder / name).write_text("\n".join(lines))


def put(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_files_that_the_log_does_not_have_wait(tmp_path: Path) -> None:
    data = tmp_path / "a b %41"  # which the log spells in its own way
    files = [put(data / f"{i}.json") for i in range(4)]
    put(data / "_temporary" / "5.json")
    put(data / ".hidden.json")
    put(data / "nested" / "6.json")
    partition = put(data / "day=1" / "7.json", 100)
    backlog = FileBacklog([Directory(str(data))], tmp_path / "spark")
    assert backlog.count() == Backlog(files=5, bytes=140)
    log(tmp_path / "spark", "0", *files[:2])
    assert backlog.count() == Backlog(files=3, bytes=120)
    log(tmp_path / "spark", "1", files[2], partition)
    assert backlog.count() == Backlog(files=1, bytes=10)
    put(data / "new.json")
    assert backlog.count() == Backlog(files=2, bytes=20)
    files[0].unlink()  # a file that was read may go
    assert backlog.count() == Backlog(files=2, bytes=20)


def test_a_log_that_was_compacted_is_read_from_its_compaction(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / str(i)) for i in range(4)]
    log(tmp_path / "spark", "9.compact", *files[:2])
    log(tmp_path / "spark", "10", files[2])
    log(tmp_path / "spark", "8", files[3])  # older than the compaction, which would have it
    assert FileBacklog([Directory(str(tmp_path / "in"))], tmp_path / "spark").count() == Backlog(files=1, bytes=10)


def test_patterns_filters_and_whole_trees_are_listed_as_spark_does(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.csv")
    put(tmp_path / "b" / "2.csv")
    put(tmp_path / "b" / "deep" / "3.csv")
    put(tmp_path / "b" / "4.txt")

    def count(*directories: Directory) -> int | None:
        return FileBacklog(directories, tmp_path / "spark").count().files

    assert count(Directory(f"{tmp_path}/*")) == 3
    assert count(Directory(f"{tmp_path}/b", everything=True)) == 3
    assert count(Directory(f"{tmp_path}/b", name_filter="*.csv")) == 1
    assert count(Directory(f"{tmp_path}/?/*.csv")) == 2


def test_a_directory_that_is_gone_is_not_counted(tmp_path: Path) -> None:
    backlog = FileBacklog([Directory(str(tmp_path / "none"))], tmp_path / "spark")
    backlog.refresh(1.0)
    assert backlog.known is None
