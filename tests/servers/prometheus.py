"""A throw-away Prometheus on loopback. A server as .ci/run wants it: in the foreground, its address in the file
`address` of the folder where it was started, until SIGTERM.

STROBE_PROMETHEUS_CONFIG is the configuration that it runs with; without it, it scrapes nothing. Debian's package brings
`promtool` as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType

START = 60.0  # seconds


def main() -> int:
    binary = find_binary()
    config = os.environ.get("STROBE_PROMETHEUS_CONFIG") or "empty.yml"
    if config == "empty.yml":
        Path(config).write_text("global: {}\n")
    port = free_port()
    prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    server = subprocess.Popen(
        [*prefix, binary, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}",
         "--storage.tsdb.path=data", "--log.level=warn"],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip

    def end(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            server.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    deadline = time.monotonic() + START
    while server.poll() is None and not is_ready(port):
        if time.monotonic() > deadline:
            server.kill()
        time.sleep(0.05)
    if server.poll() is None:
        Path("address.tmp").write_text(f"http://127.0.0.1:{port}\n")
        Path("address.tmp").rename("address")
    code = server.wait()
    return code if code >= 0 else 1


def find_binary() -> str:
    found = shutil.which("prometheus")
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for arguments in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "prometheus"]):
            subprocess.run(["apt-get", *arguments], check=False, stdout=sys.stderr, env=env)
        found = shutil.which("prometheus")
    if found is None:
        sys.exit("No Prometheus here, and none could be installed. On Debian: apt-get install prometheus")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1) as answer:
        return bool(answer.status == 200)
    return False


if __name__ == "__main__":
    sys.exit(main())
