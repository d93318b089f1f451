"""The start of the JVM: what it is told, who else can read that, and what a session that was killed leaves behind."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm import launch
from strobe.hosts.spark.jvm.session_directory import SessionDirectory, sweep
from strobe.model.errors import Misuse
from tests.support.processes import command, family

PASSWORD = "correct-horse-battery"
SESSION = f"""
import sys
from strobe.hosts.spark.jvm.session import spark_session
spark = spark_session("secrets", "local[1]", log="spark.log", extra={{
    "spark.my.password": {PASSWORD!r}, "spark.driver.extraJavaOptions": "-Dmy.password={PASSWORD} -Dmy.path='a b'",
}})
spark.range(10).repartition(2).count()
java = spark._jvm.java.lang.System
print(spark.conf.get("spark.my.password"), java.getProperty("my.password"), java.getProperty("my.path"), flush=True)
sys.stdin.read()
"""


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads the command lines of processes from /proc")
def test_no_setting_is_on_a_command_line_and_a_killed_session_is_swept_by_the_next(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert session.stdout is not None
    assert session.stdout.readline().rstrip("\n") == f"{PASSWORD} {PASSWORD} a b"  # the settings have arrived
    tree = family(session.pid)
    commands = [command(pid) for pid in tree if pid != session.pid]
    assert any("SparkSubmit" in c for c in commands)
    assert not [c for c in commands if PASSWORD in c]

    (directory,) = temporary.glob("strobe-spark-*")
    assert stat.S_IMODE(directory.lstat().st_mode) == 0o700
    assert not [f for f in directory.rglob("*") if f.is_file() and PASSWORD in f.read_text(errors="replace")]
    assert sweep(temporary) == 0  # it is in use
    session.kill()
    session.wait()
    for pid in tree[1:]:
        _await_end(pid)
    assert directory.is_dir()
    assert sweep(temporary) == 1
    assert not directory.exists()


def _await_end(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([handle], [], [], 60)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


@pytest.mark.spark
def test_java_reads_the_properties_that_were_written(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    settings = {
        "a": "plain", "b": "", "c d": " before", "e:=f": "after ", "g": "back\\slash\\", "h": "two\nlines\r\t\f",
        "i": "#!", "ключ": "значение 🔑", "#j": "=:", "!k": "a=b:c d", "url": "jdbc:x://h?user=u&password=p",
    }  # fmt: skip
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.StringReader(launch._properties(settings)))
    assert dict(properties) == settings


def test_settings_of_spark_submit_stay_in_force_below_those_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert launch._own_file(["pyspark-shell"]) == ("", ["pyspark-shell"])
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    assert launch._own_file(["--name", "x", "pyspark-shell"]) == (
        "spark.driver.memory 3g\n",
        ["--name", "x", "pyspark-shell"],
    )
    (tmp_path / "mine").write_text("a=b")
    for given in (["--properties-file", f"{tmp_path}/mine"], [f"--properties-file={tmp_path}/mine"]):
        assert launch._own_file([*given, "pyspark-shell"]) == ("a=b", ["pyspark-shell"])
    with pytest.raises(Misuse, match="it is not there"):
        launch._own_file(["--properties-file", f"{tmp_path}/none"])


# ── leftovers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_directory_is_swept_when_nobody_holds_its_lock(temporary: Path) -> None:
    first = SessionDirectory()
    (first.path / "local" / "rows").mkdir(parents=True)
    (first.path / "local" / "rows" / "shuffle").write_text("rows")
    held = os.dup(first.lock)  # as a JVM does that has outlived its driver
    os.close(first.lock)
    assert sweep(temporary) == 0
    os.close(held)
    second = SessionDirectory()
    assert [p.name for p in temporary.iterdir()] == [second.path.name]


def test_only_directories_that_are_surely_abandoned_are_swept(temporary: Path) -> None:
    victim = temporary / "precious"
    victim.mkdir()
    (victim / "lock").touch()
    (temporary / "strobe-spark-link").symlink_to(victim)
    (temporary / "strobe-spark-file").touch()
    (temporary / "strobe-spark-nolock").mkdir()
    (temporary / "strobe-spark-trap").mkdir()
    (temporary / "strobe-spark-trap" / "lock").symlink_to(victim / "lock")
    before = sorted(temporary.rglob("*"))
    assert sweep(temporary) == 0
    assert sorted(temporary.rglob("*")) == before


def test_a_link_in_a_swept_directory_is_removed_and_not_followed(temporary: Path) -> None:
    (temporary / "precious").mkdir()
    (temporary / "precious" / "file").touch()
    left = temporary / "strobe-spark-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "link").symlink_to(temporary / "precious")
    assert sweep(temporary) == 1
    assert (temporary / "precious" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_what_another_user_left_is_left_alone(temporary: Path) -> None:
    left = temporary / "strobe-spark-theirs"
    left.mkdir()
    (left / "lock").touch()
    os.chown(left, 65534, 65534)
    assert sweep(temporary) == 0
    assert left.exists()
