"""`strobe explain JOB/ID`: why a snapshot took as long as it did, or why it failed, from what is on disk."""

from __future__ import annotations

import re
from typing import Final

import click
from msgspec import to_builtins
from rich.table import Table
from rich.text import Text

from strobe.cli.figures import human_bytes, human_ms, human_phase
from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.home.critical_path import Span, critical_path, missing_parts, spans_of, stuck_at
from strobe.hosts.spark.home.history import PastSnapshot, past_of_manifest, read_history, read_past
from strobe.model.errors import Misuse, StrobeError
from strobe.model.graph import Graph
from strobe.model.ids import SnapshotId
from strobe.store.jobs import check_known
from strobe.store.layout import JobLayout
from strobe.store.manifest import Manifest
from strobe.store.places import checkpoints_of
from strobe.store.snapshots import SnapshotStore

__all__ = ["cause", "explain_command", "in_one_sentence"]

_ID: Final = re.compile(r"[0-9]{1,18}")
_WIDTH: Final = 60
_NARROW: Final = 20
_MARKS: Final = {
    "start_delay": ("·", "dim"), "alignment": ("░", "yellow"), "sync": ("█", "red"), "channels": ("▒", "yellow"),
    "async": ("▓", "blue"), "prepare": ("=", "magenta"), "acknowledge": ("-", "cyan"), "manifest": ("#", "green"),
}  # fmt: skip


@click.command(
    "explain",
    cls=Command,
    examples=(
        ("strobe explain ledger/12", "why checkpoint 12 took so long, or why it failed"),
        ("strobe explain ledger", "the last one that was tried"),
    ),
)
@click.argument("snapshot", metavar="JOB/ID")
@common_options
def explain_command(snapshot: str, session: Session) -> int:
    """Say why a snapshot took as long as it did, or why it failed, and draw its timeline: which stage, in which phase,
    waiting for what.

    It is read from the job's history and from the snapshot's manifest. The job need not run, and the snapshot need not
    be kept any more. JOB alone is the last one that was tried.
    """
    job, slash, number = snapshot.partition("/")
    check_known(session.home, job)
    if slash and not _ID.fullmatch(number):
        raise Misuse(f"{snapshot!r} names no snapshot.", next="Write it as JOB/ID, for example ledger/12.")
    store = checkpoints_of(session.home, job)
    past, manifest = _find(session, job, int(number) if slash else None, store)
    graph = manifest.graph if manifest is not None else _graph_beside(past, store)
    path = critical_path(past, graph)
    sentence = in_one_sentence(past, graph, path)
    if session.json:
        session.answer(
            {
                "job": job,
                "sentence": sentence,
                **to_builtins(past),
                "path": [
                    {"stage": s.stage, "phase": s.phase, "begin_ms": round(s.begin, 3), "end_ms": round(s.end, 3),
                     "channel": s.channel, "cause": cause(s, past, graph)}
                    for s in path
                ],
                "missing": list(missing_parts(past, graph)) if past.status == "failed" else [],
            }
        )  # fmt: skip
        return 0
    session.say(sentence)
    if any(part.phases for part in past.stages.values()):
        session.say("")
        _draw(session, past)
    if path:
        session.say("")
        session.say(("what its end was waiting for", "bold"))
        for span in path:
            session.say(f"  {_moment(span.begin)} – {_moment(span.end)}  {cause(span, past, graph)}")
    return 0


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────


def _find(session: Session, job: str, number: int | None, store: SnapshotStore) -> tuple[PastSnapshot, Manifest | None]:
    file = session.home / JobLayout(job).history
    kept = [int(s) for s in store.list()]
    if number is None:
        tried = [p.snapshot for p in read_history(file)]
        number = tried[-1] if tried else kept[-1] if kept else None
    if number is None:
        raise Misuse(
            f"No snapshot of job {job!r} has been tried yet, or it was not noted.",
            next=f"Take one: strobe checkpoint {job}",
        )
    past, manifest = read_past(file, number), None
    if number in kept:
        try:
            manifest = store.load(SnapshotId(number))
        except StrobeError:
            if past is None:
                raise
    if past is not None:
        return past, manifest  # the history knows more: how long it took until the manifest was written
    if manifest is not None:
        return past_of_manifest(manifest), manifest
    tried = [p.snapshot for p in read_history(file)]
    known = f"The history goes from {min(tried)} to {max(tried)}." if tried else "The history is empty."
    if tried and number < max(tried):
        known += " A snapshot that was under way when its driver was killed is not in it."
    raise Misuse(
        f"Job {job!r} has no snapshot {number} in its history, and keeps no checkpoint {number}.",
        next=f"{known} What is there: strobe checkpoints {job} --all",
    )


def _graph_beside(past: PastSnapshot, store: SnapshotStore) -> Graph | None:
    """The graph of a kept checkpoint, if its stages are the same. A snapshot that is gone has left no graph."""
    for snapshot in reversed(store.list()):
        try:
            graph = store.load(snapshot).graph
        except StrobeError:
            continue
        return graph if set(past.stages) <= set(graph.nodes) else None
    return None


# ── in words ────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_one_sentence(past: PastSnapshot, graph: Graph | None, path: tuple[Span, ...]) -> str:
    named = f"{past.kind} {past.snapshot}"
    if past.status == "failed":
        why = past.reason.rstrip(".") or "why was not noted"
        return f"{named} failed after {human_ms(past.duration_ms)}: {why}{_where(past, graph)}."
    took = f"{named} took {human_ms(past.duration_ms)}"
    if not path:
        return f"{took}; where that time went was not noted."
    longest = max(path, key=lambda span: span.took)
    whole = max(past.duration_ms, path[-1].end)
    share = f"{human_phase(longest.took)} ({longest.took / whole:.0%}) of it" if len(path) > 1 else "all of it"
    return f"{took}, {share} because {cause(longest, past, graph)}."


def _where(past: PastSnapshot, graph: Graph | None) -> str:
    stuck, missing = stuck_at(past, graph), missing_parts(past, graph)
    if not stuck:
        return ""
    others = len(missing) - len(stuck)
    behind = f" (and {others} behind {'it' if len(stuck) == 1 else 'them'})" if others else ""
    stages = "stage" if len(stuck) == 1 else "stages"
    return f"; the part of {stages} {', '.join(map(repr, stuck))}{behind} had not come"


def cause(span: Span, past: PastSnapshot, graph: Graph | None) -> str:
    """What happened in a span, as the rest of a sentence that ends with "because"."""
    stage = f"stage {span.stage!r}"
    part = past.stages.get(span.stage)
    in_channel = f" in channel {span.channel!r}" if span.channel else ""
    match span.phase:
        case "start_delay" if graph is None:
            return f"the barrier was on its way to {stage}, or a batch of that stage was running"
        case "start_delay":  # a snapshot falls between two batches, when Spark asks what there is for the next
            return f"{stage} had yet to end its batch, or to look for the next one"
        case "alignment":
            return f"{stage} had yet to read what lay before the barrier{in_channel}"
        case "sync":
            return f"{stage} recorded itself and placed its barrier"
        case "channels":
            return f"{stage} waited for the last barrier{in_channel}"
        case "async":
            new = f", {human_bytes(part.bytes_new)} of them new" if part is not None and part.bytes_new else ""
            return f"the files of {stage} went to the store{new}"
        case "prepare":
            return f"the sinks of {stage} prepared their transactions"
        case "acknowledge":
            return f"the part of {stage} waited for the coordinator"
        case "manifest":
            return "the manifest was written, after all parts had come"
        case other:
            return f"{stage} was in its phase {other!r}"


def _moment(ms: float) -> str:
    return f"{human_phase(ms):>9}"


# ── drawn ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw(session: Session, past: PastSnapshot) -> None:
    whole = max(past.duration_ms, *(sum(part.phases.values()) for part in past.stages.values()), 0.001)
    room = session.console.width - max(map(len, (*past.stages, "(manifest)"))) - 14
    width = max(_NARROW, min(_WIDTH, room))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", overflow="ellipsis")
    table.add_column(f"0 – {human_phase(whole)}", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    for uid, part in past.stages.items():
        spans = spans_of(uid, part.phases)
        table.add_row(uid, _bar(spans, whole, width), human_phase(sum(part.phases.values())))
    if manifest := past.phases.get("manifest", 0.0):
        end = sum(took for phase, took in past.phases.items() if phase != "manifest")
        table.add_row(
            "(manifest)", _bar((Span("", "manifest", end, end + manifest),), whole, width), human_phase(manifest)
        )
    session.console.print(table)
    seen = {phase for part in past.stages.values() for phase, took in part.phases.items() if took} | (
        {"manifest"} if past.phases.get("manifest") else set()
    )
    session.say("  ".join(f"{mark} {phase.replace('_', ' ')}" for phase, (mark, _) in _MARKS.items() if phase in seen))


def _bar(spans: tuple[Span, ...], whole: float, width: int) -> Text:
    """Each cell shows the phase that took most of its time."""
    bar = Text()
    cell = whole / width
    for index in range(width):
        begin, end = index * cell, (index + 1) * cell
        shares = {s.phase: min(s.end, end) - max(s.begin, begin) for s in spans}
        phase = max(shares, key=lambda name: shares[name], default="")
        mark, style = _MARKS.get(phase, ("?", "")) if phase and shares[phase] > 0 else (" ", "")
        bar.append(mark, style)
    return bar
