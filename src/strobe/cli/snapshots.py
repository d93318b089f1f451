"""`strobe inspect` and `strobe verify`: snapshots, without the job that took them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

import click
from rich.table import Table

from strobe.cli.figures import human_bytes, human_ms, human_phase
from strobe.cli.live_view import shown_phases
from strobe.cli.output import Command, Session, common_options
from strobe.model.cut import Cut, Json
from strobe.model.ids import NodeId
from strobe.model.text import shortened
from strobe.store.chained import chained_in
from strobe.store.check import check_root
from strobe.store.codec import root_of
from strobe.store.consistency import check_manifest
from strobe.store.locate import Located, locate
from strobe.store.manifest import Manifest
from strobe.store.signing import SIGNED_BY
from strobe.store.times import milliseconds_between

__all__ = ["inspect_command", "verify_command"]

_ROOM_FOR_STAGES: Final = 100  # columns
_TWO_LINES: Final = {
    "partitions": "parti-\ntions",
    "state rows": "state\nrows",
    "start delay": "start\ndelay",
    "alignment": "align-\nment",
    "acknowledge": "acknow-\nledge",
}


@click.command(
    "inspect",
    cls=Command,
    examples=(
        ("strobe inspect ledger", "the newest checkpoint of job ledger"),
        ("strobe inspect ledger/12", "checkpoint 12"),
        ("strobe inspect .strobe/jobs/ledger/snapshots/chk-000012", "by its directory"),
        ("strobe inspect ledger/12 --export there", "its state and rows in flight, as Parquet files"),
    ),
)
@click.argument("snapshot")
@click.option("--export", "directory", metavar="DIR", help="Write state and rows in flight there, as Parquet.")
@common_options
def inspect_command(snapshot: str, directory: str | None, session: Session) -> int:
    """Show what a snapshot holds: stages, positions, sizes, what is in flight."""
    found = locate(snapshot, session.home)
    manifest = found.load()
    if directory is not None:
        from strobe.cli.export import export  # only this needs Spark

        return export(session, found, directory)
    if session.json:
        session.answer({**_as_json(found, manifest), **(_live_json(found) if manifest.host == "live" else {})})
        return 0
    session.say(
        (f"{manifest.kind.value} {manifest.snapshot}", "bold"), f" of job {manifest.job}, {manifest.mode}, "
        f"timeline {manifest.timeline}, incarnation {manifest.incarnation}",
    )  # fmt: skip
    session.say(f"started {manifest.started}, complete {manifest.completed}")
    session.say(f"root {root_of(manifest)}")
    session.say(f"at   {found.where}")
    if manifest.host == "live":
        _show_live(session, found, manifest)
        return 0
    narrow = session.console.width < _ROOM_FOR_STAGES
    session.console.print(_stages(manifest, narrow=narrow))
    for uid, host in chained_in(manifest).items():
        session.say(f"stage {uid} is chained: the query of {host} computes it, and knows where it stands")
    session.say(("where the time went", "bold"))
    session.console.print(_phases(manifest, narrow=narrow))
    if (slowest := _slowest(manifest)) is not None:
        whole = _whole(manifest)
        session.say(
            f"until its manifest was written, the {manifest.kind.value} took {human_ms(whole['duration'])}: "
            f"{human_ms(whole['stages'])} until the part of {slowest}, the slowest, was there, and "
            f"{human_phase(whole['manifest'])} to put the parts together"
        )
    if manifest.channels:
        session.console.print(_channels(manifest))
    for name, sink in manifest.sinks.items():
        session.say(f"sink {name}: {_in_words(sink.position)}")
        for item in sink.prepared:
            session.say(f"sink {name}: prepared {item.handle}, {_in_words(item.data)}")
    return 0


@click.command(
    "verify",
    cls=Command,
    examples=(
        ("strobe verify ledger", "the newest checkpoint: every byte, and law 1"),
        ("strobe verify ledger/12 --root 5f2c…", "and that it is the one whose root was noted"),
        ("strobe verify /backup/ledger --signed-by strobe.pub", "and that the holder of that key has made it"),
    ),
)
@click.argument("snapshot")
@click.option("--root", metavar="HASH", help="The Merkle root that the snapshot must have.")
@click.option("--signed-by", metavar="KEY", envvar=SIGNED_BY, show_envvar=True,
              help="The public key (a PEM file, or env:NAME) that the snapshot must be signed by.")  # fmt: skip
@common_options
def verify_command(snapshot: str, root: str | None, signed_by: str | None, session: Session) -> int:
    """Check every byte of a snapshot, and that it is a consistent cut."""
    root = None if root is None else check_root(root, "--root")
    found = locate(snapshot, session.home, signed_by=signed_by)
    problems = found.store.verify(found.snapshot, root)
    harmful = [p for p in problems if p.harmful]
    violations = () if harmful else check_manifest(found.load())
    sentences = [*map(str, harmful), *(v.sentence for v in violations)]
    if session.json:
        session.answer(
            {
                "snapshot": found.snapshot,
                "where": str(found.where),
                "sound": not sentences,
                "problems": sentences,
                "notes": [str(p) for p in problems if not p.harmful],
                **({} if harmful else _checked(found.load())),
            }
        )
        return 1 if sentences else 0
    for sentence in sentences:
        session.say(("✗ ", "red"), sentence)
    for note in (p for p in problems if not p.harmful):
        session.say(("· ", "yellow"), str(note))
    if sentences:
        session.say(f"snapshot {found.snapshot} is not sound; nothing was changed. Restore another one.")
        return 1
    checked = _checked(found.load())
    session.say(
        ("✓ ", "green"), f"snapshot {found.snapshot}: {checked['files']:,} files, "
        f"{human_bytes(checked['bytes'])}, every byte as written; a consistent cut"
        f"{'' if signed_by is None else f'; signed by {signed_by}'}",
    )  # fmt: skip
    session.say(f"  root {checked['root']}")
    return 0


def _checked(manifest: Manifest) -> dict[str, Any]:
    return {"root": root_of(manifest), "files": sum(1 for _ in manifest.blobs()), "bytes": manifest.bytes_total}


def _stages(manifest: Manifest, *, narrow: bool) -> Table:
    """On a narrow terminal headings take two lines, so that there is room for the names of stages."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage" if manifest.host == "spark" else "node", overflow="ellipsis")
    for name in ("batch", "partitions", "state rows", "files", "size", "new"):
        table.add_column(_TWO_LINES.get(name, name) if narrow else name, justify="right", no_wrap=True)
    for uid, node in manifest.nodes.items():
        table.add_row(
            uid,
            "–" if node.batch is None or node.batch < 0 else str(node.batch),
            "–" if node.partitions is None else str(node.partitions),
            "–" if node.state_rows is None else f"{node.state_rows:,}",
            str(len(node.files)),
            human_bytes(node.bytes_total),
            human_bytes(node.bytes_new),
        )
    return table


def _in_words(value: Json) -> str:
    """A sink's position, which may be any JSON, in words: `path /out, version 4, letters (timeline 1, batch 2)`."""
    if isinstance(value, dict):
        told = {k: v for k, v in sorted(value.items(), key=lambda item: item[0] != "path") if v is not None}
        return ", ".join(
            f"{k} ({_in_words(v)})" if isinstance(v, dict) else f"{k} {_in_words(v)}" for k, v in told.items()
        )
    if isinstance(value, list):
        return " ".join(f"({_in_words(v)})" if isinstance(v, list | dict) else _in_words(v) for v in value) or "none"
    return "nothing to go back to" if value is None else str(value)


def _phases(manifest: Manifest, *, narrow: bool) -> Table:
    """For each stage the phases of its part, which add up to what it took. Older versions of Strobe noted only
    three."""
    measured = all(node.timing is not None for node in manifest.nodes.values())
    rows = {
        uid: node.phases if measured else {"alignment": node.alignment_ms, "sync": node.sync_ms, "async": node.async_ms}
        for uid, node in manifest.nodes.items()
    }
    names = shown_phases(*rows.values())
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", overflow="ellipsis")
    for name in (*(("took",) if measured else ()), *(name.replace("_", " ") for name in names)):
        table.add_column(_TWO_LINES.get(name, name) if narrow else name, justify="right", no_wrap=True)
    for uid, phases in rows.items():
        took = (human_ms(sum(phases.values())),) if measured else ()
        table.add_row(uid, *took, *(human_phase(phases[name]) for name in names))
    return table


def _slowest(manifest: Manifest) -> NodeId | None:
    """The stage whose part came last; None if that was not measured."""
    took = {uid: node.duration_ms for uid, node in manifest.nodes.items()}
    return None if None in took.values() else max(took, key=lambda uid: took[uid] or 0.0)


def _whole(manifest: Manifest) -> dict[str, float]:
    """How long the snapshot took until its manifest was put together: until the last part was there, and from then."""
    slowest = _slowest(manifest)
    if slowest is None:
        return {}
    stages = manifest.nodes[slowest].duration_ms or 0.0
    # The wall clock may have been set meanwhile; the stages measure with a monotonic clock.
    duration = max(milliseconds_between(manifest.started, manifest.completed), stages)
    return {"duration": duration, "stages": stages, "manifest": duration - stages}


def _channels(manifest: Manifest) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("channel", overflow="ellipsis")
    table.add_column("read by", overflow="ellipsis")
    for name in ("barrier at", "read up to", "in flight (rows)"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, channel in manifest.channels.items():
        for consumer, flight in channel.in_flight.items():
            table.add_row(name, consumer, str(channel.barrier), str(flight.after), f"{flight.rows or 0:,}")
    return table


def _cut(found: Located) -> Cut:
    from strobe.hosts.live.snapshot.snapshots import load, to_cut  # only snapshots of live processes need it

    graph = found.load().graph
    return to_cut(load(found.store, found.snapshot, graph), graph)


def _live_json(found: Located) -> dict[str, object]:
    cut = _cut(found)
    return {
        "states": dict(cut.states),
        "messages": {channel: [message.payload for message in content] for channel, content in cut.channels.items()},
    }


def _show_live(session: Session, found: Located, manifest: Manifest) -> None:
    """Nodes with their states, and what is in flight: small enough, as a rule, to be read."""
    from strobe.hosts.live.snapshot.snapshots import closed_ms

    cut = _cut(found)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", no_wrap=True)
    for name in ("size", "gap", "alignment", "in flight to it"):
        table.add_column(name, justify="right", no_wrap=True)
    for uid, node in manifest.nodes.items():
        waiting = sum(len(cut.channels[channel]) for channel in manifest.graph.inputs(uid))
        figures = (human_bytes(node.bytes_total), f"{node.sync_ms:.1f} ms", human_ms(closed_ms(node)))
        table.add_row(uid, *figures, f"{waiting:,}")
    session.console.print(table)
    for uid, state in cut.states.items():
        session.say((uid, "bold"), f" {_line(state)}")
    for channel, content in cut.channels.items():
        if content:
            session.say((channel, "bold"), f" in flight: {_line([message.payload for message in content])}")


def _line(value: Json, limit: int = 500) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), limit)


def _as_json(found: Located, manifest: Manifest) -> dict[str, object]:
    return {
        "snapshot": manifest.snapshot,
        "kind": manifest.kind.value,
        "job": manifest.job,
        "where": str(found.where),
        "mode": manifest.mode,
        "timeline": manifest.timeline,
        "incarnation": manifest.incarnation,
        "started": manifest.started,
        "completed": manifest.completed,
        "root": root_of(manifest),
        "stages": {
            uid: {**asdict(node), "files": len(node.files), "phases": node.phases, "duration_ms": node.duration_ms}
            for uid, node in manifest.nodes.items()
        },
        "chained": chained_in(manifest),
        "slowest": _slowest(manifest),
        **{f"{name}_ms": took for name, took in _whole(manifest).items()},
        "channels": {
            name: {
                "producer": channel.producer,
                "barrier": channel.barrier,
                "in_flight": {node: asdict(flight) for node, flight in channel.in_flight.items()},
            }
            for name, channel in manifest.channels.items()
        },
        "sinks": {name: asdict(sink) for name, sink in manifest.sinks.items()},
        "bytes_new": manifest.bytes_new,
        "bytes_total": manifest.bytes_total,
        "rows_in_flight": manifest.rows_in_flight,
    }
