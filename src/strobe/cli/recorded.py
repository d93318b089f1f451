"""A journal, ready to be read: the run that it is of, with the application that can replay it.

A journal of the simulator names its workload. One of live processes needs the user's classes: the topology brings them.
"""

from __future__ import annotations

from typing import Any

import click

from strobe.hosts.sim.runner import workload_of
from strobe.model.app import Application
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.predicates.replay import Run, run_of
from strobe.verify.history import History
from strobe.verify.journal import Header, Journal, read_journal

__all__ = ["application_of", "is_pure", "open_run", "topology_option"]


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


def is_pure(header: Header) -> bool:
    """Whether its application does the same from the same state, by its making."""
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
