"""One journal of a run, from the parts that its nodes and its coordinator wrote.

Theory
------
Within an incarnation the order of one node's lines is its own; between nodes a receipt follows its send. So the parts
are merged by taking lines of each node in turn for as long as what they receive has been sent. A killed node's part may
break off: its last, unfinished line is left out. Everything that it had sent by then is in it (see `parts`), so no
receipt is left without its send.

Nodes count steps and messages from where their life began. A journal counts on: steps are shifted past the last one of
the life before. Messages keep their numbers, which go back with a restore, as the positions of the snapshot do.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strobe.hosts.live.journal.parts import COORDINATOR
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse
from strobe.model.events import Completed, Event, MarkerReceived, MarkerSent, Received, Restarted, Sent
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.journal import Header, Journal, JournalWriter
from strobe.verify.lines import Fault, readers

__all__ = ["merge", "merge_to_file"]


ORDERS: Final = {"chandy-lamport": "fifo", "lai-yang": "reorder"}


def merge_to_file(
    directory: Path, graph: Graph, name: str, target: str | os.PathLike[str], protocol: str = "chandy-lamport"
) -> Journal:
    journal = merge(directory, graph, name, protocol)
    with JournalWriter(target, journal.header) as writer:
        for event in journal.events:
            writer.write(event)
    return journal


def merge(directory: Path, graph: Graph, name: str, protocol: str = "chandy-lamport") -> Journal:
    """The journal of all incarnations in `directory`, oldest first."""
    lives = sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []
    if not lives:
        raise Misuse(
            f"There is no journal in {directory}.",
            next="Start the system with a journal; it cannot be made afterwards.",
        )
    parse = readers(graph)
    initial: dict[NodeId, Json] = {}
    steps = dict.fromkeys(graph.nodes, 0)
    events: list[Event] = []
    for life in lives:
        parts, first = _read_life(life, graph, parse)
        ours = parts.pop(NodeId(COORDINATOR), [])
        restart = next((event for event in ours if isinstance(event, Restarted)), None)
        if restart is None and any(parts.values()) and events:
            continue  # given up before everyone ran: nobody took a step that counts
        for node, state in first.items():
            initial.setdefault(node, state)
        if restart is not None:
            if not restart.cut.states:  # from the beginning
                restart = replace(restart, cut=replace(restart.cut, states=initial))
            events.append(restart)
            for node, state in restart.cut.states.items():
                initial.setdefault(node, state)
        contents = {} if restart is None else restart.cut.channels
        sent = {channel: {message.seq for message in content} for channel, content in contents.items()}
        for event in _interleave(parts, sent):
            events.append(_shifted(event, steps))
        events += (event for event in ours if isinstance(event, Completed))
        for node, part in parts.items():
            steps[node] += max((event.step for event in part), default=0)  # type: ignore[union-attr]
    missing = [node for node in graph.nodes if node not in initial]
    if missing:
        raise Damaged(
            f"The journal in {directory} has no initial state of {', '.join(missing)}: its part is missing or empty.",
            untouched="Nothing was changed.",
        )
    header = Header("live", name, {}, protocol, ORDERS[protocol], None, graph, initial)
    return Journal(header, events)


def _read_life(
    life: Path, graph: Graph, parse: Mapping[str, Any]
) -> tuple[dict[NodeId, list[Event]], dict[NodeId, Json]]:
    parts: dict[NodeId, list[Event]] = {node: [] for node in graph.nodes}
    first: dict[NodeId, Json] = {}
    for path in sorted(life.glob("*.lines")):
        node = NodeId(path.stem)
        lines = path.read_bytes().split(b"\n")
        part = parts.setdefault(node, [])
        for number, line in enumerate(lines[:-1], 1):  # what is behind the last newline was cut off
            try:
                fields = json.loads(line)
                if fields[0] == "initial":
                    first[node] = fields[1]
                else:
                    part.append(parse[fields[0]](fields))
            except (Fault, ValueError, LookupError, TypeError) as error:
                raise Damaged(
                    f"{path}, line {number}: this is no line of a journal ({error}).",
                    untouched="The file was not changed.",
                ) from None
    return parts, first


def _interleave(parts: Mapping[NodeId, list[Event]], sent: dict[ChannelId, set[int]]) -> Iterator[Event]:
    """Lines of the nodes such that every receipt, of a message or a marker, stands behind its send."""
    rest = {node: deque(part) for node, part in parts.items() if part}
    markers: set[tuple[ChannelId, SnapshotId]] = set()
    stuck = False
    while rest:
        moved = False
        for node, part in list(rest.items()):
            taken = 0
            while part and taken < 64:  # a node at a time, but not for long: the diagram reads better
                event = part[0]
                if isinstance(event, Sent):
                    sent.setdefault(event.channel, set()).add(event.seq)
                elif isinstance(event, MarkerSent):
                    markers.add((event.channel, event.snapshot))
                elif not stuck and (
                    (isinstance(event, Received) and event.seq not in sent.get(event.channel, ()))
                    or (isinstance(event, MarkerReceived) and (event.channel, event.snapshot) not in markers)
                ):
                    break
                yield part.popleft()
                taken += 1
                stuck = False
            moved = moved or taken > 0
            if not part:
                del rest[node]
        stuck = not moved  # a send is missing: its receipt comes all the same, and the verifier will say so


def _shifted(event: Event, steps: Mapping[NodeId, int]) -> Event:
    """Only nodes' own events are shifted; each of them has a node and a step."""
    moved: Any = event
    offset = steps[moved.node]
    return replace(moved, step=moved.step + offset) if offset else event
