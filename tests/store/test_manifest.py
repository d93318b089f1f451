"""The manifest: what is a well-formed one, and how it becomes bytes and comes back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.model.errors import Damaged, HostFault, Misuse
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.codec import decode, encode, root_of
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
from tests.store.snapshot_samples import BALANCES, CHANNEL, POSTINGS, manifest

REF = BlobRef("ab" * 32, 5)
SAMPLE = manifest(12, {"state/0/1.delta": REF, "commits/4": BlobRef("cd" * 32, 0)})


def body(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    assert isinstance(value, dict)
    return value


def sealed(value: dict[str, Any]) -> bytes:
    """A manifest with these fields whose root is right, whatever the fields say: as a careful forger would make it."""
    value = {name: field for name, field in value.items() if name != "root"}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    leaves = [("manifest.json", hashlib.sha256(text).hexdigest(), len(text))]
    for kind, part in (("nodes", "files"), ("channels", "content")):
        for uid, record in value.get(kind, {}).items():
            leaves += [(f"{kind}/{uid}/{part}/{p}", b["sha256"], b["size"]) for p, b in record[part].items()]
    return text[:-1] + b',"root":"' + independent_root(leaves).encode() + b'"}\n'


def independent_root(leaves: list[tuple[str, str, int]]) -> str:
    """The root as RFC 6962 defines it, from the top down; the store computes it from the bottom up."""

    def tree(hashes: list[bytes]) -> bytes:
        if len(hashes) == 1:
            return hashes[0]
        split = 1 << ((len(hashes) - 1).bit_length() - 1)
        return hashlib.sha256(b"\x01" + tree(hashes[:split]) + tree(hashes[split:])).digest()

    ordered = sorted(leaves, key=lambda leaf: leaf[0].encode())
    return tree(
        [
            hashlib.sha256(b"\x00" + bytes.fromhex(sha) + size.to_bytes(8, "big") + path.encode()).digest()
            for path, sha, size in ordered
        ]
    ).hex()


# ── there and back ──────────────────────────────────────────────────────────────────────────────────────────────────

texts = st.text(st.characters(exclude_categories=["Cs"]))
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True)
seen = st.characters(exclude_characters="/\\", exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])
paths = st.lists(st.text(seen, min_size=1, max_size=5)
                 .filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map("/".join)  # fmt: skip
positions = st.integers(-1, 10**12)
counts = st.integers(0, 10**15)
durations = counts | st.floats(0, 1e9)
refs = st.builds(BlobRef, st.binary(min_size=32, max_size=32).map(bytes.hex), counts)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(texts.map("x".__add__), values, max_size=2)
times = st.datetimes().map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0") + "Z")


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    nodes = tuple(map(NodeId, draw(st.lists(names, min_size=1, max_size=4, unique=True))))
    node = st.sampled_from(nodes)
    edges = draw(st.lists(st.tuples(node, node, st.booleans()), max_size=4))
    channels = tuple(map(ChannelId, draw(st.lists(names, max_size=3, unique=True))))
    inputs = st.dictionaries(st.sampled_from(channels), positions) if channels else st.just({})
    in_flight = st.tuples(positions, positions, st.none() | counts).map(
        lambda r: InFlight(min(r[:2]), max(r[:2]), r[2])
    )
    optional = st.none() | counts
    record = st.builds(
        NodeRecord, files=st.dictionaries(paths, refs, max_size=4), batch=st.none() | positions, inputs=inputs,
        output=st.none() | positions, offsets=values, partitions=st.none() | st.integers(1, 999), state_rows=optional,
        bytes_new=counts, bytes_total=counts, alignment_ms=durations, sync_ms=durations, async_ms=durations,
        timing=st.none() | st.builds(Timing, durations, durations, durations, durations), extra=extras,
    )  # fmt: skip
    channel = st.builds(
        ChannelRecord, producer=node, location=st.none() | paths,
        barrier=st.none() | positions, in_flight=st.dictionaries(node, in_flight, max_size=3),
        content=st.dictionaries(paths, refs, max_size=2), extra=extras,
    )  # fmt: skip
    prepared = st.builds(Prepared, texts.filter(lambda handle: handle != "position"), values)
    sink = st.builds(SinkRecord, values, st.lists(prepared, max_size=2).map(tuple))
    return Manifest(
        snapshot=SnapshotId(draw(st.integers(1, 10**9))),
        kind=draw(st.sampled_from(Kind)),
        job=draw(names),
        host=draw(names),
        timeline=Timeline(draw(st.integers(1, 99))),
        incarnation=Incarnation(draw(st.integers(1, 99))),
        mode=draw(names),
        started=draw(times),
        completed=draw(times),
        graph=Graph(nodes, tuple(Channel(ChannelId(f"e{i}"), s, t, f) for i, (s, t, f) in enumerate(edges))),
        nodes={n: draw(record) for n in nodes},
        channels={c: draw(channel) for c in channels},
        sinks=draw(st.dictionaries(names, sink, max_size=2)),
        writer=draw(names),
        extra=draw(extras),
        format=draw(st.integers(1, FORMAT)),
    )


@given(manifests())
def test_what_was_written_is_read_back_and_written_again_the_same(made: Manifest) -> None:
    data = encode(made)
    assert decode(data) == made
    assert encode(decode(data)) == data


@given(manifests())
def test_somebody_else_computes_the_same_root_from_the_file(made: Manifest) -> None:
    data = encode(made)
    assert body(data)["root"] == root_of(made)
    text = data[: -len(',"root":""}\n') - 64] + b"}"
    leaves = [("manifest.json", hashlib.sha256(text).hexdigest(), len(text))]
    leaves += [(path, ref.sha256, ref.size) for path, ref in made.blobs()]
    assert independent_root(leaves) == root_of(made)


def test_the_file_is_one_line_of_plain_json() -> None:
    data = encode(SAMPLE)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert body(data)["nodes"]["balances"]["files"]["state/0/1.delta"] == {"sha256": "ab" * 32, "size": 5}


def test_the_order_in_which_records_were_given_does_not_matter() -> None:
    nodes = dict(reversed(list(SAMPLE.nodes.items())))
    files = dict(reversed(list(SAMPLE.nodes[BALANCES].files.items())))
    assert encode(manifest(12, files, nodes={**nodes, BALANCES: manifest(12, files).nodes[BALANCES]})) == encode(SAMPLE)


# ── the root ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "files",
    [
        {"state/0/1.delta": BlobRef("ac" * 32, 5), "commits/4": BlobRef("cd" * 32, 0)},
        {"state/0/1.delta": BlobRef("ab" * 32, 6), "commits/4": BlobRef("cd" * 32, 0)},
        {"state/0/2.delta": REF, "commits/4": BlobRef("cd" * 32, 0)},
        {"state/0/1.delta": BlobRef("cd" * 32, 0), "commits/4": REF},
        {"state/0/1.delta": REF},
    ],
)
def test_any_change_of_a_file_changes_the_root(files: dict[str, BlobRef]) -> None:
    assert root_of(manifest(12, files)) != root_of(SAMPLE)


def test_any_flipped_bit_of_the_file_is_found() -> None:
    data = encode(SAMPLE)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            # A flipped format number reads as that of a newer format, which is refused as such.
            with pytest.raises((Damaged, Misuse)):
                decode(bytes(flipped))


def test_any_file_that_breaks_off_or_goes_on_is_found() -> None:
    data = encode(SAMPLE)
    for end in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:end])
    for more in (b"\n", b" ", b"{}", b"\0"):
        with pytest.raises(Damaged):
            decode(data + more)


def test_a_manifest_that_says_the_same_in_other_bytes_is_damaged() -> None:
    spaced = encode(SAMPLE).replace(b'"job":', b'"job": ')
    with pytest.raises(Damaged, match="root: the file says"):
        decode(spaced)


# ── growth ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fields_that_a_later_strobe_added_are_kept() -> None:
    value = body(encode(SAMPLE))
    value["colour"] = "red"
    value["nodes"]["balances"]["weight"] = [1, 2.5]
    value["channels"]["postings"]["length"] = None
    data = sealed(value)
    read = decode(data)
    assert read.extra == {"colour": "red"}
    assert read.nodes[BALANCES].extra == {"weight": [1, 2.5]}
    assert read.channels[CHANNEL].extra == {"length": None}
    assert encode(read) == data


def test_a_newer_format_is_refused_before_its_fields_are_looked_at() -> None:
    with pytest.raises(Misuse, match="has format 3; this Strobe reads formats up to 2") as caught:
        decode(b'{"format":3,"everything":"else is different"}')
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("number", [0, -1, "1", 1.0, True, None])
def test_a_format_that_never_was_is_damage(number: Any) -> None:
    with pytest.raises(Damaged, match="format"):
        decode(sealed({**body(encode(SAMPLE)), "format": number}))


OLD = replace(SAMPLE, format=1)


def test_a_manifest_of_format_1_is_read_and_keeps_its_format_and_its_root() -> None:
    data = encode(OLD)
    assert body(data)["sinks"] == {
        "balances": [{"handle": "position", "data": {"path": "/out"}}, {"handle": "txn-5", "data": {"version": 3}}]
    }
    read = decode(data)
    assert read.sinks == SAMPLE.sinks
    assert root_of(read) == body(data)["root"] != root_of(SAMPLE)


@pytest.mark.parametrize(
    "sink",
    [
        [],
        [{"handle": "txn-5", "data": None}],
        [{"handle": "txn-5", "data": None}, {"handle": "position", "data": None}],
        [{"handle": "position", "data": None}, {"handle": "position", "data": None}],
    ],
)
def test_in_format_1_a_sink_has_one_position_and_it_comes_first(sink: list[Any]) -> None:
    value = body(encode(OLD))
    value["sinks"]["balances"] = sink
    with pytest.raises(Damaged, match=r"sinks\.balances: in format 1 the first handle, and no other, is 'position'"):
        decode(sealed(value))


@pytest.mark.parametrize("made", [SAMPLE, OLD])
def test_the_sinks_of_one_format_under_the_number_of_the_other_are_damage(made: Manifest) -> None:
    with pytest.raises(Damaged, match=r"sinks\.balances"):
        decode(sealed({**body(encode(made)), "format": 3 - made.format}))


def test_an_extra_field_cannot_take_the_name_of_a_known_one() -> None:
    with pytest.raises(Misuse, match="'job'"):
        encode(manifest(1, {}, extra={"job": "other"}))


# ── the strict reader names the field ───────────────────────────────────────────────────────────────────────────────

REMOVED = object()


def changed(path: str, to: Any) -> bytes:
    value = body(encode(SAMPLE))
    *parents, last = path.split("/")
    target = value
    for name in parents:
        target = target[int(name)] if isinstance(target, list) else target[name]
    if to is REMOVED:
        del target[last]
    else:
        target[int(last) if isinstance(target, list) else last] = to
    try:
        return sealed(value)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):  # no root can be made of it: keep the old
        root = value.pop("root", "0" * 64)
        text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        return text[:-1] + f',"root":"{root}"}}\n'.encode()


@pytest.mark.parametrize(
    ("path", "to", "named"),
    [
        *[(field, REMOVED, f"{field}: the field is missing") for field in (
            "snapshot", "kind", "job", "host", "timeline", "incarnation", "mode", "started", "completed", "graph",
            "nodes", "channels", "sinks", "writer")],
        *[(f"nodes/balances/{field}", REMOVED, f"nodes.balances.{field}: the field is missing") for field in (
            "files", "batch", "inputs", "output", "offsets", "partitions", "state_rows", "bytes_new", "bytes_total",
            "alignment_ms", "sync_ms", "async_ms")],
        *[(f"channels/postings/{field}", REMOVED, f"channels.postings.{field}: the field is missing") for field in (
            "producer", "location", "barrier", "in_flight", "content")],
        ("snapshot", 0, "snapshot: 0 is below 1"),
        ("snapshot", "12", "snapshot: '12' is not a whole number"),
        ("snapshot", True, "snapshot: True is not a whole number"),
        ("snapshot", 12.0, "snapshot: 12.0 is not a whole number"),
        ("kind", "backup", "kind: 'backup' is neither"),
        ("job", "../up", "job '../up' is not legal"),
        ("started", "yesterday", "started: 'yesterday' is not a time"),
        ("completed", "2031-05-17T09:30:00+02:00", "completed: .* is not a time"),
        ("completed", "2031-02-31T09:30:00Z", "completed: .* is not a time"),
        ("timeline", 0, "timeline: 0 is below 1"),
        ("graph", [], r"graph: \[\] is not an object"),
        ("graph/nodes", "postings", "graph.nodes: it is not a list of names"),
        ("graph/nodes", ["postings", "postings"], "graph.Node 'postings' is named twice"),
        ("graph/channels/0", ["x", "postings"], r"graph.channels\[0\]"),
        ("graph/channels/0", ["x", "postings", "nobody"], "no node 'nobody'"),
        ("graph/nodes", ["postings", "balances", "fraud"], "nodes: .* 'fraud' has none"),
        ("nodes", [], r"nodes: \[\] is not an object"),
        ("nodes/balances", 1, "nodes.balances: 1 is not an object"),
        ("nodes/balances/batch", -2, "nodes.balances.batch: -2 is below -1"),
        ("nodes/balances/batch", "5", "nodes.balances.batch: '5' is not a whole number"),
        ("nodes/balances/partitions", 0, "nodes.balances.partitions: 0 is below 1"),
        ("nodes/balances/timing", {"start_delay_ms": 1}, "nodes.balances.timing.channels_ms: the field is missing"),
        ("nodes/balances/timing", None, "nodes.balances.timing: None is not an object"),
        ("nodes/balances/timing",
         {"start_delay_ms": -1, "channels_ms": 0, "prepare_ms": 0, "acknowledge_ms": 0},
         "nodes.balances.timing.start_delay_ms: -1 is below 0"),
        ("nodes/balances/sync_ms", -1, "nodes.balances.sync_ms: -1 is below 0"),
        ("nodes/balances/sync_ms", "1", "nodes.balances.sync_ms: '1' is not a number"),
        ("nodes/balances/inputs/postings", None, "nodes.balances.inputs.postings: None is not a whole number"),
        ("nodes/balances/inputs/nothing", 1, "nodes.balances.inputs: there is no channel 'nothing'"),
        ("nodes/balances/files/commits\\4", {"sha256": "ab" * 32, "size": 1}, "nodes.balances.files: .*plain relative"),
        ("nodes/balances/files/..", {"sha256": "ab" * 32, "size": 1}, "nodes.balances.files: '..' is not a plain"),
        ("nodes/balances/files/x", {"sha256": "AB" * 32, "size": 1}, "nodes.balances.files.x.sha256: .* hex digits"),
        ("nodes/balances/files/x", {"sha256": "ab" * 32, "size": -1}, "nodes.balances.files.x.size: -1 is below 0"),
        ("nodes/balances/files/x", {"sha256": "ab" * 32, "size": 1.5}, "nodes.balances.files.x.size: 1.5"),
        ("nodes/balances/files/x", {"sha256": "ab" * 32}, "nodes.balances.files.x.size: the field is missing"),
        ("nodes/balances/files/x", {"sha256": "ab" * 32, "size": 1, "z": 0}, "nodes.balances.files.x.z: there is no"),
        ("nodes/balances/files/x", [1, 2], r"nodes.balances.files.x: \[1, 2\] is not an object"),
        ("channels/postings/producer", "nobody", "channels.postings.producer: there is no node 'nobody'"),
        ("channels/postings/in_flight/nobody", {"after": 1, "through": 2, "rows": 3}, "in_flight: there is no node"),
        ("channels/postings/in_flight/balances/after", 13, "in_flight.balances.after: .* cannot begin after 13"),
        ("channels/postings/in_flight/balances/rows", -1, "in_flight.balances.rows: -1 is below 0"),
        ("channels/postings/in_flight/balances/to", 1, "in_flight.balances.to: there is no such field"),
        ("sinks/balances", [], r"sinks.balances: \[\] is not an object"),
        ("sinks/balances", {}, "sinks.balances.position: the field is missing"),
        ("sinks/balances/prepared", REMOVED, "sinks.balances.prepared: the field is missing"),
        ("sinks/balances/prepared", {}, "sinks.balances.prepared: {} is not a list"),
        ("sinks/balances/prepared/0/handle", 5, r"sinks.balances.prepared\[0\].handle: 5 is not text"),
        ("sinks/balances/since", 5, "sinks.balances.since: there is no such field"),
    ],
)  # fmt: skip
def test_a_malformed_field_is_named(path: str, to: Any, named: str) -> None:
    with pytest.raises(Damaged, match=named):
        decode(changed(path, to))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "empty"),
        (b"[]", "not a JSON object"),
        (b'{"a":1,"a":2}', "a: the field is there twice"),
        (b'{"a":NaN}', "NaN is not a JSON value"),
        (b'{"a":\xff}', "byte 5 is not UTF-8"),
        ('{"ä": nothing}'.encode(), "byte 7 is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 10_000 + b"}", "too large a number"),
        (b'{"a":1e999}', "too large a number"),
        (b'{"a":"\\ud800"}', "half a character"),
    ],
)
def test_what_is_no_json_object_is_named(data: bytes, named: str) -> None:
    with pytest.raises(Damaged, match=named):
        decode(data)


# ── records are checked when they are made ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../../b", "a//b", "./a", "a/", "a\\b", "a\0"])
def test_a_file_cannot_be_laid_out_elsewhere(path: str) -> None:
    with pytest.raises(Misuse, match="plain relative path"):
        NodeRecord(files={path: REF})
    with pytest.raises(Misuse, match="plain relative path"):
        ChannelRecord(POSTINGS, content={path: REF})


def test_not_a_number_is_no_duration() -> None:
    with pytest.raises(Misuse, match="sync_ms"):
        NodeRecord(sync_ms=float("nan"))


@pytest.mark.parametrize("offsets", [{"at": float("inf")}, {"at": object()}, {"at": "\ud800"}])
def test_what_json_cannot_hold_is_refused_before_anything_is_written(offsets: Any) -> None:
    with pytest.raises(Misuse, match="does not fit into the manifest of snapshot 1"):
        encode(manifest(1, {}, sinks={"s": SinkRecord(None, (Prepared("h", offsets),))}))


@pytest.mark.parametrize("data", [{1: "a number as key"}, ("a", "tuple")])
def test_what_would_come_back_changed_is_refused_before_anything_is_written(data: Any) -> None:
    with pytest.raises(HostFault, match="would not be read back"):
        encode(manifest(1, {}, sinks={"s": SinkRecord(data)}))


def test_a_manifest_of_an_older_strobe_has_no_timing_and_is_read() -> None:
    assert "timing" not in body(encode(SAMPLE))["nodes"]["balances"]
    record = decode(encode(SAMPLE)).nodes[BALANCES]
    assert (record.timing, record.phases, record.duration_ms) == (None, {}, None)


def test_the_phases_of_a_node_add_up_to_its_duration() -> None:
    record = NodeRecord(alignment_ms=1, sync_ms=2, async_ms=4, timing=Timing(8, 16, 32, 64))
    assert list(record.phases.values()) == [8, 1, 2, 16, 4, 32, 64]
    assert record.duration_ms == 127


def test_sizes_count_each_content_once() -> None:
    made = manifest(1, {"a": REF, "b": REF, "c": BlobRef("ef" * 32, 7)})
    assert made.bytes_total == 12
    assert made.rows_in_flight == 900
