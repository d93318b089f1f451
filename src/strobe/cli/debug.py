"""`strobe debug`: a run, forwards and backwards, in the terminal. This is the command; `debug_app` is the program."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from strobe.cli.debug_diagram import Diagram
from strobe.cli.debug_words import cut_lines, debug_json, difference_lines, snapshot_lines, step_lines
from strobe.cli.output import Command, Session, Whole, common_options
from strobe.cli.predicate import read_predicate
from strobe.cli.recorded import AtSnapshot, open_run, open_snapshot_run, topology_option
from strobe.model.errors import Misuse
from strobe.predicates.compare import compare
from strobe.predicates.computation import Positions
from strobe.predicates.decide import in_cuts
from strobe.predicates.replay import Run
from strobe.predicates.walk import Walk, walk_through
from strobe.store.jobs import jobs_in
from strobe.store.layout import MANIFEST
from strobe.store.scheme import is_s3

__all__ = ["debug_command"]

_LINES = 20  # of the diagram, with --print


@click.command(
    "debug",
    cls=Command,
    examples=(
        ("strobe sim run bank --seed 7 --journal run.journal", "write a journal"),
        ("strobe debug run.journal", "walk through it; ? shows the keys"),
        ("strobe debug run.journal --when 'n1.balance < 950'", "begin where this holds for the first time"),
        ("strobe debug run.journal --with other.journal", "where do two runs part?"),
        ("strobe debug run.journal --epoch 2", "after the first restart"),
        ("strobe debug live.journal --topology bank.toml", "a run of live processes"),
        ("strobe debug bank/12 --topology bank.toml", "begin at that snapshot of it"),
        ("strobe debug run.journal --when 'n1.balance < 950' --print", "print that place, for a pipe or a report"),
    ),
)
@click.argument("journal", metavar="JOURNAL|SNAPSHOT")
@topology_option
@click.option("--epoch", type=Whole(1), metavar="N",
              help="Which run, if the system was restarted: 1 is the time up to the first restart.")  # fmt: skip
@click.option("--when", "condition", metavar="CONDITION",
              help="Begin where this holds for the first time, as for `strobe predicate`.")  # fmt: skip
@click.option("--with", "other", metavar="JOURNAL", help="Compare with this run: begin where the two part.")
@click.option("--print", "printed", is_flag=True, help="Print the place where it would begin, and end. No terminal is needed.")  # fmt: skip  # noqa: E501
@common_options
def debug_command(
    journal: str,
    topology: str | None,
    epoch: int | None,
    condition: str | None,
    other: str | None,
    printed: bool,
    session: Session,
) -> None:
    """Walk through a run, forwards and backwards, one consistent cut after the other.

    JOURNAL is a file from --journal or `strobe live journal`. SNAPSHOT is one of live processes, named as for `strobe
    inspect`: the walk begins there, if the system kept a journal; else its states and messages in flight are shown.

    The space–time diagram, the states and the messages in flight are shown at a cut that you move: along the run as it
    was recorded, or for one node alone, which takes along what its steps depend on. Jump to where a condition starts or
    stops to hold, to the cause of a step, to the next snapshot. Nothing is run again but the nodes' own steps.
    """
    printed = printed or session.json
    if not printed and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(
            "The debugger is a program for a terminal, and this is not one.",
            untouched="Nothing was looked at.",
            next="Start it in a terminal, or add --print for the place where it would begin.",
        )
    opened = _open(journal, session.home, topology, epoch)
    run, theirs = opened.run, None
    if other is not None:
        theirs = _open(other, session.home, topology, epoch).run
    walk = walk_through(run)
    found = None if theirs is None else compare(run, theirs)
    at = _start(run, walk, condition, opened.at if found is None else found.at)
    if not printed:
        from strobe.cli.debug_app import Compared, DebugApp

        compared = (
            None
            if theirs is None or found is None or other is None
            else Compared(theirs, found, _names(journal, other))
        )
        title = f"{journal} (a snapshot alone)" if opened.alone else journal
        DebugApp(run, walk, at, title=title, condition=condition, compared=compared).run()
        return
    if session.json:
        truth = None if condition is None else (condition, in_cuts(run, read_predicate(condition, run))(at))
        session.answer(debug_json(run, walk, at, truth, found))
        return
    if opened.alone:
        session.say(f"A snapshot without a journal: no steps before or after it are known. {opened.alone}")
        for line in snapshot_lines(run, at):
            session.say(line)
        return
    chosen = walk.last_node(at)
    first = max(0, walk.front(at) - _LINES // 2)
    for line in Diagram(run, walk).text(first, _LINES, at, chosen):
        session.say(line)
    session.say("")
    for line in (*step_lines(run, at, chosen), "", *cut_lines(run, walk, at)):
        session.say(line)
    if theirs is not None and found is not None and other is not None:
        session.say("")
        for line in difference_lines(run, theirs, _names(journal, other), found):
            session.say(line)


def _start(run: Run, walk: Walk, condition: str | None, at: Positions) -> Positions:
    """Where the condition holds for the first time; without a condition, `at`."""
    if condition is None:
        return at
    holds = in_cuts(run, read_predicate(condition, run))
    first = run.computation.first
    held = first if holds(first) else walk.next_change(first, holds)
    if held is None:
        raise Misuse(
            f"{condition!r} never holds along the run as it was recorded.",
            untouched="Nothing was changed.",
            next="`strobe predicate possibly` asks all orders in which the run could have happened.",
        )
    return held


def _names(journal: str, other: str) -> tuple[str, str]:
    names = (Path(journal).name, Path(other).name)
    return names if names[0] != names[1] else (journal, other)


def _open(name: str, home: Path, topology: str | None, epoch: int | None) -> AtSnapshot:
    """A file is a journal, and everything else names a snapshot."""
    path = Path(name)
    if path.is_file() and path.name != MANIFEST:
        run = open_run(name, topology, epoch)[1]
        return AtSnapshot(run, run.computation.first)
    try:
        return open_snapshot_run(name, home, topology)
    except Misuse as error:
        if path.exists() or name.partition("/")[0] in jobs_in(home) or is_s3(name):
            raise
        raise Misuse(
            f"There is no {name!r}: neither a journal nor a snapshot.",
            untouched="Nothing was looked at.",
            next="A journal is a file from --journal or `strobe live journal`. A snapshot is named as for `strobe "
            "inspect`: NAME, NAME/12, or its directory.",
        ) from error
