"""Giving a stage that was chained a query of its own again.

The query that computed it knows where it stood: its Spark checkpoint has a line for each source, in the order of the
plan. The plans of the file tell which of these lines belong to the chained stage, as long as the stages read the same
sources as then. So its checkpoint is made from that one: the lines and the lists of files of its sources, at the same
batch, and no state, since it has none. The query that it leaves reads its channel instead, which is empty: after a
committed batch every row that the source had given was read.

At a restore that is the snapshot's copy of the checkpoint. `restore.parting` does the same with the one that a job has.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.checkpoint.offsets import rewrite_lines
from strobe.hosts.spark.plans.description import CHANNEL, entries_of, operator_kinds, source_nodes
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.hosts.spark.restore.plan import Division, StageAction, StagePlan
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.store.chained import chained_in
from strobe.store.manifest import NOTHING, Manifest

__all__ = ["as_divided", "divide", "division_of", "has_state", "parted", "take_part"]

_KEPT = ("metadata", "offsets", "commits", "sources")  # of a query without state


@dataclass(frozen=True)
class _Source:
    """One place in a plan that reads a stream: its number among the streams of its stage's own plan, and what it
    reads."""

    stage: NodeId
    number: int
    name: str

    @property
    def channel(self) -> NodeId | None:
        return NodeId(self.name.removeprefix(CHANNEL)) if self.name.startswith(CHANNEL) else None


def parted(job: RestoreContext, manifest: Manifest, uid: NodeId, problems: list[StrobeError]) -> StagePlan | None:
    """What becomes of a stage that has no record because it was chained. None: it was not chained, or had not begun."""
    host = chained_in(manifest).get(uid)
    record = None if host is None else manifest.nodes[host]
    if host is None or record is None or record.batch in (None, NOTHING):
        return None
    problem = has_state(uid, host, job.descriptions[uid])
    problems += [] if problem is None else [problem]
    return StagePlan(uid, StageAction.UNCHAINED, record, host=host, division=divide(job, manifest, uid, host, problems))


def divide(
    job: RestoreContext, manifest: Manifest, uid: NodeId, host: NodeId, problems: list[StrobeError]
) -> Division | None:
    """How the query of `uid` is made from that of `host`. None: it is that query, and computes the same stages as
    before."""
    stage = next(draft for draft in job.drafts if draft.spec.uid == uid)
    if uid == host and {s for s, computed_by in chained_in(manifest).items() if computed_by == host} == set(
        stage.spec.chained
    ):
        return None
    extra = manifest.nodes[host].extra
    found = division_of(job.drafts, host, extra, chained_in(manifest), stage, job.descriptions[uid])
    if isinstance(found, Misuse):
        problems.append(found)
        return Division((), (), uid == host)
    return found


def division_of(
    drafts: Sequence[DraftStage],
    host: NodeId,
    noted: Mapping[str, Json],
    chained: Mapping[NodeId, NodeId],
    stage: DraftStage,
    now: Json,
) -> Division | Misuse:
    """How the query of `stage` is made from that of `host`, or why it cannot. `noted`: what is known of the host, as it
    was; `chained`: who computed which stage then; `now`: what the stage is."""
    then = {uid for uid, computed_by in chained.items() if computed_by == host}
    found = _division(drafts, host, noted, then, stage)
    kept = entries_of(now if isinstance(now, Mapping) else {}, "directories")
    if isinstance(found, Division) and any(each not in entries_of(noted, "directories") for each in kept):
        return _cannot(stage.spec.uid, host, "the directories that it reads are elsewhere now")
    return found


def _division(
    drafts: Sequence[DraftStage],
    host: NodeId,
    noted: Mapping[str, Json],
    then: Collection[NodeId],
    stage: DraftStage,
) -> Division | Misuse:
    """`then`: the stages that were chained in the query of `host`."""
    own = {d.spec.uid: d.own for d in drafts} | {uid: frame for d in drafts for uid, frame in d.parts.items()}
    plans = {uid: _sources(uid, frame) for uid, frame in own.items()}
    uid = stage.spec.uid
    if host not in plans:
        return _cannot(uid, host, f"{host!r} is not in the file any more")
    before = _in_query(plans, host, then)
    if [source.name for source in before] != entries_of(noted, "sources"):
        return _cannot(uid, host, "the stages of that query read something else now")
    offsets: list[int | NodeId] = []
    now = _in_query(plans, uid, stage.spec.chained)
    for source in now:
        if source in before:
            offsets.append(before.index(source))
        elif source.channel in then:
            assert source.channel is not None
            offsets.append(source.channel)
        else:
            return _cannot(uid, host, f"it reads {source.name}, which that query did not")
    numbers = {source: number for number, source in enumerate(dict.fromkeys(before))}
    return Division(tuple(offsets), tuple(numbers.get(source) for source in dict.fromkeys(now)), uid == host)


def has_state(uid: NodeId, host: NodeId, now: Json) -> Misuse | None:
    """Why a stage that keeps state now cannot be divided off: a chained stage has no state to go on with."""
    kinds = [kind for kind in operator_kinds(now) if kind != "watermark"]
    return _cannot(uid, host, f"it had no state, and now has {', '.join(kinds)}") if kinds else None


def _cannot(uid: NodeId, host: NodeId, why: str) -> Misuse:
    return Misuse(
        f"Stage {uid!r} cannot be parted from the query of {host!r}: {why}.",
        untouched="Nothing was changed.",
        next="Change one thing at a time: restore with sources and state as they were, and go on from that.",
    )


def _sources(uid: NodeId, frame: DataFrame) -> list[_Source]:
    """In the order of the plan. One stream in two places has two lines in Spark's offsets, and one directory."""
    seen: list[Any] = []
    found = []
    for node, name in source_nodes(frame):
        number = next((i for i, other in enumerate(seen) if other.equals(node)), len(seen))
        if number == len(seen):
            seen.append(node)
        found.append(_Source(uid, number, name))
    return found


def _in_query(plans: Mapping[NodeId, list[_Source]], uid: NodeId, chained: Collection[NodeId]) -> list[_Source]:
    found: list[_Source] = []
    for source in plans[uid]:
        channel = source.channel
        if channel in chained and channel in plans:
            assert channel is not None
            found += _in_query(plans, channel, chained)
        else:
            found.append(source)
    return found


def take_part(checkpoint: Path, division: Division) -> None:
    """Make the checkpoint of the query that computed it, laid out at `checkpoint`, that of the stage."""

    def line_of(lines: list[str], source: int | NodeId) -> str:
        return lines[source] if isinstance(source, int) else json.dumps({"channel": source, "version": 0})

    rewrite_lines(checkpoint, lambda lines: [line_of(lines, source) for source in division.offsets])
    old = checkpoint / ".sources"
    if (checkpoint / "sources").is_dir():
        (checkpoint / "sources").rename(old)
        for new, log in enumerate(division.logs):
            if log is not None and (old / str(log)).is_dir():
                shutil.copytree(old / str(log), checkpoint / "sources" / str(new))
        shutil.rmtree(old)
    if not division.whole:
        for path in checkpoint.iterdir():
            if path.name not in _KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        # Spark tells queries apart by this id. The file may be a link: it is replaced, not written.
        write_durably(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))


def as_divided(noted: Mapping[str, Json], now: Json) -> dict[str, Json]:
    """What is noted of a query that has been divided: what it kept, and what it reads now."""
    names = ("sources", "directories")
    reads = {name: now[name] for name in names if name in now} if isinstance(now, Mapping) else {}
    return {**{k: v for k, v in noted.items() if k not in names}, **reads}
