"""What a snapshot can be asked for: its relations, each with what it is and how its rows are read. Rows are read when a
query names the relation, so if a part of a snapshot is damaged, or of an unknown format, only that relation is lost.
`Lost` says which one it is and why.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from strobe.look import meta
from strobe.look.cache import StateCache, side_by_side
from strobe.look.state_files import stores_of
from strobe.look.state_schema import operators_of
from strobe.look.state_tables import StateTable, tables_of
from strobe.look.types import Unsupported
from strobe.model.cut import Json
from strobe.model.errors import Damaged, StrobeError
from strobe.model.ids import ChannelId, NodeId
from strobe.store.check import owner
from strobe.store.locate import Located
from strobe.store.manifest import NOTHING, Manifest

__all__ = ["Fallback", "Lost", "Relation", "relations_of"]

# What Python and Arrow raise when bytes from outside are not what they should be.
UNREADABLE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, OSError, RecursionError,
    RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error, pa.ArrowException, StrobeError,
)  # fmt: skip

Fallback = Callable[[Located, StateTable], pa.Table]
"""Reads a table of state that is not decoded here, by other means; raises if there are none."""


_OPERATORS = {
    "": "an operator",
    "stateStoreSave": "aggregation",
    "sessionWindowStateStoreSaveExec": "session windows",
    "dedupe": "deduplication",
    "dedupeWithinWatermark": "deduplication within the watermark",
    "symmetricHashJoin": "stream-stream join",
    "transformWithStateInPandasExec": "transformWithState",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPySparkExec": "transformWithState",
}


class Lost(Damaged):
    """A relation whose rows cannot be read."""


@dataclass(frozen=True)
class Relation:
    """`schema`.`name`, as a query names it. `columns` are None if they are known only after reading. `key`: what tells
    its rows apart, where that is known. `narrow` reads some of the columns only, where that saves anything."""

    schema: str
    name: str
    about: str
    read: Callable[[], pa.Table]
    columns: pa.Schema | None = None
    key: tuple[str, ...] = ()
    stage: str = ""
    narrow: Callable[[frozenset[str]], pa.Table] | None = None

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def needed(self, words: frozenset[str] | None) -> frozenset[str] | None:
        """The columns that a query with these words (in lower case; None: any) can need: None if all are read."""
        if words is None or self.narrow is None or self.columns is None:
            return None
        return frozenset(name for name in self.columns.names if name.lower() in words)

    def smallest(self) -> frozenset[str]:
        """A column to count rows by: the one that is the least to read."""
        columns = sorted(
            self.columns or (), key=lambda f: f.type.bit_width if pa.types.is_primitive(f.type) else 1 << 30
        )
        return frozenset(field.name for field in columns[:1])

    def load(self, columns: frozenset[str] | None = None) -> pa.Table:
        """Its rows, with all columns or with these."""
        try:
            return self.read() if columns is None or self.narrow is None else self.narrow(columns)
        except Lost:
            raise
        except UNREADABLE as error:
            why = error.what if isinstance(error, StrobeError) else f"{error!s:.300}" or type(error).__name__
            raise Lost(
                f"{self.full_name} is lost: {why.rstrip('.')}.",
                untouched="Nothing was changed, and the other relations can be asked.",
                next=f"{error.next}" if isinstance(error, StrobeError) and error.next else "",
            ) from error


def relations_of(
    found: Located, manifest: Manifest, fallback: Fallback | None = None, cache: StateCache | None = None
) -> tuple[Relation, ...]:
    """All relations of a snapshot, in the order in which people look for them."""
    if manifest.host == "live":
        from strobe.look.live import live_relations

        return _distinct([*live_relations(found, manifest), *_meta(manifest)])
    return _distinct(
        [
            *_states(found, manifest, fallback, cache or StateCache(None)),
            *_channels(found, manifest),
            *_sinks(manifest),
            *_meta(manifest),
        ]
    )


def _distinct(relations: list[Relation]) -> tuple[Relation, ...]:
    """Without relations whose names differ only in case: SQL does not tell them apart."""
    seen: set[str] = set()
    kept = []
    for each in relations:
        name, count = each.name, 1
        while f"{each.schema}.{name}".lower() in seen:
            count += 1
            name = f"{each.name}_{count}"
        seen.add(f"{each.schema}.{name}".lower())
        kept.append(replace(each, name=name))
    return tuple(kept)


# ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _states(found: Located, manifest: Manifest, fallback: Fallback | None, cache: StateCache) -> Iterator[Relation]:
    for uid, node in manifest.nodes.items():
        if node.batch in (None, NOTHING) or not any(path.startswith("state/") for path in node.files):
            continue
        files = node.files
        source = _Files(found, manifest, uid, cache)
        for table in tables_of(uid, operators_of(files, source.read), node.extra.get("operators")):
            about = f"{_OPERATORS.get(table.operator_name, table.operator_name)} of stage {uid}" + (
                f", variable {table.variable}" if table.variable and not table.variable.startswith("$") else ""
            )
            yield Relation(
                "state",
                table.name,
                about,
                partial(_read_state, source, table, fallback),
                table.schema if table.columns else None,
                table.key,
                uid,
                None if table.problem else partial(_read_state, source, table, fallback),
            )


def _read_state(
    source: _Files, table: StateTable, fallback: Fallback | None, columns: frozenset[str] | None = None
) -> pa.Table:
    try:
        if table.problem and not table.for_spark:
            raise ValueError(table.problem)
        if table.problem:
            raise Unsupported(table.problem)
        return source.table(table, columns)
    except Unsupported as error:
        if fallback is None:
            raise Lost(
                f"state.{table.name} is not decoded here: {error}.",
                untouched="The other relations can be asked.",
                next="`strobe sql` has Spark read it, where Spark is installed.",
            ) from error
        return fallback(source.found, table)


class _Files:
    """The files of a stage in a snapshot."""

    def __init__(self, found: Located, manifest: Manifest, uid: NodeId, cache: StateCache) -> None:
        self.found, self.manifest, self.uid, self.cache = found, manifest, uid, cache
        self.files = manifest.nodes[uid].files

    def read(self, path: str) -> bytes:
        return self.found.store.read(self.files[path], owner(self.manifest, f"nodes/{self.uid}/files/{path}"))

    def lay_out(self, path: str, target: Path) -> None:
        target.write_bytes(self.read(path))

    def table(self, table: StateTable, columns: frozenset[str] | None) -> pa.Table:
        """The rows of all partitions, with all columns or with some."""
        stores = [s for s in stores_of(self.files) if s.operator == table.operator and s.name == table.store]
        wanted = table if columns is None else table.only(columns)
        parts = side_by_side(
            lambda store: self.cache.rows(table, wanted, store, self.files, self.read, self.lay_out), stores
        )
        return pa.Table.from_batches([batch for part in parts for batch in part], wanted.schema)


# ── channels, sinks, what the manifest says ─────────────────────────────────────────────────────────────────────────


# Imported when they are asked for: reading them needs packages that state does not.


def _channels(found: Located, manifest: Manifest) -> Iterator[Relation]:
    def in_flight(name: ChannelId) -> pa.Table:
        from strobe.look.channels import in_flight_rows

        return in_flight_rows(found, manifest, name)

    def up_to_barrier(name: ChannelId) -> pa.Table:
        from strobe.look.channels import channel_rows

        return channel_rows(found, manifest, name)

    for name in manifest.channels:
        yield Relation(
            "in_flight",
            name,
            f"rows of channel {name} that a stage had yet to read, once for each such stage",
            partial(in_flight, name),
        )
    for name in manifest.channels:
        yield Relation(
            "channel",
            name,
            f"rows of channel {name} up to the barrier, as far as they are kept",
            partial(up_to_barrier, name),
        )


def _sinks(manifest: Manifest) -> Iterator[Relation]:
    def shown_rows(name: str, position: Json) -> pa.Table:
        from strobe.look.sinks import sink_rows

        return sink_rows(name, position)

    counts: dict[str, int] = {}
    for name in manifest.sinks:
        counts[name.partition("/")[0]] = counts.get(name.partition("/")[0], 0) + 1
    for name, sink in manifest.sinks.items():
        if not isinstance(sink.position, dict) or "path" not in sink.position:
            continue  # a topic, a database, a function: nothing there can be read as it was
        stage, _, number = name.partition("/")
        shown = stage if counts[stage] == 1 else f"{stage}__{number}"
        yield Relation(
            "sink",
            shown,
            f"what sink {number} of stage {stage} showed at the cut",
            partial(shown_rows, name, sink.position),
            stage=stage,
        )


def _meta(manifest: Manifest) -> Iterator[Relation]:
    for name, table in meta.TABLES.items():
        yield Relation("meta", name, table.about, partial(table.of, manifest), table.columns)
