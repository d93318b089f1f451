"""Readers are forked from a server instead of started: they must not differ from what Spark wanted to start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from strobe.hosts.spark.jvm import reader_server, reader_stub
from strobe.hosts.spark.jvm.planning_daemon import DAEMON, PLANNING
from strobe.hosts.spark.jvm.worker_python import worker_python

PATIENCE = 60.0
LOADED = "wsgiref.types"  # something that nobody else loads
PROBE = f"""
import json, os, sys
import helper
print(json.dumps({{
    "word": os.environ.get("WORD"), "directory": os.getcwd(), "name": __name__, "arguments": len(sys.argv),
    "helper": helper.__file__, "loaded": {LOADED!r} in sys.modules, "pid": os.getpid(),
    "other": os.environ.get("OTHER"),
}}), flush=True)
line = sys.stdin.readline()
print("error", file=sys.stderr, flush=True)
sys.exit(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory, with a module and one that it imports."""
    place = tmp_path / "project with spaces"
    place.mkdir()
    (place / "probe.py").write_text(PROBE)
    (place / "helper.py").touch()
    return place


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", reader_server.__name__, str(tmp_path / "s"), LOADED, "--", "json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OTHER": "the server's"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == reader_server.READY
    yield process
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()


def start(tmp_path: Path, project: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", reader_stub.__file__, str(tmp_path / "s"), "probe"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=project, env={**os.environ, "WORD": "straße", "PYTHONPATH": str(project)},
    )  # fmt: skip


def said(stub: subprocess.Popen[str]) -> dict[str, object]:
    assert stub.stdout is not None
    answer: dict[str, object] = json.loads(stub.stdout.readline())
    return answer


def test_a_reader_is_as_if_it_had_been_started(tmp_path: Path, project: Path, server: subprocess.Popen[bytes]) -> None:
    with start(tmp_path, project) as stub:
        probe = said(stub)
        assert probe.pop("pid") != stub.pid
        assert probe == {
            "word": "straße", "directory": str(project), "name": "__main__", "arguments": 1,
            "helper": str(project / "helper.py"), "loaded": True, "other": None,
        }  # fmt: skip
        assert stub.communicate("go on\n", PATIENCE) == ("", "error\n")


def test_several_readers_live_beside_each_other(tmp_path: Path, project: Path, server: subprocess.Popen[bytes]) -> None:
    with start(tmp_path, project) as one, start(tmp_path, project) as another:
        assert said(one)["pid"] != said(another)["pid"]
        one.communicate("go on\n", PATIENCE)
        assert another.poll() is None
        another.communicate("go on\n", PATIENCE)


def test_a_reader_ends_with_what_spark_has_started(
    tmp_path: Path, project: Path, server: subprocess.Popen[bytes]
) -> None:
    with start(tmp_path, project) as stub:
        said(stub)
        stub.send_signal(signal.SIGTERM)
        assert stub.stdout is not None
        assert stub.stdout.read() == ""  # its end is open for as long as the reader lives


def test_without_a_server_the_stub_becomes_the_reader(tmp_path: Path, project: Path) -> None:
    with start(tmp_path, project) as stub:
        probe = said(stub)
        assert (probe["pid"], probe["loaded"], probe["word"]) == (stub.pid, False, "straße")
        assert stub.communicate("go on\n", PATIENCE) == ("", "error\n")
        assert stub.returncode == 3


def test_modules_are_looked_for_where_a_new_process_would(tmp_path: Path) -> None:
    path = ["/work", "/users", "/lib/python", "/lib/site-packages"]
    assert reader_server.module_path(path, "/users:", "/work") == ["/lib/python", "/lib/site-packages"]


def test_other_programs_of_sparks_are_started_as_they_are(tmp_path: Path) -> None:
    python = worker_python(sys.executable, tmp_path)
    done = subprocess.run([python, "-c", "print(1)", "-m"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("module", PLANNING)
def test_spark_has_a_planning_daemon_that_is_sparks_own(tmp_path: Path, module: str) -> None:
    """It serves as Spark's does, and ends as Spark's does: with its standard input."""
    python = worker_python(sys.executable, tmp_path)
    with subprocess.Popen([python, "-m", DAEMON, module], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert int.from_bytes(daemon.stdout.read(4), "big") > 0, "the port where it listens"
        assert daemon.poll() is None
        daemon.stdin.close()
        daemon.wait(PATIENCE)


def test_who_makes_a_source_has_its_modules_loaded(spark: SparkSession) -> None:
    class Probe(DataSource):
        @classmethod
        def name(cls) -> str:
            return "probe_of_modules"

        def schema(self) -> str:
            return f"{'loaded' if 'strobe.hosts.spark.channel.source' in sys.modules else 'missing'} INT"

    spark.dataSource.register(Probe)
    assert spark.read.format("probe_of_modules").load().columns == ["loaded"]
