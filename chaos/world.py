"""Everything that a run needs and may break: servers behind proxies, a small disk, a clock, and a generator.

The servers are this run's own, so they may be killed, stopped and started again on their data. Everybody reaches them
through a proxy: Kafka gives its clients the proxy's address, and the DSN of Postgres names the proxy. Only the checker
connects to Postgres directly. The job's home and the Delta tables are on a file system of their own that can be
filled, if this user may mount one; the job's wall clock can be moved (clock.c), if there is a C compiler.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from chaos.driver import Driver
from chaos.outputs import Outputs
from chaos.processes import MARK, is_alive, kill, marked
from chaos.proxy import Mode, Proxy
from chaos.topics import make_topics
from tests.services import SHORT_LIVED, Server

__all__ = ["World"]

ROOT = Path(__file__).parents[1]
DISK = 1 << 30  # bytes
BUCKET = "chaos"
TABLES = """
CREATE TABLE postings (id bigint, leg int, account bigint, cents bigint);
CREATE TABLE balances (account bigint PRIMARY KEY, cents bigint, postings bigint)
"""
_S3 = {"AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": "chaos", "AWS_REGION": "us-east-1"}


class World:
    def __init__(self, work: Path, seed: int, rate: int, store: str = "disk", interval: float = 2.0) -> None:
        """`store`: where checkpoints go, "disk" (the job's home) or "s3"."""
        self.work, self.seed, self.rate = work, seed, rate
        self.mark = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.missing: list[str] = []  # what cannot be done here, and why
        self._closing = contextlib.ExitStack()
        self.disk = self._mount(work / "disk")
        self.home, self.out = work / "disk" / "home", work / "disk" / "out"
        self.kafka_proxy, self.postgres_proxy = self._proxy(), self._proxy()
        advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.kafka_proxy.port}"
        self.kafka = self._server("kafka", {"STROBE_KAFKA_OPTIONS": advertised})
        self.kafka_proxy.target = _place(self.kafka.address)
        self.servers = f"127.0.0.1:{self.kafka_proxy.port}"
        self.postgres = self._server("postgres", {})
        self.postgres_proxy.target = _place(urlsplit(self.postgres.address).netloc.rpartition("@")[2])
        self.dsn = re.sub(r":\d+/", f":{self.postgres_proxy.port}/", self.postgres.address)
        self.store_proxy: Proxy | None = None
        self.s3: Server | None = None
        env = {"LEDGER_KAFKA": self.servers, "LEDGER_POSTGRES": self.dsn, "LEDGER_OUT": str(self.out)}
        env |= {"LEDGER_INTERVAL": str(interval), "STROBE_LEASE": "6", "JDK_JAVA_OPTIONS": SHORT_LIVED}
        self.store_env: dict[str, str] = {}
        if store == "s3":
            env |= self._make_store()
        self.clock = self._make_clock()
        if self.clock is not None:
            self.set_clock(0)
            env |= {"LD_PRELOAD": str(self.clock), "CHAOS_CLOCK": str(work / "clock")}
        make_topics(self.servers)
        with psycopg.connect(self.postgres.address, autocommit=True) as connection:
            connection.execute(TABLES.encode())
        self.driver = Driver(self.home, work, env, self.mark)
        self._closing.callback(self.driver.close)
        self.generator: subprocess.Popen[bytes] | None = None
        self._closing.callback(self.stop_generator)
        self.auditor: subprocess.Popen[bytes] | None = None
        self._closing.callback(self.stop_auditor)

    @property
    def command_env(self) -> dict[str, str]:
        """For a command of `strobe` about the job."""
        return {**os.environ, **self.store_env}

    @property
    def outputs(self) -> Outputs:
        return Outputs(self.servers, self.postgres.address, self.out)

    # ── what runs beside the job ────────────────────────────────────────────────────────────────────────────────────

    def start_generator(self) -> None:
        self.generator = self._python("generator", "chaos.generator", self.servers, str(self.seed), str(self.rate))

    def stop_generator(self) -> None:
        """It finishes what it is writing."""
        if self.generator is not None:
            self.generator.terminate()
            try:
                self.generator.wait(90)
            except subprocess.TimeoutExpired:
                self.generator.kill()
                self.generator.wait()
            self.generator = None

    def start_auditor(self) -> None:
        self.auditor = self._python(
            "auditor", "chaos.auditor", str(self.home), self.servers, str(self.work / "audits.jsonl"),
            env=self.store_env, nice=5,
        )  # fmt: skip

    def stop_auditor(self) -> None:
        if self.auditor is not None:
            self.auditor.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.auditor.wait(120)
            kill(marked(f"{self.mark}-chaos.auditor"))
            self.auditor.wait()
            self.auditor = None

    def _python(
        self, log: str, module: str, *arguments: str, env: dict[str, str] | None = None, nice: int = 0
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **(env or {}), "PYTHONPATH": str(ROOT), MARK: f"{self.mark}-{module}"}
        lower = ["nice", "-n", str(nice)] if nice and shutil.which("nice") else []
        with (self.work / f"{log}.log").open("ab") as out:
            return subprocess.Popen(
                [*lower, sys.executable, "-m", module, *arguments], cwd=self.work, env=environment,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    # ── what can be broken ──────────────────────────────────────────────────────────────────────────────────────────

    def heal(self) -> None:
        """Everything is up, reachable, on time and has room again."""
        for proxy in (self.kafka_proxy, self.postgres_proxy, self.store_proxy):
            if proxy is not None and proxy.mode is not Mode.OPEN:
                proxy.set(Mode.OPEN)
        if self.clock is not None:
            self.set_clock(0)
        self.make_room()

    def fill_disk(self) -> None:
        assert self.disk is not None
        free = os.statvfs(self.disk)
        with (self.disk / "ballast").open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        with (self.disk / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def make_room(self) -> None:
        if self.disk is not None:
            (self.disk / "ballast").unlink(missing_ok=True)

    def set_clock(self, ahead: int) -> None:
        """Set the clock this many seconds ahead of the time, or behind it."""
        with (self.work / "clock").open("r+b" if (self.work / "clock").exists() else "w+b") as file:
            file.write(struct.pack("@q", ahead))  # in place: the processes that read it keep the file open

    def keep(self, where: Path) -> None:
        """What is on the disk, for somebody who looks for a fault."""
        if self.disk is not None:
            self.make_room()
            shutil.copytree(self.disk, where, dirs_exist_ok=True, ignore_dangling_symlinks=True)

    def close(self) -> None:
        self._closing.close()
        left = [pid for pid in marked(self.mark) if is_alive(pid)]
        kill(left)

    # ── how it is made ──────────────────────────────────────────────────────────────────────────────────────────────

    def _server(self, name: str, env: dict[str, str]) -> Server:
        server = Server(name, self.work, env)
        self._closing.callback(server.close)
        self._closing.callback(server.go_on)
        return server

    def _proxy(self) -> Proxy:
        proxy = Proxy()
        self._closing.callback(proxy.close)
        return proxy

    def _mount(self, where: Path) -> Path | None:
        where.mkdir(parents=True)
        if os.geteuid() != 0 or shutil.which("mount") is None:
            self.missing.append("full disk: only root may mount a small file system")
            return None
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(where)]
        made = subprocess.run(mount, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.missing.append(f"full disk: a small file system cannot be mounted here: {made.stderr.strip()}")
            return None
        self._closing.callback(subprocess.run, ["umount", "--lazy", str(where)], check=False)
        return where

    def _make_store(self) -> dict[str, str]:
        from tests.support.s3_server import make_bucket

        self.s3 = self._server("s3", {"MOTO_S3_DEFAULT_MAX_KEYS": "1000"})
        make_bucket(self.s3.address, BUCKET)
        self.store_proxy = self._proxy()
        self.store_proxy.target = _place(urlsplit(self.s3.address).netloc)
        self.store_env = {**_S3, "AWS_ENDPOINT_URL": self.s3.address}
        os.environ.update(self.store_env)  # this process looks at checkpoints, too
        through = f"http://127.0.0.1:{self.store_proxy.port}"
        return {**_S3, "AWS_ENDPOINT_URL": through, "LEDGER_STORE": f"s3://{BUCKET}/ledger"}

    def _make_clock(self) -> Path | None:
        compiler = shutil.which("cc")
        if compiler is None:
            self.missing.append("clock jumps: there is no C compiler for the library that moves a clock")
            return None
        made = self.work / "clock.so"
        source = Path(__file__).with_name("clock.c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"], check=True)
        return made


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
