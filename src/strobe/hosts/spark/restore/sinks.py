"""What a restore does to parts of sinks that are in doubt: planned without touching anything, then carried out.

In place, the restored snapshot alone decides: parts that it names and that are not known to be visible are committed,
all others are thrown away, since their rows will be made again. The protocol decides this: a participant that goes
back, and a coordinator whose log has this one decision. A fork leaves all of it to the job that prepared it.

What is visible already cannot be undone by this; whether the sink can be taken back is its own business (`outlook`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strobe.hosts.shared.clock import utc_now
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.ledger import Entry, Ledger, PartState, SinkLedger, named_handles, read_ledgers
from strobe.hosts.spark.connectors.base import Part, SinkContext, SinkFate, TransactionalSink
from strobe.hosts.spark.connectors.origin import position_number
from strobe.hosts.spark.connectors.staging import Staging
from strobe.hosts.spark.home.job_home import JobHome
from strobe.model.errors import Failed, HostFault, Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId, Timeline
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator, TwoPhaseParticipant
from strobe.protocol.two_phase_commit import messages as protocol
from strobe.store.manifest import Manifest, SinkRecord
from strobe.store.releases import holds_back, released_up_to

__all__ = ["PartsOutlook", "check_dropped", "named_parts", "outlook_parts", "settle_parts", "sweep_staging"]


@dataclass(frozen=True)
class PartsOutlook:
    """What becomes of one sink's parts, in words, and the problems if that is impossible."""

    detail: str = ""
    warning: str = ""
    problem: StrobeError | None = None


def named_parts(manifest: Manifest, sink: str) -> tuple[Part, ...]:
    """The parts that the snapshot names, oldest first."""
    parts = []
    for prepared in manifest.sinks.get(sink, SinkRecord()).prepared:
        data = prepared.data
        if isinstance(data, Mapping):
            snapshot, timeline, after, through = (
                position_number(data.get(name), name) for name in ("snapshot", "timeline", "after", "through")
            )
            parts.append(Part(prepared.handle, SnapshotId(snapshot), Timeline(timeline), after, through))
    return tuple(parts)


def outlook_parts(
    manifest: Manifest, sink: TransactionalSink, context: SinkContext, home: JobHome, fate: SinkFate, *, fork: bool
) -> PartsOutlook:
    """Touches nothing."""
    named = named_handles(manifest).get(context.name, ())
    if fork:
        if not named:
            return PartsOutlook()
        return PartsOutlook(f"; {len(named)} part(s) that the snapshot names are left to job {manifest.job!r}")
    ledger = read_ledgers(home.home, home.job).get(context.name)
    if ledger is None:
        warning = (
            f"Sink {context.name!r}: its ledger is gone, so whether {', '.join(named)} became visible is not known; "
            "they are taken to be."
        )
        return PartsOutlook(warning=warning if named else "")
    commit, abort = _sorted(ledger, named)
    detail = "".join(
        f"; {len(entries)} part(s) in doubt {word}"
        for entries, word in ((commit, "will be made visible"), (abort, "will be thrown away"))
        if entries
    )
    return PartsOutlook(
        detail,
        _visible_later(ledger, manifest, context.name, fate),
        _held(manifest, commit, context, home) or _problem(ledger, named, commit, sink, context, home),
    )


def _sorted(ledger: Ledger, named: tuple[str, ...]) -> tuple[list[Entry], list[Entry]]:
    commit = [e for e in ledger.entries if e.handle in named and e.state is not PartState.PREPARING]
    return commit, [e for e in ledger.entries if e not in commit]


def _visible_later(ledger: Ledger, manifest: Manifest, sink: str, fate: SinkFate) -> str:
    later = [e for e in ledger.done if e.state is PartState.COMMITTED and e.part.snapshot > manifest.snapshot]
    if not later or fate is not SinkFate.KEPT:
        return ""
    snapshots = ", ".join(str(e.part.snapshot) for e in later)
    return (
        f"Sink {sink!r}: what snapshot(s) {snapshots} made visible cannot be undone: those rows stay there, and come "
        "once more."
    )


def _held(manifest: Manifest, commit: list[Entry], context: SinkContext, home: JobHome) -> StrobeError | None:
    """The problem if the snapshot contains parts that must not become visible: going back to it would show them."""
    if not holds_back(manifest):
        return None
    # Which snapshot has brought a part decides, not which one names it: a savepoint names what is held before it, too.
    released = released_up_to(home.home, home.job)
    held = [e for e in commit if e.state is not PartState.DECIDED and e.part.snapshot > released]
    if not held:
        return None
    return Misuse(
        f"Snapshot {manifest.snapshot} names {len(held)} part(s) of sink {context.name!r} that are held, or not judged "
        "yet. Going back to it would make them visible.",
        untouched="Nothing was changed.",
        next=f"Restore a snapshot from before it, or let them go first: `strobe release {home.job} "
        f"{max(entry.part.snapshot for entry in held)}`.",
    )


def _problem(
    ledger: Ledger,
    named: tuple[str, ...],
    commit: list[Entry],
    sink: TransactionalSink,
    context: SinkContext,
    home: JobHome,
) -> StrobeError | None:
    gone = [e.handle for e in ledger.done if e.state is PartState.ABORTED and e.handle in named]
    if gone:
        return Failed(
            f"The snapshot names {gone[0]} of sink {context.name!r}, which was thrown away when the job was restored "
            "to another snapshot: its rows would be missing.",
            untouched="Nothing was changed.",
            next="Restore a snapshot from before it, or one of the line of history that the job is on.",
        )
    for entry in commit:
        old = _of(entry.part.timeline, context)
        missing = Staging(old, sweep=False).missing(entry.part) if entry.staged else []
        # A commit deletes what was staged, so once a commit has begun only the sink can tell.
        begun = entry.state is PartState.DECIDED
        if missing and not (begun and sink.visible(entry.part, entry.data, old) is not False):
            return Failed(
                f"The snapshot names {entry.handle} of sink {context.name!r}, which is not known to be visible, and "
                f"its staged rows are no longer there: batch {missing[0]} is missing.",
                untouched="Nothing was changed.",
                next="Put the files back below the job's home, restore a snapshot from before it, or find out by hand "
                f"whether it is visible: `strobe transactions {home.job}`.",
            )
    return None


def check_dropped(home: JobHome, present: set[str]) -> StrobeError | None:
    """Refuse if sinks that are no longer in the file have parts in doubt: nobody could throw them away."""
    for name, ledger in read_ledgers(home.home, home.job).items():
        if name not in present and ledger.entries:
            return Misuse(
                f"Sink {name!r} is no longer in the file, or no longer delivers on snapshot, but parts of it "
                f"are still in doubt: {', '.join(e.handle for e in ledger.entries)}.",
                untouched="Nothing was changed.",
                next="Put it back, or leave them for good with --allow-non-restored-state; "
                f"`strobe transactions {home.job}` says what can be done by hand.",
            )
    return None


# ── carried out ─────────────────────────────────────────────────────────────────────────────────────────────────────


def settle_parts(sink: TransactionalSink, context: SinkContext, manifest: Manifest, home: JobHome) -> None:
    """Commit what the snapshot names, throw away the rest. Doing it again changes nothing. `context` is that of the new
    timeline; the parts belong to older ones."""
    ledger = SinkLedger(home, context.name, utc_now)
    if ledger.is_new:
        return
    old = _of(ledger.ledger.timeline, context)
    sink.open(old)
    try:
        sink.recover([e.part for e in ledger.entries])
        _resolve(sink, ledger, context, manifest, home)
        rest = _rest(sink, ledger.ledger, context)
        if rest is not None:
            sink.abort(rest, None)
    finally:
        sink.close()


def _of(timeline: Timeline, context: SinkContext) -> SinkContext:
    return replace(context.of_timeline(timeline), settling=True)


def _resolve(
    sink: TransactionalSink, ledger: SinkLedger, context: SinkContext, manifest: Manifest, home: JobHome
) -> None:
    name, incarnation = NodeId(context.name), context.incarnation
    commit, _ = _sorted(ledger.ledger, named_handles(manifest).get(context.name, ()))
    named = tuple(protocol.Handle(e.handle) for e in commit)
    decisions = [protocol.Decision(manifest.snapshot, ((name, named),))] if named else []
    coordinator = TwoPhaseCoordinator([name], incarnation, decisions=decisions)
    handles = [protocol.Handle(e.handle) for e in ledger.entries]
    participant = TwoPhaseParticipant(name, incarnation, prepared=handles, keeps=False)
    effects = deque[protocol.CommitCoordinatorEffect | protocol.CommitParticipantEffect]()
    effects.extend(coordinator.step(protocol.Opened()))
    effects.extendleft(participant.step(protocol.Opened()))
    while effects:
        effect = effects.popleft()
        if isinstance(effect, protocol.ToParticipant):
            effects.extend(participant.step(effect.message))
        elif isinstance(effect, protocol.ToCoordinator):
            effects.extend(coordinator.step(effect.message))
        elif isinstance(effect, protocol.CommitWrites | protocol.AbortWrites):
            _perform(sink, ledger, effect, manifest.snapshot, home)
        elif not isinstance(effect, protocol.RecoverFrom | protocol.Settled):  # stages and channels go back elsewhere
            raise HostFault(f"A restore cannot perform {type(effect).__name__}.")


def _perform(
    sink: TransactionalSink,
    ledger: SinkLedger,
    effect: protocol.CommitWrites | protocol.AbortWrites,
    snapshot: SnapshotId,
    home: JobHome,
) -> None:
    entry = next(e for e in ledger.entries if e.handle == effect.handle)
    commit = isinstance(effect, protocol.CommitWrites)
    home.check_owner()
    try:
        if commit:
            ledger.decided([entry.handle], snapshot)
            sink.commit(entry.part, entry.data)
        else:
            sink.abort(entry.part, entry.data)
    except Exception as error:
        why = error.what if isinstance(error, StrobeError) else f"{type(error).__name__}: {error}"
        raise Failed(
            f"{entry.handle} could not be {'made visible' if commit else 'thrown away'} in {sink.describe()}: {why}",
            untouched="The restore is not finished, and nothing runs.",
            next="Fix the cause and run again: the restore goes on by itself.",
        ) from error
    if commit:
        crash_points.point("settle.part-committed")
    else:
        crash_points.point("settle.part-aborted")
    ledger.forget(entry.handle, PartState.COMMITTED if commit else PartState.ABORTED)


def _rest(sink: TransactionalSink, ledger: Ledger, context: SinkContext) -> Part | None:
    """Throw away what was staged after the newest part and never prepared."""
    last = sink.last_batch()
    if last is None or last <= ledger.boundary:
        return None
    handle = f"{context.job}/{context.name}/{ledger.timeline}/0"
    return Part(handle, SnapshotId(0), ledger.timeline, ledger.boundary, last)


def sweep_staging(home: JobHome) -> None:
    """Delete what was staged on timelines that the job has left, except for sinks that it no longer has."""
    for name, ledger in read_ledgers(home.home, home.job).items():
        current = home.path(home.layout.staging(name, home.record.timeline))
        for path in current.parent.glob("t*") if not ledger.entries else ():
            if path != current:
                home.discard(path)
