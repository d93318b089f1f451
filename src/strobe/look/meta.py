"""What a snapshot's manifest says, as tables: `meta.snapshot`, `meta.stages`, `meta.channels`, `meta.sources`,
`meta.sinks`, `meta.timings`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from strobe.store.codec import root_of
from strobe.store.manifest import Manifest

__all__ = ["TABLES", "MetaTable"]


@dataclass(frozen=True)
class MetaTable:
    about: str
    columns: pa.Schema
    rows: Callable[[Manifest], Iterable[tuple[Any, ...]]]

    def of(self, manifest: Manifest) -> pa.Table:
        rows = list(self.rows(manifest))
        arrays = [_column([row[i] for row in rows], each.type) for i, each in enumerate(self.columns)]
        return pa.Table.from_arrays(arrays, schema=self.columns)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):  # as the manifest spells it
        return pa.array(values, pa.string()).cast(kind, safe=False)
    return pa.array(values, kind)


def _snapshot(manifest: Manifest) -> list[tuple[Any, ...]]:
    return [
        (
            manifest.snapshot, manifest.kind.value, manifest.job, manifest.host, manifest.timeline,
            manifest.incarnation, manifest.mode, manifest.started, manifest.completed, manifest.bytes_total,
            manifest.bytes_new, manifest.rows_in_flight, root_of(manifest),
        )
    ]  # fmt: skip


def _stages(manifest: Manifest) -> list[tuple[Any, ...]]:
    return [
        (
            uid, node.batch, node.partitions, node.state_rows, node.output, len(node.files), node.bytes_total,
            node.bytes_new, node.extra.get("schema") if isinstance(node.extra.get("schema"), str) else None,
        )
        for uid, node in manifest.nodes.items()
    ]  # fmt: skip


def _channels(manifest: Manifest) -> list[tuple[Any, ...]]:
    return [
        (name, record.producer, consumer, record.barrier, flight.after, flight.rows)
        for name, record in manifest.channels.items()
        for consumer, flight in record.in_flight.items()
    ]


def _sources(manifest: Manifest) -> Iterator[tuple[Any, ...]]:
    for uid, node in manifest.nodes.items():
        if node.offsets is None:
            continue
        offsets = node.offsets if isinstance(node.offsets, list) else [node.offsets]
        names = node.extra.get("sources")
        for place, offset in enumerate(offsets):
            named = names[place] if isinstance(names, list) and place < len(names) else None
            yield uid, place, None if named is None else str(named), json.dumps(offset)


def _sinks(manifest: Manifest) -> list[tuple[Any, ...]]:
    return [
        (name.partition("/")[0], name.partition("/")[2], handle, json.dumps(data))
        for name, sink in manifest.sinks.items()
        for handle, data in ((None, sink.position), *((each.handle, each.data) for each in sink.prepared))
    ]


def _timings(manifest: Manifest) -> list[tuple[Any, ...]]:
    return [(uid, phase, ms) for uid, node in manifest.nodes.items() for phase, ms in node.phases.items()]


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_TEXT, _NUMBER, _TIME = pa.string(), pa.int64(), pa.timestamp("us", "UTC")

TABLES: Final[Mapping[str, MetaTable]] = {
    "snapshot": MetaTable(
        "the snapshot: number, kind, job, times, sizes",
        _schema(
            snapshot=_NUMBER, kind=_TEXT, job=_TEXT, host=_TEXT, timeline=_NUMBER, incarnation=_NUMBER, mode=_TEXT,
            started=_TIME, completed=_TIME, bytes_total=_NUMBER, bytes_new=_NUMBER, rows_in_flight=_NUMBER, root=_TEXT,
        ),
        _snapshot,
    ),
    "stages": MetaTable(
        "stages: batch, partitions, rows of state, sizes",
        _schema(
            stage=_TEXT, batch=_NUMBER, partitions=_NUMBER, state_rows=_NUMBER, output=_NUMBER, files=_NUMBER,
            bytes_total=_NUMBER, bytes_new=_NUMBER, schema=_TEXT,
        ),
        _stages,
    ),
    "channels": MetaTable(
        "channels and who reads them: barrier, read up to, rows in flight",
        _schema(
            channel=_TEXT, producer=_TEXT, consumer=_TEXT, barrier=_NUMBER, read_up_to=_NUMBER, rows_in_flight=_NUMBER
        ),
        _channels,
    ),
    "sources": MetaTable(
        "where each source goes on from",
        _schema(stage=_TEXT, place=_NUMBER, source=_TEXT, offset=_TEXT),
        _sources,
    ),
    "sinks": MetaTable(
        "what each sink has prepared, or where it stands",
        _schema(stage=_TEXT, sink=_TEXT, handle=_TEXT, position=_TEXT),
        _sinks,
    ),
    "timings": MetaTable(
        "how long each phase took at each stage",
        _schema(stage=_TEXT, phase=_TEXT, ms=pa.float64()),
        _timings,
    ),
}  # fmt: skip
