"""Hosts that break one rule each, in the place where the rule stands. `MUTANTS` names what is broken.

A mutant is a few replacements for the time of a run. The laws must catch every one: a mutant that no schedule catches
means that the simulator does not look where that rule is.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from unittest import mock

from strobe.hosts.spark.channel import writer as channel_writer
from strobe.hosts.spark.channel.admission import Span, merge
from strobe.hosts.spark.channel.entries import LogCheckpoints
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.checkpoint import stage_files, torn
from strobe.hosts.spark.commit.ledger import PartState, SinkLedger
from strobe.hosts.spark.commit.work import SinkWork
from strobe.hosts.spark.home import job_home
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.restore import planning
from strobe.hosts.spark.snapshot import checkpoints, manifests
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost, _Written
from strobe.hosts.spark.snapshot.manifests import ManifestWriter
from strobe.hosts.spark.snapshot.messages import StartSnapshot, ToAgent, TrimChannel
from strobe.hosts.spark.snapshot.uploads import PartUploads
from strobe.hosts.spark.stage import recorder
from strobe.hosts.spark.stage.agent import StageAgent
from strobe.hosts.spark.stage.inputs import StageInputs
from strobe.hosts.spark.stage.life import StageLife
from strobe.hosts.spark.stage.recorder import Recorder
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.barriers import Barriers
from strobe.protocol.coordinator.messages import Trigger
from strobe.store import filesystem
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.manifest import BlobRef
from strobe.store.places import settle
from strobe.store.references import References
from strobe.store.session import Session, Upload
from tests.hostsim.world import Break, Fault, Plan

__all__ = ["MUTANTS", "PLANNED", "UNALIGNED", "Mutant", "late_triggers"]

Mutant: TypeAlias = Callable[[], list[Any]]


def _replace(target: Any, name: str, value: Any) -> Any:
    return mock.patch.object(target, name, value)


def _nothing(*args: Any, **named: Any) -> None:
    pass


def _torn_state_is_not_looked_for() -> list[Any]:
    return [_replace(torn, "check_changes", _nothing)]


# ── durable, then complete, then visible ────────────────────────────────────────────────────────────────────────────


def _no_sync_of_directories() -> list[Any]:
    return [_replace(filesystem, "_sync_directory", _nothing)]


def _no_sync_of_files() -> list[Any]:
    return [_replace(filesystem, "_sync_file", _nothing)]


def _no_sync_of_channels() -> list[Any]:
    return [_replace(ChannelWriter, "sync", _nothing)]


def _files_of_channels_unsynced() -> list[Any]:
    return [_replace(channel_writer, "fsync", _nothing)]


def _manifest_before_blobs() -> list[Any]:
    """What an upload brings is known by its hash at once, and stored when the manifest is there."""
    real_put, real_complete = Session.put_files, Session.complete
    later: dict[Session, list[Mapping[str, Any]]] = {}

    def put_files(self: Session, files: Mapping[str, Any]) -> Upload:
        later.setdefault(self, []).append(files)
        data = {n: d.read_bytes() if isinstance(d, Path) else d for n, d in files.items()}
        refs = {n: BlobRef(hashlib.sha256(d).hexdigest(), len(d)) for n, d in data.items()}
        return Upload(refs, 0, 0)

    def complete(self: Session, manifest: Any) -> str:
        key = real_complete(self, manifest)
        self._over = False
        for files in later.pop(self, ()):
            real_put(self, files)
        self._over = True
        return key

    return [
        _replace(Session, "put_files", put_files), _replace(Session, "complete", complete),
        _replace(Session, "_check_blobs", _nothing),
    ]  # fmt: skip


def _acknowledged_before_uploaded() -> list[Any]:
    real = PartUploads.submit

    class Hashes:
        def put_files(self, files: Mapping[str, Path]) -> Upload:
            refs = {n: BlobRef(hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_size) for n, p in files.items()}
            return Upload(refs, 0, 0)

    def submit(self: PartUploads, stage: Any, recording: Any, done: Any) -> None:
        hasty = copy.copy(self)
        hasty._session = lambda snapshot: cast(Session, Hashes())
        done(hasty._upload(stage, recording))
        real(self, stage, recording, _nothing)

    return [_replace(PartUploads, "submit", submit), _replace(Session, "_check_blobs", _nothing)]


def _commit_before_manifest() -> list[Any]:
    def write(self: CoordinatorHost, snapshot: SnapshotId, gathering: Any) -> None:
        self._decisions.logged(snapshot)
        failure = None
        try:
            self._writer.write(gathering.progress, gathering.parts)
        except StrobeError as error:
            failure = str(error)
        self._queue.put(_Written(snapshot, failure))

    return [_replace(CoordinatorHost, "_write", write)]


def _visible_manifest_is_not_confirmed() -> list[Any]:
    return [_replace(FilesystemStore, "confirm", _nothing)]


def _memory_is_not_synced() -> list[Any]:
    real = JobHome._write

    def write(self: JobHome, key: str, value: Any, *, durable: bool) -> None:
        real(self, key, value, durable=False)

    return [_replace(JobHome, "_write", write)]


def _names_above_the_memory_are_not_synced() -> list[Any]:
    return [_replace(job_home, "fsync", _nothing)]


def _a_restored_stage_is_not_synced() -> list[Any]:
    return [_replace(stage_files, "fsync", _nothing)]


# ── nobody writes after being fenced ────────────────────────────────────────────────────────────────────────────────


def _fence_checked_too_early() -> list[Any]:
    """The guard is asked, and then the store is written to: not in one step."""

    def take_over(objects: Any, job: str, **_: Any) -> tuple[Any, JobLayout]:
        return FilesystemStore(objects.root), JobLayout(job)

    return [_replace(checkpoints, "take_over", take_over)]


def _memory_is_written_without_a_fence() -> list[Any]:
    """Files are written in the job's own directory, where nobody can move them away."""
    real = JobHome._write

    def write(self: JobHome, key: str, value: Any, *, durable: bool) -> None:
        self._own.mkdir(exist_ok=True)
        real(self, key, value, durable=durable)

    return [_replace(JobHome, "_write", write), _replace(JobHome, "check_owner", _nothing)]


def _leftovers_are_swept_without_a_fence() -> list[Any]:
    def discard(self: JobHome, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    return [_replace(JobHome, "discard", discard)]


def _no_fence_in_channels() -> list[Any]:
    return [_replace(ChannelWriter, "_check_fence", _nothing)]


def _ids_are_not_reserved() -> list[Any]:
    return [_replace(JobHome, "reserve", _nothing)]


# ── exactly once, and cuts ──────────────────────────────────────────────────────────────────────────────────────────


def _blob_deleted_while_named() -> list[Any]:
    def free(self: References, blobs: Any) -> list[str]:
        return [b for b in dict.fromkeys(blobs) if not (self._pins[b] or b in self._doomed)]

    return [_replace(References, "free", free)]


def _forgotten_before_visible() -> list[Any]:
    def commit(self: SinkWork, handle: str) -> None:
        entry = next((e for e in self._ledger.entries if e.handle == handle), None)
        if entry is not None:
            self._ledger.forget(handle, PartState.COMMITTED)
            self.sink.commit(entry.part, entry.data)

    return [_replace(SinkWork, "_commit", commit)]


def _prepared_is_not_noted() -> list[Any]:
    """The ledger says `prepared` in memory only."""
    real = SinkLedger.prepared

    def prepared(self: SinkLedger, handle: str, data: Any, by_hand: str, *, staged: bool) -> None:
        home, self._home = self._home, cast(JobHome, SimpleNamespace(write=_nothing))
        real(self, handle, data, by_hand, staged=staged)
        self._home = home

    return [_replace(SinkLedger, "prepared", prepared)]


def _batches_are_written_again() -> list[Any]:
    return [_replace(ChannelWriter, "has_batch", lambda self, batch: False)]


def _recorded_in_the_middle_of_a_batch() -> list[Any]:
    """A batch that is in the channel and not committed counts as done."""

    def at_rest(self: StageLife) -> bool:
        if self.live and self._error is None:
            self._recorder.rest(self._recorder.batch, begun=self._recorder.batch)
        return True

    return [_replace(StageLife, "at_rest", at_rest)]


def _trimmed_too_far() -> list[Any]:
    def spare(self: ManifestWriter, consumed: Any) -> dict[Any, int]:
        return {uid: channel.log.head for uid, channel in self._channels.items()}

    return [_replace(ManifestWriter, "spare", spare)]


def _torn_logs_are_not_cut_off() -> list[Any]:
    real = ChannelLog.__init__

    def init(self: ChannelLog, path: Any, *, torn_after: int | None = None) -> None:
        real(self, path)

    return [_replace(ChannelLog, "__init__", init)]


def _place_is_noted_without_a_fence() -> list[Any]:
    def unfenced(home: Path, job: str, place: str | None, **named: Any) -> Any:
        return settle(home, job, place, on_point=named["on_point"])

    return [_replace(checkpoints, "settle", unfenced)]


def _ledgers_do_not_count_as_a_run() -> list[Any]:
    return [_replace(planning, "read_ledgers", lambda home, job: {})]


def _trims_are_not_synced() -> list[Any]:
    return [_replace(LogCheckpoints, "sync_entries", _nothing)]


def _trimmed_under_a_snapshot_that_is_under_way() -> list[Any]:
    def trim(self: CoordinatorHost) -> None:
        for producer, upto in self._writer.spare(self._consumed).items():
            self._tell(producer, TrimChannel(upto))

    return [_replace(CoordinatorHost, "_trim", trim)]


# ── every stage is told to start ────────────────────────────────────────────────────────────────────────────────────


def _unchecked() -> Any:
    """A manifest is checked before it is written; here it shows whether the cut was right in the first place."""
    return _replace(manifests, "check_manifest", lambda manifest, before: ())


def late_triggers() -> Any:
    """No rule is broken: all stages but one hear late that a snapshot has begun, and may meet its barrier first."""
    real = CoordinatorHost._start_snapshot

    def start(self: CoordinatorHost, trigger: Trigger) -> None:
        tell = self._tell

        def late(node: NodeId, message: ToAgent) -> None:
            if isinstance(message, StartSnapshot) and node != trigger.nodes[0]:
                self._clock.timer(0.1, lambda: tell(node, message))
            else:
                tell(node, message)

        self._tell = late
        try:
            real(self, trigger)
        finally:
            self._tell = tell

    return _replace(CoordinatorHost, "_start_snapshot", start)


def _reads_past_a_barrier() -> list[Any]:
    """A stage reads on behind a barrier until it has heard of the snapshot from the coordinator."""
    return [_replace(Barriers, "passed", lambda self, snapshot: snapshot != self._aligning), _unchecked()]


def _in_flight_from_the_barrier_on() -> list[Any]:
    def empty(spans: Any, *, start: int) -> Span:
        through = merge(spans, start=start).through
        return Span(through, through)

    return [_replace(recorder, "merge", empty), _unchecked()]


def _recorded_while_a_batch_runs() -> list[Any]:
    """Any barrier is taken while a batch runs, not only those of snapshots that are recorded."""
    real = StageInputs.look_ahead

    def close(self: Recorder) -> None:
        machine = self.machine
        if machine is not None:
            self.reading.refresh()
            self._arrivals(machine, real(self.reading, machine), self._stage.clock.monotonic())

    return [_replace(Recorder, "close_channels", close), _unchecked()]


def _rows_are_shown_unasked() -> list[Any]:
    """A batch puts its rows into the channel, and the stage is still recorded as it was before the batch."""
    return [_replace(StageAgent, "show_batch", _nothing), _unchecked()]


def _at(what: Break, *places: str, size: int = 1) -> tuple[Fault, ...]:
    return tuple(Fault(1, what, size, at) for at in places)


_ZOMBIE = 500  # steps: another driver has taken over, and come up

# Each with the faults that lead to where the rule stands.
MUTANTS: dict[str, tuple[Mutant, tuple[Fault, ...]]] = {
    "directories are not synced": (_no_sync_of_directories, ()),
    "files are not synced": (_no_sync_of_files, ()),
    "channels are not synced": (_no_sync_of_channels, ()),
    "files of channels are not synced": (_files_of_channels_unsynced, ()),
    "the manifest comes before its blobs": (_manifest_before_blobs, ()),
    "a part is acknowledged before it is uploaded": (_acknowledged_before_uploaded, ()),
    "sinks commit before the manifest is there": (_commit_before_manifest, ()),
    "a manifest that a dead driver left is acted upon": (
        _visible_manifest_is_not_confirmed, _at(Break.KILL, "manifest-1: [store.file.visible]"),
    ),
    "the job's memory is not synced": (_memory_is_not_synced, ()),
    "names above the job's memory are not synced": (
        _names_above_the_memory_are_not_synced, _at(Break.POWER, "[snapshot.triggered"),
    ),
    "a restored checkpoint is not synced": (
        _a_restored_stage_is_not_synced, _at(Break.POWER, "[commit.settled]", "[restore.done]"),
    ),
    "the fence is checked too early": (
        _fence_checked_too_early, _at(Break.SUSPEND, "manifest-2: [store.manifest.before]", size=_ZOMBIE),
    ),
    "the job's memory is written without a fence": (
        _memory_is_written_without_a_fence, _at(Break.SUSPEND, "[snapshot.triggered", size=_ZOMBIE),
    ),
    "leftovers are swept without a fence": (
        _leftovers_are_swept_without_a_fence,
        (
            *_at(Break.KILL, "[commit.settled]"),
            *_at(Break.SUSPEND, "main: fsync /strobe-home/jobs/job/snapshots/chk", size=_ZOMBIE),
        ),
    ),
    "channels have no fence": (
        _no_fence_in_channels, _at(Break.SUSPEND, "[snapshot.state-recorded@a]", size=_ZOMBIE),
    ),
    "ids of snapshots are not reserved": (_ids_are_not_reserved, ()),
    "a blob is deleted while a newer manifest names it": (_blob_deleted_while_named, ()),
    "a part is forgotten before it is visible": (_forgotten_before_visible, _at(Break.KILL, "sink: commit")),
    "a vote goes out before the ledger has it": (_prepared_is_not_noted, ()),
    "a batch is written again": (_batches_are_written_again, _at(Break.KILL, "[batch.in-channel@a]")),
    "a stage is recorded in the middle of a batch": (_recorded_in_the_middle_of_a_batch, ()),
    "a channel is trimmed too far": (_trimmed_too_far, ()),
    "state that is cut off is taken into a snapshot": (_torn_state_is_not_looked_for, (Fault(800, Break.STATE),)),
    "a log that is torn behind the cut is not cut off": (
        _torn_logs_are_not_cut_off, (Fault(450, Break.POWER, at="[snapshot.barrier-placed@a]"),),
    ),
}  # fmt: skip

# Each with the plan that leads to where the rule stands.
PLANNED: dict[str, tuple[Mutant, Plan]] = {
    "the place of checkpoints is noted without a fence": (
        _place_is_noted_without_a_fence,
        Plan(
            0, bucket=True, rows=4,
            faults=(Fault(17, Break.SUSPEND, 300, at="main: mkdir /strobe-home"), Fault(450, Break.KILL)),
        ),
    ),
    "a job that has lost its stages' directories is taken for one that has never run": (
        _ledgers_do_not_count_as_a_run,
        Plan(
            0, shape="chain", mode="unaligned", rows=3, interval=0.05, switching=0.3,
            faults=(Fault(131, Break.SAVEPOINT), Fault(267, Break.POWER, at="sink: commit")),
        ),
    ),
    "rows are swept that a trim has let go of which is not synced": (
        _trims_are_not_synced,
        Plan(
            0,
            faults=(
                *_at(Break.KILL, "upload-1: unlink /strobe-home/jobs/job/channels/a/_strobe"),
                *_at(Break.POWER, "main: mkdir /strobe-home/jobs/job/stages/a/t1.1/.spark/commits"),
            ),
        ),
    ),
    "rows go that an older snapshot still needs when a newer one is complete before it": (
        _trimmed_under_a_snapshot_that_is_under_way,
        Plan(
            0, mode="unaligned", retained=2, concurrent=2, interval=0.05,
            faults=_at(Break.STALL, "manifest-1: [store.manifest.before]", size=400),
        ),
    ),
}  # fmt: skip

# Caught in a chain whose checkpoints are unaligned, and whose stages hear late of them.
UNALIGNED: dict[str, Mutant] = {
    "a stage reads past a barrier before it is recorded": _reads_past_a_barrier,
    "what is in flight is counted from the barrier on": _in_flight_from_the_barrier_on,
    "a stage is recorded by a barrier while its batch runs": _recorded_while_a_batch_runs,
    "a stage is recorded as before a batch whose rows are out": _rows_are_shown_unasked,
}
