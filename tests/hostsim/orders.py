"""What people order of a simulated job: savepoints, stops and drains; and what must hold of each.

A savepoint that is complete holds everything that it needs, for good from the moment of its manifest on, whoever dies
afterwards and whatever loses power. After a stop with a savepoint no stage has done anything that is not in it, and
after a drain nothing is in flight. A job that was stopped so goes on from its savepoint, or plainly: either way every
row comes once.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.job.job import Job, JobState
from strobe.hosts.spark.snapshot.savepoint_content import content_of
from strobe.model.errors import StrobeError
from strobe.model.ids import ChannelId, NodeId
from strobe.store.codec import decode
from strobe.store.layout import MANIFEST, SavepointLayout
from strobe.store.locate import Located, locate
from strobe.store.manifest import NOTHING
from tests.hostsim.bucket import Bucket
from tests.hostsim.disk import Disk
from tests.hostsim.sink import Outside
from tests.hostsim.spark import State, state_of

if TYPE_CHECKING:
    from tests.hostsim.laws import Laws

BUCKET = "s3://bucket/"

__all__ = ["Order", "Orders", "is_savepoint"]


@dataclass(eq=False)
class Order:
    """`done`: whoever gave it was told that it is."""

    place: str
    stops: bool
    drains: bool
    restores: bool  # whether the next driver begins from it
    done: bool = False


class Orders:
    def __init__(self, home: Path, base: Path, disk: Disk, bucket: Bucket, outside: Outside, laws: Laws) -> None:
        self._home, self._base, self._disk, self._bucket = home, base, disk, bucket
        self._outside, self._laws = outside, laws
        self._given: list[Order] = []
        laws.savepoints = self._manifests

    def new(self, size: int, *, stops: bool = False, drains: bool = False, bucket: bool) -> Order:
        """To a directory, or, if the job's checkpoints are in a bucket, there."""
        name = f"savepoint-{len(self._given) + 1}"
        place = f"{BUCKET}{name}" if bucket and size > 1 else str(self._base / name)
        order = Order(place, stops, drains, restores=size != 2)
        self._given.append(order)
        return order

    def carry_out(self, job: Job, order: Order) -> None:
        if job.state is not JobState.RUNNING:
            return  # there is nobody to ask
        try:
            if order.stops:
                job.stop_with_savepoint(order.place, drain=order.drains)
            else:
                job.savepoint(order.place)
        except StrobeError:
            return
        except Exception as error:
            self._laws.found.append(f"an order ended with a raw {type(error).__name__}: {traceback.format_exc()}")
            return
        order.done = True
        where = Path(order.place) / MANIFEST
        if not order.place.startswith(BUCKET) and self._disk.durable(where) is None:
            self._laws.found.append(f"law 4: savepoint {order.place} is reported complete, and is not durable")

    # ── laws ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def at_named(self, path: Path) -> None:
        """A savepoint has got its manifest."""
        manifest = decode(path.read_bytes())
        layout = SavepointLayout("", manifest.snapshot)
        for where, ref in manifest.blobs():
            if self._disk.durable(path.parent / layout.blob(ref.sha256)) is None:
                self._laws.found.append(
                    f"law 4: savepoint {path.parent.name} is visible, and its {where} is not durable"
                )

    def at_put(self, store: str, data: bytes, driver: str) -> None:
        """The manifest of a savepoint in a bucket, or what keeps one away."""
        if not data.startswith(b"{"):
            return
        self._laws.at_written(f"the manifest of {store}", driver)
        manifest = decode(data)
        layout = SavepointLayout("", manifest.snapshot)
        for where, ref in manifest.blobs():
            if f"{store}/{layout.blob(ref.sha256)}" not in self._bucket.objects:
                self._laws.found.append(f"law 4: {store} is in the bucket, and its {where} is not")

    def at_rest(self) -> None:
        for order in self._given:
            there = self._is_there(order)
            if order.done and not there:
                self._laws.found.append(f"law 5: savepoint {order.place} was complete, and is gone")
            if there:
                found = locate(order.place, self._home)
                problems = found.store.verify(found.snapshot)
                if problems:
                    self._laws.found.append(f"law 5: savepoint {order.place}: {problems[0]}")
                    return
                self._check_cut(found)

    def _manifests(self) -> Iterator[bytes]:
        """Those that no loss of power can take."""
        for order in self._given:
            if order.place.startswith(BUCKET):
                found = self._bucket.objects.get(f"{order.place.removeprefix(BUCKET)}/{MANIFEST}")
                data = None if found is None else found.data
            else:
                data = self._disk.durable(f"{order.place}/{MANIFEST}")
            if data is not None and data.startswith(b"{"):
                yield data

    def newest(self, than: int) -> str | None:
        """The last savepoint, if it is newer than this snapshot: going back further would deliver its rows again."""
        place = next((order.place for order in reversed(self._given) if self._is_there(order)), None)
        return place if place is not None and locate(place, self._home).snapshot > than else None

    def _is_there(self, order: Order) -> bool:
        if order.place.startswith(BUCKET):
            return order.done
        return (Path(order.place) / MANIFEST).exists()

    def at_stop(self, order: Order, job: Job, shape: dict[str, tuple[tuple[str, ...], bool]]) -> None:
        """The job has ended with this savepoint, and nobody has started it since."""
        states = self._states(locate(order.place, self._home))
        rows = set(self._outside.rows)
        for uid, (reads, has_sink) in shape.items():
            checkpoint = stage_checkpoint(job.home, NodeId(uid))
            last = spark_checkpoint.last_committed(checkpoint)
            now = State({}, []) if last is None else State.decode((checkpoint / state_of(last)).read_bytes())
            if list(now.out) != list(states[uid].out):
                self._laws.found.append(f"law 6: {uid} has gone on after the savepoint that the job was stopped with")
            mine = {row for row in rows if row.startswith(f"{uid}.") or (not reads and row[:1] == uid)}
            if has_sink and not mine <= set(states[uid].out):
                self._laws.found.append(f"law 4: rows of {uid} are visible that its last savepoint does not have")
            for producer in reads if order.drains else ():
                if list(states[uid].read.get(producer, ())) != list(states[producer].out):
                    self._laws.found.append(f"law 10: rows from {producer} to {uid} are in flight after a drain")

    def _states(self, found: Located) -> dict[str, State]:
        states: dict[str, State] = {}
        for uid, node in found.load().nodes.items():
            nothing = node.batch is None or node.batch == NOTHING
            states[uid] = (
                State({}, []) if nothing else State.decode(found.store.read(node.files[state_of(node.batch or 0)]))
            )
        return states

    def _check_cut(self, found: Located) -> None:
        """A consumer has read a prefix of what its producer gave out, and the savepoint holds the rest of it."""
        manifest, states = found.load(), self._states(found)
        for name, record in manifest.channels.items():
            commits = content_of(ChannelId(name), record, found.where)
            for consumer, flight in record.in_flight.items():
                given, read = list(states[name].out), list(states[consumer].read.get(name, ()))
                rows = [
                    row
                    for commit in commits
                    if flight.after < commit.version <= flight.through
                    for path, _, _ in commit.files
                    for row in json.loads(found.store.read(record.content[str(path)]))
                ]
                if read + rows != given:
                    self._laws.found.append(
                        f"law 1: savepoint {found.where}: {consumer} has read {read} of {name}, {rows} are in flight, "
                        f"and {given} were given out"
                    )


def is_savepoint(path: str) -> bool:
    """Whether a manifest is that of a savepoint, by the name of its directory."""
    return Path(path).parent.name.startswith("savepoint-")
