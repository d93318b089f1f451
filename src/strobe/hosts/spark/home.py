"""Who runs a job: the lock, the heartbeat, and the two numbers that order time.

One driver at a time. The lock is an advisory file lock, so a driver that is killed releases it. A driver that is alive
but silent (stopped, or on a machine that hangs) is given up after `LEASE` seconds without a heartbeat: the next one
takes over with a higher incarnation, and the old one, should it wake, finds the higher number and ends itself; until
it does, its channels refuse its commits.

`incarnation.json` is the job's small durable memory: incarnation, timeline, the highest snapshot id ever taken, and
the generation of the stages' Spark checkpoints. A takeover starts a new generation, so that two Sparks never share a
directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from strobe.model.errors import Damaged, Failed, Fenced, Misuse
from strobe.model.ids import Incarnation, SnapshotId, Timeline
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout

__all__ = ["LEASE", "JobHome", "JobMemory", "host_name", "is_live", "read_runtime"]

LEASE = float(os.environ.get("STROBE_LEASE", "30"))
HEARTBEAT = min(1.0, LEASE / 4)


@dataclass(frozen=True, slots=True)
class JobMemory:
    incarnation: Incarnation
    timeline: Timeline
    snapshot: SnapshotId
    generation: int


_NEW = JobMemory(Incarnation(0), Timeline(1), SnapshotId(0), 0)


def read_runtime(home: Path, job: str) -> dict[str, Any] | None:
    """What the job's driver says of itself: pid, port, state, …; None if it was never started here."""
    try:
        value = json.loads((home / JobLayout(job).runtime).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Damaged(f"{home / JobLayout(job).runtime} cannot be read: {error}.") from error
    return value if isinstance(value, dict) else None


class JobHome:
    """The one driver's hold on a job. Made by `claim`; `release` when done."""

    def __init__(self, home: Path, job: str) -> None:
        self.home = home.absolute()
        self.job = job
        self.layout = JobLayout(job)
        self.memory = _NEW
        self.took_over = False
        self._lock_file: int | None = None
        self._write_lock = threading.Lock()
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None
        self._runtime: dict[str, Any] = {}

    def path(self, key: str) -> Path:
        return self.home / key

    def claim(self, on_fenced: Callable[[str], None]) -> None:
        """Become the job's driver, or Misuse if another one is. Raises the incarnation, durably."""
        root = self.path(self.layout.root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._store = FilesystemStore(self.home)
            self._lock_file = self._take_lock()
        except OSError as error:
            raise Failed(
                f"The home directory {self.home} cannot be used: {error.strerror or error}.",
                untouched="Nothing was started.",
                next="Choose another with --home, or make it writable.",
            ) from error
        try:
            self.memory = self._read_memory()
            self._remember(
                incarnation=Incarnation(self.memory.incarnation + 1),
                generation=self.memory.generation + (1 if self.took_over else 0),
            )
        except BaseException:
            self.release()
            raise
        self._beat = threading.Thread(target=self._heartbeat, args=(on_fenced,), name="heartbeat", daemon=True)
        self._beat.start()

    def check_owner(self) -> None:
        """Fenced if another driver has taken over: asked before anything becomes visible or is deleted."""
        now = self._read_memory().incarnation
        if now != self.memory.incarnation:
            raise Fenced(
                f"Incarnation {self.memory.incarnation} of job {self.job!r} is fenced off by incarnation {now}.",
                untouched="Nothing was written.",
                next="A newer run of this job has taken over; this one must stop.",
            )

    def reserve(self, snapshot: SnapshotId) -> None:
        """The id is taken for ever, whatever becomes of the snapshot."""
        self._remember(snapshot=max(self.memory.snapshot, snapshot))

    def start_timeline(self, timeline: Timeline) -> None:
        self._remember(timeline=timeline)

    def publish(self, **facts: Any) -> None:
        """Facts about the running driver, for those who look from outside."""
        with self._write_lock:
            self._runtime.update(facts)
            target = self.path(self.layout.runtime)
            temporary = target.with_suffix(".new")
            try:
                temporary.write_text(json.dumps(self._runtime, indent=1))
                os.replace(temporary, target)
            except OSError as error:
                raise Failed(
                    f"{target} cannot be written: {error.strerror or error}.",
                    untouched="What was there before is as it was.",
                    next=f"Make room on the disk that holds {self.home}, or make it writable.",
                ) from error

    def release(self) -> None:
        self._stop.set()
        if self._beat is not None and self._beat is not threading.current_thread():
            self._beat.join()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_lock(self) -> int:
        path = self.path(self.layout.lock)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return self._take_over(path)
        if os.fstat(handle).st_ino != path.stat().st_ino:  # somebody took over between the two calls
            os.close(handle)
            return self._take_lock()
        os.utime(handle)
        return handle

    def _take_over(self, path: Path) -> int:
        silent = time.time() - path.stat().st_mtime
        try:
            runtime = read_runtime(self.home, self.job) or {}
        except Damaged:
            runtime = {}  # only for the message
        who = f"process {runtime.get('pid', '?')} on {runtime.get('host', 'this machine')}"
        if silent < LEASE:
            raise Misuse(
                f"Job {self.job!r} is already running: {who} holds it.",
                untouched="That run was left alone.",
                next=f"Look at it with `strobe status {self.job}`, end it with `strobe cancel {self.job}`, or choose "
                f"another --home. A driver that gives no sign of life for {LEASE:.0f} s is replaced.",
            )
        fresh = path.with_suffix(f".{os.getpid()}")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(fresh, path)
        self.took_over = True
        return handle

    def _heartbeat(self, on_fenced: Callable[[str], None]) -> None:
        assert self._lock_file is not None
        while not self._stop.wait(HEARTBEAT):
            try:
                now = self._read_memory().incarnation
            except Damaged:
                continue
            if now != self.memory.incarnation:
                on_fenced(
                    f"incarnation {now} has taken over job {self.job!r}; this is incarnation {self.memory.incarnation}"
                )
                return
            os.utime(self._lock_file)

    def _read_memory(self) -> JobMemory:
        path = self.path(self.layout.incarnation)
        try:
            value = json.loads(path.read_bytes())
            return JobMemory(
                Incarnation(int(value["incarnation"])),
                Timeline(int(value["timeline"])),
                SnapshotId(int(value["snapshot"])),
                int(value["generation"]),
            )
        except FileNotFoundError as error:
            # Written before anything else of a job: if there is anything else, somebody has taken it away.
            if not self.path(self.layout.stages).exists():
                return _NEW
            raise self._no_memory(path, "it is gone") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._no_memory(path, f"{type(error).__name__}: {error}") from error

    def _no_memory(self, path: Path, why: str) -> Damaged:
        return Damaged(
            f"{path} cannot be read: {why}. Without it nobody knows which driver of job {self.job!r} is the newest.",
            untouched="Nothing was started, and the job's data is as it was.",
            next="Put back a copy of it, or restore the newest snapshot into a new home.",
        )

    def _remember(self, **changes: Any) -> None:
        with self._write_lock:
            self.memory = replace(self.memory, **changes)
            self._store.put(self.layout.incarnation, json.dumps(asdict(self.memory)).encode())


def host_name() -> str:
    return socket.gethostname()


def is_live(home: Path, job: str) -> bool:
    """Whether some driver holds the job at this moment."""
    try:
        handle = os.open(home / JobLayout(job).lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
