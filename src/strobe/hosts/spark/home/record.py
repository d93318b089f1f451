"""A job's small durable memory, as `incarnation.json` keeps it: the numbers that order time, and what a restore leaves.

Written as a whole, by one atomic rename, so that every change of it happens or does not. A restore's *intent* is part
of it: from the write that starts the new timeline until channels and sinks are cut back, the memory says which snapshot
is being restored, and any later start finishes that before it does anything else. A new job that is to begin from a
snapshot notes its name (`asked`) with its first incarnation. If it is killed before the restore begins, that is all it
knows of it, and without it a run that does not name the snapshot would begin at the sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strobe.model.cut import Json
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

__all__ = ["NEW", "Intent", "JobMemory", "memory_from_json", "memory_json"]


@dataclass(frozen=True, slots=True)
class Intent:
    """A restore that is not finished. `snapshot` names it as `strobe run -s` takes it, `root` is its Merkle root, `how`
    tells whether the job was there before."""

    snapshot: str
    root: str
    how: str
    claim: bool = False
    allow_non_restored_state: bool = False
    partitions: int | None = None
    stage_partitions: Mapping[str, int] = field(default_factory=dict)
    sinks_from: Sequence[str] = field(default_factory=list)
    allow_changed_state: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobMemory:
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


NEW = JobMemory(Incarnation(0), Timeline(1), SnapshotId(0), 0)


def memory_json(memory: JobMemory) -> dict[str, Any]:
    return asdict(memory)


def _intent(value: Mapping[str, Any]) -> Intent:
    return Intent(**{**value, "allow_changed_state": tuple(value.get("allow_changed_state", ()))})


def memory_from_json(value: Mapping[str, Any]) -> JobMemory:
    """KeyError, TypeError or ValueError if it is not one. What an older Strobe did not write is as for a new job."""
    intent = value.get("restoring")
    return JobMemory(
        Incarnation(int(value["incarnation"])),
        Timeline(int(value["timeline"])),
        SnapshotId(int(value["snapshot"])),
        int(value["generation"]),
        None if intent is None else _intent(intent),
        tuple(SnapshotId(int(s)) for s in value.get("pinned", ())),
        {NodeId(u): description for u, description in value.get("stages", {}).items()},
        str(value.get("home", "")),
        str(value.get("asked", "")),
    )
