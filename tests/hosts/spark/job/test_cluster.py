"""A real standalone cluster on loopback: a master and two workers from pyspark's own classes, each its own process.

An executor is killed with SIGKILL in the middle of a checkpoint. Spark starts another one and runs what was lost again;
the job ends with the right answer, and checkpoints are complete again.

A user's own code, beside the pipeline's file, goes along to the executors.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest

from strobe.store.consistency import check_manifest
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.snapshots import SnapshotStore
from tests.support.processes import children, command
from tests.support.spark import user_project
from tests.support.spark.ledger_data import delta_rows, expected_balances, write_transfers
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "ledger_job.py"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PATIENCE = 300.0  # seconds; only a test that fails waits for so long


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Cluster:
    root: Path
    port: int = field(default_factory=free_port)
    web: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, name: str, kind: str, *args: str) -> None:
        env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        with (self.root / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [SPARK_CLASS, f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *args],
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def workers_alive(self) -> int:
        for name, process in self.processes.items():
            assert process.poll() is None, (self.root / f"{name}.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/json/", timeout=5) as answer:
                return int(json.loads(answer.read())["aliveworkers"])
        except (OSError, ValueError):  # not up, or up and without its pages
            return 0

    def executors(self) -> list[int]:
        """The workers' children: a worker starts each executor as a process of its own."""
        workers = [process.pid for name, process in self.processes.items() if name.startswith("worker")]
        return [pid for w in workers for pid in children(w) if "CoarseGrainedExecutorBackend" in command(pid)]

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start("master", "master.Master", "--port", str(cluster.port), "--webui-port", str(cluster.web))
        for name in ("worker-1", "worker-2"):
            options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(cluster.root / name))
            cluster.start(name, "worker.Worker", *options, cluster.url)
        eventually(lambda: cluster.workers_alive() == 2, "two workers")
        yield cluster
    finally:
        cluster.stop()


def start(root: Path, master: str, **env: str) -> subprocess.Popen[bytes]:
    with (root / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "strobe.cli.main", "run", PIPELINE, "--home", root / "home", "--master", master],
            cwd=root,
            env={**os.environ, "LEDGER_DATA": str(root / "in"), "LEDGER_OUT": str(root / "out"), **env},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def under_way(root: Path) -> int | None:
    """The checkpoint that has begun and is not complete, if there is one, as seen on the disk."""
    job = root / "home" / "jobs" / "ledger"
    try:
        newest = int(json.loads((job / "incarnation.json").read_text())["snapshot"])
    except (OSError, ValueError):
        return None
    done = newest == 0 or (job / "snapshots" / f"chk-{newest:06d}" / "manifest.json").exists()
    return None if done else newest


def test_an_executor_killed_during_a_checkpoint_costs_nothing_but_time(cluster: Cluster, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=20, rows=50)
    run = start(tmp_path, cluster.url, BOUNDED="1")
    store = SnapshotStore(FilesystemStore(tmp_path / "home"), JobLayout("ledger"), "ledger")

    def said() -> str:
        return (tmp_path / "said").read_text()[-3000:]

    def alive() -> bool:
        assert run.poll() is None, f"it ended with {run.returncode}: {said()}"
        return True

    try:
        eventually(lambda: alive() and len(cluster.executors()) == 2, "two executors")
        state = tmp_path / "out/balances/_delta_log/00000000000000000002.json"
        eventually(lambda: alive() and bool(store.list()) and state.exists(), "a first checkpoint, and state to lose")
        eventually(lambda: alive() and under_way(tmp_path) is not None, "another one under way")
        begun = under_way(tmp_path) or 0
        killed = cluster.executors()[0]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: run.poll() is not None or killed not in cluster.executors(), "the executor's death")
        assert run.wait(PATIENCE) == 0, said()
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    assert "job ledger is finished" in said()
    assert (tmp_path / "said").read_text().count("spark.authenticate is off on spark://") == 1
    counted = delta_rows(tmp_path / "out/postings", "select count(*), count(distinct id) from t")
    assert counted == [(2 * 1000, 1000)]
    balances = delta_rows(tmp_path / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(data)
    (kept,) = store.list()
    assert kept >= begun > 0
    assert store.verify(kept) == ()
    assert check_manifest(store.load(kept)) == ()


@pytest.mark.parametrize(
    ("master", "code", "says"),
    [
        ("spark:/nowhere", 2, "error: --master 'spark:/nowhere' is not the address of a Spark master."),
        ("nonsense", 2, "error: --master 'nonsense' is not the address of a Spark master."),
        ("local[none]", 2, "error: --master 'local[none]' is not the address of a Spark master."),
    ],
)
def test_a_master_that_is_no_address_is_misuse(tmp_path: Path, master: str, code: int, says: str) -> None:
    run = start(tmp_path, master)
    assert run.wait(PATIENCE) == code
    lines = (tmp_path / "said").read_text().splitlines()
    assert says in lines
    assert lines[-1].startswith("next:  ")


def test_a_users_code_goes_along_to_the_executors(cluster: Cluster, tmp_path: Path) -> None:
    for found in user_project.check(user_project.run(tmp_path, cluster.url, few=True), few=True):
        assert re.search(r"/strobe-code-[0-9a-f]{16}/\d/rates\.py$", str(found)), found
