"""Systems of live processes: what they say of themselves, their snapshots, and the diagram of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from strobe.hosts.live.journal.journals import journal_directory, whole_journal
from strobe.verify.diagram import render
from strobe.verify.journal import Journal
from strobe.web.drawing import Link, draw
from strobe.web.home_reader import HomeReader
from strobe.web.snapshot_reader import SnapshotReader, links_of
from strobe.web.views import SystemView

__all__ = ["SystemReader"]


class SystemReader:
    def __init__(self, home: Path, jobs: HomeReader, snapshots: SnapshotReader) -> None:
        self._home = home
        self._jobs = jobs
        self._snapshots = snapshots

    def system(self, name: str) -> SystemView:
        self._jobs.kind(name)
        row, asked = self._jobs.row(name)
        report = asked.status or {}
        nodes, links = self._graph(name, report)
        return SystemView(
            job=row,
            drawing=draw(nodes, links),
            report=report,
            snapshots=self._snapshots.page(name, None, 50).rows,
            journal=journal_directory(self._home, name).is_dir(),
            sampled=time.time() if report else 0.0,
        )

    def diagram(self, name: str, events: int) -> str:
        """The space–time diagram of the system's journal, as SVG; Misuse if it keeps none, or still writes it."""
        self._jobs.kind(name)
        journal = whole_journal(self._home, name)
        return render(Journal(journal.header, list(journal.events())), max_events=events)

    def _graph(self, name: str, report: dict[str, Any]) -> tuple[list[str], list[Link]]:
        nodes = [str(n.get("node")) for n in report.get("nodes", [])]
        channels = report.get("channels")
        if nodes and isinstance(channels, list):
            return nodes, [Link(str(c.get("source")), str(c.get("target"))) for c in channels]
        manifest = self._snapshots.newest(name)
        if manifest is not None:
            return list(manifest.graph.nodes), links_of(manifest)
        return nodes, []
