"""`strobe sql`: ask a snapshot with SQL, without Spark and without Java."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strobe.cli.output import Command, Session, check_writable, common_options
from strobe.model.errors import Failed, Misuse
from strobe.model.extras import missing_extra

if TYPE_CHECKING:
    from strobe.look.cut import Cut

__all__ = ["FORMATS", "open_cut", "sql_command"]

FORMATS = ("table", "csv", "json", "markdown")


@click.command(
    "sql",
    cls=Command,
    examples=(
        ("strobe sql ledger", "a prompt on the newest checkpoint of job ledger"),
        ("strobe sql ledger/12 'select sum(balance) from state.balances'", "one query, on checkpoint 12"),
        ("strobe sql ledger .tables", "what can be asked"),
        ("strobe sql ledger -f totals.sql --format csv", "a query from a file, the answer as CSV"),
        (
            "strobe sql ledger/13 --with before=ledger/12 'from state.balances except from before.state.balances'",
            "two snapshots in one query",
        ),
        ("strobe sql ledger 'from state.balances' --to balances.parquet", "the answer as a Parquet file"),
    ),
)
@click.argument("snapshot")
@click.argument("query", required=False)
@click.option(
    "-f",
    "--file",
    "file",
    metavar="FILE.sql",
    help="Read the query from a file; - is standard input. Of several queries, the last one's rows are shown.",
)
@click.option("--format", "shape", type=click.Choice(FORMATS), help="How rows are shown; default: table.")
@click.option("--to", "target", metavar="FILE.parquet", help="Write the answer to a Parquet file.")
@click.option("--with", "others", multiple=True, metavar="NAME=SNAPSHOT", help="A second snapshot, as NAME.state.…")
@click.option("--memory", default="1GB", show_default=True, help="What a query may use.")
@click.option("--timeout", type=float, metavar="S", help="Seconds that a query may take.")
@common_options
def sql_command(
    snapshot: str,
    query: str | None,
    file: str | None,
    shape: str | None,
    target: str | None,
    others: tuple[str, ...],
    memory: str,
    timeout: float | None,
    session: Session,
) -> int:
    """Ask a snapshot with SQL (DuckDB's): state of stages, rows in flight, channels, sinks, and what it says of itself.

    SNAPSHOT is a job (its newest checkpoint), JOB/ID, a directory or s3://…. Without QUERY there is a prompt.
    Relations: state.STAGE, in_flight.CHANNEL, channel.STAGE, sink.STAGE, meta.stages, …; `.tables` lists them.
    """
    if query is not None and file is not None:
        raise Misuse("The query is given twice: as an argument and with --file.", next="Give one of them.")
    if timeout is not None and not timeout > 0:
        raise Misuse(f"--timeout {timeout:g}: it must be more than 0.", next="Give a number above 0.")
    if session.json and shape not in (None, "json"):
        raise Misuse(f"--json and --format {shape} contradict each other.", next="Give one of them.")
    if target is not None and shape is not None:
        raise Misuse(
            f"--to writes Parquet, whatever --format says: {shape!r} would be ignored.",
            untouched="Nothing was run.",
            next="Leave one of them out; for a file in another format, redirect the output: `> FILE`.",
        )
    _check_target(target)
    text = _read(file) if file is not None else query
    with open_cut(session, snapshot, memory=memory, timeout=timeout) as cut:
        for each in others:
            name, equals, other = each.partition("=")
            if not equals or not name or not other:
                raise Misuse(f"--with {each!r} names no snapshot.", next="Write it as --with before=ledger/12.")
            cut.add(name, open_cut(session, other, memory=memory, timeout=timeout))
        from strobe.cli.sql_output import answer, command, write_parquet

        chosen = "json" if session.json else shape or "table"
        if text is None:
            from strobe.cli.sql_prompt import prompt

            return prompt(cut, session, chosen)
        if text.strip().startswith("."):
            return command(cut, text.strip(), session, chosen)
        table = cut.sql(text)
        if target is not None:
            write_parquet(table, Path(target))
            if session.json:
                session.answer({"file": target, "rows": table.num_rows})
            else:
                session.say(f"{table.num_rows:,} row{'' if table.num_rows == 1 else 's'} in {target}")
            return 0
        answer(table, session, chosen)
    return 0


def _check_target(target: str | None) -> None:
    check_writable(target, "--to")
    if target is not None and not target.lower().endswith((".parquet", ".pq")):
        raise Misuse(
            f"--to writes Parquet, and {target!r} is not called so.",
            untouched="Nothing was run.",
            next=f"Write --to {Path(target).with_suffix('.parquet')}; or --format csv and `> {target}`.",
        )


def open_cut(session: Session, snapshot: str, *, memory: str = "1GB", timeout: float | None = None) -> Cut:
    """The snapshot, with Spark as the reader for state that is not decoded here. The user is told when Spark is
    used."""
    try:
        from strobe.look.cut import open_snapshot
    except ModuleNotFoundError as error:
        raise missing_extra(error, "sql") or error from error
    return open_snapshot(snapshot, session.home, memory=memory, timeout=timeout, fallback=_fallback())


def _fallback() -> Any:
    def read(*args: Any) -> Any:
        try:
            from strobe.hosts.spark.snapshot.reading import read_with_spark
        except ModuleNotFoundError as error:
            raise Failed(
                "Only Spark can read this state, and it is not installed.",
                next="Install Strobe with the extra 'spark': pip install 'strobe[spark]'",
            ) from error
        click.echo("This state is of a kind that only Spark reads; Spark starts …", err=True)
        return read_with_spark(*args)

    return read


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Misuse(f"The query cannot be read from {file!r}: {why}.", next="Name a file with SQL in it.") from error
