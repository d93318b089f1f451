"""What every step of a restore knows: the job that is brought back, and what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.cut import Json
from strobe.model.ids import NodeId

__all__ = ["RestoreContext"]


@dataclass(frozen=True)
class RestoreContext:
    """`drafts` are the stages of the file, `descriptions` what they keep now; `base` is where relative paths of sinks
    begin."""

    pipeline: Pipeline
    drafts: Sequence[DraftStage]
    descriptions: Mapping[NodeId, Json]
    home: JobHome
    base: Path
    options: RestoreOptions
