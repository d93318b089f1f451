"""`strobe checks JOB` and `strobe check SNAPSHOT`: invariants, of a running job and of any snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from strobe.cli.output import Command, Session, Whole, common_options
from strobe.hosts.spark.commit.holding import explain_held, held_on_disk
from strobe.model.errors import Misuse
from strobe.model.invariants import Invariant, Outcome, Verdict
from strobe.store.holding import is_held
from strobe.store.jobs import check_known
from strobe.store.releases import read_releases
from strobe.store.verdicts import read_verdicts

__all__ = ["check_command", "checks_command", "invariants_from", "verdict_json"]

_STYLES = {Outcome.HOLDS: "", Outcome.SKIPPED: "dim", Outcome.VIOLATED: "bold red", Outcome.FAILED: "yellow"}
_WRONG = (Outcome.VIOLATED, Outcome.FAILED)


@click.command(
    "checks",
    cls=Command,
    examples=(
        ("strobe checks ledger", "does every invariant hold? the exit code says it, too"),
        ("strobe checks ledger --all", "every verdict that is kept, oldest first"),
    ),
)
@click.argument("job")
@click.option("--all", "everything", is_flag=True, help="Every verdict that is kept, not only the last of each.")
@click.option("--last", type=Whole(1), metavar="N", help="With --all: only the last N.")
@common_options
def checks_command(job: str, everything: bool, last: int | None, session: Session) -> int:
    """Show the verdicts on the invariants of JOB, whether it runs or not.

    The exit code is 1 if the last verdict on an invariant is that it is violated, or that it could not be evaluated, or
    if rows are held back because of an earlier one.
    """
    check_known(session.home, job)
    held = held_on_disk(session.home, job)
    verdicts = read_verdicts(session.home, job)
    newest = {verdict.invariant: verdict for verdict in verdicts}
    shown = list(verdicts)[-last:] if everything and last else verdicts if everything else tuple(newest.values())
    if session.json:
        session.answer([verdict_json(verdict) for verdict in shown])
    elif not verdicts:
        session.say(f"{job}: no invariant has been evaluated yet.")
    else:
        _print(shown, session)
    held_back = held is not None and (
        bool(held.reason) or not is_held(session.home, job)
    )  # not only about to be judged
    if held is not None and held_back and not session.json:
        session.say((explain_held(job, held), "bold red"))
    if everything and not session.json:
        for release in read_releases(session.home, job):
            session.say(f"released up to snapshot {release.snapshot} by {release.by} at {release.at}")
    return 1 if held_back or any(verdict.outcome in _WRONG for verdict in newest.values()) else 0


@click.command(
    "check",
    cls=Command,
    examples=(
        ("strobe check ledger/12 -f invariants.sql", "queries that give the rows which must not exist"),
        ("strobe check ledger -f pipeline.py", "the invariants of a pipeline, of its newest checkpoint"),
        ("strobe check s3://bucket/savepoint -f invariants.sql --json", "any snapshot, for a program"),
    ),
)
@click.argument("snapshot")
@click.option(
    "-f", "--file", "file", required=True, metavar="FILE",
    help="Queries (FILE.sql; `-- invariant: NAME` names one) or a pipeline with invariants (FILE.py).",
)  # fmt: skip
@click.option("--memory", default="1GB", show_default=True, help="What a query may use.")
@click.option("--timeout", type=float, metavar="S", help="Seconds that a query may take.")
@common_options
def check_command(snapshot: str, file: str, memory: str, timeout: float | None, session: Session) -> int:
    """Ask invariants of SNAPSHOT: a job (its newest checkpoint), JOB/ID, a directory or s3://….

    Nothing is written. The exit code is 0 if all hold, 1 if one is violated or cannot be evaluated.
    """
    from strobe.cli.sql import open_cut
    from strobe.look.judging import judge

    invariants = invariants_from(file)
    with open_cut(session, snapshot, memory=memory, timeout=timeout) as cut:
        verdicts = [judge(cut, invariant) for invariant in invariants]
    if session.json:
        session.answer([verdict_json(verdict) for verdict in verdicts])
    else:
        _print(verdicts, session)
    return 1 if any(verdict.outcome in _WRONG for verdict in verdicts) else 0


def invariants_from(file: str) -> tuple[Invariant, ...]:
    from strobe.look.judging import invariants_in

    if file.endswith(".py"):
        from strobe.hosts.spark.pipeline.loading import load_pipeline

        pipeline = load_pipeline(file)
        if not pipeline.invariants:
            raise Misuse(f"The pipeline in {file} has no invariants.", next="Declare one with pipeline.invariant(…).")
        return pipeline.invariants
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Misuse(f"{file!r} cannot be read: {why}.", next="Name a file with SQL in it.") from error
    return invariants_in(text, file)


def _print(verdicts: Any, session: Session) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("invariant", "snapshot", "verdict", "rows", "took", "when"):
        table.add_column(name, overflow="fold")
    for verdict in verdicts:
        table.add_row(
            verdict.invariant, str(verdict.snapshot), verdict.outcome.value,
            str(verdict.count or ""), f"{verdict.seconds:.2f} s", verdict.at[:19].replace("T", " "),
            style=_STYLES[verdict.outcome],
        )  # fmt: skip
    session.console.print(table)
    for verdict in verdicts:
        if verdict.outcome in _WRONG:
            session.say(verdict.sentence)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "invariant": verdict.invariant, "snapshot": verdict.snapshot, "outcome": verdict.outcome.value,
        "at": verdict.at, "seconds": verdict.seconds, "count": verdict.count,
        "rows": [dict(row) for row in verdict.rows], "why": verdict.why,
    }  # fmt: skip
