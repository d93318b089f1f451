"""A job's invariants, asked of its checkpoints in the background.

Asking is another process's work (`strobe.look.evaluator`). Here is decided what it is asked: one snapshot at a time,
and when it is done, the newest that is complete by then. What lies between is skipped and counted. A snapshot is leased
from the moment that it is complete, so retention leaves it alone until it has been looked at. Nothing here is waited
for by a batch or by a snapshot.

Invariants that hold rows back are asked apart, when the commit coordinator wants it: of each snapshot that has rows to
deliver, in order, and none is skipped. One that cannot be evaluated holds back as one that is violated does.
"""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec
from pyspark import cloudpickle

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.start import transactional
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.snapshot.metrics import InvariantStatus
from strobe.look.asking import Ask, Setup
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Invariant, OnViolation, Outcome, Verdict
from strobe.protocol.two_phase_commit.messages import Finding
from strobe.store.leases import Lease, take_lease
from strobe.store.verdicts import VerdictLog, read_verdicts

__all__ = ["InvariantChecks", "check_invariants"]

_log = logging.getLogger("strobe.job")
_dumps: Any = cloudpickle.dumps
_PATIENCE: Final = 60.0  # seconds that the end of a job waits for the verdicts on its last checkpoint
_GOODBYE: Final = 5.0


def check_invariants(pipeline: Pipeline) -> None:
    """Before anything is started: that every query is one, and names stages that there are."""
    if pipeline.invariants:
        from strobe.look.judging import check_names  # needs an extra, which a pipeline without invariants does not

        check_names(pipeline.invariants, pipeline.stages, [uid for uid in pipeline.stages if pipeline.readers(uid)])
    holding = [i.name for i in pipeline.invariants if i.on_violation is OnViolation.HOLD]
    if holding and not any(transactional(sink) for stage in pipeline.stages.values() for sink in stage.sinks):
        raise Misuse(
            f"Invariant {holding[0]!r} has on_violation='hold', but no sink of pipeline {pipeline.name!r} delivers on "
            "snapshot: there is nothing that it could hold back.",
            untouched="Nothing was started.",
            next="Give a sink delivery='on_snapshot', or say on_violation='fail' or 'report'.",
        )


class Judged(Protocol):
    def __call__(self, verdict: Verdict, *, holds_back: bool) -> None: ...


@dataclass(slots=True)
class _Of:
    """How one invariant is doing."""

    invariant: Invariant
    seen: int = 0  # snapshots
    skipped: int = 0
    violations: int = 0
    last: Verdict | None = None

    @property
    def unanswered(self) -> bool:
        """As long as there was nothing to ask about, the next snapshot is asked, whatever `every` says: it may be the
        last one."""
        return self.last is None or self.last.outcome is Outcome.SKIPPED


@dataclass(frozen=True, slots=True)
class _Wanted:
    ask: Ask
    lease: Lease | None
    decides: bool = False  # whether rows wait for it


class InvariantChecks:
    """`violated` is called, in a thread of this one's, for a violation that is to end the job; before that, `judged`,
    as for every verdict. `decide` gets the finding on a snapshot whose rows wait for it: when, and why."""

    def __init__(
        self,
        pipeline: Pipeline,
        home: Path,
        violated: Callable[[str], None],
        judged: Judged = lambda verdict, *, holds_back: None,
    ) -> None:
        self.decide: Callable[[SnapshotId, Finding, str, str], None] = lambda snapshot, finding, at, why: None
        self._deciding: deque[_Wanted] = deque()
        self._of = {invariant.name: _Of(invariant) for invariant in pipeline.invariants}
        self._home, self._job = home, pipeline.name
        self._violated, self._judged = violated, judged
        self._pending: _Wanted | None = None
        self._asked: _Wanted | None = None
        self._answered = 0  # the newest snapshot that was asked for, and for which no rows wait
        self._closed = False
        self._change = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._setup = Setup(
            home=str(home),
            job=pipeline.name,
            queries={i.name: i.sql for i in pipeline.invariants if i.sql is not None},
            functions={i.name: _pickled(i) for i in pipeline.invariants if i.function is not None},
            path=[str(Path(entry or os.getcwd()).absolute()) for entry in sys.path],
        )
        self._thread = threading.Thread(target=self._run, name="invariants", daemon=True)

    @property
    def holding(self) -> list[str]:
        """The invariants that hold rows back."""
        return [name for name, one in self._of.items() if one.invariant.on_violation is OnViolation.HOLD]

    def start(self) -> None:
        """Nothing is started for a job that has no invariants."""
        if self._of:
            self._log = VerdictLog(self._home, self._job)
            self._thread.start()

    def completed(self, snapshot: SnapshotId) -> None:
        """Called when a checkpoint is complete, by its writer. Returns at once."""
        with self._change:
            due = []
            for one in self._of.values():
                if one.invariant.on_violation is OnViolation.HOLD:
                    continue
                if one.unanswered or one.seen % one.invariant.every == 0:
                    due.append(one.invariant.name)
                one.seen += 1
            if not due or self._closed:
                return
            if self._pending is not None:
                self._skip(self._pending)
            self._pending = _Wanted(Ask(snapshot, due), take_lease(self._home, self._job, snapshot))
            self._change.notify_all()

    def judging(self, name: Callable[[SnapshotId], str | None]) -> Callable[[SnapshotId], None] | None:
        """How to have a snapshot judged whose rows wait for it. None if none of these holds anything back."""
        return (lambda snapshot: self.judge(snapshot, name(snapshot))) if self.holding else None

    def judge(self, snapshot: SnapshotId, name: str | None) -> None:
        """Rows of a snapshot wait until those that hold back have been asked. `name` as `open_snapshot` takes it; None
        if nobody knows where it is: then what it was found to be when that was known still counts."""
        with self._change:
            lease = None if name is None else take_lease(self._home, self._job, snapshot)
            self._deciding.append(_Wanted(Ask(snapshot, self.holding, name), lease, decides=True))
            self._change.notify_all()

    def status(self) -> tuple[InvariantStatus, ...]:
        with self._change:
            return tuple(
                InvariantStatus(
                    name=name,
                    on_violation=one.invariant.on_violation.value,
                    outcome="" if one.last is None else one.last.outcome.value,
                    snapshot=None if one.last is None else one.last.snapshot,
                    violations=one.violations,
                    skipped=one.skipped,
                    sentence="" if one.last is None else one.last.sentence,
                )
                for name, one in self._of.items()
            )

    def settle(self) -> str | None:
        """Wait for the verdicts on what is complete by now, for a while. What is violated that is to end the job, if
        any. Snapshots that come later are not waited for: they may come faster than they are judged."""
        with self._change:
            deciding = set(self._open(decides=True))
            newest = max(self._open(decides=False), default=0)  # or one after it, if it is skipped
            self._change.wait_for(
                lambda: self._answered >= newest and deciding.isdisjoint(self._open(decides=True)), _PATIENCE
            )
            for one in self._of.values():
                if one.violations and one.invariant.on_violation is OnViolation.FAIL and one.last is not None:
                    return one.last.sentence
        return None

    def _open(self, *, decides: bool) -> list[int]:
        """The snapshots that are not judged yet."""
        wanted = (*self._deciding, self._pending, self._asked)
        return [each.ask.snapshot for each in wanted if each is not None and each.decides is decides]

    def stop(self, *, wait: bool) -> None:
        """Wait for the verdicts on what is complete, if `wait`, then end."""
        if wait:
            self.settle()
        with self._change:
            self._closed = True
            if self._pending is not None:
                self._skip(self._pending)
                self._pending = None
            for wanted in self._deciding:
                if wanted.lease is not None:
                    wanted.lease.release()
            self._change.notify_all()
            process = self._process
        if process is not None:
            _end(process)
        if self._thread.is_alive():
            self._thread.join(_GOODBYE)

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._pending is not None or self._deciding)
                if self._closed:
                    return
                if self._deciding:
                    wanted = self._deciding.popleft()
                else:
                    assert self._pending is not None
                    wanted, self._pending = self._pending, None
                self._asked = wanted
            try:
                verdicts = self._ask(wanted.ask) if wanted.ask.place or not wanted.decides else self._known(wanted.ask)
            except Exception as error:  # the process died, or said what cannot be read: the next one gets a new one
                verdicts = self._not_asked(wanted.ask, error)
            try:
                self._take(verdicts)
            except Exception:
                _log.exception("verdicts on snapshot %d could not be noted", wanted.ask.snapshot)
            finally:
                self._tell(wanted, verdicts)
                if wanted.lease is not None:
                    wanted.lease.release()
                with self._change:
                    self._asked = None
                    if not wanted.decides:
                        self._answered = wanted.ask.snapshot
                    self._change.notify_all()

    def _ask(self, ask: Ask) -> list[Verdict]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._started()
        _pipe(process.stdin).write(msgspec.json.encode(ask) + b"\n")
        _pipe(process.stdin).flush()
        answer = _pipe(process.stdout).readline()
        if not answer:
            raise RuntimeError(f"the process that evaluates invariants ended with {process.wait(_GOODBYE)}")
        return msgspec.json.decode(answer, type=list[Verdict])

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "strobe.look.evaluator"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        _pipe(process.stdin).write(msgspec.json.encode(self._setup) + b"\n")
        return process

    def _not_asked(self, ask: Ask, error: Exception) -> list[Verdict]:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        why = str(error) or type(error).__name__
        return [Verdict(name, SnapshotId(ask.snapshot), Outcome.FAILED, why=why) for name in ask.invariants]

    def _known(self, ask: Ask) -> list[Verdict]:
        """What was noted of a snapshot that cannot be asked again."""
        noted = {v.invariant: v for v in read_verdicts(self._home, self._job) if v.snapshot == ask.snapshot}
        why = "its place is no longer known"
        lost = [Verdict(name, SnapshotId(ask.snapshot), Outcome.FAILED, why=why) for name in ask.invariants]
        return [noted.get(verdict.invariant, verdict) for verdict in lost]

    def _tell(self, wanted: _Wanted, verdicts: Sequence[Verdict]) -> None:
        """Give the verdict to the commit coordinator, which keeps rows back until then."""
        if not wanted.decides or self._closed:
            return
        crash_points.point("verdict.noted")
        wrong = [v for v in verdicts if v.outcome in (Outcome.VIOLATED, Outcome.FAILED)]
        late = [v for v in verdicts if v.outcome is Outcome.SKIPPED]
        finding = Finding.VIOLATED if wrong else Finding.POSTPONED if late else Finding.HOLDS
        told = [*wrong, *late, *verdicts][0]
        snapshot = SnapshotId(wanted.ask.snapshot)
        self.decide(snapshot, finding, told.at, told.sentence)
        if wrong:
            _log.warning(
                "the rows of snapshot %d, and all later ones, are held: `strobe release %s %d` lets them go",
                snapshot, self._job, snapshot,
            )  # fmt: skip

    def _take(self, verdicts: Sequence[Verdict]) -> None:
        if self._closed:
            return
        for verdict in verdicts:
            one = self._of[verdict.invariant]
            with self._change:
                one.last = verdict
                one.violations += verdict.outcome is Outcome.VIOLATED
            self._log.append(verdict)
            self._judged(verdict, holds_back=one.invariant.on_violation is OnViolation.HOLD)
            if verdict.outcome in (Outcome.HOLDS, Outcome.SKIPPED):
                continue
            _log.warning("%s", verdict.sentence)
            if verdict.outcome is Outcome.VIOLATED and one.invariant.on_violation is OnViolation.FAIL:
                self._violated(verdict.sentence)

    def _skip(self, wanted: _Wanted) -> None:
        for name in wanted.ask.invariants:
            self._of[name].skipped += 1
        if wanted.lease is not None:
            wanted.lease.release()


def _pickled(invariant: Invariant) -> str:
    try:
        return base64.b64encode(_dumps(invariant.function)).decode()
    except Exception as error:  # whatever an object of the user's raises when it is pickled
        raise Misuse(
            f"The function of invariant {invariant.name!r} cannot be given to another process: "
            f"{type(error).__name__}: {error}.",
            untouched="Nothing was started.",
            next="Let it use only what it gets, and plain values; open connections and sessions inside of it.",
        ) from error


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends when its standard input does."""
    try:
        _pipe(process.stdin).close()
        process.wait(_GOODBYE)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
    _pipe(process.stdout).close()
