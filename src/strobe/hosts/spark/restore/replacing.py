"""A stage that takes another one's place: it goes on where that one was, without its state.

A stage whose state no longer fits its code gets a new uid. A new uid alone makes a stage without any history: a source
begins at its start, and every row is read again. With `replaces="old"` it inherits what makes up a *position*: the
offsets of its sources, how far it had read its channels, the rows that were on their way from it to others, and what
its sinks had. The snapshot is read as if the old stage had had the new name; its state is left out.

Spark's first batch with state begins with version 0, and knows no offsets before it. So a source stage with state is
given a batch 0 that ends at the inherited offsets and brings no rows: the plan itself, run once over nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strobe.hosts.spark.checkpoint import empty_batch
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.offsets import add_sources
from strobe.hosts.spark.pipeline.pipeline import Pipeline, StageSpec
from strobe.hosts.spark.plans.changes import meaning_of
from strobe.hosts.spark.plans.description import reads_source
from strobe.hosts.spark.restore.beginning import run_over_nothing
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.store.locate import Located
from strobe.store.manifest import Manifest, NodeRecord, SinkRecord

__all__ = [
    "begin_without_state", "original", "refusal_to_replace", "renamed", "renamed_sources", "replacements",
    "taking_over",
]  # fmt: skip


@dataclass(frozen=True)
class _Renamed(Located):
    """A snapshot in which stages have the names of those that replace them. Its bytes are found by their hashes."""

    names: Mapping[NodeId, NodeId] | None = None

    def load(self) -> Manifest:
        return renamed(super().load(), self.names or {})


def replacements(pipeline: Pipeline, known: Sequence[NodeId]) -> dict[NodeId, NodeId]:
    """Which of the `known` stages are replaced, and by which stage."""
    return {
        spec.replaces: uid
        for uid, spec in pipeline.stages.items()
        if spec.replaces is not None and spec.replaces in known and uid not in known
    }


def taking_over(found: Located, pipeline: Pipeline) -> Located:
    """The snapshot as the pipeline sees it."""
    names = replacements(pipeline, tuple(found.load().nodes))
    return _Renamed(found.store, found.snapshot, found.where, found.home, found.root, names) if names else found


def original(found: Located) -> Manifest:
    """The manifest as it was written, which is what its root belongs to."""
    return Located.load(found)


def renamed_sources(description: Mapping[str, Json], names: Mapping[NodeId, NodeId]) -> dict[str, Json]:
    """What a stage read, under the names that its channels have now."""
    sources = description.get("sources")
    channels = {f"channel {old}": f"channel {new}" for old, new in names.items()}
    return {**description, "sources": [channels.get(str(s), s) for s in sources] if isinstance(sources, list) else []}


def renamed(manifest: Manifest, names: Mapping[NodeId, NodeId]) -> Manifest:
    """The manifest with other names of stages: old to new."""

    def node(uid: NodeId) -> NodeId:
        return names.get(uid, uid)

    def channel(name: ChannelId) -> ChannelId:
        return ChannelId(node(NodeId(name)))

    # Where a sink stood goes to the one in its place. Parts in doubt stay with the one that prepared them.
    sinks = {name: replace(record, position=None) for name, record in manifest.sinks.items() if record.prepared}
    for name, record in manifest.sinks.items():
        stage, _, sink = name.rpartition("/")
        to = f"{node(NodeId(stage))}/{sink}"
        sinks[to] = replace(sinks.get(to, SinkRecord()), position=record.position)
    return replace(
        manifest,
        graph=Graph(
            tuple(map(node, manifest.graph.nodes)),
            tuple(Channel(c.id, node(c.source), node(c.target), c.feedback) for c in manifest.graph.channels),
        ),
        nodes={
            node(uid): replace(record, inputs={channel(c): at for c, at in record.inputs.items()})
            for uid, record in manifest.nodes.items()
        },
        channels={
            channel(c): replace(
                record,
                producer=node(record.producer),
                in_flight={node(uid): flight for uid, flight in record.in_flight.items()},
            )
            for c, record in manifest.channels.items()
        },
        sinks=sinks,
    )


def refusal_to_replace(old: NodeId, spec: StageSpec, record: NodeRecord, now: Json, *, dropping: bool) -> Misuse | None:
    """Why the stage cannot go on where `old` was. `dropping`: its state may be lost."""
    new, before = spec.uid, record.extra.get("sources")
    after = now.get("sources") if isinstance(now, Mapping) else None
    known = isinstance(before, list) and isinstance(after, list)
    other = known and not record.inputs and after[: len(before)] != before  # type: ignore[arg-type, index]
    both = spec.inputs and (reads_source(record.extra) or reads_source(now))
    if other or both or bool(record.inputs) != bool(spec.inputs):
        was, is_ = (", ".join(map(str, s)) if isinstance(s, list) else "something else" for s in (before, after))
        why = "a stage that reads channels and a source of its own" if both else "one kind of source"
        return Misuse(
            f"Stage {new!r} cannot go on where {old!r} was: that read {was}, this reads {is_}, and positions of {why} "
            "mean nothing to another.",
            untouched="Nothing was changed.",
            next=f"Take replaces={str(old)!r} away, say by its source's own options where {new!r} begins, and drop "
            f"{old!r} with --allow-non-restored-state.",
        )
    if has_state(record) and not dropping:
        return Misuse(
            f"Stage {new!r} goes on where {old!r} was, but not with its state: {record.state_rows or 0:,} rows would "
            "be dropped.",
            untouched="Nothing was changed.",
            next=f"Drop them for good with --allow-non-restored-state, or put {old!r} back.",
        )
    return None


def has_state(record: NodeRecord) -> bool:
    return any(path.startswith("state/") for path in record.files)


def begin_without_state(draft: DraftStage, checkpoint: Path, description: Json, before: Json, partitions: int) -> None:
    """Make the checkpoint of the old stage, laid out at `checkpoint`, one from which the new stage can start."""
    shutil.rmtree(checkpoint / "state", ignore_errors=True)
    now, then = meaning_of(description), meaning_of(before)
    listed = description.get("sources") if isinstance(description, Mapping) else None
    sources = len(listed) if isinstance(listed, list) else 0
    add_sources(checkpoint, sources)
    if now is not None and not now["operators"]:
        return
    batch = spark_checkpoint.last_committed(checkpoint)
    assert batch is not None
    same = now is not None and then is not None and now["watermarks"] == then["watermarks"]
    empty_batch.make_first(checkpoint, batch, partitions, keep_watermark=same)
    try:
        run_over_nothing(draft, checkpoint)
    except Exception as error:  # whatever Spark says, in Java's words
        raise Failed(
            f"Stage {draft.spec.uid!r} could not be given an empty state: {str(error).splitlines()[0]}",
            untouched="The job and the snapshot are as they were.",
            next="Fix the cause and run again.",
        ) from error
