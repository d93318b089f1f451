"""The small files of a home, made hostile: what a driver says of itself, its memory, ledgers, history, verdicts, notes.

Whoever may write there is the job, so nothing is at stake that was not lost before. But a disk tears files, a tool
writes into them, somebody hands on a home to be looked at: then a command says what is damaged, or goes on without it.
The job's port may be somebody else's by now, and answer nonsense.

What must hold is what holds for snapshots (`cases`). A command that changes a job by its nature may do so.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from strobe.hosts.live.coordinator.record import RecordFile
from strobe.hosts.spark.connectors.ownership import OWNER, Claim, why_not_mine
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.config import CheckpointConfig
from strobe.hosts.spark.snapshot.checkpoints import open_checkpoints
from tests.hostile.answers import wrong_answer
from tests.hostile.cases import Case, cli, look, told, watched
from tests.hostile.mutations import hostile, places, strange
from tests.hostile.world import JOB, world_of

__all__ = ["HOME_WAYS", "LIVE", "furnish", "held", "listening", "run_home_case"]

LIVE: Final = "bank"
_DEEP: Final = b"[" * 100_000
_PAST: Final = {
    "snapshot": 5, "kind": "checkpoint", "status": "complete", "started": "2031-05-17T09:30:00.000Z",
    "ended": "2031-05-17T09:30:01.000Z", "incarnation": 1, "timeline": 1, "duration_ms": 41.3, "phases": {"sync": 0.3},
    "slowest": "balances", "bytes_new": 0, "bytes_total": 0, "rows_in_flight": 0, "reason": "", "everywhere": False,
    "stages": {"balances": {"phases": {"sync": 0.3}, "batch": 1, "state_rows": 2}},
}  # fmt: skip
_RUNTIME: Final = {
    "kind": "spark", "job": JOB, "state": "running", "pid": 999_999, "host": "h", "port": 9, "started":
    "2031-05-17T09:30:00.000Z", "incarnation": 1, "timeline": 1, "master": "local[2]", "target": "p.py", "base": "/b",
    "settings": {"balances": {"output_mode": "append"}},
}  # fmt: skip
_ENTRY: Final = {
    "handle": f"{JOB}/postings/0/1/4", "snapshot": 4, "timeline": 1, "after": 0, "through": 1, "state": "prepared",
    "where": "files", "noted": "x", "changed": "x", "data": {"path": "x"}, "by_hand": "look", "decided_by": None,
    "staged": True,
}  # fmt: skip
_FILES: Final[dict[str, Any]] = {
    f"{JOB}/runtime.json": _RUNTIME,
    f"{JOB}/incarnation.json": {
        "incarnation": 1, "timeline": 1, "snapshot": 5, "generation": 0, "restoring": None, "pinned": [5],
        "stages": {"postings": {"operators": [], "sources": [], "schema": "struct<a:bigint>"}}, "home": "/old",
    },
    f"{JOB}/supervisor.json": {"pid": 1, "state": "up", "next_start": None, "began": "1"},
    f"{JOB}/store.json": {"store": None, "owner": "a" * 32, "home": ""},
    f"{JOB}/owner.json": {"home": "/x", "job": JOB},
    f"{JOB}/savepoint-under-way.json": {"place": "/nowhere/savepoint"},
    f"{JOB}/sinks/postings/0/ledger.json": {
        "format": 1, "sink": "postings/0", "kind": "FileSink", "timeline": 1, "origin": -1, "boundary": 0,
        "entries": [_ENTRY], "done": [_ENTRY], "closed": False,
    },
    f"{LIVE}/incarnation.json": {"incarnation": 1, "timeline": 1, "snapshot": 3, "generation": 1},
    f"{LIVE}/runtime.json": {**_RUNTIME, "kind": "live", "job": LIVE, "topology": "t.toml", "directory": "/d"},
}  # fmt: skip
_LINES: Final[dict[str, Any]] = {
    f"{JOB}/history.jsonl": _PAST,
    f"{JOB}/verdicts.jsonl": {
        "snapshot": 5, "invariant": "balanced", "holds": False, "rows": 1, "sample": [{"a": 1}], "seconds": 0.1,
        "at": "2031-05-17T09:30:00Z", "error": "",
    },
    f"{JOB}/releases.jsonl": {"snapshot": 5, "by": "me", "at": "2031-05-17T09:30:00Z", "why": "x"},
    f"{LIVE}/history.jsonl": _PAST,
}  # fmt: skip
_TEXTS: Final = {
    f"{JOB}/token": "abc",
    f"{JOB}/lock": "machine",
    f"{JOB}/identity": "a" * 32,
    f"{LIVE}/token": "abc",
    f"{LIVE}/lock": "",
}
_NO_HTTP: Final = (
    b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{",
    b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nno!", b"HTTP/1.1 404 \x1b[2J\r\nContent-Length: 2\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + _DEEP, b"HTTP/1.1 200 OK\r\n\r\n" + b"9" * 5000,
    b'HTTP/1.1 409 x\r\n\r\n{"error":["\\u001b[2J"],"next":{"a":1},"untouched":7}', b"HTTP/9 x\r\n\r\n",
    b"HTTP/1.1 302 x\r\nLocation: file:///etc/passwd\r\n\r\n", b"\0" * 99,
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500 + b"\r\n",
)  # fmt: skip


def furnish(home: Path) -> None:
    """What a driver leaves there."""
    jobs = home / "jobs"
    for name, value in _FILES.items():
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).write_text(json.dumps(value))
    for name, value in _LINES.items():
        (jobs / name).write_text(2 * (json.dumps(value) + "\n"))
    for name, text in _TEXTS.items():
        (jobs / name).write_text(text)
    (jobs / JOB / "logs").mkdir()
    (jobs / JOB / "logs" / "driver.log").write_text("a line\n")
    (home / "table").mkdir()
    claim = Claim("a" * 32, JOB, "balances", str(jobs / JOB / "identity"))
    (home / "table" / OWNER).write_text(json.dumps(claim.__dict__))


def run_home_case(seed: int, number: int, root: Path, some: int | None = None) -> str:
    """As `cases.run_case`. `root` has `template` and `canary`."""
    dice = random.Random(f"home/{seed}/{number}")
    place = root / "case"
    if place.is_dir():
        shutil.rmtree(place)
    world = world_of(root)
    shutil.copytree(root / "template", world, symlinks=True)
    furnish(world / "home")
    case = Case(world, world / "home", root / "canary", place / "scratch", dice)
    with nonsense(dice, case.canary) as port, held(world / "home") if dice.random() < 0.7 else nullcontext():
        done = f"seed {seed}, home case {number}: {_spoil(dice, world / 'home', case.canary, port)}"
        ways = list(HOME_WAYS.items())
        chosen = sorted(dice.sample(range(len(ways)), len(ways) if some is None else some))
        before = look(case)
        for index in chosen:
            before = watched(*ways[index], case, done, before, changes=ways[index][0] in _CHANGE)
    return done


def _spoil(dice: random.Random, home: Path, canary: Path, port: int) -> str:
    said = []
    for job in (JOB, LIVE):  # somebody else listens there by now
        runtime = home / "jobs" / job / "runtime.json"
        runtime.write_text(json.dumps({**json.loads(runtime.read_bytes()), "port": port, "pid": os.getpid()}))
    for _ in range(dice.choice((1, 1, 2, 3))):
        name = dice.choice([*_FILES, *_LINES, *_TEXTS, "../table/owner"])
        path = Path(os.path.normpath(home / "jobs" / name))
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 20):
            continue  # an earlier one has left nothing to work on
        what = dice.randrange(8)
        if what < 4 and name not in _TEXTS:
            lines = name in _LINES
            value = json.loads(json.dumps(_LINES[name] if lines else _object(path, name)))
            where, parent, key = dice.choice(list(places(value)))
            parent[key] = hostile(dice, canary)
            text = json.dumps(value, ensure_ascii=dice.random() < 0.5)
            path.write_bytes((text + "\n").encode(errors="surrogatepass") * (2 if lines else 1))
            said.append(f"{name}{where} = {parent[key]!r:.60}")
        elif what < 6:
            data = dice.choice(
                [b"", b"{}", b"[]", b"null", b"1e999", b"NaN", _DEEP, b'{"a":' * 50_000, b"\xff\xfe", b"\0" * 999,
                 b"9" * 5000, b'"' + b"x" * 300_000 + b'"', b"\x1b[2J\n", b'{"incarnation":1e400}', b"a\r\nb: c"]
            )  # fmt: skip
            path.write_bytes(data)
            said.append(f"{name} is {data[:20]!r}…")
        else:
            said.append(f"{name}: {strange(dice, path, canary)}")
    return "; ".join(said) or "nothing"


def _object(path: Path, name: str) -> Any:
    """What the file holds, or held before something was done to it: an object with something in it."""
    data = path.read_bytes() if path.exists() else b""
    return json.loads(data) if _is_object(data) else dict(_FILES.get(name, {"identity": "x"}))


def _is_object(data: bytes) -> bool:
    try:
        value = json.loads(data)
        return isinstance(value, dict) and bool(value)
    except (ValueError, RecursionError):
        return False


@contextmanager
def held(home: Path) -> Iterator[None]:
    """As by drivers that are alive."""
    with ExitStack() as stack:
        for job in (JOB, LIVE):
            file = stack.enter_context(open(home / "jobs" / job / "lock", "ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def nonsense(dice: random.Random, canary: Path) -> Iterator[int]:
    """A port that answers every request with something else than the driver would."""
    body = dice.choice(_NO_HTTP) if dice.random() < 0.4 else wrong_answer(dice, canary)
    with listening(body) as port:
        yield port


@contextmanager
def listening(body: bytes) -> Iterator[int]:
    """A port that answers every request with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    try:
                        peer.settimeout(5)
                        peer.recv(65536)
                        peer.sendall(body)
                    except OSError:
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


# ── what people do with a home ──────────────────────────────────────────────────────────────────────────────────────


def _claimed(case: Case) -> int:
    """What a start does before Spark."""

    def run() -> int:
        home = JobHome(case.root / "home", JOB)
        home.claim(lambda reason: None)
        try:
            open_checkpoints(home, CheckpointConfig())
        finally:
            home.release()
        return 0

    return told(run)


def _live_memory(case: Case) -> int:
    def run() -> int:
        memory = RecordFile(case.root / "home", LIVE)
        memory.close()
        return 0

    return told(run)


def _claim_of_table(case: Case) -> int:
    from tests.hosts.spark.connectors.test_ownership import context

    def run() -> int:
        problem = why_not_mine(case.root / "home" / "table", context(case.root), "a table", written=False)
        return 0 if problem is None else problem.exit_code

    return told(run)


HOME_WAYS: Final[dict[str, Callable[[Case], int]]] = {
    "list": cli("list"),
    "list --json": cli("list", "--json"),
    "status": cli("status", JOB),
    "status --json": cli("status", JOB, "--json"),
    "checkpoints": cli("checkpoints", JOB),
    "checkpoints --json": cli("checkpoints", JOB, "--json"),
    "explain": cli("explain", JOB),
    "explain --json": cli("explain", JOB, "5", "--json"),
    "transactions": cli("transactions", JOB),
    "transactions --json": cli("transactions", JOB, "--json"),
    "checks": cli("checks", JOB),
    "checks --json": cli("checks", JOB, "--json"),
    "logs": cli("logs", JOB),
    "inspect": cli("inspect", JOB),
    "verify": cli("verify", JOB),
    "sql": cli("sql", JOB, "from meta.snapshot"),
    "live status": cli("live", "status", LIVE),
    "table": _claim_of_table,
    "checkpoint": cli("checkpoint", JOB),
    "savepoint": cli("savepoint", JOB),
    "release": cli("release", JOB, "5"),
    "cancel": cli("cancel", JOB),
    "live snapshot": cli("live", "snapshot", LIVE),
    "live restore": cli("live", "restore", LIVE, "3"),
    "live kill": cli("live", "kill", "a", "--of", LIVE),
    "live break": cli("live", "break", "node.x > 1", "--of", LIVE),
    "stop": cli("stop", JOB),
    "live down": cli("live", "down", LIVE),
    "live memory": _live_memory,
    "claim": _claimed,
}
_CHANGE: Final = (
    "claim",
    "live memory",
    "release",
    "live down",
    "cancel",
    "savepoint",
    "checkpoint",
    "dispose",
    "live snapshot",
    "live restore",
    "live kill",
    "live break",
    "stop",
)
