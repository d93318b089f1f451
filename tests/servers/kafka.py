"""A throw-away Kafka broker on loopback: one Java process, broker and KRaft controller in one. A server as .ci/run
wants it: in the foreground, its address in the file `address` of the folder where it was started, until SIGTERM; then
nothing of it is left. Its log is `kafka.log` there. The libraries are those of kafka.lock, fetched once per machine.

Started again in the same folder after a SIGKILL (of this process, of the broker or of both), it is the same server:
same data, same ports. A second listener, whose address is in the file `sasl`, wants SASL/PLAIN (user, password below).

Topics are not made by being written to. STROBE_KAFKA_OPTIONS adds settings: `message.max.bytes=2000 …`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

LOCK = Path(__file__).with_name("kafka.lock")
USER, PASSWORD = "strobe", "kafka-password-for-tests"
CLUSTER = "c3Ryb2JlLXRlc3RzLTAwMQ"
START = 120.0  # seconds
READY = "Kafka Server started"
# It is small and short-lived: quick to start rather than quick in the long run.
JVM = ("-Xms128m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOG = {
    "defaultLogLevel": "warn", "log.kafka.server.KafkaRaftServer": "info",
    "showDateTime": "true", "dateTimeFormat": "HH:mm:ss.SSS",
}  # fmt: skip


def main() -> int:
    from strobe.hosts.spark.jvm.jars import fetched
    from strobe.hosts.spark.jvm.java import find_java

    java = [str(find_java() / "bin" / "java"), *JVM, *(f"-Dorg.slf4j.simpleLogger.{k}={v}" for k, v in LOG.items())]
    java += ["-cp", os.pathsep.join(map(str, fetched(LOCK)))]
    log = Path("kafka.log")
    fresh = not Path("server.properties").exists()
    ports = free_ports(3) if fresh else [int(p) for p in Path("ports").read_text().split()]
    if fresh:
        Path("ports").write_text(" ".join(map(str, ports)))
    Path("server.properties").write_text(settings(*ports))
    with log.open("ab") as out:
        if not Path("data", "meta.properties").exists():
            shutil.rmtree("data", ignore_errors=True)
            tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server.properties", "--standalone"]
            subprocess.run([*java, *tool], check=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        said = log.stat().st_size
        command = [*tied(), *java, "kafka.Kafka", "server.properties"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    asked = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        with contextlib.suppress(ProcessLookupError):
            server.kill()  # it has nothing to keep

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    Path("broker.pid").write_text(str(server.pid))
    if wait_until_ready(server, log, said):
        publish("sasl", f"127.0.0.1:{ports[1]}")
        publish("address", f"127.0.0.1:{ports[0]}")
    code = server.wait()
    if asked:
        shutil.rmtree("data", ignore_errors=True)
        for name in ("server.properties", "ports", "broker.pid", "address", "sasl"):
            Path(name).unlink(missing_ok=True)
        return 0
    print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
    return code if code > 0 else 1


def settings(port: int, sasl: int, controller: int) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
        ),
        "log.dirs": str(Path("data").absolute()),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }
    for setting in shlex.split(os.environ.get("STROBE_KAFKA_OPTIONS", "")):
        name, _, value = setting.partition("=")
        lines[name] = value
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def wait_until_ready(server: subprocess.Popen[bytes], log: Path, said: int) -> bool:
    deadline = time.monotonic() + START
    while server.poll() is None:
        if READY.encode() in log.read_bytes()[said:]:
            return True
        if time.monotonic() > deadline:
            server.kill()
        time.sleep(0.05)
    return False


def publish(name: str, text: str) -> None:
    Path(f"{name}.tmp").write_text(text + "\n")
    Path(f"{name}.tmp").rename(name)


def tied() -> list[str]:
    """What ends the broker if this process is killed."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    sys.exit(main())
