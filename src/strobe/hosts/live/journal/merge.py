"""One journal of a run, from the parts that its nodes and its coordinator wrote.

Theory
------
Within an incarnation the order of one node's lines is its own. A receipt has the number of its message on its
channel, so what caused it is written down as it happens; a receipt must follow its send. A sender numbers its messages
as it sends them: "has it been sent?" is a comparison with the last number seen on that channel. So the parts are merged
as they are read, taking lines of each node in turn for as long as what they receive has been sent. What is in memory is
one line of each node and one number for each channel, however long the run was.

A killed node's part may break off: its last, unfinished line is left out. Everything that it had sent by then is in it
(see `parts`), so no receipt is left without its send.

Nodes count steps and messages from where their life began. A journal counts on: steps are shifted past the last one of
the life before. Messages keep their numbers, which go back with a restore, as the positions of the snapshot do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from strobe.hosts.live.journal.parts import COORDINATOR
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse
from strobe.model.events import (
    Completed,
    Event,
    Internal,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Restarted,
    Sent,
)
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.store.small_files import open_regular
from strobe.verify.journal import Header, Journal, JournalWriter
from strobe.verify.lines import Fault, readers

__all__ = ["Merging", "merge", "merge_to_file"]

ORDERS: Final = {"chandy-lamport": "fifo", "lai-yang": "reorder"}
_Step: TypeAlias = Internal | Sent | Received | Recorded | MarkerSent | MarkerReceived
_LONGEST: Final = 256 << 20  # bytes of a line: a restart has the states of all nodes
_TURN: Final = 64  # lines: a node at a time, but not for long, so that the diagram reads better


def merge_to_file(
    directory: Path, graph: Graph, name: str, target: str | os.PathLike[str], protocol: str = "chandy-lamport"
) -> int:
    """Returns how many events there are."""
    return Merging(directory, graph, name, protocol).write(target)


def merge(directory: Path, graph: Graph, name: str, protocol: str = "chandy-lamport") -> Journal:
    """The merged journal, in memory."""
    merging = Merging(directory, graph, name, protocol)
    return Journal(merging.header, list(merging.events()))


class Merging:
    """The journal of all incarnations in a directory, oldest first. `events` reads the parts again at each call."""

    def __init__(self, directory: Path, graph: Graph, name: str, protocol: str = "chandy-lamport") -> None:
        self._lives = sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []
        if not self._lives:
            raise Misuse(
                f"There is no journal in {directory}.",
                next="Start the system with a journal; it cannot be made afterwards.",
            )
        self._graph = graph
        self._parse = readers(graph)
        initial = self._initial()
        missing = [node for node in graph.nodes if node not in initial]
        if missing:
            raise Damaged(
                f"The journal in {directory} has no initial state of {', '.join(missing)}: its part is missing or "
                "empty.",
                untouched="Nothing was changed.",
            )
        self.header = Header("live", name, {}, protocol, ORDERS[protocol], None, graph, initial)

    def write(self, target: str | os.PathLike[str]) -> int:
        """Into one file, as it is read. Returns how many events there are."""
        with JournalWriter(target, self.header) as writer:
            for event in self.events():
                writer.write(event)
        return writer.events

    def events(self) -> Iterator[Event]:
        steps = dict.fromkeys(self._graph.nodes, 0)
        for life, restart in self._counted():
            if restart is not None:
                yield restart
            contents = {} if restart is None else restart.cut.channels
            sent = {channel: max((m.seq for m in content), default=0) for channel, content in contents.items()}
            last: dict[NodeId, int] = {}
            for node, event in _interleave({node: self._steps(life, node) for node in self._graph.nodes}, sent):
                last[node] = event.step
                yield _shifted(event, steps[node])
            yield from (event for event in self._part(life, COORDINATOR) if isinstance(event, Completed))
            for node, step in last.items():
                steps[node] += step

    def _counted(self) -> Iterator[tuple[Path, Restarted | None]]:
        """The lives that count, each with the restart that it began with. One that was given up before everyone ran
        does not: nobody took a step in it that counts."""
        begun = False
        for life in self._lives:
            restart = self._restart(life)
            some = any(next(self._steps(life, node), None) is not None for node in self._graph.nodes)
            if restart is None and some and begun:
                continue
            begun = begun or some or restart is not None
            if restart is not None and not restart.cut.states:  # from the beginning
                restart = replace(restart, cut=replace(restart.cut, states=self.header.initial))
            yield life, restart

    def _initial(self) -> dict[NodeId, Json]:
        """The first state that is known of each node."""
        found: dict[NodeId, Json] = {}
        for life in self._lives:
            for node in self._graph.nodes:
                for state in _lines(life, node, lambda fields: fields[1:2] if fields[0] == "initial" else ()):
                    if state:
                        found.setdefault(node, state[0])
                    break
            restart = self._restart(life)
            for node, state in ({} if restart is None else restart.cut.states).items():
                found.setdefault(node, state)
            if len(found) == len(self._graph.nodes):
                break
        return found

    def _restart(self, life: Path) -> Restarted | None:
        """What a coordinator writes first, unless the system starts for the first time."""
        first = next(iter(self._part(life, COORDINATOR)), None)
        return first if isinstance(first, Restarted) else None

    def _part(self, life: Path, name: str) -> Iterator[Event]:
        def read(fields: Any) -> Event | None:
            return None if fields[0] == "initial" else self._parse[fields[0]](fields)

        return (event for event in _lines(life, name, read) if event is not None)

    def _steps(self, life: Path, node: NodeId) -> Iterator[_Step]:
        """What a node writes of itself."""

        def read(fields: Any) -> _Step | None:
            event = None if fields[0] == "initial" else self._parse[fields[0]](fields)
            if event is not None and (not isinstance(event, _Step) or event.node != node):
                raise Fault(f"{fields[0]!r} is not of {node}")
            return event

        return (event for event in _lines(life, node, read) if event is not None)


def _lines(life: Path, name: str, read: Callable[[Any], Any]) -> Iterator[Any]:
    path = life / f"{name}.lines"
    try:
        file = open(path, "rb", opener=open_regular)  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return  # the file is still empty
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}.", untouched="Nothing was changed.") from None
    with file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), 1):
            if not line.endswith(b"\n"):
                if len(line) < _LONGEST:
                    return  # cut off
                raise Damaged(
                    f"{path}, line {number}: this is not a line of a journal (it is too long).",
                    untouched="The file was not changed.",
                )
            try:
                value = read(json.loads(line))
            except (Fault, ValueError, LookupError, TypeError, RecursionError) as error:
                raise Damaged(
                    f"{path}, line {number}: this is not a line of a journal ({error}).",
                    untouched="The file was not changed.",
                ) from None
            yield value


def _interleave(parts: Mapping[NodeId, Iterator[_Step]], sent: dict[ChannelId, int]) -> Iterator[tuple[NodeId, _Step]]:
    """Lines of the nodes such that every receipt, of a message or a marker, stands behind its send."""
    rest = {node: first for node, part in parts.items() if (first := next(part, None)) is not None}
    markers: dict[ChannelId, set[SnapshotId]] = {}
    stuck = False
    while rest:
        moved = False
        for node in list(rest):
            taken, event = 0, rest[node]
            while taken < _TURN:
                if isinstance(event, Sent):
                    sent[event.channel] = max(sent.get(event.channel, 0), event.seq)
                elif isinstance(event, MarkerSent):
                    markers.setdefault(event.channel, set()).add(event.snapshot)
                elif not stuck and _waits(event, sent, markers):
                    break
                elif isinstance(event, MarkerReceived):
                    markers.get(event.channel, set()).discard(event.snapshot)
                yield node, event
                taken += 1
                stuck = False
                following = next(parts[node], None)
                if following is None:
                    del rest[node]
                    break
                rest[node] = event = following
            moved = moved or taken > 0
        stuck = not moved  # a send is missing: its receipt is written anyway, and the verifier will report it


def _waits(event: Event, sent: Mapping[ChannelId, int], markers: Mapping[ChannelId, set[SnapshotId]]) -> bool:
    if isinstance(event, Received):
        return event.seq > sent.get(event.channel, 0)
    return isinstance(event, MarkerReceived) and event.snapshot not in markers.get(event.channel, ())


def _shifted(event: Event, offset: int) -> Event:
    moved: Any = event
    return replace(moved, step=moved.step + offset) if offset else event
