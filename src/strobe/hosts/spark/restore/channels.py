"""Channels at a restore: cut back where they are, or filled again from what a snapshot holds.

*Cut back*: the channel's log is a tree, and its rows are still there; the barrier becomes its end again. Positions stay
what they were.

*Filled again* (from a savepoint, or for a fork): the content of the snapshot is appended commit for commit, never
merged and never split, for a batch of a consumer is a whole number of commits. The commits get new versions, so the
consumers' offsets are rewritten by a map from old versions to new ones: `Renumbering`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark.channel.columns import Columns, evolve
from strobe.hosts.spark.channel.log import LOG, ChannelLog, DataFile
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.channel.writer import DATA, ChannelWriter, table_columns
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.restore.plan import ChannelAction, ChannelPlan, How, StageAction, StagePlan
from strobe.hosts.spark.snapshot.savepoint_content import ContentCommit, content_of, schema_of
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.errors import Damaged, Failed, StrobeError
from strobe.model.ids import ChannelId, NodeId, Timeline
from strobe.model.kind import Kind
from strobe.model.paths import check_relative
from strobe.store.locate import Located
from strobe.store.manifest import ChannelRecord, Manifest
from strobe.store.tree import copy_regular

__all__ = [
    "Renumbering",
    "held_columns",
    "lay_content_aside",
    "plan_channel",
    "restore_channel",
    "sweep_aside",
    "why_not_held",
]

_ASIDE = "_strobe/restore-"  # below the channel's table, where Delta does not look


@dataclass(frozen=True)
class Renumbering:
    """From versions in a snapshot to those of the channel that was filled from it: (old, new), ascending."""

    versions: tuple[tuple[int, int], ...]

    def __getitem__(self, old: int) -> int:
        """Where a consumer stands now that had read everything up to `old`."""
        return max((new for version, new in self.versions if version <= old), default=0)


# ── planning ────────────────────────────────────────────────────────────────────────────────────────────────────────


def plan_channel(
    draft: DraftStage,
    home: JobHome,
    found: Located,
    manifest: Manifest,
    how: How,
    readers: Sequence[StagePlan],
    *,
    taken_over: bool = False,
) -> tuple[ChannelPlan, StrobeError | None]:
    """What becomes of the output channel of `draft`, which `readers` read, and the problem if it cannot be restored.
    `taken_over`: the stage replaces another one, which wrote these rows into a channel of its own."""
    uid = draft.spec.uid
    name, path = ChannelId(uid), home.path(home.layout.channel(uid))
    there = (path / LOG).is_dir()
    record = manifest.channels.get(name)
    if record is None or record.barrier is None:
        return ChannelPlan(name, ChannelAction.EMPTIED if there else ChannelAction.NEW), None
    try:
        if how is How.ROLLBACK and not taken_over:
            if not there:
                raise Failed(f"Channel {uid} is gone: there is no {path}.", next="Restore a savepoint.")
            log = ChannelLog(path, torn_after=record.barrier)
            why = why_not_held(log, record, _first(record, readers, log))
            if why is not None:
                raise why
            behind = sum(1 for c in log.commits(log.trimmed) if c.version > record.barrier and c.files)
            plan = ChannelPlan(name, ChannelAction.CUT, record, record.barrier, behind)
        else:
            plan = _content(name, found, manifest, record, readers)
        held = held_columns(name, home, found, manifest)
        if held is None:
            return plan, None
        changes = evolve(held, channel_schema(draft.schema, uid), draft.spec.renamed, uid).changes
        return replace(plan, held=held, changes=changes), None
    except StrobeError as error:
        return ChannelPlan(name, ChannelAction.CUT, record), error


def held_columns(name: ChannelId, home: JobHome, found: Located, manifest: Manifest) -> Columns | None:
    """The columns of the rows that the channel has at the cut. The snapshot names them. A snapshot of an earlier
    version of Strobe does not; columns could not change then, so the channel still has them."""
    record = manifest.channels.get(name)
    if record is None or record.barrier is None:
        return None
    known = schema_of(name, record, found.where)
    if known is not None:
        return Columns.of(known)
    path = home.path(home.layout.channel(NodeId(name)))
    if found.home is not None and record.location is not None:
        path = found.home / record.location
    return table_columns(path) if (path / LOG).is_dir() else None


def _first(record: ChannelRecord, readers: Sequence[StagePlan], log: ChannelLog) -> int:
    """The position after which some reader needs the channel's rows."""
    assert record.barrier is not None
    needed = [record.barrier]
    for reader in readers:
        flight = record.in_flight.get(reader.host or reader.uid)
        if reader.action is StageAction.NEW:
            if reader.earliest:
                needed.append(max(log.trimmed_at(record.barrier), 0))
        elif flight is not None:
            needed.append(flight.after)
    return min(needed)


def why_not_held(log: ChannelLog, record: ChannelRecord, after: int) -> StrobeError | None:
    """Why the channel does not hold what the snapshot needs of it: the rows after `after` up to the barrier."""
    assert record.barrier is not None
    advice = {"untouched": "Nothing was changed.", "next": "Restore a later snapshot, or a savepoint."}
    try:
        for commit in log.history(after, record.barrier):
            for file in commit.files:
                if not (log.path / file.path).is_file():
                    return Damaged(f"Channel {log.path.name}: {log.path / file.path} is gone.", **advice)
    except Failed as error:
        return Failed(error.what, **advice)
    return None


def _content(
    name: ChannelId, found: Located, manifest: Manifest, record: ChannelRecord, readers: Sequence[StagePlan]
) -> ChannelPlan:
    assert record.barrier is not None
    if manifest.kind is Kind.SAVEPOINT:
        content = content_of(name, record, found.where)
        return ChannelPlan(name, ChannelAction.REFILLED, record, record.barrier, content=content)
    path = None if found.home is None or record.location is None else found.home / record.location
    if path is None or not (path / LOG).is_dir():
        raise Failed(
            f"The rows of channel {name} cannot be reached: a checkpoint leaves them in its job's home"
            + (f", and {path} is not there." if path is not None else "."),
            untouched="Nothing was changed.",
            next="Take a savepoint of the job and restore that: it holds all that it needs.",
        )
    log = ChannelLog(path, torn_after=record.barrier)
    after = _first(record, readers, log)
    why = why_not_held(log, record, after)
    if why is not None:
        raise why
    content = tuple(
        ContentCommit(c.version, tuple((check_relative(f.path), f.rows, f.size) for f in c.files))
        for c in log.history(after, record.barrier)
        if c.files
    )
    return ChannelPlan(name, ChannelAction.REFILLED, record, record.barrier, content=content, source=str(path))


# ── doing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def lay_content_aside(plan: ChannelPlan, home: JobHome, found: Located, manifest: Manifest, timeline: Timeline) -> None:
    """Put the content's files, checked and durable, where they can be moved into the table by renaming."""
    aside = _aside(home, plan.name, timeline)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        if plan.source:
            for commit in plan.content:
                for index, (path, _, _) in enumerate(commit.files):
                    target = aside / _file_name(commit.version, index)
                    copy_regular(Path(plan.source, path), target)
                    fsync(target)
        else:
            found.store.lay_out(manifest, f"channels/{plan.name}/content/", aside / "content")
            for commit in plan.content:
                for index, (path, _, _) in enumerate(commit.files):
                    target = aside / _file_name(commit.version, index)
                    os.rename(aside / "content" / path, target)
                    fsync(target)
        fsync(aside)
    except OSError as error:
        raise Failed(
            f"The rows of channel {plan.name} could not be copied: {error.filename}: {error.strerror}.",
            untouched="The job and the snapshot are as they were.",
            next="Make room there. If the job of the snapshot runs on and has let go of these rows, take a savepoint.",
        ) from error


def restore_channel(plan: ChannelPlan, draft: DraftStage, home: JobHome) -> Renumbering | None:
    """Bring the channel to the snapshot's cut, on the timeline that the job record names. Returns None if versions stay
    as they were."""
    record, path = home.record, home.path(home.layout.channel(NodeId(plan.name)))
    if plan.action is ChannelAction.NEW:
        return None
    fresh = Columns.of(channel_schema(draft.schema, draft.spec.uid))
    writer = ChannelWriter(
        path, draft.schema, job=home.job, producer=NodeId(plan.name), timeline=record.timeline,
        incarnation=record.incarnation, cut_to=plan.to if plan.action is ChannelAction.CUT else 0,
        renamed=draft.spec.renamed, held=plan.held or fresh,
    )  # fmt: skip
    try:
        if plan.action is not ChannelAction.REFILLED:
            return None
        return _refill(plan, writer, _aside(home, plan.name, record.timeline))
    finally:
        writer.close()


def _refill(plan: ChannelPlan, writer: ChannelWriter, aside: Path) -> Renumbering:
    versions = []
    for commit in plan.content:
        place = f"{DATA}/{writer.timeline}/restored-{commit.version}"
        (writer.path / place).mkdir(parents=True, exist_ok=True)
        files = []
        for index, (_, rows, size) in enumerate(commit.files):
            name = _file_name(commit.version, index)
            os.rename(aside / name, writer.path / place / name)
            files.append(DataFile(f"{place}/{name}", rows, size))
        versions.append((commit.version, writer.append_restored(files, commit.version)))
    writer.sync(writer.log.head)
    shutil.rmtree(aside, ignore_errors=True)
    return Renumbering(tuple(versions))


def sweep_aside(home: JobHome) -> None:
    """Delete content that a restore had laid aside when it was killed."""
    for left in home.path(home.layout.channels).glob(f"*/{_ASIDE}*"):
        home.discard(left)


def _aside(home: JobHome, name: ChannelId, timeline: Timeline) -> Path:
    return home.path(home.layout.channel(NodeId(name))) / f"{_ASIDE}{timeline}"


def _file_name(version: int, index: int) -> str:
    return f"{version:020d}-{index:05d}.parquet"
