"""From the stages' parts to a manifest: assembled, checked against law 1, made durable; later retired.

The check is arithmetic on recorded positions and runs before the manifest exists: a cut that is not consistent never
becomes a snapshot, and the failure names the channel and the stage. Nothing else comes of it: the parts go, the job and
its earlier snapshots stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from strobe import __version__
from strobe.hosts.shared.clock import SYSTEM, utc_now
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.home.history import SnapshotHistory
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.progress import Progress, past
from strobe.hosts.spark.snapshot.savepoints import SnapshotStores
from strobe.hosts.spark.snapshot.writing import SnapshotWriter
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.model.invariants import OnViolation
from strobe.model.kind import Kind
from strobe.protocol.barriers import BarrierMode
from strobe.store.consistency import InconsistentCut, check_manifest
from strobe.store.leases import retiring
from strobe.store.manifest import ChannelRecord, InFlight, Manifest, SinkRecord
from strobe.store.releases import HOLD

__all__ = ["ManifestWriter", "snapshot_before"]

_log = logging.getLogger("strobe.manifests")


def snapshot_before(manifest: Manifest, complete: Iterable[Manifest]) -> Manifest | None:
    """The newest complete snapshot that was begun before this one, on its timeline. One that was begun later may be
    complete already: a savepoint takes its time, and several checkpoints may be under way."""
    earlier = [m for m in complete if m.timeline == manifest.timeline and m.snapshot < manifest.snapshot]
    return max(earlier, key=lambda m: m.snapshot, default=None)


class ManifestWriter(SnapshotWriter):
    def __init__(
        self,
        pipeline: Pipeline,
        home: JobHome,
        stores: SnapshotStores,
        channels: Mapping[NodeId, ChannelWriter],
        unsettled: Callable[[], frozenset[SnapshotId]] = frozenset,
        on_checkpoint: Callable[[SnapshotId], None] = lambda snapshot: None,
    ) -> None:
        """`unsettled` are complete snapshots that some sink has not committed yet: they stay until it has, and if
        invariants may keep them back, so does the one before them, to go back to.
        `on_checkpoint` is told of each that is complete, before any is disposed of."""
        self._pipeline = pipeline
        self._home = home
        self._history = SnapshotHistory(home.path(home.layout.history), home.check_owner)
        self._stores = stores
        self._store = stores.checkpoints
        self._channels = channels
        self._unsettled = unsettled
        self._holding = tuple(i.name for i in pipeline.invariants if i.on_violation is OnViolation.HOLD)
        self._on_checkpoint = on_checkpoint
        self._spared = False  # something stays that is past its retention
        self._lock = threading.Lock()
        self._retained: dict[SnapshotId, Manifest | None] = {}  # None: it cannot be read
        for snapshot in self._store.list():
            self._retained[snapshot] = self._load(snapshot)
        self.verified = 0

    def _load(self, snapshot: SnapshotId) -> Manifest | None:
        """A job goes on from its stages' own checkpoints, so it can do without a manifest that is damaged."""
        try:
            return self._store.load(snapshot)
        except StrobeError as error:
            _log.warning(
                "checkpoint %d is damaged and cannot be restored; the job goes on without it, and keeps all rows of "
                "its channels until it is past its retention. %s",
                snapshot,
                error.what,
            )
            return None

    @property
    def retained(self) -> tuple[SnapshotId, ...]:
        with self._lock:
            return tuple(sorted(self._retained))

    def reserve(self, snapshot: SnapshotId, kind: Kind) -> None:
        self._home.reserve(snapshot)
        self._stores.begin(snapshot, kind)

    def write(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        manifest = self._assemble(progress, parts)
        violations = check_manifest(manifest, snapshot_before(manifest, self.manifests()))
        if violations:
            raise InconsistentCut("the cut is not consistent: " + " ".join(v.sentence for v in violations[:3]))
        self.verified += 1
        self._stores.complete(manifest)
        if progress.kind is Kind.CHECKPOINT:
            with self._lock:
                self._retained[progress.snapshot] = manifest
            self._on_checkpoint(progress.snapshot)

    def note_end(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        record = self._home.record
        everywhere = self._pipeline.checkpoint.coordinator().everywhere and progress.kind is Kind.CHECKPOINT
        self._history.note(past(progress, parts, record.incarnation, record.timeline, everywhere=everywhere))

    def _mode(self, kind: Kind) -> str:
        config = self._pipeline.checkpoint
        everywhere = config.coordinator().everywhere
        return BarrierMode.ALIGNED.value if kind is Kind.SAVEPOINT and everywhere else config.barrier_mode.value

    def aborted(self, snapshot: SnapshotId) -> None:
        self._stores.give_up(snapshot)

    def dispose(self, snapshot: SnapshotId) -> None:
        """`snapshot` is past its retention by number. What goes is decided by the store's own list, so that what was
        too young then, or left by a crash, goes when its time has come."""
        config = self._pipeline.checkpoint
        age = config.retained_age
        unsettled = self._unsettled()
        unsettled |= self.before(unsettled)
        with retiring(self._home.home, self._home.job) as leased:
            self._spared = bool(unsettled) or leased is None or bool(leased)
            if leased is None:
                return
            gone = self._store.retire(
                config.retained,
                self._home.record.pinned,
                spare=unsettled | leased,
                older_than=None if age is None else datetime.fromtimestamp(SYSTEM.time(), UTC) - timedelta(seconds=age),
            )
        with self._lock:
            for each in gone:
                self._retained.pop(each, None)

    def before(self, unsettled: frozenset[SnapshotId]) -> frozenset[SnapshotId]:
        """The last good one, if some are held back: on this line of history, or those that this line may come from."""
        if not self._holding or not unsettled:
            return frozenset()
        with self._lock:
            older = {s: m for s, m in self._retained.items() if s < min(unsettled)}
        timeline = self._home.record.timeline
        mine = [s for s, m in older.items() if m is not None and m.timeline == timeline]
        return frozenset([max(mine)] if mine else older)

    def settled(self) -> None:
        if self._spared:
            self.dispose(SnapshotId(0))

    def manifests(self) -> tuple[Manifest, ...]:
        """Of all complete checkpoints that can be read."""
        with self._lock:
            return tuple(m for m in self._retained.values() if m is not None)

    def spare(self, consumed: Mapping[NodeId, Mapping[NodeId, int]]) -> dict[NodeId, int]:
        """Rows that every consumer, and every retained snapshot, is past."""
        if self._stores.holds_rows:
            return {}  # a savepoint copies some of them
        with self._lock:
            manifests = [m for m in self._retained.values() if m is not None]
            if len(manifests) < len(self._retained):
                return {}  # nobody knows which rows a damaged one needs, should its manifest be put back
        spare: dict[NodeId, int] = {}
        for producer in self._channels:
            needed = [consumed.get(reader, {}).get(producer, 0) for reader in self._pipeline.readers(producer)]
            for manifest in manifests:
                record = manifest.channels.get(ChannelId(producer))
                if record is not None:
                    needed += [flight.after for flight in record.in_flight.values()]
            if needed:
                spare[producer] = min(needed)
        return spare

    def _assemble(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> Manifest:
        missing = [uid for uid in self._pipeline.stages if uid not in parts]
        if missing:
            raise Failed(f"no part from {', '.join(missing)}")
        channels: dict[ChannelId, ChannelRecord] = {}
        sinks: dict[str, SinkRecord] = {}
        for uid, part in parts.items():
            sinks.update(part.sinks)
            readers = self._pipeline.readers(uid)
            if readers:
                flights: dict[NodeId, InFlight] = {r: parts[r].in_flight[uid] for r in readers}
                channel = self._channels[uid]
                location = channel.path.relative_to(self._home.home).as_posix()
                record = ChannelRecord(uid, location, part.barrier, flights, extra={"schema": channel.columns.json})
                if progress.kind is Kind.SAVEPOINT:
                    record = self._stores.with_content(record, channel, progress.snapshot)
                channels[ChannelId(uid)] = record
        return Manifest(
            snapshot=progress.snapshot,
            kind=progress.kind,
            job=self._pipeline.name,
            host="spark",
            timeline=self._home.record.timeline,
            incarnation=self._home.record.incarnation,
            mode=self._mode(progress.kind),
            started=progress.started,
            completed=utc_now(),
            graph=self._pipeline.graph(),
            nodes={uid: parts[uid].record for uid in self._pipeline.stages},
            channels=channels,
            sinks=sinks,
            writer=f"strobe {__version__}",
            extra={"home": str(self._home.home), **({HOLD: list(self._holding)} if self._holding else {})},
        )
