"""The journal on disk: what happened, one line per event. This module alone owns the format.

Theory
------
A journal is JSON lines in UTF-8. Line 1 is the header, the last line is `["end", events, sha256 of all bytes before
this line]`, and each line between them is one event: an array whose first element is its kind. Lines are written in
canonical form, so the same run gives the same bytes.

A reader either gets exactly what was written or a `Damaged` that names the file, the line and the fault. The end line
makes a cut-off file visible, its hash makes a changed byte visible, and each line is checked for its shape and for
nodes and channels that the header's graph does not have. Whether the *run* was right is for the checkers to say: a
message received twice is no damage.

Only the order of one node's lines means anything. Journals of live systems are merged from one file per node.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Final

from strobe.model.cut import Cut, Json, Message
from strobe.model.errors import Damaged, Misuse, StrobeError
from strobe.model.events import (
    Completed,
    Crashed,
    Duplicated,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Restarted,
    Sent,
)
from strobe.model.graph import Graph, graph_from_json, graph_to_json
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId

__all__ = ["FORMAT", "Header", "Journal", "JournalWriter", "cut_from_json", "cut_to_json", "read_journal"]

FORMAT: Final = 1
ORDERS: Final = ("fifo", "reorder")

# The encoder behind `strobe.model.cut.canonical`, kept: making one costs more than most lines.
_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True)
class Header:
    """Whose journal it is. `order` is what the channels promise: "fifo" or "reorder"."""

    host: str
    workload: str
    params: Mapping[str, Json]
    protocol: str
    order: str
    seed: int | None
    graph: Graph
    initial: Mapping[NodeId, Json]

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise Misuse(f"Channels cannot be {self.order!r}.", next="The orders are: fifo, reorder.")
        unknown = [node for node in self.initial if node not in self.graph.nodes]
        missing = [node for node in self.graph.nodes if node not in self.initial]
        if unknown or missing:
            raise Misuse(
                "A journal's header has an initial state for each node of its graph: "
                + "; ".join(
                    f"{fault} for {', '.join(map(repr, nodes))}"
                    for fault, nodes in (("none", missing), ("one too many", unknown))
                    if nodes
                )
                + "."
            )


@dataclass(frozen=True)
class Journal:
    """A run in memory."""

    header: Header
    events: list[Event]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cut_to_json(cut: Cut) -> dict[str, Json]:
    return {
        "snapshot": cut.snapshot,
        "states": dict(cut.states),
        "channels": {channel: [list(message) for message in content] for channel, content in cut.channels.items()},
    }


_LINES: Final[Mapping[type, Callable[[Any], list[Json]]]] = {
    Internal: lambda e: ["internal", e.node, e.step, e.action],
    Sent: lambda e: ["send", e.node, e.step, e.channel, e.seq, e.payload],
    Received: lambda e: ["receive", e.node, e.step, e.channel, e.seq],
    Recorded: lambda e: ["record", e.node, e.step, e.snapshot],
    MarkerSent: lambda e: ["marker-send", e.node, e.step, e.channel, e.snapshot],
    MarkerReceived: lambda e: ["marker-receive", e.node, e.step, e.channel, e.snapshot],
    Lost: lambda e: ["lost", e.channel, e.seq],
    Duplicated: lambda e: ["duplicated", e.channel, e.seq],
    Crashed: lambda e: ["crash", e.node],
    Restarted: lambda e: ["restart", e.incarnation, cut_to_json(e.cut)],
    Completed: lambda e: ["snapshot", cut_to_json(e.cut)],
}


class JournalWriter:
    """Writes a journal as the run goes. As a context manager it ends the journal only if the block did not raise:
    a run that broke off must not pass for a whole one."""

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, header: Header) -> None:
        self.events = 0
        self._closed = False
        self._hash = hashlib.sha256()
        self._owned = isinstance(target, str | os.PathLike)
        if isinstance(target, str | os.PathLike):
            try:
                self._file: BinaryIO = open(target, "wb", buffering=1 << 18)  # noqa: SIM115 (closed by close)
            except OSError as error:
                raise Misuse(
                    f"Cannot write a journal to {os.fspath(target)!r}: {error.strerror}.",
                    next="Name a file in a directory that exists and that you may write to.",
                ) from error
        else:
            self._file = target
        self._line(
            {
                "strobe-journal": FORMAT,
                "host": header.host,
                "workload": {"name": header.workload, "params": dict(header.params)},
                "protocol": header.protocol,
                "order": header.order,
                "seed": header.seed,
                "graph": graph_to_json(header.graph),
                "initial": dict(header.initial),
            }
        )

    def write(self, event: Event) -> None:
        self._line(_LINES[event.__class__](event))
        self.events += 1

    def close(self) -> None:
        """Ends the journal; calling it again does nothing. A stream that was handed in stays open."""
        if not self._closed:
            self._line(["end", self.events, self._hash.hexdigest()])
            self._release()

    def abandon(self) -> None:
        """Closes the file without the end line, so that readers see that the run broke off."""
        if not self._closed:
            self._release()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _release(self) -> None:
        self._closed = True
        if self._owned:
            self._file.close()
        else:
            self._file.flush()

    def _line(self, value: Json) -> None:
        try:
            line = _encode(value).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise Misuse(
                f"This does not fit into a journal: {value!r} ({error}).",
                untouched="The journal holds what came before it.",
                next="States, actions and payloads are JSON values: no NaN, no objects, text as keys.",
            ) from error
        self._hash.update(line)
        self._file.write(line)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Fault(Exception):
    """What is wrong with a line; becomes a `Damaged` where the line's number is known."""


def read_journal(source: str | os.PathLike[str] | BinaryIO) -> tuple[Header, list[Event]]:
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        try:
            with open(source, "rb") as file:
                data = file.read()
        except OSError as error:
            raise Misuse(
                f"Cannot read a journal from {name!r}: {error.strerror}.",
                next="Name a file that was written with --journal.",
            ) from error
    else:
        name = str(getattr(source, "name", "the stream"))
        data = source.read()
    # A million small objects are made and none is garbage: the collector's scans would take a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _read(name, data)
    finally:
        if collecting:
            gc.enable()


def _damaged(name: str, line: int, fault: str) -> Damaged:
    return Damaged(
        f"Journal {name}, line {line}: {fault}.",
        untouched="The file was not changed.",
        next="Write it anew by running again with the same seed, or take another copy.",
    )


def _read(name: str, data: bytes) -> tuple[Header, list[Event]]:
    if not data:
        raise _damaged(name, 1, "the file is empty, where a header should be")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _damaged(name, data.count(b"\n", 0, error.start) + 1, "these bytes are not UTF-8 text") from None
    lines = text.split("\n")
    decode = json.JSONDecoder(parse_constant=_refuse).raw_decode
    header = _located(name, 1, lambda: _header(_value(decode, lines[0])))
    if lines[-1]:
        raise _damaged(name, len(lines), "the file breaks off in the middle of this line")
    del lines[-1]
    if len(lines) == 1:
        raise _damaged(name, 2, "the file breaks off after its header: there is no end line")
    readers = _readers(header.graph)
    events: list[Event] = []
    append = events.append
    try:
        for line in lines[1:-1]:
            fields, length = decode(line)
            if length != len(line):
                raise _Fault(f"there is more after the end of the event: {_short(line[length:])}")
            append(readers[fields[0]](fields))
    except (_Fault, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _damaged(name, len(events) + 2, _explain(error, lines[len(events) + 1], readers)) from None
    _check_end(name, data, lines, decode, readers)
    return header, events


def _check_end(
    name: str,
    data: bytes,
    lines: list[str],
    decode: Callable[[str], tuple[Json, int]],
    readers: Mapping[str, Callable[[list[Json]], Event]],
) -> None:
    number, last = len(lines), lines[-1]
    end = _located(name, number, lambda: _value(decode, last))
    if not isinstance(end, list) or end[:1] != ["end"]:
        # A whole last line that is no end line: either the file was cut between lines, or this line is broken.
        fault = (
            "the file breaks off after this line: there is no end line"
            if isinstance(end, list) and end and isinstance(end[0], str) and end[0] in readers
            else f"this is no end line: {_short(last)}"
        )
        raise _damaged(name, number, fault)
    if len(end) != 3 or end[1].__class__ is not int or not isinstance(end[2], str):
        raise _damaged(name, number, f"an end line is a count and a hash, not {_short(last)}")
    if end[1] != number - 2:
        raise _damaged(name, number, f"the end line counts {end[1]} events, but there are {number - 2}")
    body = memoryview(data)[: len(data) - len(last.encode()) - 1]
    if hashlib.sha256(body).hexdigest() != end[2]:
        raise _damaged(name, number, "the hash does not fit: something in the lines above was changed")


def _refuse(constant: str) -> Json:
    raise _Fault(f"{constant} is no JSON value")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def _value(decode: Callable[[str], tuple[Json, int]], line: str) -> Json:
    try:
        value, length = decode(line)
    except (ValueError, RecursionError):
        raise _Fault(f"this is not JSON: {_short(line)}") from None
    if length != len(line):
        raise _Fault(f"there is more after the end of the value: {_short(line[length:])}")
    return value


def _located(name: str, line: int, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except _Fault as fault:
        raise _damaged(name, line, str(fault)) from None


def _explain(error: Exception, line: str, readers: Mapping[str, object]) -> str:
    """Says in words why `line` could not be read; only ever called once, so it may look again."""
    if isinstance(error, _Fault):
        return str(error)
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return f"this is not JSON: {_short(line)}"
    fields = json.loads(line)
    if not isinstance(fields, list) or not fields:
        return f"an event is an array that starts with its kind, not {_short(line)}"
    if fields[0] == "end":
        return "the end line is not the last line"
    if not isinstance(fields[0], str) or fields[0] not in readers:
        return f"there is no kind of event {fields[0]!r}"
    return f"{fields[0]!r} does not have these fields: {_short(line)}"


def _header(value: Json) -> Header:
    if not isinstance(value, dict) or "strobe-journal" not in value:
        raise _Fault("this is no header of a journal (it has no 'strobe-journal')")
    if value["strobe-journal"] != FORMAT:
        raise _Fault(f"the journal has format {value['strobe-journal']!r}, and this Strobe reads format {FORMAT}")
    try:
        workload, seed = value["workload"], value["seed"]
        header = Header(
            value["host"],
            workload["name"],
            workload["params"],
            value["protocol"],
            value["order"],
            seed,
            graph_from_json(value["graph"]),
            value["initial"],
        )
    except KeyError as error:
        raise _Fault(f"the header has no {error}") from None
    except (TypeError, IndexError, AttributeError):
        raise _Fault("the header's workload, graph or initial states do not have the shape they should") from None
    except StrobeError as error:
        raise _Fault(f"the header makes no sense: {error.what.rstrip('.')}") from None
    texts = (header.host, header.workload, header.protocol)
    if not all(isinstance(text, str) for text in texts) or not isinstance(header.params, dict):
        raise _Fault("the header's host, workload or protocol is not a name")
    if seed is not None and seed.__class__ is not int:
        raise _Fault(f"the header's seed is {seed!r}, not a number")
    return header


def cut_from_json(value: Json, graph: Graph) -> Cut:
    """The cut, or ValueError in words. A cut may lack states or channels (that is for the checkers to say)."""
    try:
        return _cut(value, {n: n for n in graph.nodes}, {c.id: c.id for c in graph.channels})
    except _Fault as fault:
        raise ValueError(str(fault)) from None


def _cut(value: Json, nodes: Mapping[str, NodeId], channels: Mapping[str, ChannelId]) -> Cut:
    if not isinstance(value, dict) or value.keys() != {"snapshot", "states", "channels"}:
        raise _Fault("a cut is a snapshot, states and channels")
    snapshot, states, contents = value["snapshot"], value["states"], value["channels"]
    if snapshot.__class__ is not int or not isinstance(states, dict) or not isinstance(contents, dict):
        raise _Fault("a cut is the number of a snapshot, states by node and contents by channel")
    for content in contents.values():
        if not isinstance(content, list) or not all(
            isinstance(m, list) and len(m) == 2 and m[0].__class__ is int for m in content
        ):
            raise _Fault("a channel's content is a list of [seq, payload]")
    return Cut(
        SnapshotId(snapshot),
        {_known(nodes, "node", node): state for node, state in states.items()},
        {
            _known(channels, "channel", channel): tuple(Message(seq, payload) for seq, payload in content)
            for channel, content in contents.items()
        },
    )


def _known(names: Mapping[str, Any], what: str, name: Json) -> Any:
    found = names.get(name) if isinstance(name, str) else None
    if found is None:
        raise _Fault(f"there is no {what} {name!r} in the graph")
    return found


def _readers(graph: Graph) -> dict[str, Callable[[list[Json]], Event]]:
    """One function per kind of event. Looking names up in the graph checks them and shares one string for each."""
    nodes: dict[Any, NodeId] = {n: n for n in graph.nodes}
    channels: dict[Any, ChannelId] = {c.id: c.id for c in graph.channels}

    def numbers(*values: Json) -> None:
        for value in values:
            if value.__class__ is not int or value < 0:
                raise _Fault(f"{value!r} is not a count")

    # The name is looked up inside a try: on the path that all lines take, a lookup must cost no more than itself.
    def node_of(name: Json) -> NodeId:
        try:
            return nodes[name]
        except (KeyError, TypeError):
            raise _Fault(f"there is no node {name!r} in the graph") from None

    def channel_of(name: Json) -> ChannelId:
        try:
            return channels[name]
        except (KeyError, TypeError):
            raise _Fault(f"there is no channel {name!r} in the graph") from None

    def internal(fields: list[Json]) -> Event:
        _, node, step, action = fields
        numbers(step)
        return Internal(node_of(node), step, action)

    def send(fields: list[Json]) -> Event:
        _, node, step, channel, seq, payload = fields
        numbers(step, seq)
        return Sent(node_of(node), step, channel_of(channel), seq, payload)

    def receive(fields: list[Json]) -> Event:
        _, node, step, channel, seq = fields
        numbers(step, seq)
        return Received(node_of(node), step, channel_of(channel), seq)

    def record(fields: list[Json]) -> Event:
        _, node, step, snapshot = fields
        numbers(step, snapshot)
        return Recorded(node_of(node), step, snapshot)

    def marker_send(fields: list[Json]) -> Event:
        _, node, step, channel, snapshot = fields
        numbers(step, snapshot)
        return MarkerSent(node_of(node), step, channel_of(channel), snapshot)

    def marker_receive(fields: list[Json]) -> Event:
        _, node, step, channel, snapshot = fields
        numbers(step, snapshot)
        return MarkerReceived(node_of(node), step, channel_of(channel), snapshot)

    def lost(fields: list[Json]) -> Event:
        _, channel, seq = fields
        numbers(seq)
        return Lost(channel_of(channel), seq)

    def duplicated(fields: list[Json]) -> Event:
        _, channel, seq = fields
        numbers(seq)
        return Duplicated(channel_of(channel), seq)

    def crash(fields: list[Json]) -> Event:
        _, node = fields
        return Crashed(node_of(node))

    def restart(fields: list[Json]) -> Event:
        _, incarnation, cut = fields
        numbers(incarnation)
        return Restarted(Incarnation(incarnation), _cut(cut, nodes, channels))

    def snapshot(fields: list[Json]) -> Event:
        _, cut = fields
        return Completed(_cut(cut, nodes, channels))

    return {
        "internal": internal,
        "send": send,
        "receive": receive,
        "record": record,
        "marker-send": marker_send,
        "marker-receive": marker_receive,
        "lost": lost,
        "duplicated": duplicated,
        "crash": crash,
        "restart": restart,
        "snapshot": snapshot,
    }
