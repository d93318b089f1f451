"""What two cuts differ in: positions, rows in flight, and rows of state, by their keys.

A row of state is *added* or *removed* if only one cut has its key, and *changed* if both have it with other values. A
table whose key is not known, or that can be read in only one of the cuts, is not compared, and the result says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from strobe.look.cut import Cut
from strobe.look.relations import Relation
from strobe.model.errors import Misuse, StrobeError
from strobe.model.suggest import did_you_mean
from strobe.store.manifest import Manifest

__all__ = ["ChannelChange", "CutDiff", "StageChange", "TableChange", "changed_rows", "diff_cuts"]


@dataclass(frozen=True)
class TableChange:
    """What has changed in one table of state. `problem`: why it was not compared."""

    relation: str
    stage: str
    rows_before: int = 0
    rows_after: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    problem: str = ""

    @property
    def is_same(self) -> bool:
        return not (self.added or self.removed or self.changed or self.problem)


@dataclass(frozen=True)
class StageChange:
    """`batch`, positions read, and offsets of sources, before and after."""

    stage: str
    batch: tuple[int | None, int | None]
    inputs: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    offsets_differ: bool = False


@dataclass(frozen=True)
class ChannelChange:
    channel: str
    barrier: tuple[int | None, int | None]
    in_flight: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class CutDiff:
    before: str
    after: str
    stages: tuple[StageChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    channels: tuple[ChannelChange, ...]
    tables: tuple[TableChange, ...]

    @property
    def same_state(self) -> bool:
        return all(table.is_same for table in self.tables)


def diff_cuts(before: Cut, after: Cut) -> CutDiff:
    """`before` is added to `after`, under the name `before`: they are closed together."""
    old, new = before.manifest, after.manifest
    _join_cuts(before, after)
    tables = [_table(name, then, now, after) for name, then, now in _pairs(before, after)]
    return CutDiff(
        _name(old),
        _name(new),
        tuple(_stage(old, new, uid) for uid in new.nodes if uid in old.nodes),
        tuple(uid for uid in old.nodes if uid not in new.nodes),
        tuple(uid for uid in new.nodes if uid not in old.nodes),
        tuple(_channel(old, new, name) for name in new.channels if name in old.channels),
        tuple(tables),
    )


def changed_rows(before: Cut, after: Cut, stage: str) -> dict[str, pa.Table]:
    """For each table of a stage's state its rows that differ, with `change` (added, removed, before, after) ahead."""
    _join_cuts(before, after)
    pairs = [(name, then, now) for name, then, now in _pairs(before, after) if (now or then).stage == stage]  # type: ignore[union-attr]
    if not pairs:
        stages = sorted({(now or then).stage for _, then, now in _pairs(before, after)})  # type: ignore[union-attr]
        raise Misuse(
            f"Stage {stage!r} has no state in these snapshots.",
            next=f"{did_you_mean(stage, stages)}Stages with state: {', '.join(stages) or 'none'}.",
        )
    found = {}
    for name, then, now in pairs:
        if then is None or now is None:
            continue
        query = _Query(name, then, now)
        found[name] = after.sql(
            f"{query.rows} select 'added' as change, * from came anti join went on {query.same} union all by name "  # noqa: S608
            f"select 'removed' as change, * from went anti join came on {query.same} union all by name "
            f"select 'before' as change, * from went semi join came on {query.same} union all by name "
            f"select 'after' as change, * from came semi join went on {query.same} "
            f"order by {query.key}, change desc"
        )
    return found


def _join_cuts(before: Cut, after: Cut) -> None:
    if after.others.get("before") is not before:
        after.add("before", before)


def _pairs(before: Cut, after: Cut) -> list[tuple[str, Relation | None, Relation | None]]:
    then, now = ({r.name: r for r in cut.relations() if r.schema == "state"} for cut in (before, after))
    return [(name, then.get(name), now.get(name)) for name in dict.fromkeys((*now, *then))]


class _Query:
    """The rows that only one of the cuts has, as `came` and `went`."""

    def __init__(self, name: str, then: Relation, now: Relation) -> None:
        place = '"state"."' + name.replace('"', '""') + '"'
        known = frozenset(_columns(then))
        columns = [c for c in _columns(now) if c in known]
        key = [c for c in now.key if c in columns] or columns
        self.key = ", ".join(_quoted(c) for c in key)
        # Two nulls are one key.
        self.same = " and ".join(f"came.{_quoted(c)} is not distinct from went.{_quoted(c)}" for c in key)
        chosen = ", ".join(_quoted(c) for c in columns)
        self.rows = (
            f"with came as (select {chosen} from {place} except all select {chosen} from before.{place}), "  # noqa: S608
            f"went as (select {chosen} from before.{place} except all select {chosen} from {place}) "
        )
        self.place = place


def _columns(relation: Relation) -> list[str]:
    return list(relation.load().schema.names if relation.columns is None else relation.columns.names)


def _table(name: str, then: Relation | None, now: Relation | None, after: Cut) -> TableChange:
    relation, stage = f"state.{name}", (now or then).stage  # type: ignore[union-attr]
    if then is None or now is None:
        return TableChange(
            relation, stage, problem="it is only in the " + ("later" if then is None else "earlier") + " one"
        )
    try:
        query = _Query(name, then, now)
        counts: Any = after.sql(
            f"{query.rows} select (select count(*) from came anti join went on {query.same}) as added, "  # noqa: S608
            f"(select count(*) from went anti join came on {query.same}) as removed, "
            f"(select count(*) from came semi join went on {query.same}) as changed, "
            f"(select count(*) from before.{query.place}) as rows_before, "
            f"(select count(*) from {query.place}) as rows_after"
        ).to_pylist()[0]
    except StrobeError as error:
        return TableChange(relation, stage, problem=error.what)
    return TableChange(
        relation,
        stage,
        counts["rows_before"],
        counts["rows_after"],
        counts["added"],
        counts["removed"],
        counts["changed"],
    )


def _stage(old: Manifest, new: Manifest, uid: Any) -> StageChange:
    then, now = old.nodes[uid], new.nodes[uid]
    names = dict.fromkeys((*then.inputs, *now.inputs))
    inputs = {str(c): (then.inputs.get(c), now.inputs.get(c)) for c in names}
    return StageChange(uid, (then.batch, now.batch), inputs, then.offsets != now.offsets)


def _channel(old: Manifest, new: Manifest, name: Any) -> ChannelChange:
    then, now = old.channels[name], new.channels[name]
    names = dict.fromkeys((*then.in_flight, *now.in_flight))
    flights = {str(c): tuple(r.in_flight[c].rows if c in r.in_flight else None for r in (then, now)) for c in names}
    return ChannelChange(name, (then.barrier, now.barrier), flights)  # type: ignore[arg-type]


def _name(manifest: Manifest) -> str:
    return f"{manifest.kind.value} {manifest.snapshot} of {manifest.job}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
