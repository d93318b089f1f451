"""Giving a stage that was chained a query of its own when a job is resumed.

The job's own checkpoint of the query that computed it is divided, as `restore.unchaining` says, behind the last batch
that Spark has committed. A batch that is planned behind it is forgotten if nothing of it is in a channel or a sink: its
rows are planned again, by the new queries. If something of it is, only the query as it was could finish it, so the run
is refused and says what to do.

All of it is made in the directories of a new generation, which nothing uses yet. One durable write of the job record
makes the job use them, and says which stages are queries now. A crash before it leaves the job as it was.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import (
    adopt_checkpoints,
    relocate_state,
    rewritten_generation,
    stage_checkpoint,
    sync_tree,
)
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.chains import chained_before
from strobe.hosts.spark.restore.plan import Division
from strobe.hosts.spark.restore.unchaining import as_divided, division_of, has_state, take_part
from strobe.hosts.spark.stage.assemble import AssembledStage, DraftStage
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId

__all__ = ["Parting", "as_parted", "part_stages", "plan_parting"]

_log = logging.getLogger("strobe.job")


@dataclass(frozen=True)
class Parting:
    """A query that is made from the query of `host`. `division.whole`: it is that query itself, without the stages that
    leave it."""

    host: NodeId
    division: Division


def plan_parting(
    drafts: Sequence[DraftStage], home: JobHome, descriptions: Mapping[NodeId, Json]
) -> dict[NodeId, Parting]:
    """The queries that are divided at this start, by uid. Raises Misuse if that is impossible. Touches nothing."""
    chained = chained_before(home)
    found: dict[NodeId, Parting] = {}
    for draft in drafts:
        uid = draft.spec.uid
        host = chained.get(uid, uid)
        noted = home.record.stages.get(host)
        same = {stage for stage, computed_by in chained.items() if computed_by == uid} == set(draft.spec.chained)
        if not isinstance(noted, Mapping) or (uid == host and (same or uid not in chained.values())):
            continue
        division = division_of(drafts, host, noted, chained, draft, descriptions[uid])
        problem = division if isinstance(division, Misuse) else None
        if uid != host and problem is None:
            problem = has_state(uid, host, descriptions[uid])
        if problem is not None:
            raise problem
        assert isinstance(division, Division)
        found[uid] = Parting(host, division)
    return found


def as_parted(home: JobHome, partings: Iterable[NodeId], descriptions: Mapping[NodeId, Json]) -> dict[NodeId, Json]:
    """What the job record says of the stages, as if the queries had been divided already."""
    known = dict(home.record.stages)
    for uid in partings:
        noted = known.get(uid)
        if isinstance(noted, Mapping):
            known[uid] = as_divided(noted, descriptions[uid])
    return known


def part_stages(
    pipeline: Pipeline,
    stages: Sequence[AssembledStage],
    home: JobHome,
    partings: Mapping[NodeId, Parting],
    descriptions: Mapping[NodeId, Json],
) -> None:
    """Divide the queries. Called at a start, after the fences; doing it again after a crash changes nothing."""
    if not partings:
        return
    opened = {stage.spec.uid: stage for stage in stages}
    for uid, parting in partings.items():
        _check_batch(home, uid, parting.host, opened[parting.host])
    generation = rewritten_generation(home)
    for uid, parting in partings.items():
        new = stage_checkpoint(home, uid, generation)
        try:
            home.discard(new.parent)
            _link_committed(stage_checkpoint(home, parting.host), new)
            crash_points.point("unchain.copied", uid)
            take_part(new, parting.division)
            relocate_state(new)
            sync_tree(new, home.home)
        except OSError as error:
            raise Failed(
                f"Stage {uid!r} could not be given a query of its own: {error.strerror or error}.",
                untouched="The job is as it was.",
                next="Make room on that disk, and run again.",
            ) from error
        if not parting.division.whole:
            _log.warning("%s was chained into %s, and has a query and a channel of its own now", uid, parting.host)
    crash_points.point("unchain.divided")
    now = {uid: descriptions[uid] for uid in partings}
    home.remember(generation=generation, stages={**home.record.stages, **now})
    crash_points.point("unchain.done")
    adopt_checkpoints(home, tuple(pipeline.stages))


def _check_batch(home: JobHome, uid: NodeId, host: NodeId, opened: AssembledStage) -> None:
    checkpoint = stage_checkpoint(home, host)
    logged, committed = spark_checkpoint.last_logged(checkpoint), spark_checkpoint.last_committed(checkpoint)
    if logged is None or logged == committed or opened.is_unseen(logged):
        return
    raise Misuse(
        f"Stage {uid!r} cannot be given a query of its own now: the query of {host!r}, which computed it, ended in the "
        f"middle of batch {logged}, and a channel or a sink may have rows of that batch.",
        untouched="Nothing was changed.",
        next=f"Go on from the newest checkpoint with this file: `strobe run -s {home.job} FILE`. Or run the file as it "
        "was until it has done that batch, stop the job with Ctrl-C, and run this file then.",
    )


def _link_committed(old: Path, new: Path) -> None:
    """What a start right behind the last committed batch needs; before the first one, what the sources have noted of
    where they begin."""
    new.mkdir(parents=True)
    committed = spark_checkpoint.last_committed(old)
    if committed is not None:
        files: Iterable[Path] = [f for f in spark_checkpoint.batch_files(old, committed) if not _is_later(f, committed)]
    else:
        files = [Path("metadata"), *(p.relative_to(old) for p in (old / "sources").rglob("*") if p.is_file())]
    for file in files:
        if not file.name.startswith("."):
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError) if committed is None else contextlib.nullcontext():
                os.link(old / file, new / file)


def _is_later(file: Path, batch: int) -> bool:
    """Spark numbers what it notes of a transformWithState by batch."""
    return file.match("state/*/_metadata/v2/*") and file.name.isdecimal() and int(file.name) > batch
