"""What must hold, told from the disk and from the outside world alone. Numbers are those of the design's laws.

1. *Cut*: in every complete snapshot a consumer has read a prefix of what its producer had given out, and the recorded
   range in flight holds exactly the rest.
3. *Exactly once*: in the end the outside world has every row once, in order.
4. *Durable, then complete, then visible*: when a manifest gets its name, all that it names is on the disk for good;
   when a part becomes visible, so is a manifest that names it.
5. *Abort is safe*: whenever a driver has gone, every complete snapshot can be read to its last byte.
7. *Identity*: incarnations rise, a snapshot's id is used once, and nothing of an older driver appears after a newer
   one has started.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from strobe.hosts.spark.channel.log import LOG, ChannelLog, entry_name
from strobe.hosts.spark.commit.ledger import named_handles
from strobe.model.errors import Damaged, StrobeError
from strobe.model.ids import ChannelId, NodeId
from strobe.store.codec import decode as decode_once
from strobe.store.layout import MANIFEST, JobLayout
from strobe.store.manifest import NOTHING, Manifest
from strobe.store.places import checkpoints_of
from strobe.store.snapshots import SnapshotStore
from tests.hostsim.bucket import Bucket
from tests.hostsim.disk import Disk
from tests.hostsim.scheduler import Scheduler
from tests.hostsim.sink import Outside
from tests.hostsim.spark import State, read_rows, state_of

__all__ = ["Laws"]

_INCARNATION = re.compile(rb'"strobe.incarnation":(\d+)')
_SHARED = ("incarnation.json", "ledger.json", MANIFEST)  # what drivers write by giving a file its name


decode = functools.lru_cache(64)(decode_once)  # a manifest is looked at again whenever a part becomes visible


class Laws:
    """`found` is what was broken, in the order in which it was seen."""

    def __init__(
        self,
        home: Path,
        job: str,
        shape: Mapping[str, tuple[tuple[str, ...], bool]],
        rows: int,
        disk: Disk,
        bucket: Bucket | None,
        outside: Outside,
        scheduler: Scheduler,
    ) -> None:
        self._home, self._job, self._shape, self._rows = home, job, shape, rows
        self._disk, self._bucket, self._outside = disk, bucket, outside
        self._layout = JobLayout(job)
        self.began = scheduler.now
        self.found: list[str] = []
        self.completed: dict[int, str] = {}  # snapshots that became visible, and by whom
        self.savepoints: Callable[[], Iterator[bytes]] = lambda: iter(())  # the manifests that are there for good
        self._started: dict[str, int] = {}  # drivers that came up, and their incarnation

    def _broken(self, law: int, what: str) -> None:
        self.found.append(f"law {law}: {what}")

    # ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────────

    def at_start(self, driver: str, incarnation: int) -> None:
        """A driver has come up."""
        newest = max(self._started.values(), default=0)
        if incarnation <= newest:
            self._broken(7, f"{driver} has incarnation {incarnation}, and there was {newest} before")
        self._started[driver] = incarnation

    def at_named(self, path: str, driver: str) -> None:
        """A driver has given a file this name."""
        name = path.rpartition("/")[2]
        if name not in _SHARED or "/driver-" in path or "/writer-" in path:
            return
        self.at_written(path.removeprefix(str(self._home)), driver)
        if name == MANIFEST and path.startswith(f"{self._home}/"):  # of a checkpoint
            self._complete(Path(path), driver)

    def at_written(self, what: str, driver: str) -> None:
        mine = self._started.get(driver, max(self._started.values(), default=0) + 1)
        if mine < max(self._started.values(), default=0):
            self._broken(7, f"{driver} has written {what} after a newer one had started")

    def _complete(self, path: Path, driver: str) -> None:
        manifest = decode(path.read_bytes())
        before = self.completed.setdefault(manifest.snapshot, driver)
        if before != driver:
            self._broken(7, f"snapshot {manifest.snapshot} was completed by {before} and by {driver}")
        for where, ref in manifest.blobs():
            if self._disk.durable(self._home / self._layout.blob(ref.sha256)) is None:
                self._broken(4, f"snapshot {manifest.snapshot} is visible, and its {where} is not durable")
        for channel, record in manifest.channels.items():
            self._check_durable_channel(manifest, channel, record.barrier)
        self._check_durable_memory(manifest)

    def at_put(self, key: str, data: bytes) -> None:
        """Something is in the bucket, for good. What an epoch holds that was left does not count."""
        if self._bucket is None or not key.endswith(f"/{MANIFEST}") or not data.startswith(b"{"):
            return
        manifest, layout = decode(data), JobLayout(self._job, self._layout.epoch_in(key) or 0)
        if layout.epoch < self._newest_epoch():
            return
        self.completed.setdefault(manifest.snapshot, "")
        held = {name.partition("/")[2] for name in self._bucket.objects}
        for where, ref in manifest.blobs():
            if layout.blob(ref.sha256) not in held:
                self._broken(4, f"snapshot {manifest.snapshot} is in the bucket, and its {where} is not")

    def _newest_epoch(self) -> int:
        names = [name.partition("/")[2] for name in self._bucket.objects] if self._bucket is not None else []
        return max((self._layout.epoch_of(name) or 0 for name in names), default=0)

    def _check_durable_channel(self, manifest: Manifest, channel: ChannelId, barrier: int | None) -> None:
        place = self._home / self._layout.channel(NodeId(channel))
        first = min(f.after for f in manifest.channels[channel].in_flight.values())
        names = [f.path for c in ChannelLog(place).history(first, barrier or 0) for f in c.files]
        names += [f"{LOG}/{p.name}" for p in (place / LOG).glob("*.json") if p.name <= entry_name(barrier or 0)]
        for name in sorted(names):
            if self._disk.durable(place / name) is None:
                self._broken(4, f"snapshot {manifest.snapshot} is visible, and {channel}/{name} is not durable")

    def _check_durable_memory(self, manifest: Manifest) -> None:
        memory = json.loads(self._disk.durable(self._home / self._layout.incarnation) or "{}")
        if memory.get("snapshot", 0) < manifest.snapshot or memory["incarnation"] < manifest.incarnation:
            self._broken(7, f"snapshot {manifest.snapshot} is visible, and its id is not taken for good: {memory}")
        for sink, handles in named_handles(manifest).items():
            ledger = json.loads(self._disk.durable(self._home / self._layout.ledger(sink)) or "{}")
            parts = (*ledger.get("entries", ()), *ledger.get("done", ()))
            known = {part["handle"] for part in parts if part["state"] != "preparing"}
            for handle in handles:
                if handle not in known:
                    self._broken(4, f"snapshot {manifest.snapshot} names {handle}, which no ledger has for good")

    def at_removed(self, path: str) -> None:
        """Somebody deletes a file. A channel's rows may go when its log says so for good."""
        channels, _, rest = path.partition("/channels/")
        if not path.endswith(".parquet") or not rest or not channels.startswith(f"{self._home}/"):
            return
        channel, _, name = rest.partition("/")
        entries = [self._disk.durable(p) or b"" for p in Path(channels, "channels", channel, LOG).glob("*.json")]
        names = {what: f'"{what}":{{"path":"{name}"'.encode() for what in ("add", "remove")}
        if any(names["add"] in e for e in entries) and not any(names["remove"] in e for e in entries):
            self._broken(4, f"{name} of channel {channel} is deleted, and the log that is there for good still has it")

    def at_commit(self, handle: str) -> None:
        """A part is about to become visible."""
        for data in (*self._manifests(), *self.savepoints()):
            if any(handle in named for named in named_handles(decode(data)).values()):
                return
        self._broken(4, f"{handle} became visible, and no snapshot that is there for good names it")

    def _manifests(self) -> Iterator[bytes]:
        """Those that no loss of power can take."""
        if self._bucket is not None:
            objects = {name.partition("/")[2]: found.data for name, found in self._bucket.objects.items()}
            epochs = [epoch for key in objects if (epoch := self._layout.epoch_of(key)) is not None]
            layout = JobLayout(self._job, max(epochs, default=0))
            yield from (d for key, d in objects.items() if layout.snapshot_of(key) is not None and d.startswith(b"{"))
            return
        for path in (self._home / self._layout.manifests).glob(f"*/{MANIFEST}"):
            data = self._disk.durable(path)
            if data is not None:
                yield data

    # ── when a driver has gone ──────────────────────────────────────────────────────────────────────────────────────

    def snapshots(self) -> tuple[int, ...]:
        """Those that are complete."""
        return checkpoints_of(self._home, self._job).list()

    def begin_again(self) -> None:
        """The home is empty, as at the first start."""
        self._started.clear()
        self.completed.clear()

    def at_rest(self) -> None:
        store = checkpoints_of(self._home, self._job)
        for snapshot in store.list():
            problems = store.verify(snapshot)
            if problems:
                self._broken(5, f"snapshot {snapshot}: {problems[0]}")
                return
            try:
                self._check_cut(store, store.load(snapshot))
            except (StrobeError, OSError) as error:
                self._broken(5, f"what snapshot {snapshot} needs of a channel is gone: {error}")
        self._check_fences()

    def _check_fences(self) -> None:
        for channel in self._shape:
            newest = 0
            for path in sorted((self._home / self._layout.channel(NodeId(channel)) / LOG).glob("*.json")):
                found = _INCARNATION.search(path.read_bytes())
                number = newest if found is None else int(found[1])
                if number < newest:
                    self._broken(7, f"{path.name} of channel {channel} is by incarnation {number}, after {newest}")
                newest = number

    def _check_cut(self, store: SnapshotStore, manifest: Manifest) -> None:
        states: dict[str, State] = {}
        for uid, node in manifest.nodes.items():
            if node.batch is None or node.batch == NOTHING:
                states[uid] = State({}, [])
            else:
                states[uid] = State.decode(store.read(node.files[state_of(node.batch)]))
        for reader, (reads, _) in self._shape.items():
            uid = NodeId(reader)
            for producer in reads:
                given, read = list(states[producer].out), list(states[uid].read.get(producer, ()))
                if read != given[: len(read)]:
                    self._broken(1, f"snapshot {manifest.snapshot}: {uid} has read {read} of {producer}, not {given}")
                flight = manifest.channels[ChannelId(producer)].in_flight[uid]
                try:
                    log = ChannelLog(self._home / self._layout.channel(NodeId(producer)))
                except Damaged:
                    continue  # what is behind the cut is torn: a restore has to show that this does no harm
                commits = log.history(flight.after, flight.through)
                rows = [row for c in commits for f in c.files for row in read_rows(log.path / f.path)]
                if rows != given[len(read) :] or len(rows) != flight.rows:
                    self._broken(
                        1, f"snapshot {manifest.snapshot}: {rows} ({flight.rows}) from {producer} to {uid} in flight, "
                        f"where {given[len(read) :]} were given out and not read",
                    )  # fmt: skip

    # ── when the job has ended ──────────────────────────────────────────────────────────────────────────────────────

    def at_end(self, *, quiet: bool) -> None:
        """`quiet`: nothing was done to the job."""
        self.at_rest()
        expected = self._expected()
        rows = self._outside.rows
        twice = sorted({row for row in rows if rows.count(row) > 1})
        lost = sorted(set(expected) - set(rows))
        if twice or lost or len(rows) != len(expected):
            self._broken(3, f"twice: {twice}; lost: {lost}; made up: {sorted(set(rows) - set(expected))}")
        for uid in self._shape:
            for producer, own in self._streams(uid).items():
                got = [row for row in rows if row in set(own)]
                if got != own and not (twice or lost):
                    self._broken(3, f"{uid} gave out {got} of {producer}, in another order than {own}")
        if quiet and self._outside.prepared:  # else some may be nobody's, until the next start sweeps them
            self._broken(3, f"prepared for ever: {sorted(self._outside.prepared)}")

    def _out(self, uid: str) -> list[list[str]]:
        """What a stage gives out: a sequence for each way that leads to it from a source."""
        reads, _ = self._shape[uid]
        if not reads:
            return [[f"{uid}{k}" for k in range(self._rows)]]
        return [[f"{uid}.{row}" for row in way] for producer in reads for way in self._out(producer)]

    def _streams(self, uid: str) -> dict[str, list[str]]:
        return {str(i): way for i, way in enumerate(self._out(uid))} if self._shape[uid][1] else {}

    def _expected(self) -> list[str]:
        return [row for uid in self._shape for way in self._streams(uid).values() for row in way]
