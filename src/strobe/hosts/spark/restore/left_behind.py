"""Rows on their way to a stage that no longer reads their channel.

A stage may read other channels than before: its positions are known by the channels' names. What waited for it in a
channel that it has left would be read by nobody, so that is said, and refused unless the rows may be dropped.
"""

from __future__ import annotations

from collections.abc import Collection

from strobe.hosts.spark.channel.log import LOG, ChannelLog
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import channel_positions, stage_checkpoint
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.plans.description import CHANNEL, entries_of
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.store.manifest import NOTHING, Manifest

__all__ = ["channels_left", "check_leaving", "dropped_with", "refusal_to_leave", "waiting_at_a_resume"]


def channels_left(before: Json, after: Json) -> list[NodeId]:
    """The channels that the stage read and now does not."""
    old, new = (entries_of(d, "sources") if isinstance(d, dict) else [] for d in (before, after))
    names = (str(source) for source in old if source not in new)
    return sorted({NodeId(name.removeprefix(CHANNEL)) for name in names if name.startswith(CHANNEL)})


def waiting_at_a_resume(home: JobHome, uid: NodeId, left: Collection[NodeId]) -> dict[NodeId, int]:
    """The rows that wait for the stage in each channel that it has left: those behind its last batch that is done."""
    checkpoint = stage_checkpoint(home, uid)
    committed = spark_checkpoint.last_committed(checkpoint)
    positions = channel_positions(checkpoint, NOTHING if committed is None else committed, left)
    logs = {read: home.path(home.layout.channel(read)) for read in left}
    found = {
        read: sum(commit.rows for commit in ChannelLog(path).commits(positions[read]))
        for read, path in logs.items()
        if (path / LOG).is_dir()
    }
    return {read: rows for read, rows in found.items() if rows}


def check_leaving(
    job: RestoreContext, manifest: Manifest, uid: NodeId, problems: list[StrobeError], warnings: list[str]
) -> None:
    """Look for rows that were on their way to the stage at the snapshot, in channels that it has left."""
    left = [read for read in manifest.nodes[uid].inputs if NodeId(read) not in job.pipeline.stages[uid].inputs]
    flights = ((read, manifest.channels[read].in_flight.get(uid)) for read in left if read in manifest.channels)
    waiting = {NodeId(read): flight.rows for read, flight in flights if flight is not None and flight.rows}
    if waiting and job.options.allow_non_restored_state:
        warnings.append(f"{uid}: {dropped_with(waiting)}, and are dropped.")
    elif waiting:
        problems.append(refusal_to_leave(uid, waiting, job.pipeline.name))


def dropped_with(waiting: dict[NodeId, int]) -> str:
    """The rows that nobody will read, in words."""
    places = ", ".join(f"{rows:,} rows in channel {str(read)!r}" for read, rows in waiting.items())
    return f"{places}, which it no longer reads, wait for it"


def refusal_to_leave(uid: NodeId, waiting: dict[NodeId, int], job: str) -> Misuse:
    return Misuse(
        f"Stage {uid!r} cannot go on with this file: {dropped_with(waiting)}, and would be lost.",
        untouched="Nothing was changed.",
        next=f"Run the file as it was until nothing waits, and end it with `strobe stop {job}`; then run this one, "
        "without -s. Or drop these rows for good with --allow-non-restored-state.",
    )
