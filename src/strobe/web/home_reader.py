"""The jobs of a home, running or not: what is durable, and what a running one says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from strobe.hosts.spark.home.listing import summarise
from strobe.model.errors import Misuse, StrobeError
from strobe.model.redaction import redact
from strobe.model.suggest import did_you_mean
from strobe.store.jobs import jobs_in
from strobe.store.layout import JobLayout
from strobe.store.manifest import Manifest
from strobe.store.runtime import UNKNOWN, Runtime, read_runtime
from strobe.store.small_files import read_object
from strobe.web.drawing import Link, draw
from strobe.web.home_place import HomePlace
from strobe.web.snapshot_reader import SnapshotReader, links_of, nodes_of
from strobe.web.statuses import Asked, Statuses
from strobe.web.views import BarrierView, ChannelView, JobRow, JobView, StageView

__all__ = ["HomeReader"]

_OWN: Final = ("uid", "state", "error")  # of a stage's status: what is not a figure
_NOT_FACTS: Final = ("job", "state", "stages", "checkpoints", "sinks", "channels", "barriers", "error", "seconds")


class HomeReader:
    """Safe to use from several threads."""

    def __init__(self, place: HomePlace, statuses: Statuses, snapshots: SnapshotReader) -> None:
        self.home = place.directory
        self._place = place
        self._statuses = statuses
        self._snapshots = snapshots
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="reading")

    def kind(self, name: str) -> str:
        """`spark` or `live`; Misuse if nothing of that name has ever run here."""
        known = self.names()
        if name not in known:
            raise Misuse(
                f"There is no job {name!r} in {self._place.shown}.",
                untouched="Nothing was changed.",
                next=f"{did_you_mean(name, known)}The jobs there: {', '.join(known) or 'none'}.",
            )
        return self._runtime(name).kind

    def names(self) -> tuple[str, ...]:
        """The names of all jobs and live systems."""
        self._place.refresh()
        return jobs_in(self.home)

    def jobs(self) -> list[JobRow]:
        """All jobs and live systems; those that run are asked in parallel."""
        return list(self._pool.map(lambda name: self.row(name)[0], self.names()))

    def row(self, name: str) -> tuple[JobRow, Asked]:
        runtime = self._runtime(name)
        kind = runtime.kind
        try:
            summary = summarise(self.home, name, self._snapshots.kept)
        except (StrobeError, OSError) as error:
            return JobRow(name, kind, "unknown", False, error=str(error)), Asked(None)
        asked = Asked(None)
        if summary.live:
            asked = self._statuses.system(name) if kind == "live" else self._statuses.job(name)
        else:
            self._statuses.forget(name)
        status = asked.status or {}
        stages = status.get("nodes" if kind == "live" else "stages")
        invariants = [i for i in status.get("invariants") or () if isinstance(i, dict)]
        return JobRow(
            name=name,
            kind=kind,
            state=self._state(summary.state, status, asked),
            live=summary.live,
            started=summary.started,
            ended=runtime.ended,
            error=redact(str(status.get("error") or summary.error)),
            trouble=asked.trouble,
            incarnation=summary.incarnation if kind == "spark" else status.get("incarnation"),
            stages=len(stages) if isinstance(stages, list) else self._stage_count(name),
            lag_rows=_lag(stages, "queued" if kind == "live" else "lag_rows"),
            last=self._snapshots.last(name),
            retained=None if summary.checkpoints is None else list(summary.checkpoints),
            invariants=len(invariants),
            violated=sum(i.get("outcome") == "violated" for i in invariants),
        ), asked

    def job(self, name: str) -> JobView:
        self.kind(name)
        row, asked = self.row(name)
        manifest = self._snapshots.newest(name)
        status = asked.status or {}
        descriptions = self._descriptions(name)
        stages, links, channels, known_by = _graph(status, manifest)
        barriers = _convert(status.get("barriers", []), list[BarrierView]) or []
        held = {b.stage for b in barriers if b.phase == "aligning" and b.arrived}
        sinks = [s for s in status.get("sinks", []) if isinstance(s, dict)]
        runtime = self._runtime(name)
        return JobView(
            job=row,
            drawing=draw(stages, links),
            known_by=known_by,
            stages=[
                _stage(
                    uid,
                    _of(status, uid),
                    held,
                    row,
                    descriptions.get(uid),
                    manifest,
                    dict(runtime.settings.get(uid, {})),
                )
                for uid in stages
            ],
            channels=channels,
            barriers=barriers,
            sinks=sinks,
            under_way=[p for p in status.get("checkpoints", []) if p.get("status") == "in progress"],
            facts={k: v for k, v in status.items() if k not in _NOT_FACTS},
            target=runtime.target,
            sampled=time.time() if status else 0.0,
        )

    def _state(self, state: str, status: Mapping[str, Any], asked: Asked) -> str:
        if self._place.in_bucket:
            return "elsewhere"
        return "silent" if asked.trouble and state == "running" else str(status.get("state", state))

    def _runtime(self, name: str) -> Runtime:
        try:
            return read_runtime(self.home, name) or UNKNOWN
        except (StrobeError, OSError):
            return UNKNOWN

    def _descriptions(self, name: str) -> Mapping[str, dict[str, Any]]:
        """What each stage was when it last started: operators, sources, schema."""
        try:
            stages = read_object(self.home / JobLayout(name).incarnation).get("stages", {})
            return {uid: d for uid, d in stages.items() if isinstance(d, dict)}
        except (OSError, ValueError, AttributeError):
            return {}

    def _stage_count(self, name: str) -> int | None:
        manifest = self._snapshots.newest(name)
        return None if manifest is None else len(manifest.graph.nodes)


def _lag(stages: Any, name: str) -> int | None:
    if not isinstance(stages, list):
        return None
    counted = [s.get(name) for s in stages if isinstance(s, dict)]
    known = [n for n in counted if isinstance(n, int)]
    return sum(known) if known else None


def _of(status: Mapping[str, Any], uid: str) -> dict[str, Any]:
    return next((s for s in status.get("stages", []) if s.get("uid") == uid), {})


def _graph(
    status: Mapping[str, Any], manifest: Manifest | None
) -> tuple[list[str], list[Link], list[ChannelView], str]:
    """The graph as the running job says; if it does not run, as its newest snapshot does."""
    in_flight = _in_flight(manifest)
    told = _convert(status.get("channels"), list[ChannelView])
    if status and told is not None:
        channels = [
            msgspec.structs.replace(c, rows_waiting=None, commits_waiting=None)
            if c.chained
            else msgspec.structs.replace(c, rows_in_flight=in_flight.get((c.producer, c.consumer)))
            for c in told
        ]
        links = [Link(c.producer, c.consumer, c.feedback) for c in channels]
        return [str(s["uid"]) for s in status.get("stages", [])], links, channels, "job"
    if manifest is not None:
        links = links_of(manifest)
        views = [
            ChannelView(
                link.source, link.target, link.feedback, rows_in_flight=in_flight.get((link.source, link.target))
            )
            for link in links
        ]
        return list(map(str, nodes_of(manifest))), links, views, "snapshot"
    return [str(s["uid"]) for s in status.get("stages", [])], [], [], "job" if status else ""


def _in_flight(manifest: Manifest | None) -> dict[tuple[str, str], int]:
    if manifest is None:
        return {}
    return {
        (channel.producer, consumer): flight.rows
        for channel in manifest.channels.values()
        for consumer, flight in channel.in_flight.items()
        if flight.rows is not None
    }


def _stage(
    uid: str,
    status: Mapping[str, Any],
    held: set[str],
    row: JobRow,
    description: dict[str, Any] | None,
    manifest: Manifest | None,
    settings: Mapping[str, str],
) -> StageView:
    figures = {k: v for k, v in status.items() if k not in _OWN and v != ""}
    if manifest is not None and uid in manifest.nodes and "state_bytes" not in figures:
        figures["snapshot_bytes"] = manifest.nodes[uid].bytes_total  # type: ignore[index]
    sinks = [] if manifest is None else [name for name in manifest.sinks if name.split("/")[0] == uid]
    return StageView(
        uid=uid,
        mood=_mood(uid, status, held, row),
        state=str(status.get("state", "" if row.live else "not running")),
        error=redact(str(status.get("error", ""))),
        figures=figures,
        description=description or {},
        sinks=sinks,
        settings=dict(settings),
    )


def _mood(uid: str, status: Mapping[str, Any], held: set[str], row: JobRow) -> str:
    state = status.get("state")
    if state in ("restarting", "failed", "ended"):
        return str(state)
    if state != "running":
        return "unknown"
    if uid in held:
        return "held"
    busy = status.get("busy")
    if isinstance(busy, int | float):
        return "busy" if busy >= 0.05 else "idle"
    return "busy" if status.get("rows_in") or status.get("lag_rows") else "idle"


def _convert(value: Any, kind: Any) -> Any:
    """None if it does not fit: a job of another version may answer in another form."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return None
