"""Sinks that write into a directory which their own rows come from.

The stage would read again what it has written, for ever; and the directories of a file sink's batches look to Spark
like partitions of the source, which it then refuses to read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.connectors.files.sink import FileSink
from strobe.hosts.spark.plans.description import entries_of
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["check_own_sources"]


def check_own_sources(
    drafts: Sequence[DraftStage], descriptions: Mapping[NodeId, Mapping[str, Json]], base: Path
) -> None:
    """Refuse a sink in a directory that its stage, or one in front of it, reads. What stages behind or beside it read
    is their affair, and so are paths with wildcards: what these mean is known only when the files are there."""
    inputs = {draft.spec.uid: draft.spec.inputs for draft in drafts}
    for draft in drafts:
        for sink in draft.spec.sinks:
            place = sink.place_in(base)
            if place is None:
                continue
            for uid in _with_those_in_front(draft.spec.uid, inputs):
                for directory in _directories(descriptions[uid]):
                    if place == directory or (isinstance(sink, FileSink) and directory in _above(place)):
                        raise _own_source(draft.spec.uid, sink, uid, directory)


def _with_those_in_front(uid: NodeId, inputs: Mapping[NodeId, Sequence[NodeId]]) -> dict[NodeId, None]:
    found: dict[NodeId, None] = {}
    waiting = [uid]
    while waiting:
        if (next_one := waiting.pop()) not in found and next_one in inputs:
            found[next_one] = None
            waiting += inputs[next_one]
    return found


def _directories(description: Mapping[str, Json]) -> list[str]:
    sources = (source for source in entries_of(description, "directories") if isinstance(source, Mapping))
    return [os.path.realpath(unquote(str(source["root"]))) for source in sources if not source["pattern"]]


def _above(place: str) -> set[str]:
    return {str(parent) for parent in Path(place).parents}


def _own_source(uid: NodeId, sink: Sink, reader: NodeId, directory: str) -> Misuse:
    who = "which it reads" if reader == uid else f"which stage {reader!r} in front of it reads"
    return Misuse(
        f"Stage {uid!r} would write to {sink.describe()}: that is in {directory}, {who}, and its own rows would come "
        "again.",
        untouched="Nothing was started.",
        next="Give the sink a directory beside the one that is read.",
    )
