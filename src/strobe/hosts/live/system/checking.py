"""The checks and invariants that a topology asks for, made on the snapshots of a running system as they come.

The newest complete snapshot is looked at, in a thread: a check never stops the system, and a snapshot that was
overtaken before its turn is left out. A stable predicate shows in the next one as well. What is found is logged once,
and stands in the status until a snapshot no longer shows it, as after a restore to a time before.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.coordinator.outcomes import CheckMade, Listener, guarded
from strobe.hosts.live.snapshot.checks import Check
from strobe.hosts.live.snapshot.snapshots import load
from strobe.hosts.live.system.invariants import Invariants
from strobe.model.errors import StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.snapshots import SnapshotStore

__all__ = ["CheckReport", "Checker"]

_log = logging.getLogger("strobe.live")
_PAUSE: Final = 0.2  # seconds between two looks for a newer snapshot


@dataclass(frozen=True, slots=True)
class CheckReport:
    """`found` is None as long as no snapshot was looked at, or if the check could not be made: then `sentence` says
    why. `since` is the first snapshot in a row that showed it."""

    check: str
    found: bool | None
    snapshot: int
    sentence: str
    details: tuple[str, ...] = field(default=())
    since: int | None = None


class Checker:
    def __init__(self, topology: Topology, home: Path, listener: Listener | None = None) -> None:
        """Raises Misuse if there is no such check, or no such function, or no such node. The listener is told of every
        check and every verdict, in the thread that makes them."""
        self._topology = topology
        self._listener = guarded(listener)
        self.invariants = Invariants(topology, home, self._listener)
        self._checks = tuple(Check.named(text) for text in topology.checks)
        self._looked_at = SnapshotId(0)
        self.reports = tuple(CheckReport(c.name, None, 0, "no snapshot was looked at yet") for c in self._checks)

    async def watch(self, store: SnapshotStore) -> None:
        """Look again and again, until it is cancelled."""
        while self._wanted:
            try:
                await self.look(store)
            except Exception as error:  # whatever it is: the system goes on
                _log.warning("Checks cannot be made: %s: %s", type(error).__name__, error)
            await asyncio.sleep(_PAUSE)

    async def look(self, store: SnapshotStore) -> None:
        """Check the newest snapshot, unless that was done."""
        if self._wanted:
            await asyncio.to_thread(self._look, store)

    @property
    def _wanted(self) -> bool:
        return bool(self._checks or self._topology.invariants)

    def _look(self, store: SnapshotStore) -> None:
        there = store.list()
        if not there or there[-1] == self._looked_at:
            return
        snapshot = there[-1]
        skipped = sum(self._looked_at < other < snapshot for other in there) if self._looked_at else 0
        try:
            self.invariants.ask(snapshot, skipped=skipped)
            loaded = load(store, snapshot, self._topology.graph)
        except StrobeError as error:
            if snapshot in store.list():  # else it was deleted meanwhile, and there is a newer one
                self._looked_at = snapshot
                _log.warning("Snapshot %s cannot be checked: %s", snapshot, error.what)
            return
        reports = []
        for check, before in zip(self._checks, self.reports, strict=True):
            try:
                finding = check(loaded, self._topology.graph, self._topology)
                since = (before.since or snapshot) if finding.found else None
                report = CheckReport(check.name, finding.found, snapshot, finding.sentence, finding.details, since)
            except StrobeError as error:
                report = CheckReport(check.name, None, snapshot, error.what)
            reports.append(report)
            self._tell(report, before)
            self._listener(CheckMade(report.check, snapshot, report.found, report.sentence, report.details))
        self._looked_at = snapshot
        self.reports = tuple(reports)

    def _tell(self, report: CheckReport, before: CheckReport) -> None:
        """Log it once: a finding stays, and so does the reason why a check cannot be made."""
        words = "; ".join((report.sentence, *report.details))
        if report.found is None and (before.found is not None or before.sentence != report.sentence):
            _log.warning("Check %s cannot be made on snapshot %s: %s", report.check, report.snapshot, words)
        elif report.found and not before.found:
            _log.warning("Check %s, snapshot %s: %s", report.check, report.snapshot, words)
        elif before.found and not report.found:
            _log.warning("Check %s, snapshot %s no longer shows it: %s", report.check, report.snapshot, words)
