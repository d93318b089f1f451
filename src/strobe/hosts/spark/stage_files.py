"""Where a stage's Spark checkpoint is, and how a takeover gets its own copy.

A driver that has been given up may still be alive. Its Spark must never write into the directory that its successor's
Spark reads, so a takeover continues in a new generation of directories, made of hard links: the files are immutable.
"""

from __future__ import annotations

import os
from pathlib import Path

from strobe.hosts.spark.home import JobHome
from strobe.model.errors import Failed
from strobe.model.ids import NodeId

__all__ = ["clone_generation", "stage_checkpoint"]


def stage_checkpoint(home: JobHome, uid: NodeId, generation: int | None = None) -> Path:
    number = home.memory.generation if generation is None else generation
    return home.path(home.layout.stage_checkpoint(uid, home.memory.timeline, number))


def clone_generation(home: JobHome, uids: tuple[NodeId, ...]) -> None:
    for uid in uids:
        old = stage_checkpoint(home, uid, home.memory.generation - 1)
        new = stage_checkpoint(home, uid)
        if not old.is_dir():
            continue
        try:
            for directory, _, names in os.walk(old):
                target = new / Path(directory).relative_to(old)
                target.mkdir(parents=True, exist_ok=True)
                for name in names:
                    if not name.startswith("."):
                        os.link(Path(directory, name), target / name)
        except OSError as error:
            raise Failed(
                f"The checkpoint of stage {uid!r} could not be taken over: {error.strerror or error}.",
                untouched="The old one is as it was.",
            ) from error
