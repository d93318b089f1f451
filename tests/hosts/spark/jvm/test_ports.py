"""A session's ports: who may speak to them, from where they can be reached, and what is said of those that are open."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.jvm import ports
from tests.support.processes import command, family
from tests.support.spark.jobs import eventually, stage

LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel's table of sockets is Linux's")
A_JAVA_STRING = b"\xac\xed\x00\x05t\x00\x05hello"  # as ObjectOutputStream writes "hello"
REFUSED, ANSWERED = 5, 4  # types of messages in Spark's protocol: RpcFailure, RpcResponse


def send_object(port: int) -> tuple[int, bytes]:
    """Send a serialised Java object to an endpoint that every RPC server of Spark's has. Returns type and body of the
    answer."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    to = b"\0\1" + text("127.0.0.1") + struct.pack(">i", port) + text("endpoint-verifier")
    body = to + A_JAVA_STRING
    message = struct.pack(">bqi", 3, 77, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, connection.makefile("rb") as stream:
        connection.sendall(struct.pack(">q", len(message) + 8) + message)
        (length,) = struct.unpack(">q", stream.read(8))
        answer = stream.read(length - 8)
    return answer[0], answer


def rpc_ports(spark: SparkSession) -> dict[str, int]:
    managers = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().toString()
    (blocks,) = re.findall(r"127\.0\.0\.1:(\d+)", managers)
    return {"rpc": int(str(spark.conf.get("spark.driver.port"))), "blocks": int(blocks)}


@pytest.fixture
def open_rpc(spark: SparkSession) -> Iterator[int]:
    """An RPC server in the same JVM without authentication, as Spark's default is."""
    jvm: Any = spark._jvm
    conf = spark.sparkContext._jsc.sc().conf().clone().set("spark.authenticate", "false")
    names = ("scala.None$", "org.apache.spark.internal.config.package$")
    none, entries = (getattr(jvm, name).__getattr__("MODULE$") for name in names)
    manager = jvm.org.apache.spark.SecurityManager(conf, none, entries.AUTH_SECRET_FILE())
    server = jvm.org.apache.spark.rpc.RpcEnv.create("open", "127.0.0.1", "127.0.0.1", 0, conf, manager, 1, False)
    yield server.address().port()
    server.shutdown()


@pytest.mark.spark
@pytest.mark.parametrize("port", ["rpc", "blocks"])
def test_an_object_of_somebody_without_the_secret_is_not_deserialised(spark: SparkSession, port: str) -> None:
    kind, answer = send_object(rpc_ports(spark)[port])
    assert kind == REFUSED
    assert b"Expected SaslMessage" in answer


@pytest.mark.spark
def test_without_authentication_the_same_object_is(open_rpc: int) -> None:
    kind, answer = send_object(open_rpc)
    assert kind == ANSWERED
    assert b"hello" in answer  # "Unsupported message hello": it was read, and only then not understood


@pytest.mark.spark
def test_the_secret_is_in_no_setting(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.authenticate") == "true"
    assert not [key for key, _ in spark.sparkContext.getConf().getAll() if "authenticate.secret" in key]


# ── where they can be reached ───────────────────────────────────────────────────────────────────────────────────────


def listening() -> dict[str, str]:
    """The address of each TCP socket on which a process of this tree listens, and that process's command."""
    owners = {}
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):  # it has just ended
            for handle in list(Path(f"/proc/{pid}/fd").iterdir()):
                with contextlib.suppress(OSError):  # it has just been closed
                    owners[os.readlink(handle)] = command(pid)
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for words in map(str.split, table.read_text().splitlines()[1:]):
            if words[3] == "0A" and f"socket:[{words[9]}]" in owners:
                found[words[1]] = owners[f"socket:[{words[9]}]"]
    return found


def elsewhere(address: str) -> bool:
    """Whether a socket with this address, in the kernel's words, can be reached from other machines."""
    return address.partition(":")[0] not in ("0100007F", "0000000000000000FFFF00000100007F", f"{'0' * 24}01000000")


@LINUX
@pytest.mark.spark
def test_everything_that_a_local_job_listens_on_is_on_loopback(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = strobe.Pipeline("listens")

    @pipeline.stage(uid="numbers")
    def numbers(spark: SparkSession) -> Any:
        return spark.readStream.format("rate").option("rowsPerSecond", 50).load()

    @pipeline.stage(uid="sums", reads="numbers", to=strobe.DeltaSink("sums"))
    def sums(numbers: Any) -> Any:
        return numbers.mapInPandas(lambda frames: frames, numbers.schema)

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: stage(job, "sums").batch is not None, "a batch with a Python process", job)
        found = listening()
    finally:
        job.cancel()
    assert not {a: c for a, c in found.items() if elsewhere(a)}
    assert len(found) >= 6, found  # the JVM's three, callbacks, gate, control API
    assert not [c for c in found.values() if "pyspark.daemon" in c]  # Unix sockets instead


@LINUX
def test_a_socket_that_is_open_to_other_machines_is_found() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert [a for a in listening() if elsewhere(a) and int(a.partition(":")[2], 16) == server.getsockname()[1]]


# ── callbacks ───────────────────────────────────────────────────────────────────────────────────────────────────────

CALL = b"c\nno such object\ncall\ne\n"


def call_back(spark: SparkSession) -> bytes:
    """Call into the driver's process as the JVM does."""
    gateway: Any = spark.sparkContext._gateway
    port = gateway._callback_server.server_socket.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(CALL)
            return connection.recv(100)
        except ConnectionError:
            return b""


@LINUX
@pytest.mark.spark
def test_callbacks_come_from_processes_of_the_same_user(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"Object ID unknown" in call_back(spark)
    monkeypatch.setattr(ports, "os", SimpleNamespace(geteuid=lambda: os.geteuid() + 1))
    assert call_back(spark) == b""


@LINUX
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_the_kernel_tells_another_user_apart() -> None:
    dial = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
    for user, own in ((os.geteuid(), True), (65534, False)):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            dialling = subprocess.Popen(["/usr/bin/env", "python3", "-c", dial, port], user=user, cwd="/")
            connection, _ = server.accept()
            with connection:
                assert ports.is_own(connection) is own
            dialling.wait()


# ── clusters, and what people set ───────────────────────────────────────────────────────────────────────────────────


def session_with(master: str, **settings: str) -> Any:
    conf = {key.replace("_", "."): value for key, value in settings.items()}
    context = SimpleNamespace(master=master, getConf=lambda: SimpleNamespace(get=conf.get))
    return SimpleNamespace(sparkContext=context)


def test_open_ports_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "strobe.session"):
        for _ in range(2):
            ports.warn_if_open(session_with("spark://open:7077", spark_driver_host="here", spark_driver_port="4711"))
        ports.warn_if_open(session_with("spark://closed:7077", spark_authenticate="true"))
    (record,) = caplog.records
    assert "spark.authenticate is off on spark://open:7077" in record.getMessage()
    assert "here:4711" in record.getMessage()


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2, 3]", "local[*,1]"])
def test_every_local_master_asks_who_speaks(master: str) -> None:
    settings = ports.port_settings(master, Path("/tmp/x"))
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.python.unix.domain.socket.dir"] == "/tmp/x"


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "k8s://https://x", "local-cluster[2,1,1024]"])
def test_a_cluster_is_as_the_cluster_says(master: str) -> None:
    assert not ports.port_settings(master, Path("/tmp/x"))


@pytest.mark.parametrize("master", ["local[none]", "local[", "local[]", "local[2", "localhost"])
def test_for_spark_to_refuse_a_master_it_must_not_miss_a_secret_first(master: str) -> None:
    assert "spark.authenticate" not in ports.port_settings(master, Path("/tmp/x"))


def test_a_directory_whose_name_is_too_long_for_sockets_gets_none() -> None:
    assert "spark.python.unix.domain.socket.dir" not in ports.port_settings("local", Path("/tmp/" + "x" * 80))
