"""The archive of Spark's classes: used where it is there, made once, and never needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.job import record_classes
from strobe.hosts.spark.job.record_classes import is_made, main, make_archive
from strobe.hosts.spark.jvm.class_archive import archive_path, jvm_option

JAVA = Path("/java")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/java")
    return archive_path()


def record(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    """Instead of Spark, which takes half a minute: a JVM that writes this, or nothing."""

    def write(archive: Path) -> None:
        if content is not None:
            archive.write_bytes(content)

    monkeypatch.setattr(record_classes, "_record", write)


@pytest.mark.spark
def test_the_jvm_of_a_session_has_it_in_its_memory(spark: SparkSession) -> None:
    if not archive_path().is_file():
        pytest.skip("this Java makes no class archives")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    assert str(archive_path()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


@pytest.mark.spark
@pytest.mark.slow
def test_one_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    garbage = tmp_path / "share/strobe/spark.jsa"
    garbage.parent.mkdir(parents=True)
    garbage.write_bytes(b"\xde\xad" * 100_000)
    script = f"""if True:
        from pathlib import Path
        from strobe.hosts.spark.jvm import class_archive
        class_archive.archive_path = lambda: Path({str(garbage)!r})
        from strobe.hosts.spark.jvm.session import spark_session
        spark = spark_session("garbage", log={str(tmp_path / "log")!r})
        assert "spark.jsa" in spark.conf.get("spark.driver.extraJavaOptions")
        print(spark.range(3).count())
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"


def test_an_option_is_added_only_where_there_is_an_archive_and_nobody_has_chosen_another(place: Path) -> None:
    assert jvm_option("") == ""
    place.parent.mkdir(parents=True)
    place.write_bytes(b"archive")
    assert jvm_option("-Xmx1g") == f"-XX:SharedArchiveFile={place}"
    assert jvm_option("-XX:SharedArchiveFile=/mine.jsa") == ""
    assert jvm_option("-XX:ArchiveClassesAtExit=/mine.jsa") == ""


def test_a_place_with_a_space_in_its_name_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my venv"))
    archive_path().parent.mkdir(parents=True)
    archive_path().write_bytes(b"archive")
    assert jvm_option("") == ""


def test_it_is_made_once_for_a_java(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    assert not is_made(JAVA)
    record(monkeypatch, b"first")
    assert make_archive(JAVA)
    assert is_made(JAVA)
    assert not is_made(Path("/another/java"))
    record(monkeypatch, b"second")
    assert make_archive(Path("/another/java"))
    assert place.read_bytes() == b"second"
    assert not is_made(JAVA)
    assert {p.name for p in place.parent.iterdir()} == {"spark.jsa", "spark.made-for"}


def test_it_is_made_again_for_other_jars(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """A JVM takes an archive only with the very files that it was made from."""
    record(monkeypatch, b"archive")
    assert make_archive(JAVA)
    jars = record_classes._jars()
    assert any(b"spark-core" in jar for jar in jars)
    monkeypatch.setattr(record_classes, "_jars", lambda: [*jars[1:], jars[0] + b"0"])
    assert not is_made(JAVA)


def test_a_java_that_makes_none_is_not_asked_again_and_leaves_none_of_another_java(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    record(monkeypatch, b"of another")
    make_archive(Path("/another/java"))
    record(monkeypatch, None)
    assert not make_archive(JAVA)
    assert not place.exists()
    assert is_made(JAVA)


def test_what_goes_wrong_is_said_and_fails_no_setup(
    monkeypatch: pytest.MonkeyPatch, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(archive: Path) -> None:
        archive.write_bytes(b"half")
        raise RuntimeError("no room")

    monkeypatch.setattr(record_classes, "find_java", lambda: JAVA)
    monkeypatch.setattr(record_classes, "_record", fail)
    assert main() == 0
    assert "no class archive was made (RuntimeError: no room)" in capsys.readouterr().err
    assert list(place.parent.iterdir()) == []
    assert not is_made(JAVA)
    record(monkeypatch, b"whole")
    assert main() == 0
    assert "Once, about half a minute" in capsys.readouterr().out
    assert main() == 0
    assert capsys.readouterr().out == ""
