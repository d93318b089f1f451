"""What a snapshot says of itself, as tables: `meta.snapshot`, `meta.stages`, `meta.channels`, `meta.sources`,
`meta.sinks`, `meta.timings`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from strobe.store.codec import root_of
from strobe.store.manifest import Manifest

__all__ = ["TABLES"]


def _table(columns: Mapping[str, pa.DataType], rows: list[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(columns.values())]
    return pa.table(arrays, names=list(columns))


def _snapshot(manifest: Manifest) -> pa.Table:
    columns = {
        "snapshot": pa.int64(), "kind": pa.string(), "job": pa.string(), "host": pa.string(), "timeline": pa.int64(),
        "incarnation": pa.int64(), "mode": pa.string(), "started": pa.string(), "completed": pa.string(),
        "bytes_total": pa.int64(), "bytes_new": pa.int64(), "rows_in_flight": pa.int64(), "root": pa.string(),
    }  # fmt: skip
    row = (
        manifest.snapshot, manifest.kind.value, manifest.job, manifest.host, manifest.timeline, manifest.incarnation,
        manifest.mode, manifest.started, manifest.completed, manifest.bytes_total, manifest.bytes_new,
        manifest.rows_in_flight, root_of(manifest),
    )  # fmt: skip
    table = _table(columns, [row])
    for name in ("started", "completed"):
        place = table.column_names.index(name)
        times = pa.chunked_array([table.column(name).combine_chunks().cast(pa.timestamp("us", "UTC"), safe=False)])
        table = table.set_column(place, name, times)
    return table


def _stages(manifest: Manifest) -> pa.Table:
    columns = {
        "stage": pa.string(), "batch": pa.int64(), "partitions": pa.int64(), "state_rows": pa.int64(),
        "output": pa.int64(), "files": pa.int64(), "bytes_total": pa.int64(), "bytes_new": pa.int64(),
        "schema": pa.string(),
    }  # fmt: skip
    rows = [
        (
            uid, node.batch, node.partitions, node.state_rows, node.output, len(node.files), node.bytes_total,
            node.bytes_new, node.extra.get("schema") if isinstance(node.extra.get("schema"), str) else None,
        )
        for uid, node in manifest.nodes.items()
    ]  # fmt: skip
    return _table(columns, rows)


def _channels(manifest: Manifest) -> pa.Table:
    columns = {
        "channel": pa.string(), "producer": pa.string(), "consumer": pa.string(), "barrier": pa.int64(),
        "read_up_to": pa.int64(), "rows_in_flight": pa.int64(),
    }  # fmt: skip
    rows = [
        (name, record.producer, consumer, record.barrier, flight.after, flight.rows)
        for name, record in manifest.channels.items()
        for consumer, flight in record.in_flight.items()
    ]
    return _table(columns, rows)


def _sources(manifest: Manifest) -> pa.Table:
    rows = []
    for uid, node in manifest.nodes.items():
        if node.offsets is None:
            continue
        offsets = node.offsets if isinstance(node.offsets, list) else [node.offsets]
        names = node.extra.get("sources")
        for place, offset in enumerate(offsets):
            named = names[place] if isinstance(names, list) and place < len(names) else None
            rows.append((uid, place, None if named is None else str(named), json.dumps(offset)))
    return _table({"stage": pa.string(), "place": pa.int64(), "source": pa.string(), "offset": pa.string()}, rows)


def _sinks(manifest: Manifest) -> pa.Table:
    rows = [
        (name.partition("/")[0], name.partition("/")[2], handle, json.dumps(data))
        for name, sink in manifest.sinks.items()
        for handle, data in ((None, sink.position), *((each.handle, each.data) for each in sink.prepared))
    ]
    return _table({"stage": pa.string(), "sink": pa.string(), "handle": pa.string(), "position": pa.string()}, rows)


def _timings(manifest: Manifest) -> pa.Table:
    rows = [(uid, phase, ms) for uid, node in manifest.nodes.items() for phase, ms in node.phases.items()]
    return _table({"stage": pa.string(), "phase": pa.string(), "ms": pa.float64()}, rows)


TABLES: Final[Mapping[str, tuple[str, Callable[[Manifest], pa.Table]]]] = {
    "snapshot": ("the snapshot: number, kind, job, times, sizes", _snapshot),
    "stages": ("stages: batch, partitions, rows of state, sizes", _stages),
    "channels": ("channels and who reads them: barrier, read up to, rows in flight", _channels),
    "sources": ("where each source goes on from", _sources),
    "sinks": ("what each sink has prepared, or where it stands", _sinks),
    "timings": ("how long each phase took at each stage", _timings),
}
