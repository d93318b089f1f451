"""Opens a journal: the run in it, with the application that can replay it.

A journal of the simulator names its workload. One of live processes needs the user's classes: the topology brings them.
A snapshot of live processes leads to the journal that its system kept; one without a journal is a run without steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from strobe.hosts.sim.runner import workload_of
from strobe.model.app import Application, Reaction
from strobe.model.cut import Cut, Json
from strobe.model.errors import Misuse
from strobe.model.events import Restarted
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId
from strobe.predicates.computation import Positions
from strobe.predicates.replay import Run, run_of
from strobe.verify.history import History
from strobe.verify.journal import Header, Journal, read_journal

__all__ = ["AtSnapshot", "application_of", "is_pure", "open_run", "open_snapshot_run", "topology_option"]


@dataclass(frozen=True)
class AtSnapshot:
    """A run, and where in it a snapshot was recorded. `alone`: why there is no step before and after it; else empty."""

    run: Run
    at: Positions
    alone: str = ""


def topology_option(function: Any) -> Any:
    return click.option(
        "--topology",
        metavar="FILE",
        help="For a journal of live processes: their topology, as for `strobe live up`. Its handlers run again.",
    )(function)


def open_run(journal: str, topology: str | None, epoch: int | None = None) -> tuple[Journal, Run]:
    """The journal in that file, and the run of one epoch in it."""
    read = Journal(*read_journal(journal))
    app = application_of(read.header, topology)
    return read, run_of(History(read), app, epoch, compared=not is_pure(read.header))


def open_snapshot_run(snapshot: str, home: Path, topology: str | None) -> AtSnapshot:
    """The run that a snapshot of live processes was taken of, if its system kept a journal and --topology brings its
    classes; else the snapshot alone."""
    from strobe.hosts.live.journal.journals import has_journal, whole_journal
    from strobe.hosts.live.snapshot.reading import load_any
    from strobe.hosts.live.snapshot.snapshots import to_cut
    from strobe.store.holding import is_held

    manifest, loaded = load_any(snapshot, home)
    cut, name = to_cut(loaded, manifest.graph), manifest.job
    if not has_journal(home, name):
        return _alone(name, manifest.graph, cut, "Its system kept no journal (strobe live up --journal).")
    if is_held(home, name):
        return _alone(name, manifest.graph, cut, f"Its journal is still being written (strobe live down {name}).")
    if topology is None:
        return _alone(name, manifest.graph, cut, "Its system kept a journal: --topology FILE opens it.")
    merging = whole_journal(home, name)
    app = application_of(merging.header, topology)
    history = History(Journal(merging.header, list(merging.events())))
    epoch = history.epoch_of(cut)
    run = None if epoch is None else run_of(history, app, epoch.number, compared=True)
    at = None if run is None else run.snapshots.get(cut.snapshot)
    if run is None or at is None:
        return _alone(name, manifest.graph, cut, "It is not in the journal that its system kept.")
    return AtSnapshot(run, at)


def _alone(name: str, graph: Graph, cut: Cut, why: str) -> AtSnapshot:
    """A run without steps: the states and messages in flight of the snapshot."""
    header = Header("live", name, {}, "chandy-lamport", "fifo", None, graph, cut.states)
    run = run_of(History(Journal(header, [Restarted(Incarnation(1), cut)])), _Still(), 2)
    return AtSnapshot(run, run.computation.first, why)


class _Still:
    """The application of a run without steps."""

    def initial(self, node: NodeId) -> Json:
        raise NotImplementedError

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        raise NotImplementedError

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        raise NotImplementedError


def is_pure(header: Header) -> bool:
    """Whether its application is deterministic by construction."""
    return header.host == "sim"


def application_of(header: Header, topology: str | None) -> Application:
    if header.host == "sim":
        if topology is not None:
            raise Misuse("The journal was written by the simulator, which has the application: it needs no --topology.")
        return workload_of(header)
    if topology is None:
        raise Misuse(
            f"The journal is of live processes ({header.workload}): their states are not in it, and their classes are "
            "needed to work them out.",
            untouched="Nothing was looked at.",
            next="Name the file that `strobe live up` was given: --topology FILE.",
        )
    # Here: the simulator's commands need no sockets, and should start as fast as they can.
    from strobe.hosts.live.api.loading import load_topology
    from strobe.hosts.live.journal.replaying import ReplayedProcesses

    loaded = load_topology(topology)
    _check_fits(header, loaded.graph, loaded.name)
    return ReplayedProcesses(loaded)


def _check_fits(header: Header, graph: Graph, name: str) -> None:
    for what, theirs, ours in (
        ("node", header.graph.nodes, graph.nodes),
        ("channel", header.graph.channels, graph.channels),
    ):
        odd = [str(each) for each in (*theirs, *ours) if each not in theirs or each not in ours]
        if odd:
            raise Misuse(
                f"The journal of {header.workload} and the topology {name} differ: {what} {odd[0]} is only in "
                "one of them.",
                untouched="Nothing was replayed.",
                next="Name the topology that the journal is of.",
            )
