"""Servers for tests and for people: each is an executable in .ci/services/, see .ci/run for what it promises.

A test that only needs a server asks for the fixture `postgres`, `kafka` or `s3_server_endpoint` and shares one with all
others. A test that kills one starts its own: `Server("postgres", tmp_path)`, `kill()`, `start()` again on its data.

`python -m tests.services` (`make services`) starts all of them for a person, until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support import processes

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / ".ci" / "services"
PATIENCE = 180.0  # seconds: the first start may have to install the server

# For a JVM that lives for seconds: compiling for the long run takes longer than it saves.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def variable(name: str) -> str:
    """Where tests find the address of server `name`."""
    return f"STROBE_TEST_{name.upper().replace('-', '_')}"


class NoServer(Exception):
    """It did not start; the message is what it said."""


class Server:
    """One server of this process's own, in a folder of its own. Starts at once; use it in a `with`, or close it."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.folder = folder / f"{name}-server"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.start()

    def start(self) -> None:
        """After `kill`: the same server again, on the same data and at the same address, if it keeps any."""
        where = self.folder / "address"
        where.unlink(missing_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [str(SCRIPTS / self.name)], cwd=self.folder, env=self._env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not where.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "server.log").read_text(errors="replace").strip().splitlines()
                self.close()
                raise NoServer(f"the {self.name} server did not start: {' / '.join(said[-3:]) or 'it said nothing'}")
            time.sleep(0.02)
        self.address = where.read_text().strip()

    def kill(self) -> None:
        """SIGKILL, to all of its processes at once."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP, wait=False)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT, wait=False)

    def close(self) -> None:
        """For good; nothing of it is left."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()  # the server ends its own children
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        self.kill()
        note = self.folder / "data"
        if note.is_file():
            shutil.rmtree(note.read_text(), ignore_errors=True)
        self._process = None

    def _signal(self, number: signal.Signals, wait: bool = True) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        family = processes.family(process.pid)  # Postgres puts each of its processes in a session apart
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait:
            process.wait()
            deadline = time.monotonic() + 10
            # Until nothing is left of them: Postgres asks for the number of its old process, which counts until then.
            while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline:
                time.sleep(0.01)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def names() -> list[str]:
    return sorted(path.name for path in SCRIPTS.iterdir() if os.access(path, os.X_OK))


USE = {
    "kafka": "as bootstrap servers",
    "postgres": "psql ADDRESS; a throw-away server, so its password may be seen",
    "prometheus": "its page; it scrapes nothing",
    "s3": "AWS_ENDPOINT_URL; any key and secret will do",
}


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="strobe-services-"))
    servers: list[Server] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in names():
            print(f"{name} starts …", flush=True)
            servers.append(Server(name, folder))
        print("\nThey keep nothing, and end with Ctrl-C. For tests and snippets, in another terminal:\n")
        for server in servers:
            print(f"  export {variable(server.name)}={server.address}    # {USE.get(server.name, '')}")
        print("\nThen, for example: make test ARGS='-k postgres'", flush=True)
        while all(server._process is not None and server._process.poll() is None for server in servers):
            time.sleep(0.5)
        print("A server has ended by itself; so do the others.", file=sys.stderr)
        return 1
    except NoServer as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 0
    finally:
        for server in servers:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
