"""The journal of a system that has run, out of the parts in its home.

The parts do not say of which graph they are; it is noted beside them at the start, and a start with another graph is
refused, because a journal has one graph.
"""

from __future__ import annotations

import json
from pathlib import Path

from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.journal.merge import ORDERS, Merging
from strobe.hosts.live.journal.parts import COORDINATOR
from strobe.hosts.shared.durable import write_durably
from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.model.graph import graph_from_json, graph_to_json
from strobe.store.holding import is_held
from strobe.store.layout import JobLayout
from strobe.store.small_files import read_object

__all__ = ["has_journal", "journal_directory", "note_graph", "whole_journal"]


def journal_directory(home: Path, name: str) -> Path:
    return home.absolute() / JobLayout(name).journal


def has_journal(home: Path, name: str) -> bool:
    return _note(home, name).is_file()


def note_graph(home: Path, topology: Topology) -> None:
    if COORDINATOR in topology.graph.nodes:
        raise Misuse(
            f"A system with a node {COORDINATOR!r} keeps no journal: the coordinator's part of it has that name.",
            untouched="Nothing was started.",
            next="Give the node another name, or start without --journal.",
        )
    note = _note(home, topology.name)
    value = {"graph": graph_to_json(topology.graph), "protocol": topology.protocol}
    try:
        if note.exists() and read_object(note) != value:
            raise Misuse(
                f"The journal in {note.parent} is of another topology than this.",
                untouched="Nothing was started.",
                next="Write it out (strobe live journal) and delete it, or start without --journal.",
            )
        note.parent.mkdir(parents=True, exist_ok=True)
        write_durably(note, json.dumps(value))
    except (OSError, ValueError) as error:
        raise Failed(f"{note} cannot be used: {error}.", untouched="Nothing was started.") from error


def whole_journal(home: Path, name: str) -> Merging:
    """The whole journal. The system must have ended: lines that nodes write meanwhile could look like receipts without
    sends."""
    if is_held(home, name):
        raise Misuse(
            f"System {name!r} runs: its journal is still being written.",
            untouched="Nothing was written.",
            next=f"End it first: strobe live down {name}",
        )
    note = _note(home, name)
    try:
        value = read_object(note)
        graph, protocol = graph_from_json(value["graph"]), str(value["protocol"])
        if protocol not in ORDERS:
            raise ValueError(f"there is no protocol {protocol!r}")
    except FileNotFoundError:
        raise Misuse(
            f"System {name!r} has kept no journal.",
            untouched="Nothing was written.",
            next="Start it with --journal; a journal cannot be made afterwards.",
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StrobeError) as error:
        raise Damaged(f"{note} cannot be read: {error}.", untouched="Nothing was written.") from error
    return Merging(note.parent, graph, name, protocol)


def _note(home: Path, name: str) -> Path:
    return journal_directory(home, name) / "graph.json"
