"""Which stages are chained in this run: by the file, and by where the job was left.

A query finds its position by its Spark checkpoint. So what a stage is, a query of its own or part of another one,
stays as it was when the job goes on: a stage that has a query keeps it, with its channel, whatever the file says now,
and nothing that is new becomes part of a query that was there before. A stage that was chained has its position in
another query's checkpoint. If it must have a channel now, that checkpoint is divided: at a restore the snapshot's copy
(`restore.unchaining`), at a plain run the job's own (`restore.parting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strobe.hosts.spark.checkpoint.files import last_logged
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.chaining import chained_into
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.restore import unfinished
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.hosts.spark.stage.chaining import chain_stages
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.chained import chained_in, computed_by
from strobe.store.locate import locate

__all__ = ["chained_before", "lay_chains"]


@dataclass(frozen=True)
class _Before:
    """How the job was left. `queries`: stages with a query of their own. `chained`: stages without one, and whose query
    computed each."""

    queries: frozenset[NodeId]
    chained: dict[NodeId, NodeId]

    def bound(self, stage: NodeId, reader: NodeId) -> str | None:
        """Why the stage cannot be chained into its reader."""
        if stage in self.queries:
            return "it had a query of its own, and the checkpoints of two queries cannot become one"
        if stage not in self.chained and (reader in self.queries or reader in self.chained):
            return f"it is new, and {str(reader)!r} is not"
        return None


def lay_chains(
    pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, options: RestoreOptions
) -> tuple[Pipeline, list[DraftStage]]:
    """The pipeline as it runs, resumed or restored. Touches nothing."""
    before = _before(home, options)
    runs, chosen = chain_stages(pipeline, drafts, before.bound)
    now = chained_into(runs)
    for uid, host in before.chained.items():
        if uid not in pipeline.stages or _is_same(now.get(uid), host, runs):
            continue
        # Neither this stage nor the one whose query computes it now was divided off from the query of `host`.
        if before.chained.get(now.get(uid, uid)) != host:
            raise _refused(uid, host, now.get(uid))
    return runs, chosen


def _refused(uid: NodeId, host: NodeId, now: NodeId | None) -> Misuse:
    where = "now it needs a query and a channel of its own" if now is None else f"now {now!r} would compute it"
    return Misuse(
        f"Stage {uid!r} was chained, the query of {host!r} computed it and knows where it stands; {where}.",
        untouched="Nothing was changed.",
        next=f"Leave it with {host!r}, as it was; or stop the job with --drain and start a new one.",
    )


def _is_same(host: NodeId | None, before: NodeId, runs: Pipeline) -> bool:
    return host is not None and (host == before or runs.stages[host].replaces == before)


def _before(home: JobHome, options: RestoreOptions) -> _Before:
    intent = home.record.restoring
    if options.snapshot is not None or intent is not None:
        if options.snapshot is not None:
            found = locate(options.snapshot, home.home, options.root, options.signer())
        else:
            assert intent is not None
            found = unfinished(intent, home)
        manifest = found.load()
        return _Before(frozenset(manifest.nodes), chained_in(manifest))
    begun = frozenset(uid for uid in home.record.stages if _has_begun(home, uid)) | _on_disk(home)
    return _Before(begun, chained_before(home))


def chained_before(home: JobHome) -> dict[NodeId, NodeId]:
    """The stages that were chained where the job was left, by whose query has computed each."""
    return computed_by((uid, described) for uid, described in home.record.stages.items() if _has_begun(home, uid))


def _on_disk(home: JobHome) -> frozenset[NodeId]:
    """Stages with a Spark checkpoint on this timeline, whatever the job record says."""
    stages = home.path(home.layout.stages)
    uids = {NodeId(path.name) for path in stages.iterdir()} if stages.is_dir() else set()
    return frozenset(uid for uid in uids if _has_begun(home, uid))


def _has_begun(home: JobHome, uid: NodeId) -> bool:
    """Whether it has planned a batch, in any generation of its checkpoint."""
    for checkpoint in home.path(home.layout.stage(uid)).glob("*/spark"):
        line = home.layout.line_of(checkpoint.parent.name)
        if line is not None and line[0] == home.record.timeline and last_logged(checkpoint) is not None:
            return True
    return False
