"""Who runs a job: the lock, the heartbeat, and the two numbers that order time.

One driver at a time. The lock is an advisory file lock, so a driver that is killed releases it. Between two machines
such a lock may mean nothing (NFS): the lock's file says on which machine its holder runs, and a free lock is taken at
its word on that machine only. Elsewhere the heartbeat counts, whatever the lock says. A driver that is alive but silent
(stopped, or on a machine that hangs) is given up after `LEASE` seconds without a heartbeat: the next one takes over
with a higher incarnation, and the old one, should it wake, finds itself fenced off and ends.

`incarnation.json` is the job record: incarnation, timeline, the highest snapshot id ever taken, and
the generation of the stages' Spark checkpoints. Every start after an end that was not in order begins a new generation,
so that two Sparks never share a directory: a driver that was killed may leave a JVM that has yet to notice.

*Fencing.* Each incarnation has a directory of its own, `driver-N`, and writes the files that all drivers share by
moving them out of it. Who takes over makes the next directory, which only one can, and then moves the older ones away:
from that moment a write of an older driver finds nothing to move, however long ago it was begun. So what the new driver
reads afterwards is the old one's last word.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.durable import fsync, write_durably
from strobe.hosts.spark.home.record import NEW, JobRecord, record_from_json, record_json
from strobe.model.errors import Damaged, Failed, Fenced, Misuse
from strobe.model.ids import Incarnation, SnapshotId
from strobe.store.holding import LEASE, host_name, machine_of, this_machine
from strobe.store.layout import JobLayout
from strobe.store.private import make_private
from strobe.store.runtime import UNKNOWN, read_runtime, runtime_json
from strobe.store.small_files import open_regular, read_small

__all__ = ["LEASE", "JobHome", "JobRecord", "host_name"]

_log = logging.getLogger("strobe.home")
HEARTBEAT = min(1.0, LEASE / 4)


class JobHome:
    """The one driver's hold on a job. Made by `claim`; `release` when done."""

    def __init__(self, home: Path, job: str) -> None:
        self.home = home.absolute()
        self.job = job
        self.layout = JobLayout(job)
        self.record = NEW
        self._lock_file: int | None = None
        self._write_lock = threading.Lock()
        self._durable: set[Path] = set()  # directories whose names are, up to the home
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None
        self._runtime = UNKNOWN

    def path(self, key: str) -> Path:
        return self.home / key

    def claim(self, on_fenced: Callable[[str], None], snapshot: str | None = None) -> None:
        """Become the job's driver, or Misuse if another one is. Raises the incarnation, durably.

        `on_fenced` is called, from whichever thread finds out, when another driver has taken over. `snapshot` is what
        the job will be restored from: one that has no history yet notes it.
        """
        self._on_fenced = on_fenced
        try:
            if make_private(self.path(self.layout.root)):
                _log.warning("Everybody could read %s. Now only you can.", self.path(self.layout.root))
            self._lock_file = self._take_lock()
            try:
                self._take_incarnation(snapshot)
                if self._lock_file is None:
                    self._lock_file = self._replace_lock()
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise Failed(
                f"The home directory {self.home} cannot be used: {error.filename or ''}: {error.strerror or error}.",
                untouched="Nothing was started.",
                next="Choose another with --home, or make it writable.",
            ) from error
        self._beat = threading.Thread(target=self._heartbeat, name="heartbeat", daemon=True)
        self._beat.start()

    def check_owner(self) -> None:
        """Fenced if another driver has taken over: asked before anything becomes visible or is deleted."""
        if not self._own.is_dir():
            raise self._fenced()

    def reserve(self, snapshot: SnapshotId) -> None:
        """The id is taken for ever, whatever becomes of the snapshot."""
        self.remember(snapshot=max(self.record.snapshot, snapshot))

    def remember(self, **changes: Any) -> None:
        """Change the record, durably, in one write."""
        with self._write_lock:
            record = replace(self.record, **changes)
            self._write(self.layout.incarnation, record_json(record), durable=True)
            self.record = record

    def write(self, key: str, value: dict[str, Any]) -> None:
        """Replace a small file of the job, durably; Fenced if this is no longer the job's driver."""
        with self._write_lock:
            target = self.path(key)
            if target.parent not in self._durable:  # whoever made it may not have synced the names that lead to it
                target.parent.mkdir(parents=True, exist_ok=True)
                for above in target.parents[: len(Path(key).parts)]:
                    fsync(above)
                self._durable.add(target.parent)
            self._write(key, json.dumps(value, indent=1), durable=True)

    def discard(self, path: Path) -> None:
        """Delete a directory or a file of the job, if there is one; Fenced if this is no longer the job's driver."""
        doomed = self._own / f"gone-{os.urandom(8).hex()}"
        try:
            os.rename(path, doomed)
        except FileNotFoundError:
            self.check_owner()
            return
        if doomed.is_dir():
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            doomed.unlink(missing_ok=True)

    def peek(self) -> None:
        """Read the job record without becoming its driver: for a plan that touches nothing."""
        self.record = self._read_record()

    def publish(self, **facts: Any) -> None:
        """Facts about the running driver, for those who look from outside."""
        with self._write_lock:
            self._runtime = replace(self._runtime, **facts)
            self._write(self.layout.runtime, runtime_json(self._runtime), durable=False)

    def release(self) -> None:
        self.stop_heartbeat()
        if self.record.incarnation:
            shutil.rmtree(self._own, ignore_errors=True)
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def forget(self) -> None:
        """Remove what a first start has made that came to nothing: only if no stage has done anything."""
        if not self.path(self.layout.stages).exists():
            shutil.rmtree(self.path(self.layout.root), ignore_errors=True)

    def could_not_start(self, error: OSError) -> Failed:
        """The error for a start that failed because of the disk."""
        return Failed(
            f"Job {self.job!r} could not start: {error.filename or self.home}: {error.strerror}.",
            untouched="Nothing runs, and what the job has done is as it was.",
            next="Make room on that disk, or check it, and run again.",
        )

    def stop_heartbeat(self) -> None:
        self._stop.set()
        if self._beat is not None and self._beat is not threading.current_thread():
            self._beat.join()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _own(self) -> Path:
        return self.path(self.layout.driver(self.record.incarnation))

    def _take_lock(self) -> int | None:
        """The lock, or None if a driver holds it that gives no sign of life."""
        path = self.path(self.layout.lock)
        handle = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            if _is_beating(path):
                raise self._running() from None
            return None
        if os.fstat(handle).st_ino != path.stat().st_ino:  # somebody took over between the two calls
            os.close(handle)
            return self._take_lock()
        if self._older() and machine_of(path) != this_machine() and _is_beating(path):
            os.close(handle)  # its holder is on another machine, and the lock did not keep us from it
            raise self._running()
        _sign(handle)
        return handle

    def _replace_lock(self) -> int:
        path = self.path(self.layout.lock)
        fresh = self._own / path.name
        handle = open_regular(fresh, os.O_RDWR | os.O_CREAT)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sign(handle)
        os.replace(fresh, path)
        return handle

    def _older(self) -> dict[int, Path]:
        """The directories of drivers that have not ended in an orderly way, by incarnation."""
        names = self.path(self.layout.root).iterdir()
        return {number: path for path in names if (number := self.layout.driver_of(path.name)) is not None}

    def _take_incarnation(self, snapshot: str | None) -> None:
        known = self._read_record()  # nothing is touched if it is damaged
        older = self._older()
        mine = Incarnation(max(known.incarnation, *older, 0) + 1)
        try:
            self.path(self.layout.driver(mine)).mkdir()
        except FileExistsError:
            raise self._running() from None  # another one takes over at this very moment
        for path in older.values():
            gone = path.with_name(f"{path.name}.gone")
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                os.rename(path, gone)
            shutil.rmtree(gone, ignore_errors=True)
        known = self._read_record()
        self.record = replace(known, incarnation=mine)
        asked = known.asked
        if snapshot is not None and (asked or self._is_new(known)):
            asked = str(Path(snapshot).absolute()) if Path(snapshot).exists() else snapshot
        self.remember(generation=known.generation + (1 if older else 0), asked=asked)
        # The names above it, too: a number that a loss of power takes back would be given out twice, and whoever else
        # remembers it (a store, the system behind a sink) would take the new driver for the old one.
        for above in (self.path(self.layout.root).parent, self.home, self.home.parent):
            with contextlib.suppress(PermissionError):
                fsync(above)

    def _is_new(self, record: JobRecord) -> bool:
        return not record.stages and record.restoring is None and not self.path(self.layout.stages).exists()

    def _heartbeat(self) -> None:
        """Until the end. An error that passes, as on a network file system, must not make a healthy driver look dead;
        if it stays, others take over when the lease is over, and this driver finds out at its next beat."""
        last, said = SYSTEM.monotonic(), False
        while not self._stop.wait(HEARTBEAT):
            try:
                self.check_owner()
                self._touch_lock()
            except Fenced:
                return
            except Exception as error:
                silent = SYSTEM.monotonic() - last
                if not said or silent >= LEASE:
                    _log.warning(
                        "job %s: no sign of life could be given for %.1f s: %s. It is tried again; after %.0f s "
                        "another driver may take over.", self.job, silent, error, LEASE,
                    )  # fmt: skip
                    said = True
                    last = SYSTEM.monotonic() if silent >= LEASE else last
                continue
            last, said = SYSTEM.monotonic(), False

    def _touch_lock(self) -> None:
        if self._lock_file is None:
            return
        try:
            os.utime(self._lock_file)
        except OSError:
            # The handle may be stale for good. Others look at the file by its name, and it is ours: we own the job.
            os.utime(self.path(self.layout.lock))

    def _read_record(self) -> JobRecord:
        path = self.path(self.layout.incarnation)
        try:
            return record_from_json(read_small(path))
        except FileNotFoundError as error:
            # Written before anything else of a job: if there is anything else, somebody has taken it away.
            if not self.path(self.layout.stages).exists():
                return NEW
            raise self._no_record(path, "it is gone") from error
        except (OSError, ValueError) as error:
            raise self._no_record(path, str(error)) from error

    def _write(self, key: str, text: str, *, durable: bool) -> None:
        """Fenced if this is no longer the job's driver: then the file is as it was."""
        target = self.path(key)
        try:
            write_durably(target, text, fresh=self._own / target.name, durable=durable)
        except FileNotFoundError:
            raise self._fenced() from None
        except OSError as error:
            raise Failed(
                f"{target} cannot be written: {error.strerror or error}.",
                untouched="What was there before is as it was.",
                next=f"Make room on the disk that holds {self.home}, or make it writable.",
            ) from error

    # ── what can be wrong ───────────────────────────────────────────────────────────────────────────────────────────

    def _fenced(self) -> Fenced:
        try:
            newest = self._read_record().incarnation
        except Damaged:
            newest = Incarnation(0)
        mine = self.record.incarnation
        by = f"by incarnation {newest}" if newest > mine else f"since its directory {self._own} is gone"
        reason = f"Incarnation {mine} of job {self.job!r} is fenced off {by}."
        if not self._stop.is_set():  # a driver that has ended needs no telling
            self._on_fenced(reason)
        return Fenced(
            reason, untouched="Nothing was written.", next="A newer run of this job has taken over; this one must stop."
        )

    def _running(self) -> Misuse:
        try:
            runtime = read_runtime(self.home, self.job) or UNKNOWN
        except Damaged:
            runtime = UNKNOWN
        who = f"process {runtime.pid or '?'} on {runtime.host or 'this machine'}"
        return Misuse(
            f"Job {self.job!r} is already running: {who} holds it.",
            untouched="That run was left alone.",
            next=f"Look at it with `strobe status {self.job}`, end it with `strobe cancel {self.job}`, or choose "
            f"another --home. A driver that gives no sign of life for {LEASE:.0f} s is replaced.",
        )

    def _no_record(self, path: Path, why: str) -> Damaged:
        return Damaged(
            f"{path} cannot be read: {why}. Without it nobody knows which driver of job {self.job!r} is the newest.",
            untouched="Nothing was started, and the job's data is as it was.",
            next="Put back a copy of it, or restore the newest snapshot into a new home.",
        )


def _is_beating(lock: Path) -> bool:
    """Whether the lock's holder has given a sign of life within its lease. The clock may have been set since, so a last
    sign that is too old, or in the future, is not taken at its word: then the next one is waited for."""
    seen = _last_beat(lock)
    age = SYSTEM.time() - seen / 1e9
    if 0 <= age < LEASE:
        return True
    deadline = SYSTEM.monotonic() + (LEASE if age < 0 else 2 * HEARTBEAT)
    while SYSTEM.monotonic() < deadline:
        if _last_beat(lock) != seen:
            return True
        SYSTEM.sleep(HEARTBEAT / 10)
    return False


def _last_beat(lock: Path) -> int:
    # Opened, not only looked at: a network file system asks its server again when a file is opened.
    handle = open_regular(lock)
    try:
        return os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)


def _sign(lock: int) -> None:
    """The lock is held from this machine."""
    os.truncate(lock, 0)
    os.pwrite(lock, this_machine().encode(), 0)
    os.utime(lock)
