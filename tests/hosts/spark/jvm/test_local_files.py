"""Files that Spark's JVM writes to a local disk: their permissions, and no process for each of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm.local_files import write_without_processes


@pytest.fixture
def local(spark: SparkSession) -> Any:
    write_without_processes(spark)
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Callable[[str], Any]:
    jvm: Any = spark._jvm
    return lambda name: jvm.org.apache.hadoop.fs.Path(str(tmp_path / name))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_writing_files_and_directories_starts_no_process(
    spark: SparkSession, local: Any, path: Callable[[str], Any], tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    place = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")
    if not place.exists():
        pytest.skip("this system does not say what a process's children have done")

    def pages_of_children() -> int:
        """Faults of those that have ended: each that is started has some."""
        return int(place.read_text().rpartition(")")[2].split()[8])

    before = pages_of_children()
    for n in range(5):
        local.create(path(f"file-{n}")).close()
        local.mkdirs(path(f"directory-{n}"))
    assert pages_of_children() == before
    assert len(list(tmp_path.iterdir())) == 10  # no checksums beside them


def test_permissions_are_those_that_hadoop_gives(
    spark: SparkSession, local: Any, path: Callable[[str], Any], tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    plain = jvm.org.apache.hadoop.fs.RawLocalFileSystem()
    plain.initialize(local.getUri(), spark._jsc.hadoopConfiguration())
    for files, name in ((local, "ours"), (plain, "plain")):
        files.create(path(name)).close()
        files.mkdirs(path(f"{name}-directory"))
    assert mode(tmp_path / "ours") == mode(tmp_path / "plain")
    assert mode(tmp_path / "ours-directory") == mode(tmp_path / "plain-directory")


@pytest.mark.parametrize("wanted", ["600", "755", "640", "000", "1777"])
def test_permissions_can_be_changed(
    spark: SparkSession, local: Any, path: Callable[[str], Any], tmp_path: Path, wanted: str
) -> None:
    jvm: Any = spark._jvm
    (tmp_path / "directory").mkdir()
    os.symlink(tmp_path / "directory", tmp_path / "link")
    local.setPermission(path("link"), jvm.org.apache.hadoop.fs.permission.FsPermission(wanted))
    assert mode(tmp_path / "directory") == int(wanted, 8)


def test_doing_it_again_changes_nothing(spark: SparkSession, local: Any) -> None:
    before = local.getRaw()
    write_without_processes(spark)
    assert local.getRaw().equals(before)
    assert local.getRaw().getClass().getName() == "StrobeLocalFileSystem"
