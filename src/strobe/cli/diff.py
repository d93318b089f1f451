"""`strobe diff`: what two snapshots differ in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.table import Table

from strobe.cli.output import Command, Session, common_options
from strobe.cli.sql import open_cut

if TYPE_CHECKING:
    from strobe.look.diff import CutDiff

__all__ = ["diff_command", "show_diff"]


@click.command(
    "diff",
    cls=Command,
    examples=(
        ("strobe diff ledger/12 ledger/13", "what happened between two checkpoints"),
        ("strobe diff ledger/12 ledger --stage balances", "the rows of state that differ"),
    ),
)
@click.argument("before")
@click.argument("after")
@click.option("--stage", metavar="S", help="Show the rows of this stage's state that differ.")
@click.option("--memory", default="1GB", show_default=True, help="What a comparison may use.")
@common_options
def diff_command(before: str, after: str, stage: str | None, memory: str, session: Session) -> int:
    """Compare two snapshots: positions, what is in flight, and rows of state added, removed and changed, by key."""
    with open_cut(session, after, memory=memory) as now, open_cut(session, before, memory=memory) as then:
        from strobe.cli.sql_output import answer, plain
        from strobe.look.diff import changed_rows, diff_cuts

        if stage is not None:
            found = changed_rows(then, now, stage)
            if session.json:
                session.answer({name: [plain(row) for row in rows.to_pylist()] for name, rows in found.items()})
                return 0
            for name, rows in found.items():
                session.say((f"state.{name}", "bold"))
                answer(rows, session, "table")
            return 0
        result = diff_cuts(then, now)
    if session.json:
        session.answer({**plain(asdict(result)), "same_state": result.same_state})
    else:
        show_diff(session, result)
    return 0


def show_diff(session: Session, diff: CutDiff) -> None:
    session.say(("before  ", "bold"), diff.before)
    session.say(("after   ", "bold"), diff.after)
    for uid in diff.only_before:
        session.say(f"stage {uid} is only in the earlier one")
    for uid in diff.only_after:
        session.say(f"stage {uid} is only in the later one")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stage", "batch", "reads", "source"):
        table.add_column(name, overflow="fold")
    for each in diff.stages:
        reads = ", ".join(f"{c} {_pair(p)}" for c, p in each.inputs.items())
        moved = "moved" if each.offsets_differ else "where it was"
        table.add_row(each.stage, _pair(each.batch), reads, "" if each.inputs else moved)
    session.console.print(table)
    if diff.channels:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("channel", "barrier at", "rows in flight"):
            table.add_column(name, overflow="fold")
        for channel in diff.channels:
            flights = ", ".join(f"{c} {_pair(p)}" for c, p in channel.in_flight.items())
            table.add_row(channel.channel, _pair(channel.barrier), flights)
        session.console.print(table)
    if diff.tables:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("state")
        for name in ("rows", "added", "removed", "changed"):
            table.add_column(name, justify="right")
        for state in diff.tables:
            if state.problem:
                table.add_row(state.relation, state.problem)
            else:
                counts = (f"{n:,}" for n in (state.added, state.removed, state.changed))
                table.add_row(state.relation, _pair((state.rows_before, state.rows_after)), *counts)
        session.console.print(table)
    if diff.same_state and diff.tables:
        session.say("The state is the same.")


def _pair(pair: tuple[int | None, int | None]) -> str:
    then, now = ("–" if n is None else f"{n:,}" for n in pair)
    return then if then == now else f"{then} → {now}"
