"""Sinks of one pipeline that would get in each other's way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

if TYPE_CHECKING:
    from strobe.hosts.spark.connectors.base import Sink
    from strobe.hosts.spark.pipeline.pipeline import StageSpec

__all__ = ["check_places"]


def check_places(pipeline: str, stages: Iterable[StageSpec], base: Path) -> None:
    """Refuse two writers of one place: a sink knows whose batches it has, and would take the other's for its own."""
    taken: dict[object, tuple[NodeId, Sink]] = {}
    for stage in stages:
        uids = [sink.uid for sink in stage.sinks if sink.uid is not None]
        for uid in uids:
            if uids.count(uid) > 1:
                raise Misuse(
                    f"Stage {stage.uid!r} of pipeline {pipeline!r} has several sinks with the uid {uid!r}.",
                    next="Give each another one with .named(…).",
                )
        for sink in stage.sinks:
            for place in {id(sink), sink.place_in(base)} - {None}:
                if place in taken:
                    raise _one_place(pipeline, taken[place], (stage.uid, sink))
                taken[place] = stage.uid, sink
    _check_nested(pipeline, {place: who for place, who in taken.items() if isinstance(place, str)})


def _check_nested(pipeline: str, taken: Mapping[str, tuple[NodeId, Sink]]) -> None:
    """Whoever reads or restores a directory would take what another sink has below it for its own."""
    for place, (inner, here) in taken.items():
        for above in map(str, PurePath(place).parents):
            if os.path.isabs(place) and above in taken:
                outer, there = taken[above]
                raise Misuse(
                    f"{_who(outer, inner)} of pipeline {pipeline!r} write into each other's directories: "
                    f"{here.describe()}, and around it {there.describe()}.",
                    untouched="Nothing was started.",
                    next="Give each a directory beside the other's.",
                )


def _one_place(pipeline: str, first: tuple[NodeId, Sink], second: tuple[NodeId, Sink]) -> Misuse:
    named = sorted({first[1].describe(), second[1].describe()})
    return Misuse(
        f"{_who(first[0], second[0])} of pipeline {pipeline!r} write to the same "
        f"{'sink' if len(named) == 1 else 'place'}: {' and '.join(named)}.",
        untouched="Nothing was started.",
        next="Give each its own, or unite the rows in one stage.",
    )


def _who(first: NodeId, second: NodeId) -> str:
    return f"Stages {first!r} and {second!r}" if first != second else f"Two sinks of stage {first!r}"
