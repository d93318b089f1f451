"""One line of a journal: an event as a JSON array, and back.

A line is read strictly: its kind, the number and types of its fields, and names that the graph has. What is wrong
comes out as a `Fault` in words; `strobe.verify.journal` adds the file and the line's number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from strobe.model.cut import Cut, Json, Message
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
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId

__all__ = ["Fault", "cut_to_json", "encode", "fields_of", "readers"]

# The encoder behind `strobe.model.cut.canonical`, kept: making one costs more than most lines.
encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Fault(Exception):
    """What is wrong with a line, in words."""


# ── to JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cut_to_json(cut: Cut) -> dict[str, Json]:
    return {
        "snapshot": cut.snapshot,
        "states": dict(cut.states),
        "channels": {channel: [list(message) for message in content] for channel, content in cut.channels.items()},
    }


_FIELDS: Final[Mapping[type, Callable[[Any], list[Json]]]] = {
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


def fields_of(event: Event) -> list[Json]:
    return _FIELDS[event.__class__](event)


# ── from JSON ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _cut(value: Json, nodes: Mapping[str, NodeId], channels: Mapping[str, ChannelId]) -> Cut:
    if not isinstance(value, dict) or value.keys() != {"snapshot", "states", "channels"}:
        raise Fault("a cut is a snapshot, states and channels")
    snapshot, states, contents = value["snapshot"], value["states"], value["channels"]
    if snapshot.__class__ is not int or not isinstance(states, dict) or not isinstance(contents, dict):
        raise Fault("a cut is the number of a snapshot, states by node and contents by channel")
    for content in contents.values():
        if not isinstance(content, list) or not all(
            isinstance(m, list) and len(m) == 2 and m[0].__class__ is int for m in content
        ):
            raise Fault("a channel's content is a list of [seq, payload]")
    for what, names, known in (("node", states, nodes), ("channel", contents, channels)):
        for name in names:
            if name not in known:
                raise Fault(f"there is no {what} {name!r} in the graph")
    return Cut(
        SnapshotId(snapshot),
        {nodes[node]: state for node, state in states.items()},
        {
            channels[channel]: tuple(Message(seq, payload) for seq, payload in content)
            for channel, content in contents.items()
        },
    )


def readers(graph: Graph) -> dict[str, Callable[[list[Json]], Event]]:
    """One function per kind of event. Looking names up in the graph checks them and shares one string for each.

    A wrong number of fields raises ValueError, an unknown name KeyError or TypeError; the reader of the file says what
    is wrong. The path that a million good lines take does nothing but unpack, look up and build.
    """
    nodes: dict[Json, NodeId] = {n: n for n in graph.nodes}
    channels: dict[Json, ChannelId] = {c.id: c.id for c in graph.channels}

    def no_number(*values: Json) -> NoReturn:
        raise Fault(f"{next(v for v in values if v.__class__ is not int)!r} is not a number")

    def internal(fields: list[Json]) -> Event:
        _, node, step, action = fields
        if step.__class__ is not int:
            no_number(step)
        return Internal(nodes[node], step, action)

    def send(fields: list[Json]) -> Event:
        _, node, step, channel, seq, payload = fields
        if step.__class__ is not int or seq.__class__ is not int:
            no_number(step, seq)
        return Sent(nodes[node], step, channels[channel], seq, payload)

    def receive(fields: list[Json]) -> Event:
        _, node, step, channel, seq = fields
        if step.__class__ is not int or seq.__class__ is not int:
            no_number(step, seq)
        return Received(nodes[node], step, channels[channel], seq)

    def record(fields: list[Json]) -> Event:
        _, node, step, snapshot = fields
        if step.__class__ is not int or snapshot.__class__ is not int:
            no_number(step, snapshot)
        return Recorded(nodes[node], step, SnapshotId(snapshot))

    def marker_send(fields: list[Json]) -> Event:
        _, node, step, channel, snapshot = fields
        if step.__class__ is not int or snapshot.__class__ is not int:
            no_number(step, snapshot)
        return MarkerSent(nodes[node], step, channels[channel], SnapshotId(snapshot))

    def marker_receive(fields: list[Json]) -> Event:
        _, node, step, channel, snapshot = fields
        if step.__class__ is not int or snapshot.__class__ is not int:
            no_number(step, snapshot)
        return MarkerReceived(nodes[node], step, channels[channel], SnapshotId(snapshot))

    def lost(fields: list[Json]) -> Event:
        _, channel, seq = fields
        if seq.__class__ is not int:
            no_number(seq)
        return Lost(channels[channel], seq)

    def duplicated(fields: list[Json]) -> Event:
        _, channel, seq = fields
        if seq.__class__ is not int:
            no_number(seq)
        return Duplicated(channels[channel], seq)

    def crash(fields: list[Json]) -> Event:
        _, node = fields
        return Crashed(nodes[node])

    def restart(fields: list[Json]) -> Event:
        _, incarnation, cut = fields
        if incarnation.__class__ is not int:
            no_number(incarnation)
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
