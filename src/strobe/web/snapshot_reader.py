"""Snapshots of a home: the history of a job, and one snapshot in full, from its manifest if that is kept.

Files that are read again and again (the history, manifests) are read again only when they have changed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Set
from pathlib import Path
from typing import Any, Final

from strobe.hosts.spark.home.history import (
    PastFigures,
    PastSnapshot,
    PastStage,
    past_of_manifest,
    read_history,
    read_past,
)
from strobe.model.cut import Cut
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.text import shortened
from strobe.store.chained import chained_links
from strobe.store.codec import root_of
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import MANIFEST, JobLayout
from strobe.store.locate import Located, in_job, locate
from strobe.store.manifest import Manifest
from strobe.store.places import checkpoints_of
from strobe.store.times import utc_seconds
from strobe.web.drawing import Link, draw
from strobe.web.views import (
    Drawing,
    LastSnapshot,
    NodePart,
    Position,
    SinkPart,
    SnapshotPage,
    SnapshotRow,
    SnapshotView,
)

__all__ = ["SnapshotReader", "drawing_of", "links_of", "nodes_of"]

_FRESH: Final = 0.3  # seconds for which a list of what is kept counts
_FRESH_IN_BUCKET: Final = 10.0
_POINTS: Final = 2000  # of a chart
_LONGEST: Final = 4000  # characters of a value that is shown


class SnapshotReader:
    """Safe to use from several threads."""

    def __init__(self, home: Path, in_bucket: bool = False) -> None:
        """`in_bucket`: the home has only notes of where checkpoints are."""
        self._home = home
        self._channels = None if in_bucket else home
        self._lock = threading.Lock()
        self._histories: dict[str, tuple[tuple[int, int], list[PastFigures]]] = {}
        self._manifests: dict[tuple[str, int], Manifest] = {}
        self._kept: dict[str, tuple[float, list[int] | None]] = {}

    # ── the history ─────────────────────────────────────────────────────────────────────────────────────────────────

    def history(self, job: str) -> list[PastFigures]:
        """All snapshots that were tried, oldest first, including kept ones that are not in the history."""
        path = self._home / JobLayout(job).history
        try:
            about = path.stat()
        except OSError:
            return [*self._kept_only(job)]
        stamp = (about.st_mtime_ns, about.st_size)
        with self._lock:
            known = self._histories.get(job)
        if known is None or known[0] != stamp:
            known = (stamp, read_history(path))
            with self._lock:
                self._histories[job] = known
        missing = self._kept_only(job, {p.snapshot for p in known[1]})
        return sorted([*known[1], *missing], key=lambda p: p.started) if missing else known[1]

    def kept(self, job: str) -> list[int] | None:
        """The checkpoints that are kept; None if their store cannot be asked. A bucket is listed only now and then."""
        now = time.monotonic()
        with self._lock:
            until, known = self._kept.get(job, (0.0, None))
        if now < until:
            return known
        try:
            store = checkpoints_of(self._home, job)
            found: list[int] | None = list(store.list())
            fresh = _FRESH if isinstance(store.objects, FilesystemStore) else _FRESH_IN_BUCKET
        except (StrobeError, OSError):
            found, fresh = None, _FRESH_IN_BUCKET
        with self._lock:
            self._kept[job] = (time.monotonic() + fresh, found)
        return found

    def forget(self, job: str) -> None:
        """Called when the kept snapshots have changed."""
        with self._lock:
            self._kept.pop(job, None)

    def page(self, job: str, before: int | None, limit: int) -> SnapshotPage:
        """A page of the history: at most `limit` snapshots, `before` that one."""
        past = self.history(job)
        kept = {*(self.kept(job) or ()), *self._savepoints(job)}
        older = [p for p in past if before is None or p.snapshot < before]
        rows = [self._row(p, p.snapshot in kept and p.status == "complete") for p in reversed(older[-limit:])]
        failed = sum(p.status != "complete" for p in past)
        return SnapshotPage(job, len(past), failed, rows, _chart(past))

    def last(self, job: str) -> LastSnapshot | None:
        past = self.history(job)
        if not past:
            return None
        p = past[-1]
        return LastSnapshot(p.snapshot, p.kind, p.status, p.ended, p.duration_ms)

    def newest(self, job: str) -> Manifest | None:
        """The manifest of the newest checkpoint that is kept and can be read."""
        for snapshot in reversed(self.kept(job) or []):
            try:
                return self._load(in_job(checkpoints_of(self._home, job), SnapshotId(snapshot), self._channels))
            except (StrobeError, OSError):
                continue
        return None

    # ── one snapshot ────────────────────────────────────────────────────────────────────────────────────────────────

    def one(self, job: str, snapshot: int) -> SnapshotView:
        """One snapshot, from its manifest or else from the history; Misuse if it is in neither."""
        past = read_past(self._home / JobLayout(job).history, snapshot)
        found = self.place(job, snapshot)
        if found is not None:
            return self._whole(found, past)
        if past is None:
            known = self.kept(job) or []
            raise Misuse(
                f"Job {job!r} has no snapshot {snapshot}.",
                untouched="Nothing was changed.",
                next=f"Those that are kept: {', '.join(map(str, known)) or 'none'}.",
            )
        nodes = [_past_part(uid, part) for uid, part in past.stages.items()]
        return SnapshotView(job, "spark", past, kept=False, nodes=nodes)

    def place(self, job: str, snapshot: int) -> Located | None:
        """Where it is kept, as a checkpoint or as a savepoint in the job's home."""
        if snapshot in (self.kept(job) or ()):
            return in_job(checkpoints_of(self._home, job), SnapshotId(snapshot), self._channels)
        path = self._home / JobLayout(job).savepoint(SnapshotId(snapshot))
        return locate(str(path), self._home) if (path / MANIFEST).is_file() else None

    def _savepoints(self, job: str) -> tuple[int, ...]:
        above = (self._home / JobLayout(job).savepoint(SnapshotId(1))).parent
        names = [p.name for p in above.iterdir()] if above.is_dir() else []
        return tuple(int(n.partition("-")[2]) for n in names if n.startswith("sav-") and n[4:].isdecimal())

    def _load(self, found: Located) -> Manifest:
        """Load a manifest, once: it never changes, and the number of a deleted one is never used again."""
        key = (found.where, int(found.snapshot))
        with self._lock:
            known = self._manifests.get(key)
        if known is None:
            known = found.load()
            with self._lock:
                while len(self._manifests) > 20:
                    del self._manifests[next(iter(self._manifests))]
                self._manifests[key] = known
        return known

    def _kept_only(self, job: str, noted: Set[int] = frozenset()) -> list[PastSnapshot]:
        """Snapshots that are kept but not in the history."""
        past = []
        for snapshot in self.kept(job) or []:
            if snapshot in noted:
                continue
            try:
                past.append(
                    past_of_manifest(
                        self._load(in_job(checkpoints_of(self._home, job), SnapshotId(snapshot), self._channels))
                    )
                )
            except (StrobeError, OSError) as error:
                why = error.what if isinstance(error, StrobeError) else str(error)
                past.append(PastSnapshot(snapshot, "checkpoint", "unreadable", "", "", 0, 0, reason=why))
        return past

    def _row(self, p: PastFigures, kept: bool) -> SnapshotRow:
        return SnapshotRow(
            p.snapshot, p.kind, p.status, p.started, p.ended, p.incarnation, p.timeline, p.duration_ms, p.phases,
            p.slowest, p.bytes_new, p.bytes_total, p.rows_in_flight, p.reason, kept,
        )  # fmt: skip

    def _whole(self, found: Located, past: PastSnapshot | None) -> SnapshotView:
        manifest = self._load(found)
        states, messages = _live_content(found, manifest) if manifest.host == "live" else ({}, {})
        return SnapshotView(
            manifest.job,
            manifest.host,
            past or past_of_manifest(manifest),
            kept=True,
            mode=manifest.mode,
            root=root_of(manifest),
            where=found.where,
            drawing=drawing_of(manifest),
            nodes=[
                NodePart(
                    uid,
                    node.phases,
                    node.duration_ms or 0.0,
                    node.batch,
                    node.partitions,
                    node.state_rows,
                    len(node.files),
                    node.bytes_new,
                    node.bytes_total,
                    node.output,
                    {str(c): p for c, p in node.inputs.items()},
                    _text(node.offsets),
                )
                for uid, node in manifest.nodes.items()
            ],
            positions=[
                Position(name, consumer, channel.barrier, flight.after, flight.rows)
                for name, channel in manifest.channels.items()
                for consumer, flight in channel.in_flight.items()
            ],
            sinks=[
                SinkPart(name, handle, _text(data))
                for name, sink in manifest.sinks.items()
                for handle, data in ((None, sink.position), *((each.handle, each.data) for each in sink.prepared))
            ],
            content=states,
            in_flight=messages,
        )


def links_of(manifest: Manifest) -> list[Link]:
    """All links, including those from chained stages."""
    chained = [Link(uid, reader, False) for uid, reader in chained_links(manifest).items()]
    return [*chained, *(Link(c.source, c.target, c.feedback) for c in manifest.graph.channels)]


def nodes_of(manifest: Manifest) -> list[NodeId]:
    """All nodes, including chained stages."""
    return [*chained_links(manifest), *manifest.graph.nodes]


def drawing_of(manifest: Manifest) -> Drawing:
    return draw(nodes_of(manifest), links_of(manifest))


def _past_part(uid: str, part: PastStage) -> NodePart:
    return NodePart(
        uid, part.phases, sum(part.phases.values()), part.batch, None, part.state_rows, None, part.bytes_new,
        part.bytes_total,
    )  # fmt: skip


def _live_content(found: Located, manifest: Manifest) -> tuple[dict[str, str], dict[str, str]]:
    from strobe.hosts.live.snapshot.snapshots import load, to_cut  # only snapshots of live processes need it

    cut: Cut = to_cut(load(found.store, found.snapshot, manifest.graph), manifest.graph)
    return (
        {node: _text(state) for node, state in cut.states.items()},
        {c: _text([m.payload for m in content]) for c, content in cut.channels.items() if content},
    )


def _text(value: Any) -> str:
    """A value for people to read, as JSON."""
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False, indent=1 if isinstance(value, dict) else None, default=str)
    return shortened(text, _LONGEST)


def _chart(past: list[PastFigures]) -> dict[str, list[float]]:
    """Duration and sizes over time. Of a long history it shows the slowest of each stretch, so that no peak is lost."""
    whole = [p for p in past if p.started]
    step = max(1, -(-len(whole) // _POINTS))
    chosen = [
        max(whole[i : i + step], key=lambda p: (p.status != "complete", p.duration_ms))
        for i in range(0, len(whole), step)
    ]
    return {
        "time": [_seconds(p.started) for p in chosen],
        "snapshot": [float(p.snapshot) for p in chosen],
        "duration_ms": [p.duration_ms for p in chosen],
        "bytes_new": [float(p.bytes_new) for p in chosen],
        "bytes_total": [float(p.bytes_total) for p in chosen],
        "failed": [float(p.status != "complete") for p in chosen],
    }


def _seconds(time: str) -> float:
    try:
        return utc_seconds(time)
    except ValueError:
        return 0.0
