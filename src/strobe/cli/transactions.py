"""`strobe transactions`: what sinks that deliver on snapshot have prepared, made visible and thrown away.

Read from the ledgers in the job's home, so it works while the job runs and when it does not. A part that a complete
snapshot names and that is not known to be visible is *in doubt*; the next start commits it, and the sink may say what a
person can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.commit.ledger import Entry, Ledger, PartState, named_handles, read_ledgers
from strobe.hosts.spark.connectors.origin import position_number
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.store.holding import is_held
from strobe.store.jobs import jobs_in
from strobe.store.locate import locate
from strobe.store.manifest import Manifest
from strobe.store.places import checkpoints_of
from strobe.store.releases import holds_back, released_up_to

__all__ = ["transactions_command"]

_COLOURS = {"committed": "green", "in doubt": "red", "held": "bold red", "prepared": "yellow", "preparing": "yellow"}
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Line:
    """One part of one sink. `state` is the ledger's word, or `unknown` if there is no ledger that knows it."""

    sink: str
    snapshot: int
    state: str
    handle: str
    after: int
    through: int
    where: str
    time: str = ""
    decided_by: int | None = None
    by_hand: str = ""

    def as_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in self.__slots__}


@click.command(
    "transactions",
    cls=Command,
    examples=(
        ("strobe transactions ledger", "what each sink of the job has prepared, committed, thrown away"),
        ("strobe transactions ledger/12", "what checkpoint 12 names, and what became of it"),
        ("strobe transactions /backup/before-upgrade", "the same for a savepoint"),
    ),
)
@click.argument("target", metavar="JOB|SNAPSHOT")
@common_options
def transactions_command(target: str, session: Session) -> None:
    """Show the work of sinks that deliver on snapshot: prepared, held, in doubt, committed, aborted.

    In doubt is a part that a complete snapshot names and that is not known to be visible yet. Nothing is lost by that:
    the job commits it, now or when it is run again. This shows it, and what can be done by hand.
    """
    if target in jobs_in(session.home):
        job, manifest = target, None
        lines = _of_job(session.home, job)
    else:
        found = locate(target, session.home)
        manifest = found.load()
        job = manifest.job
        lines = _of_snapshot(manifest, found.home or session.home)
    runs = job in jobs_in(session.home) and is_held(session.home, job)
    if session.json:
        answer: dict[str, Json] = {"job": job, "running": runs, "parts": [line.as_json() for line in lines]}
        session.answer(answer if manifest is None else {**answer, "snapshot": manifest.snapshot})
        return
    of = f"job {job}" if manifest is None else f"{manifest.kind.value} {manifest.snapshot} of job {job}"
    if not lines:
        session.say(
            f"No part of any sink is on record for {of}: none of its sinks delivers on snapshot, or none had rows."
        )
        return
    session.say((of, "bold"), "" if runs else "  (not running)")
    session.console.print(_table(lines))
    _explain(session, lines, job, runs=runs)


def _of_job(home: Path, job: str) -> list[_Line]:
    named = _named(home, job)
    return [
        _line(ledger, entry, named)
        for ledger in read_ledgers(home, job).values()
        for entry in (*ledger.done, *ledger.entries)
    ]


def _of_snapshot(manifest: Manifest, home: Path) -> list[_Line]:
    if manifest.host != "spark":
        raise Misuse(
            f"Snapshot {manifest.snapshot} is one of live processes, which have no sinks.",
            untouched="Nothing was changed.",
            next="Name a job or a snapshot of a pipeline.",
        )
    ledgers = read_ledgers(home, manifest.job) if manifest.job in jobs_in(home) else {}
    named = {handle: manifest.snapshot for handles in named_handles(manifest).values() for handle in handles}
    lines = []
    for sink, record in manifest.sinks.items():
        for item in record.prepared:
            if not isinstance(item.data, Mapping):
                continue
            ledger = ledgers.get(sink)
            entry = ledger.find(item.handle) if ledger is not None else None
            if ledger is not None and entry is not None:
                lines.append(_line(ledger, entry, named))
            else:
                after, through, snapshot = (
                    position_number(item.data.get(name), name) for name in ("after", "through", "snapshot")
                )
                # A ledger forgets old parts that were committed, and none that were thrown away.
                state = _UNKNOWN if ledger is None else PartState.COMMITTED.value
                lines.append(_Line(sink, snapshot, state, item.handle, after, through, str(item.data.get("where", ""))))
    return lines


def _named(home: Path, job: str) -> dict[str, int]:
    """The newest kept checkpoint that names each handle; those that cannot be read name none."""
    found: dict[str, int] = {}
    released = released_up_to(home, job)
    try:
        store = checkpoints_of(home, job)
        for snapshot in store.list():
            manifest = store.load(snapshot)
            if holds_back(manifest) and snapshot > released:
                continue  # its parts wait for a verdict: the ledger says what is known of it
            for handles in named_handles(manifest).values():
                found.update(dict.fromkeys(handles, snapshot))
    except StrobeError:
        return found
    return found


def _line(ledger: Ledger, entry: Entry, named: Mapping[str, int]) -> _Line:
    part, state, decided = entry.part, entry.state, entry.decided_by
    if state is PartState.PREPARED and entry.handle in named:
        state, decided = PartState.DECIDED, None  # the driver died before it was noted in the ledger
    by = decided if decided is not None else named.get(entry.handle)
    return _Line(
        ledger.sink, part.snapshot, state.value, entry.handle, part.after, part.through, entry.where, entry.changed, by,
        entry.by_hand,
    )  # fmt: skip


def _table(lines: Iterable[_Line]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("sink", "snapshot", "state", "batches", "named by", "since"):
        table.add_column(name, justify="right" if name in ("snapshot", "batches", "named by") else "left", no_wrap=True)
    for line in lines:
        batches = str(line.through) if line.through == line.after + 1 else f"{line.after + 1}–{line.through}"
        by = "–" if line.decided_by is None else str(line.decided_by)
        state = Text(line.state, style=_COLOURS.get(line.state, ""))
        table.add_row(line.sink, str(line.snapshot), state, batches, by, line.time or "–")
    return table


def _explain(session: Session, lines: Iterable[_Line], job: str, *, runs: bool) -> None:
    doubtful = [line for line in lines if line.state == PartState.DECIDED.value]
    waiting = [line for line in lines if line.state in (PartState.PREPARED.value, PartState.PREPARING.value)]
    unknown = [line for line in lines if line.state == _UNKNOWN]
    if doubtful:
        does = "The job tries to commit it" if runs else "`strobe run` commits it when it resumes the job"
        session.say(f"{len(doubtful)} in doubt: a complete snapshot names it. {does}; nothing is lost.")
        if runs:
            session.say(f"  `strobe status {job}` shows why it has not succeeded yet.")
    held = [line for line in lines if line.state == PartState.HELD.value]
    if held:
        session.say(f"{len(held)} held: invariants hold it back. `strobe checks {job}` says why, and how to go on.")
    if waiting:
        session.say(f"{len(waiting)} prepared: the next complete snapshot makes it visible.")
    if unknown:
        session.say(
            f"{len(unknown)} unknown: only the home of job {job} knows what became of it. Name that with --home DIR."
        )
    for line in (*doubtful, *waiting):
        session.say(f"  {line.handle}  in {line.where}")
        if line.by_hand:
            session.say(("    by hand: ", "bold"), line.by_hand)
