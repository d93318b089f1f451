"""The job record, which `incarnation.json` keeps: the numbers that order time, and what a restore leaves.

Written as a whole, by one atomic rename, so that every change of it happens or does not. A restore's *intent* is part
of it: from the write that starts the new timeline until channels and sinks are cut back, it says which snapshot
is being restored, and any later start finishes that before it does anything else. A new job that is to begin from a
snapshot notes its name (`asked`) with its first incarnation. If it is killed before the restore begins, that is all it
knows of it, and without it a run that does not name the snapshot would begin at the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from strobe.model.cut import Json
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.strict_json import check_value, parse
from strobe.store.small_files import as_kind

__all__ = ["NEW", "Intent", "JobRecord", "record_from_json", "record_json"]


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A restore that is not finished. `snapshot` names it as `strobe run -s` takes it, `root` is its Merkle root, `how`
    tells whether the job was there before. An option that is not known here was noted by a newer Strobe: this one must
    not finish what it does not understand, so it refuses."""

    snapshot: str
    root: str
    how: str
    claim: bool = False
    allow_non_restored_state: bool = False
    partitions: int | None = None
    stage_partitions: Mapping[str, int] = msgspec.field(default_factory=dict)
    sinks_from: tuple[str, ...] = ()
    allow_changed_state: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`snapshot` is the highest id ever taken. `generation` counts copies of the stages' Spark checkpoints.

    `pinned` are checkpoints that the job was restored from without claiming them: retention passes them over.
    `stages` is what each stage was when it last started, to tell what a changed file means for its state.
    """

    incarnation: Incarnation
    timeline: Timeline
    snapshot: SnapshotId
    generation: int
    restoring: Intent | None = None
    pinned: tuple[SnapshotId, ...] = ()
    stages: Mapping[NodeId, Json] = field(default_factory=dict)
    home: str = ""  # where the home stood when the job last ran
    asked: str = ""  # the snapshot that a new job is to begin from, until its restore has begun


NEW = JobRecord(Incarnation(0), Timeline(1), SnapshotId(0), 0)


def record_json(record: JobRecord) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode()


def record_from_json(data: bytes) -> JobRecord:
    """NotJson, a ValueError, if it is not one. What an older Strobe did not write is as for a new job."""
    return as_kind(check_value(parse(data), "the record"), JobRecord)
