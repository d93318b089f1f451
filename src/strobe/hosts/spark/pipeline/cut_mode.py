"""Which mode the checkpoints of a pipeline have, if its file does not say.

Theory
------
An unaligned checkpoint takes as long as one batch at most, whatever the backlog and the depth of the graph, and mostly
waits for none; rows in flight are a pair of numbers. A restore gives the same result in either mode. So it is the
default.

One kind of reader can tell the modes apart: those who read what sinks deliver *on snapshot*. Such sinks show what their
stages had done when they were recorded. After an aligned checkpoint that is the whole effect of the same source rows,
in all tables. After an unaligned one each stage has its own distance from the sources. If a stage's rows go to two
tables, or to one table by two ways that meet again (the debit and the credit of a transfer), then the effect of a row
may be visible at the end of one way while it is in flight on the other.

The *ways* of a stage are the paths through the graph from it to a stage with a sink that delivers on snapshot. Sinks of
one stage are one end: they show the same batches. If every stage has one way at most, then all that its rows have an
effect on lies one behind the other; channels are first in, first out, and a batch reads whole commits. So what is
visible is the whole effect of the rows up to some point of each source, in either mode: the mode only says which
point. Therefore a pipeline gets aligned checkpoints by default if some stage has two ways or more, and only then.

A feedback does not count as a way: alignment does not wait for it either.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from strobe.hosts.spark.connectors.base import Delivery
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.model.ids import NodeId
from strobe.protocol.barriers import BarrierMode

__all__ = ["default_mode", "parted", "with_mode"]


def parted(pipeline: Pipeline) -> NodeId | None:
    """A stage whose rows come to sinks that deliver on snapshot in more than one way, the last such one; or None."""
    ways: dict[NodeId, int] = {}
    for uid in reversed(pipeline.order()):
        stage = pipeline.stages[uid]
        readers = (reader for reader in pipeline.readers(uid) if uid in pipeline.stages[reader].reads)
        ways[uid] = sum(ways[reader] for reader in readers)
        ways[uid] += any(sink.delivery is Delivery.ON_SNAPSHOT for sink in stage.sinks)
        if ways[uid] > 1:
            return uid
    return None


def default_mode(pipeline: Pipeline) -> BarrierMode:
    return BarrierMode.UNALIGNED if parted(pipeline) is None else BarrierMode.ALIGNED


def with_mode(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, with a mode of its checkpoints: the one that it says, else the default for it."""
    if pipeline.checkpoint.mode is not None:
        return pipeline
    other = copy(pipeline)
    other.checkpoint = replace(pipeline.checkpoint, mode=default_mode(pipeline).value)
    return other
