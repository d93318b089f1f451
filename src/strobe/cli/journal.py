"""`strobe journal`: journals as Parquet, checked by Spark, since some are too large for one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from strobe.cli.output import Command, Session, common_options
from strobe.cli.recorded import open_run, topology_option
from strobe.model.errors import Misuse

__all__ = ["journal", "possibly_at_scale"]


@click.group()
def journal() -> None:
    """Journals as Parquet, checked by Spark."""


@journal.command(
    "export",
    cls=Command,
    examples=(
        ("strobe sim run bank --seed 7 --journal run.journal", "write a journal"),
        ("strobe journal export run.journal run.parquet", "the same as Parquet, with the states of all nodes"),
    ),
)
@click.argument("source", metavar="JOURNAL")
@click.argument("directory", metavar="DIR")
@click.option("--epoch", type=int, metavar="N", help="Which run, if the system was restarted.")
@topology_option
@common_options
def export_command(source: str, directory: str, epoch: int | None, topology: str | None, session: Session) -> int:
    """Write the run in JOURNAL as Parquet into the new directory DIR, one row for each event."""
    from strobe.hosts.spark.journals.tables import export

    _, run = open_run(source, topology, epoch)
    rows = export(run.history, run, epoch, Path(directory))
    if session.json:
        session.answer({"directory": directory, "rows": rows})
    else:
        session.say(f"{directory}: {rows:,} rows")
    return 0


@journal.command(
    "check",
    cls=Command,
    examples=(
        ("strobe journal check run.parquet", "is every snapshot of it a consistent cut? is anything lost or doubled?"),
        ("strobe journal check hdfs://host/runs/7 --master spark://host:7077", "on a cluster"),
    ),
)
@click.argument("table", metavar="DIR")
@click.option("--master", metavar="URL", help="The Spark master that does the work.  [default: local[*]]")
@common_options
def check_command(table: str, master: str | None, session: Session) -> int:
    """Check the journal in DIR, Parquet of any size: its snapshots, and what its channels lost or delivered twice.

    The exit code is 0 if every snapshot is a consistent cut and the channels did what they promise, and 1 if not.
    """
    from strobe.hosts.spark.journals.check import check
    from strobe.hosts.spark.journals.opening import opened

    with opened(table, master) as events:
        report = check(events, _teller(session))
    if session.json:
        session.answer(report.to_json())
    else:
        verdict = ("ok", "bold green") if report.ok else ("wrong", "bold red")
        session.say(verdict, f": {report.sentence}")
        for snapshot in report.snapshots:
            faults = f", {snapshot.violations:,} violations" if snapshot.violations else ""
            session.say(f"  snapshot {snapshot.snapshot}: {snapshot.in_flight:,} in flight{faults}")
        for one in report.broken:
            session.say("  ", (one.sentence, "red"))
        lost = f", {report.overtaken:,} of them overtaken by later ones" if report.overtaken else ""
        session.say(
            f"{report.sent:,} messages sent, {report.received:,} received, "
            f"{report.never_received:,} never received{lost}"
        )
    return 0 if report.ok else 1


def possibly_at_scale(
    text: str, table: str, master: str | None, scratch: str | None, expect: str | None, session: Session
) -> int:
    """`strobe predicate possibly` of a Parquet journal."""
    from strobe.hosts.spark.journals.opening import opened
    from strobe.hosts.spark.journals.possibly import possibly

    if scratch is None and master is not None and not master.startswith("local"):
        raise Misuse(
            f"On {master} the executors need a place that they share with this machine.",
            untouched="Nothing was started.",
            next="Name a directory of a shared file system: --scratch DIR.",
        )
    with ExitStack() as stack:
        if scratch is not None:
            Path(scratch).mkdir(parents=True, exist_ok=True)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strobe-journal-", dir=scratch)))
        events = stack.enter_context(opened(table, master))
        answer = possibly(events, text, place, _teller(session))
    if session.json:
        session.answer({
            "condition": text, "question": "possibly", "holds": answer.holds, "method": "conjunctive, on Spark",
            "events": answer.events, "messages": answer.messages, "evaluated": answer.evaluated,
            "witness": None if answer.witness is None else {"steps": dict(answer.witness)},
        })  # fmt: skip
    else:
        if answer.witness is None:
            session.say(("no", "bold"), ": it holds in no consistent cut of the run.")
        else:
            session.say(("yes", "bold green"), ": it could have held.")
            for node, step in answer.witness.items():
                session.say("  ", (node, "bold"), f" after step {step:,}")
        session.say(
            f"{answer.events:,} events, {answer.messages:,} messages walked over, method: conjunctive, on Spark; "
            f"conditions evaluated by {answer.evaluated}"
        )
    return 0 if expect is None or (expect == "yes") == answer.holds else 1


def _teller(session: Session) -> Callable[[str], None]:
    """Shows on a terminal which step is running."""
    if session.json or not session.console.is_terminal:
        return lambda words: None
    return lambda words: session.say((f"… {words}", "dim"))
