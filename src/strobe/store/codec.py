"""The manifest as bytes. This module alone owns the format; `docs/reference/snapshot-format.md` describes it.

Theory
------
The *body* is the manifest as one JSON object in canonical form (keys sorted, no spaces, UTF-8). The file is the body
with the Merkle root as its last member and a newline: cutting the root off again gives back the exact bytes that were
hashed, so another program can check the root without agreeing with us on how to write a number.

The reader is strict: whoever wrote the file, it gives back a manifest, or `Damaged` with the name of the field. Every
field must be there (absent and null are not the same), names must not repeat, and the root must fit, so no changed
byte goes unseen. It grows like this: fields that this Strobe does not know are kept and written back, but only in the
manifest itself, in a node and in a channel, and only if a reader may ignore them. Anything else needs a new format
number, and a snapshot of a newer format is refused as such before its fields are looked at. Older formats are read for
ever, and a manifest keeps the format that it has. The only difference between format 1 and format 2 is a sink's record:

    1   a list of {"handle", "data"}: first one whose handle is the word `position`, then the parts
    2   {"position", "prepared"}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

from strobe.model.cut import Json, canonical
from strobe.model.errors import Damaged, HostFault, Misuse, StrobeError
from strobe.model.graph import Graph, graph_from_json, graph_to_json
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.model.strict_json import NotJson, parse
from strobe.store.fields import Fault, Fields, short
from strobe.store.manifest import (
    FORMAT,
    BlobRef,
    ChannelRecord,
    InFlight,
    Manifest,
    NodeRecord,
    Prepared,
    SinkRecord,
    Timing,
)
from strobe.store.merkle import merkle_root

__all__ = ["decode", "encode", "root_of"]

T = TypeVar("T")

_POSITION: Final = "position"  # in format 1: the handle of what is no part, but where the sink stood
BODY: Final = "manifest.json"  # the body's path among the leaves of the Merkle tree
_SEAL = re.compile(rb',"root":"([0-9a-f]{64})"\}\n\Z')


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(manifest: Manifest) -> bytes:
    """The file's bytes. What was written is read back first: a manifest that cannot be read must never become one."""
    body = _body(manifest)
    data = body[:-1] + f',"root":"{_root(manifest, body)}"}}\n'.encode()
    try:
        same = _decode(data, "The manifest") == manifest
    except Fault as fault:
        raise _does_not_fit(manifest, fault) from None
    if not same:
        raise HostFault(
            f"The manifest of snapshot {manifest.snapshot} would not be read back as it is: an id or a number has the "
            "wrong type, or offsets and sink data hold something that JSON does not have.",
            untouched="Nothing was written.",
        )
    return data


def root_of(manifest: Manifest) -> str:
    """The Merkle root over all blobs and the manifest itself."""
    return _root(manifest, _body(manifest))


def _root(manifest: Manifest, body: bytes) -> str:
    leaves = [(path, ref.sha256, ref.size) for path, ref in manifest.blobs()]
    return merkle_root([*leaves, (BODY, hashlib.sha256(body).hexdigest(), len(body))])


def _body(manifest: Manifest) -> bytes:
    try:
        return canonical(_manifest_json(manifest))
    except (TypeError, ValueError, RecursionError) as error:
        raise _does_not_fit(manifest, error) from error


def _does_not_fit(manifest: Manifest, why: Exception) -> Misuse:
    return Misuse(
        f"This does not fit into the manifest of snapshot {manifest.snapshot}: {why}.",
        untouched="Nothing was written.",
        next="Offsets, sink data and file names are JSON values: no NaN, no objects, text as keys, not nested deeply.",
    )


def _manifest_json(m: Manifest) -> dict[str, Json]:
    return {
        **_extra(m.extra, _MANIFEST, "the manifest"),
        "format": m.format,
        "snapshot": m.snapshot,
        "kind": m.kind.value,
        "job": m.job,
        "host": m.host,
        "timeline": m.timeline,
        "incarnation": m.incarnation,
        "mode": m.mode,
        "started": m.started,
        "completed": m.completed,
        "writer": m.writer,
        "graph": graph_to_json(m.graph),
        "nodes": {uid: _node_json(uid, node) for uid, node in m.nodes.items()},
        "channels": {channel: _channel_json(channel, record) for channel, record in m.channels.items()},
        "sinks": {sink: _sink_json(record, m.format) for sink, record in m.sinks.items()},
    }


def _sink_json(sink: SinkRecord, number: int) -> Json:
    prepared: list[Json] = [{"handle": each.handle, "data": each.data} for each in sink.prepared]
    if number == 1:
        return [{"handle": _POSITION, "data": sink.position}, *prepared]
    return {"position": sink.position, "prepared": prepared}


def _node_json(uid: NodeId, node: NodeRecord) -> dict[str, Json]:
    return {
        **_extra(node.extra, _NODE, f"node {uid}"),
        "files": _files_json(node.files),
        "batch": node.batch,
        "inputs": dict(node.inputs),
        "output": node.output,
        "offsets": node.offsets,
        "partitions": node.partitions,
        "state_rows": node.state_rows,
        "bytes_new": node.bytes_new,
        "bytes_total": node.bytes_total,
        "alignment_ms": node.alignment_ms,
        "sync_ms": node.sync_ms,
        "async_ms": node.async_ms,
        **({} if node.timing is None else {"timing": asdict(node.timing)}),
    }


def _channel_json(channel: ChannelId, record: ChannelRecord) -> dict[str, Json]:
    return {
        **_extra(record.extra, _CHANNEL, f"channel {channel}"),
        "producer": record.producer,
        "location": record.location,
        "barrier": record.barrier,
        "in_flight": {
            consumer: {"after": r.after, "through": r.through, "rows": r.rows}
            for consumer, r in record.in_flight.items()
        },
        "content": _files_json(record.content),
    }


def _files_json(files: Mapping[str, BlobRef]) -> dict[str, Json]:
    return {path: {"sha256": ref.sha256, "size": ref.size} for path, ref in files.items()}


_MANIFEST: Final = frozenset(
    {
        "format", "snapshot", "kind", "job", "host", "timeline", "incarnation", "mode", "started", "completed",
        "writer", "graph", "nodes", "channels", "sinks", "root",
    }
)  # fmt: skip
_NODE: Final = frozenset(
    {
        "files", "batch", "inputs", "output", "offsets", "partitions", "state_rows", "bytes_new", "bytes_total",
        "alignment_ms", "sync_ms", "async_ms", "timing",
    }
)  # fmt: skip
_CHANNEL: Final = frozenset({"producer", "location", "barrier", "in_flight", "content"})


def _extra(extra: Mapping[str, Json], known: frozenset[str], whose: str) -> Mapping[str, Json]:
    taken = sorted(known & extra.keys())
    if taken:
        raise Misuse(f"Extra field {taken[0]!r} of {whose} has the name of a field of the format.")
    return extra


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode(data: bytes, name: str = "The manifest") -> Manifest:
    """The manifest, or `Damaged`, or `Misuse` if it is of a newer format. `name` begins the message."""
    try:
        return _decode(data, name)
    except Fault as fault:
        raise Damaged(
            f"{name} is damaged: {fault!s:.500}.",
            untouched="Nothing was changed; other snapshots do not depend on this file.",
            next="Restore another snapshot, or put back a copy of this one.",
        ) from None


# What Python raises when a value is not what the code took it for. The checks below name the field; whatever slips
# through them is damage all the same: a manifest never stops a job with an error of another kind.
_UNEXPECTED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _decode(data: bytes, name: str) -> Manifest:
    value = _parse(data)
    number = value.get("format")
    if number.__class__ is int and number > FORMAT:
        raise Misuse(
            f"{name} has format {number}; this Strobe reads formats up to {FORMAT}.",
            untouched="Nothing was changed.",
            next="Use the Strobe that wrote it, or a later one.",
        )
    if number.__class__ is not int or number < 1:
        raise Fault(f"format: {short(number)} is not a format that ever was")
    seal = _SEAL.search(data)
    if seal is None:
        raise Fault("root: it must be the last field, 64 lower-case hex digits, and a newline must follow")
    root = seal[1].decode()
    try:
        manifest = _manifest(Fields("", value), int(number))
        actual = _root(manifest, data[: seal.start()] + b"}")
    except _UNEXPECTED as error:
        raise Fault(f"it cannot be read ({type(error).__name__}: {error!s:.200})") from None
    if root != actual:
        raise Fault(f"root: the file says {root}, its content gives {actual}; some byte in it was changed")
    return manifest


def _parse(data: bytes) -> dict[str, Json]:
    try:
        value = parse(data)
    except NotJson as error:
        raise Fault(str(error)) from None
    if not isinstance(value, dict):
        raise Fault("it is not a JSON object")
    return value


def _manifest(f: Fields, number: int) -> Manifest:
    kinds = {kind.value: kind for kind in Kind}
    kind = kinds.get(f.text("kind"))
    if kind is None:
        raise Fault(f"kind: {f.text('kind')!r} is neither checkpoint nor savepoint")
    return f.make(
        lambda: Manifest(
            snapshot=SnapshotId(f.whole("snapshot")),
            kind=kind,
            job=f.text("job"),
            host=f.text("host"),
            timeline=Timeline(f.whole("timeline")),
            incarnation=Incarnation(f.whole("incarnation")),
            mode=f.text("mode"),
            started=f.text("started"),
            completed=f.text("completed"),
            writer=f.text("writer"),
            graph=_graph(Fields("graph", f.get("graph"))),
            nodes={NodeId(uid): node for uid, node in f.each("nodes", _node).items()},
            channels={ChannelId(channel): record for channel, record in f.each("channels", _channel).items()},
            sinks=f.each("sinks", _sink_1 if number == 1 else _sink),
            extra=f.rest(_MANIFEST),
            format=number,
        )
    )


def _node(path: str, value: Json) -> NodeRecord:
    f = Fields(path, value)
    return f.make(
        lambda: NodeRecord(
            files=f.each("files", _blob),
            batch=f.whole_or_null("batch"),
            inputs={ChannelId(c): position for c, position in f.each("inputs", _position).items()},
            output=f.whole_or_null("output"),
            offsets=f.free("offsets"),
            partitions=f.whole_or_null("partitions"),
            state_rows=f.whole_or_null("state_rows"),
            bytes_new=f.whole("bytes_new"),
            bytes_total=f.whole("bytes_total"),
            alignment_ms=f.number("alignment_ms"),
            sync_ms=f.number("sync_ms"),
            async_ms=f.number("async_ms"),
            timing=_timing(f.at("timing"), f.value["timing"]) if "timing" in f.value else None,
            extra=f.rest(_NODE),
        )
    )


def _timing(path: str, value: Json) -> Timing:
    f = Fields(path, value).only("start_delay_ms", "channels_ms", "prepare_ms", "acknowledge_ms")
    return f.make(
        lambda: Timing(
            f.number("start_delay_ms"),
            f.number("channels_ms"),
            f.number("prepare_ms"),
            f.number("acknowledge_ms"),
        )
    )


def _channel(path: str, value: Json) -> ChannelRecord:
    f = Fields(path, value)
    return f.make(
        lambda: ChannelRecord(
            producer=NodeId(f.text("producer")),
            location=f.text_or_null("location"),
            barrier=f.whole_or_null("barrier"),
            in_flight={NodeId(uid): r for uid, r in f.each("in_flight", _in_flight).items()},
            content=f.each("content", _blob),
            extra=f.rest(_CHANNEL),
        )
    )


def _blob(path: str, value: Json) -> BlobRef:
    # There are thousands of these: the good ones take a short way, the others one that explains.
    try:
        if len(value) == 2 and value["size"].__class__ is int:
            return BlobRef(value["sha256"], value["size"])
    except (TypeError, KeyError, StrobeError):
        pass
    f = Fields(path, value).only("sha256", "size")
    return f.make(lambda: BlobRef(f.text("sha256"), f.whole("size")))


def _in_flight(path: str, value: Json) -> InFlight:
    f = Fields(path, value).only("after", "through", "rows")
    return f.make(lambda: InFlight(f.whole("after"), f.whole("through"), f.whole_or_null("rows")))


def _position(path: str, value: Json) -> int:
    if value.__class__ is not int:
        raise Fault(f"{path}: {short(value)} is not a whole number")
    return int(value)


def _sink(path: str, value: Json) -> SinkRecord:
    f = Fields(path, value).only("position", "prepared")
    return SinkRecord(f.free("position"), _prepared(f.at("prepared"), f.get("prepared")))


def _sink_1(path: str, value: Json) -> SinkRecord:
    first, *parts = _prepared(path, value) or (None,)
    if first is None or first.handle != _POSITION or any(part.handle == _POSITION for part in parts):
        raise Fault(f"{path}: in format 1 the first handle, and no other, is {_POSITION!r}")
    return SinkRecord(first.data, tuple(parts))


def _prepared(path: str, value: Json) -> tuple[Prepared, ...]:
    if not isinstance(value, list):
        raise Fault(f"{path}: {short(value)} is not a list of prepared handles")
    prepared = [Fields(f"{path}[{i}]", each).only("handle", "data") for i, each in enumerate(value)]
    return tuple(Prepared(f.text("handle"), f.free("data")) for f in prepared)


def _graph(f: Fields) -> Graph:
    f.only("nodes", "channels")
    nodes, channels = f.get("nodes"), f.get("channels")
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise Fault("graph.nodes: it is not a list of names")
    if not isinstance(channels, list):
        raise Fault("graph.channels: it is not a list")
    for i, channel in enumerate(channels):
        if not _is_channel(channel):
            raise Fault(f"graph.channels[{i}]: {short(channel)} is not [id, source, target] with or without feedback")
    return f.make(lambda: graph_from_json(f.value))


def _is_channel(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and all(isinstance(part, str) for part in value)
        and value[3:] in ([], ["feedback"])
    )
