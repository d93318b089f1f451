"""The invariants of a topology, asked of the snapshots of a running system.

Like checks, they are asked of the newest complete snapshot, in a thread, and one that was overtaken before its turn is
left out. The verdict is durable in the system's home before it is shown.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.coordinator.outcomes import InvariantJudged, Listener
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome, Verdict
from strobe.store.verdicts import VerdictLog

__all__ = ["InvariantReport", "Invariants"]

_log = logging.getLogger("strobe.live")


@dataclass(frozen=True, slots=True)
class InvariantReport:
    """`outcome` is empty as long as it was not asked. `skipped`: snapshots that were overtaken before their turn."""

    name: str
    outcome: str = ""
    snapshot: int | None = None
    violations: int = 0
    skipped: int = 0
    sentence: str = ""


class Invariants:
    def __init__(self, topology: Topology, home: Path, listener: Listener) -> None:
        """Raises Misuse if one is not a query, or names a node that there is not."""
        self._topology, self._home, self._listener = topology, home, listener
        self._seen = 0
        self._verdicts: VerdictLog | None = None
        self.reports = tuple(InvariantReport(invariant.name) for invariant in topology.invariants)
        if topology.invariants:
            try:
                from strobe.look.judging import check_live_names
            except ModuleNotFoundError as error:
                raise Misuse(
                    f"The invariants of system {topology.name!r} need a package that is not installed: {error.name}.",
                    untouched="Nothing was started.",
                    next="Install Strobe with the extra 'sql': pip install 'strobe[sql]'",
                ) from error
            check_live_names(topology.invariants, [node.name for node in topology.nodes])

    def ask(self, snapshot: SnapshotId, *, skipped: int) -> None:
        """Ask the invariants whose turn it is. `skipped`: snapshots between the last one that was asked and this."""
        due = [n for n, each in enumerate(self._topology.invariants) if self._seen % each.every == 0]
        self._seen += 1
        if not due:
            return
        from strobe.look.cut import open_snapshot
        from strobe.look.judging import judge

        self._verdicts = self._verdicts or VerdictLog(self._home, self._topology.name)
        with open_snapshot(f"{self._topology.name}/{snapshot}", self._home) as cut:
            for number in due:
                self._take(number, judge(cut, self._topology.invariants[number]), skipped)

    def _take(self, number: int, verdict: Verdict, skipped: int) -> None:
        assert self._verdicts is not None
        self._verdicts.append(verdict)
        before = self.reports[number]
        report = replace(
            before,
            outcome=verdict.outcome.value,
            snapshot=int(verdict.snapshot),
            violations=before.violations + (verdict.outcome is Outcome.VIOLATED),
            skipped=before.skipped + skipped,
            sentence=verdict.sentence,
        )
        self.reports = (*self.reports[:number], report, *self.reports[number + 1 :])
        wrong = verdict.outcome in (Outcome.VIOLATED, Outcome.FAILED)
        if wrong and before.outcome != report.outcome:
            _log.warning("%s", verdict.sentence)
        elif before.outcome == Outcome.VIOLATED.value and not wrong:
            _log.warning("%s, again", verdict.sentence)
        self._listener(InvariantJudged(verdict))
