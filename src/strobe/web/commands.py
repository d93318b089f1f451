"""What people order on the page. Orders to running jobs go over their control API; what needs Spark, Delta or the job's
lock is done by the `strobe` command, in a process of its own, which ends with this server at the latest.

Once given, an order is carried out by the job, also if the page is closed.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from strobe.hosts.live.system.commands import ask as ask_system
from strobe.hosts.spark.job.control import call_job
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import check_uid
from strobe.model.text import shortened
from strobe.store.holding import is_held
from strobe.store.runtime import UNKNOWN, read_runtime
from strobe.web.snapshot_reader import SnapshotReader
from strobe.web.views import Answer, Plan, Restorable, Rows

__all__ = ["Commands"]

_PATIENCE: Final = 300.0  # seconds for a command; a dry run starts Spark
_QUERY: Final = 30.0  # seconds for a query
_MOST_ROWS: Final = 500
_LONGEST: Final = 1000  # characters of a cell
_TABLES: Final = ".tables"
_FRESH: Final = 5.0  # seconds for which a look at all checkpoints counts


class Commands:
    """Safe to use from several threads."""

    def __init__(self, home: Path, snapshots: SnapshotReader, *, in_bucket: bool = False) -> None:
        """`in_bucket`: the home has only notes of where checkpoints are, and these are named by address."""
        self._home = home
        self._in_bucket = in_bucket
        self._snapshots = snapshots
        self._lock = Lock()
        self._looked: dict[str, tuple[float, dict[int, str]]] = {}

    # ── running jobs and systems ────────────────────────────────────────────────────────────────────────────────────

    def order(self, job: str, what: str, body: dict[str, Any]) -> Answer:
        """Order `what`, by its name in the control API. Returns when it is done."""
        self._check_running(job)
        return Answer(call_job(self._home, job, "POST", f"/v1/{what}", body, timeout=None))

    def order_system(self, name: str, what: str, body: dict[str, Any]) -> Answer:
        self._check_running(name)
        return Answer(ask_system(self._home, name, "POST", f"/v1/{what}", body, timeout=None))

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────

    def dispose(self, job: str, snapshot: int) -> Answer:
        done = Answer(self._strobe("dispose", self._name(job, snapshot)))
        self._snapshots.forget(job)
        return done

    def verify(self, job: str, snapshot: int) -> Answer:
        """Check every byte, and the cut. What it finds is an answer, not a failure."""
        return Answer(self._strobe("verify", self._name(job, snapshot), may_fail=True))

    def restorable(self, job: str, snapshot: int) -> Restorable:
        """Whether everything that a checkpoint needs besides itself is still there. A savepoint needs nothing."""
        if snapshot not in (self._snapshots.kept(job) or ()):
            self._name(job, snapshot)
            return Restorable(snapshot, "")
        if self._in_bucket:
            return Restorable(snapshot, "Its channels are in the home of its job, which is not here.")
        with self._lock:
            at, known = self._looked.get(job, (0.0, {}))
            if time.monotonic() - at > _FRESH or snapshot not in known:
                answer = self._strobe("checkpoints", job)
                known = {
                    int(c["snapshot"]): str(c.get("damaged") or c.get("not_restorable") or "")
                    for c in answer.get("retained", [])
                }
                self._looked[job] = (time.monotonic(), known)
        return Restorable(snapshot, known.get(snapshot, "It is gone."))

    def plan(self, job: str, snapshot: int, fork: str) -> Plan:
        """The dry run of a restore in place, or of a fork under another name, with the file that the job was run from:
        the page names no code."""
        runtime = read_runtime(self._home, job) or UNKNOWN
        target, base = runtime.target, runtime.base
        words = ["run", "-s", self._name(job, snapshot), target or "FILE"]
        if fork:
            words += ["--name", check_uid(fork, "name"), "--base", f"{base or '.'}/{fork}"]
        elif base:
            words += ["--base", base]
        command = shlex.join(["strobe", *words, "--home", str(self._home)])
        if not target:
            raise Misuse(
                f"Nobody noted from which file job {job!r} was run, so its restore cannot be planned here.",
                untouched="Nothing was changed.",
                next=f"Plan it in a terminal: {command} --dry-run",
            )
        return Plan(command, self._strobe(*words, "--dry-run", may_fail=True))

    def sql(self, job: str, snapshot: int, query: str) -> Rows:
        """A query over the state and the rows in flight of a snapshot. DuckDB sees nothing but the snapshot."""
        name, asked = self._name(job, snapshot), query.strip().rstrip(";")
        if not asked:
            raise Misuse("There is no query.", untouched="Nothing was asked.", next="Such as: from meta.stages")
        wrapped = asked if asked == _TABLES else f"from (\n{asked}\n) limit {_MOST_ROWS + 1}"
        found = self._run("sql", ["--timeout", f"{_QUERY:.0f}", "--file", "-"], [name], wrapped)[0]
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        columns = list(rows[0]) if rows else []
        cells = [[_cell(row.get(c)) for c in columns] for row in rows[:_MOST_ROWS]]
        return Rows(columns, cells, more=len(rows) > _MOST_ROWS)

    def _name(self, job: str, snapshot: int) -> str:
        found = self._snapshots.place(job, snapshot)
        if found is None:
            raise Misuse(
                f"Snapshot {snapshot} of job {job!r} is not kept.",
                untouched="Nothing was changed.",
                next="Choose one that is.",
            )
        kept = snapshot in (self._snapshots.kept(job) or ())
        return f"{job}/{snapshot}" if kept and not self._in_bucket else found.where

    def _check_running(self, job: str) -> None:
        if not is_held(self._home, job):
            raise Misuse(
                f"{job!r} is not running.", untouched="Nothing was changed.", next="Start it: `strobe run FILE`."
            )

    def _strobe(self, *words: str, may_fail: bool = False) -> dict[str, Any]:
        """`strobe WORDS --json`, whose answer is an object."""
        answer, code = self._run(words[0], [], words[1:])
        if not isinstance(answer, dict) or (code != 0 and not may_fail):
            raise Failed(f"`strobe {words[0]}` ended with {code}.", next="Try it in a terminal.")
        return answer

    def _run(self, command: str, options: Sequence[str], arguments: Sequence[str], given: str = "") -> tuple[Any, int]:
        """What it answered, and its exit code; its error, if it ends with one. What a person typed is `given` to it as
        its input: every user of the machine can read command lines."""
        ours = ["--json", "--home", str(self._home / "none" if self._in_bucket else self._home)]
        line = [sys.executable, "-P", "-m", "strobe.cli.main", command, *ours, *options]
        line += arguments
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=_PATIENCE, input=given, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"`strobe {command}` has not ended within {_PATIENCE:.0f} s.", next="Try it in a terminal."
            ) from None
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
            raise Failed(f"`strobe {command}` failed: {last[0][:500]}", next="Try it in a terminal.") from None
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            kind = Misuse if error.get("exit_code") == Misuse.exit_code else Failed
            raise kind(str(error.get("what")), untouched=str(error.get("untouched")), next=str(error.get("next")))
        return answer, done.returncode


def _cell(value: Any) -> str:
    """A value for people to read."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return shortened(text, _LONGEST)
