"""Making the plan of a restore: everything is looked at, nothing is touched.

What can be known beforehand is known here: whether the snapshot is whole and fits the pipeline, whether channels and
sinks still hold what it needs, whether there is room. All reasons against it are gathered, not only the first, so that
one look at `--dry-run` shows everything that has to be put right.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from strobe.hosts.spark.commit.ledger import read_ledgers
from strobe.hosts.spark.commit.start import transactional
from strobe.hosts.spark.connectors.base import Sink, SinkFate, SinkOutlook
from strobe.hosts.spark.connectors.origin import below
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.home.moved import Homes, find_moved, relocate_position
from strobe.hosts.spark.pipeline.chaining import chained_into
from strobe.hosts.spark.pipeline.pipeline import Pipeline, channel_of
from strobe.hosts.spark.plans.changes import uncompared
from strobe.hosts.spark.restore.channels import held_columns, plan_channel
from strobe.hosts.spark.restore.coming_again import rows_again
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.hosts.spark.restore.evolve import changed_state, compare_stages, rearranged, said
from strobe.hosts.spark.restore.former import Former
from strobe.hosts.spark.restore.left_behind import check_leaving
from strobe.hosts.spark.restore.plan import (
    ChannelPlan,
    ClaimMode,
    How,
    RestoreOptions,
    RestorePlan,
    SinkStep,
    StageAction,
    StagePlan,
)
from strobe.hosts.spark.restore.replacing import (
    original,
    refusal_to_replace,
    renamed_sources,
    replacements,
    taking_over,
)
from strobe.hosts.spark.restore.rescale import refusal, wanted_partitions
from strobe.hosts.spark.restore.sinks import PartsOutlook, check_dropped, named_parts, outlook_parts
from strobe.hosts.spark.restore.unchaining import as_divided, divide, parted
from strobe.hosts.spark.stage.assemble import DraftStage, sink_contexts
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.model.ids import ChannelId, NodeId, Timeline
from strobe.model.kind import Kind
from strobe.store.codec import root_of
from strobe.store.consistency import check_manifest
from strobe.store.locate import Located
from strobe.store.manifest import NOTHING, Manifest, NodeRecord
from strobe.store.scheme import is_s3

__all__ = ["has_run", "plan_restore"]

_ROOM_TO_SPARE = 16 << 20


@dataclass
class _Findings:
    problems: list[StrobeError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Planning:
    """A restore of one snapshot. `names`: stages that take another one's place, old to new."""

    job: RestoreContext
    found: Located
    manifest: Manifest
    names: Mapping[NodeId, NodeId]
    how: How
    homes: Homes
    findings: _Findings


def has_run(home: JobHome) -> bool:
    """Whether the job has done anything on its present line of history. An unfinished fork has not."""
    record = home.record
    if record.restoring is not None and record.restoring.how == How.FORK.value:
        return False
    lines = (home.layout.line_of(path.parent.name) for path in home.path(home.layout.stages).glob("*/*/spark"))
    if any(line is not None and line[0] == record.timeline for line in lines):
        return True
    # Spark does not sync its directories, so a loss of power may take all of them. The ledgers of sinks are synced.
    return any(ledger.entries or ledger.done for ledger in read_ledgers(home.home, home.job).values())


def plan_restore(job: RestoreContext, found: Located) -> RestorePlan:
    """Make the plan. `found` may already be what `taking_over` returned."""
    pipeline, drafts, home, options = job.pipeline, job.drafts, job.home, job.options
    found = taking_over(found, pipeline)
    manifest, names = found.load(), replacements(pipeline, tuple(original(found).nodes))
    findings = _Findings()
    how = _how(pipeline, home, found, manifest, findings)
    _check_snapshot(found, manifest, options, findings)
    planning = _Planning(job, found, manifest, names, how, _homes(home, found, manifest, how), findings)
    stages = tuple(_stages(planning))
    findings.warnings += rows_again(pipeline, drafts, home, stages, rollback=how is How.ROLLBACK)
    channels = tuple(_channels(planning, stages))
    sinks = tuple(_sinks(planning))
    _check_claim(found, manifest, options, how, findings)
    plan = RestorePlan(
        snapshot=manifest.snapshot,
        kind=manifest.kind.value,
        job=manifest.job,
        where=str(found.where),
        root=root_of(original(found)),
        how=how,
        into=pipeline.name,
        home=str(home.home),
        timeline=Timeline(max(home.record.timeline, manifest.timeline) + 1),
        claim=ClaimMode(options.claim_mode),
        stages=stages,
        channels=channels,
        sinks=sinks,
        warnings=tuple(findings.warnings),
        unchecked=tuple(findings.unchecked),
        problems=tuple(findings.problems),
        chained=chained_into(pipeline),
        kept={uid: spec.kept for uid, spec in pipeline.stages.items() if spec.kept},
    )
    room = _room(plan, home)
    return plan if room is None else replace(plan, problems=(*plan.problems, room))


# ── which snapshot, into what ───────────────────────────────────────────────────────────────────────────────────────


def _how(pipeline: Pipeline, home: JobHome, found: Located, manifest: Manifest, findings: _Findings) -> How:
    if manifest.host != "spark":
        findings.problems.append(
            Misuse(
                f"{found.where} is a snapshot of processes of the host {manifest.host!r}, not of a pipeline.",
                untouched="Nothing was changed.",
                next="Name a snapshot of this pipeline.",
            )
        )
    elif not set(manifest.nodes) & set(pipeline.stages):
        findings.problems.append(
            Misuse(
                f"{found.where} is a snapshot of another pipeline: job {manifest.job!r} with the stages "
                f"{', '.join(sorted(manifest.nodes))}; pipeline {pipeline.name!r} has none of them.",
                untouched="Nothing was changed.",
                next=f"Name a snapshot of this pipeline: `strobe checkpoints {pipeline.name}` shows them.",
            )
        )
    own = found.home is not None and found.home.resolve() == home.home.resolve()
    if manifest.kind is Kind.CHECKPOINT and manifest.job == pipeline.name and own:
        return How.ROLLBACK
    if not has_run(home):
        return How.FORK
    if manifest.job == pipeline.name and manifest.kind is Kind.SAVEPOINT:
        return How.REBUILD
    findings.problems.append(
        Misuse(
            f"Job {pipeline.name!r} in {home.home} has its own history, and {found.where} is not part of it: it is a "
            f"{manifest.kind.value} of job {manifest.job!r}"
            + (" in another home." if manifest.job == pipeline.name else "."),
            untouched="Nothing was changed.",
            next="To make a new job of it, give that a name with --name NAME, or another place with --home DIR.",
        )
    )
    return How.FORK


def _homes(home: JobHome, found: Located, manifest: Manifest, how: How) -> Homes:
    """Where the home of the snapshot's job stood, and where it is now, if that is known."""
    now = found.home
    if now is None and (how is not How.FORK or Path(found.where).absolute().is_relative_to(home.home)):
        now = home.home
    return Homes.of(manifest.extra.get("home"), now)


def _check_snapshot(found: Located, manifest: Manifest, options: RestoreOptions, findings: _Findings) -> None:
    for violation in check_manifest(manifest)[:1]:
        findings.problems.append(
            Damaged(
                f"Snapshot {manifest.snapshot} is not a consistent cut: {violation.sentence}",
                untouched="Nothing was changed.",
                next="Restore another one.",
            )
        )
    _check_files(found, manifest, options, findings)
    findings.unchecked.append("whether the code runs on this state; --rehearse tries it.")


def _check_files(found: Located, manifest: Manifest, options: RestoreOptions, findings: _Findings) -> None:
    """Check that all files are there and have their length; with --verify, that every byte is unchanged."""
    blobs = [(path, found.store.layout.blob(ref.sha256), ref.size) for path, ref in manifest.blobs()]
    sizes = found.store.objects.sizes(key for _, key, _ in blobs)
    wrong = [f"{path} is missing or not as long as it was" for path, key, size in blobs if sizes.get(key) != size]
    if options.verify and not wrong:
        wrong = [p.message.rstrip(".") for p in found.store.verify(manifest.snapshot) if p.harmful]
    if wrong:
        more = f" ({len(wrong)} files are not as they were)" if len(wrong) > 1 else ""
        findings.problems.append(
            Damaged(
                f"Snapshot {manifest.snapshot} is not whole: {wrong[0]}{more}.",
                untouched="Nothing was changed.",
                next=f"`strobe verify {found.where}` shows all that is wrong with it; restore another one.",
            )
        )
    if not options.verify and blobs:
        findings.unchecked.append(
            f"the content of the snapshot's {len(blobs):,} files ({manifest.bytes_total:,} bytes), of which only the "
            "lengths were compared; --verify reads them all."
        )


def _check_claim(found: Located, manifest: Manifest, options: RestoreOptions, how: How, findings: _Findings) -> None:
    if ClaimMode(options.claim_mode) is ClaimMode.CLAIM and how is not How.ROLLBACK:
        whose = "a savepoint, which Strobe never deletes" if manifest.kind is Kind.SAVEPOINT else "another job's"
        findings.problems.append(
            Misuse(
                f"Snapshot {found.where} cannot be claimed: it is {whose}.",
                untouched="Nothing was changed.",
                next="Leave the claim mode at no-claim; `strobe dispose` deletes what you need no more.",
            )
        )


def _room(plan: RestorePlan, home: JobHome) -> Failed | None:
    place = home.home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if plan.bytes + _ROOM_TO_SPARE <= free:
        return None
    return Failed(
        f"There is too little room in {home.home}: the restore needs {plan.bytes:,} bytes, {free:,} are free.",
        untouched="Nothing was changed.",
        next="Make room on that disk, or choose another place with --home DIR.",
    )


# ── stages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stages(planning: _Planning) -> Iterator[StagePlan]:
    job, found, homes, findings = planning.job, planning.found, planning.homes, planning.findings
    pipeline, options, descriptions = job.pipeline, job.options, job.descriptions
    manifest, replaced = planning.manifest, {new: old for old, new in planning.names.items()}
    former = _former(job.drafts, job.home, found, manifest)
    # The descriptions as they would have been with the columns' names at the snapshot.
    then = {**descriptions, **{d.spec.uid: former.now(d) for d in job.drafts if former.concerns(d)}}
    for uid in pipeline.order():
        spec, record = pipeline.stages[uid], manifest.nodes.get(uid)
        if record is None and (part := parted(job, manifest, uid, findings.problems)) is not None:
            yield part
        elif record is None:
            starts = _starts_of_new(pipeline, uid, manifest)
            yield StagePlan(uid, StageAction.NEW, starts=starts, earliest=spec.start == "earliest")
        elif record.batch is None or record.batch == NOTHING:
            check_leaving(job, manifest, uid, findings.problems, findings.warnings)
            starts = {NodeId(c): p for c, p in record.inputs.items() if NodeId(c) in spec.inputs}
            yield StagePlan(uid, StageAction.UNBEGUN, record, starts=starts, replaces=replaced.get(uid))
        elif uid in replaced:
            dropping = options.allow_non_restored_state
            problem = refusal_to_replace(replaced[uid], spec, record, descriptions[uid], dropping=dropping)
            findings.problems += [] if problem is None else [problem]
            check_leaving(job, manifest, uid, findings.problems, findings.warnings)
            starts = {**_starts_of_new(pipeline, uid, manifest), **{NodeId(c): p for c, p in record.inputs.items()}}
            starts = {read: at for read, at in starts.items() if read in spec.inputs}
            moved = {} if spec.inputs else _moved(uid, found, record, descriptions[uid], homes, findings)
            yield StagePlan(uid, StageAction.REPLACING, record, starts=starts, moved=moved, replaces=replaced[uid])
        else:
            division = divide(job, manifest, uid, uid, findings.problems)
            if division is None:
                check_leaving(job, manifest, uid, findings.problems, findings.warnings)
            else:
                record = replace(record, extra=as_divided(record.extra, descriptions[uid]))
            _check_state(uid, record, then[uid], former, options, findings)
            change = _rescaled(uid, record, wanted_partitions(pipeline, spec, options), descriptions[uid], findings)
            sources = rearranged(renamed_sources(record.extra, planning.names), descriptions[uid])
            fresh = {
                read: at
                for read, at in _starts_of_new(pipeline, uid, manifest).items()
                if sources is not None and ChannelId(read) not in record.inputs
            }
            moved = _moved(uid, found, record, descriptions[uid], homes, findings)
            yield StagePlan(
                uid, StageAction.RESTORED, record, change, fresh, spec.start == "earliest", sources, moved,
                division=division,
            )  # fmt: skip
    for uid, record in manifest.nodes.items():
        if uid not in pipeline.stages:
            yield StagePlan(uid, StageAction.DROPPED, record)
            if not options.allow_non_restored_state and record.batch not in (None, NOTHING):
                findings.problems.append(_dropped(pipeline, uid, record, manifest))


def _former(drafts: Sequence[DraftStage], home: JobHome, found: Located, manifest: Manifest) -> Former:
    try:
        known = {d.spec.uid: held_columns(channel_of(d.spec.uid), home, found, manifest) for d in drafts}
        held = {uid: columns for uid, columns in known.items() if columns is not None}
        return Former.of(drafts, held, held)
    except StrobeError:
        return Former()  # the channel's own plan says why its columns cannot change


def _check_state(
    uid: NodeId, record: NodeRecord, now: Json, former: Former, options: RestoreOptions, findings: _Findings
) -> None:
    differences = compare_stages(former.without_casts(dict(record.extra)), former.without_casts(now))
    problem = changed_state(uid, differences, allowed=uid in options.allow_changed_state)
    if problem is not None:
        findings.problems.append(problem)
        differences = [d for d in differences if not d.harmful]
    findings.warnings += [f"{uid}: {sentence}." for sentence in said(differences)]
    findings.unchecked += [f"{uid}: {sentence}." for sentence in uncompared(dict(record.extra), now)]


def _moved(
    uid: NodeId, found: Located, record: NodeRecord, now: Json, homes: Homes, findings: _Findings
) -> Mapping[str, str]:
    def logs() -> list[str]:
        store = found.store
        names = [path for path in record.files if path.startswith("sources/")]
        blobs = [store.objects.get(store.layout.blob(record.files[name].sha256)) for name in names]
        return [blob.decode("utf-8", errors="replace") for blob in blobs]

    after = now.get("directories") if isinstance(now, dict) else None
    moved, problem = find_moved(uid, record.extra.get("directories"), after, homes, logs, warnings=findings.warnings)
    if problem is not None:
        findings.problems.append(problem)
    return moved


def _rescaled(
    uid: NodeId, record: NodeRecord, wanted: int | None, now: Json, findings: _Findings
) -> tuple[int, int] | None:
    has = record.partitions
    if wanted is None or has is None or wanted == has or not any(path.startswith("state/") for path in record.files):
        return None
    problem = refusal(uid, now, has, wanted)
    if problem is not None:
        findings.problems.append(problem)
    return has, wanted


def _starts_of_new(pipeline: Pipeline, uid: NodeId, manifest: Manifest) -> dict[NodeId, int]:
    """Where a new stage begins: at the cut, on channels that the snapshot knows."""
    channels = ((read, manifest.channels.get(ChannelId(read))) for read in pipeline.stages[uid].inputs)
    return {read: record.barrier for read, record in channels if record is not None and record.barrier is not None}


def _dropped(pipeline: Pipeline, uid: NodeId, record: NodeRecord, manifest: Manifest) -> Misuse:
    state = sum(ref.size for path, ref in record.files.items() if path.startswith("state/"))
    rows = sum(c.in_flight[uid].rows or 0 for c in manifest.channels.values() if uid in c.in_flight)
    lost = [f"its position after batch {record.batch}"]
    if state:
        lost.insert(0, f"{record.state_rows or 0:,} rows of state ({state:,} bytes)")
    if rows:
        lost.append(f"{rows:,} rows on their way to it")
    own = manifest.channels.get(ChannelId(uid))
    sent = sum(f.rows or 0 for reader, f in own.in_flight.items() if reader in pipeline.stages) if own else 0
    if sent:
        lost.append(f"{sent:,} rows on their way from it")
    return Misuse(
        f"Stage {uid!r} of the snapshot is no longer in pipeline {pipeline.name!r}. It would be dropped with "
        f"{', '.join(lost)}.",
        untouched="Nothing was changed.",
        next="Put it back under the same uid; or let the stage that takes its place go on where it was, with "
        f"replaces={str(uid)!r}; or drop it for good with --allow-non-restored-state.",
    )


# ── channels and sinks ──────────────────────────────────────────────────────────────────────────────────────────────


def _channels(planning: _Planning, stages: Sequence[StagePlan]) -> Iterator[ChannelPlan]:
    job, found, manifest, how = planning.job, planning.found, planning.manifest, planning.how
    for draft in job.drafts:
        readers = job.pipeline.readers(draft.spec.uid)
        if readers:
            chosen = [s for s in stages if s.uid in readers]
            taken = any(s.uid == draft.spec.uid and s.replaces is not None for s in stages)
            plan, problem = plan_channel(draft, job.home, found, manifest, how, chosen, taken_over=taken)
            yield plan
            if problem is not None:
                planning.findings.problems.append(problem)


def _sinks(planning: _Planning) -> Iterator[SinkStep]:
    job, found, manifest, findings = planning.job, planning.found, planning.manifest, planning.findings
    home, options = job.home, job.options
    again, fork = home.record.restoring is not None, planning.how is How.FORK
    origins = None if _is_own(found, home) else tuple(Path(place).absolute() for place in options.sinks_from)
    present: set[str] = set()
    for draft in job.drafts:
        known = _positions(manifest, draft.spec.uid)
        for sink, context in zip(
            draft.spec.sinks, sink_contexts(job.pipeline.name, draft, home, job.base), strict=True
        ):
            position = known.get(context.name)
            told = replace(context, copies_from=origins)
            try:
                position = relocate_position(position, planning.homes, fork=fork)
                told = replace(told, named=named_parts(manifest, context.name))
                outlook = sink.outlook(position, told, fork=fork, again=again)
                taken = draft.spec.uid in planning.names.values() and outlook.fate is SinkFate.COPIED
                if taken and not (fork and _same_path(sink, position)):
                    position = None  # another place than the replaced stage's: what was there stays there
                    outlook = sink.outlook(position, told, fork=fork, again=again)
            except StrobeError as error:
                outlook = SinkOutlook(SinkFate.KEPT, "it is not known what becomes of it", error)
            parts = PartsOutlook()
            delivering = transactional(sink)
            if delivering is not None:
                present.add(context.name)
                parts = outlook_parts(manifest, delivering, context, home, outlook.fate, fork=fork)
            detail = f"{sink.describe()}: {outlook.detail}{parts.detail}"
            yield SinkStep(context.name, draft.spec.uid, sink, outlook.fate, detail, position)
            findings.problems += [p for p in (outlook.problem, parts.problem) if p is not None]
            findings.warnings += [w for w in (outlook.warning, parts.warning) if w]
            if outlook.fate in (SinkFate.COPIED, SinkFate.ROLLED_BACK):
                findings.unchecked.append(f"{sink.describe()}: whether the rows that it goes back to can be read.")
    dropped = None if fork or options.allow_non_restored_state else check_dropped(home, present)
    if dropped is not None:
        findings.problems.append(dropped)


def _same_path(sink: Sink, position: Json) -> bool:
    """Whether the sink is called what the original's is, from another base: a fork has all of its tables elsewhere."""
    was, now = position.get("path") if isinstance(position, dict) else None, sink.place()
    if not isinstance(was, str) or now is None or Path(now).is_absolute():
        return False
    return Path(was).parts[-len(Path(now).parts) :] == Path(now).parts


def _is_own(found: Located, home: JobHome) -> bool:
    """Whether the snapshot lies in the job's own home, whose manifests are written by its jobs alone."""
    if found.home is not None:
        return found.home.resolve() == home.home.resolve()
    return not is_s3(found.where) and below(Path(found.where), home.home)


def _positions(manifest: Manifest, uid: NodeId) -> Mapping[str, Json]:
    return {name: sink.position for name, sink in manifest.sinks.items() if name.rpartition("/")[0] == uid}
