"""`strobe predicate`: what could have held in a run, whatever its snapshots have seen."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from strobe.cli.figures import plural
from strobe.cli.output import Command, Session, Whole, check_writable, common_options, write_text
from strobe.cli.recorded import open_run, topology_option
from strobe.model.cut import Cut, Json, Message
from strobe.model.errors import Misuse
from strobe.model.events import Completed, Event, Internal, Received, Recorded, Sent
from strobe.model.ids import SnapshotId
from strobe.model.text import shortened
from strobe.predicates.computation import Positions
from strobe.predicates.condition import read_condition
from strobe.predicates.decide import Predicate, Verdict, definitely, possibly
from strobe.predicates.lattice import DEFAULT_BOUNDS, Bounds
from strobe.predicates.replay import Run
from strobe.verify.diagram import render
from strobe.verify.journal import Journal

__all__ = ["cut_json", "in_words", "predicate", "read_predicate"]

_SHOWN = 8  # messages in flight that are told in words; the JSON has all


@click.group()
def predicate() -> None:
    """Ask what could have held in a run.

    The events of a run are ordered by cause and effect only. Every cut that respects this order is a state in which the
    system could have been, whether a snapshot fell there or not.
    """


def _options(function: Any) -> Any:
    for option in reversed((
        click.argument("condition"),
        click.argument("journal"),
        topology_option,
        click.option("--epoch", type=Whole(1), metavar="N",
                     help="Which run, if the system was restarted: 1 is the time up to the first restart."),
        click.option("--max-cuts", type=Whole(1), default=DEFAULT_BOUNDS.cuts, show_default=True, metavar="N",
                     help="Give up, undecided, after looking at so many cuts."),
        click.option("--expect", type=click.Choice(["yes", "no"]), help="Exit with 1 if the answer is another one."),
        click.option("--svg", metavar="FILE", help="Draw the run with the cut in question into this file."),
        click.option("--master", metavar="URL", help="Of Parquet: the Spark master.  [default: local[*]]"),
        click.option("--scratch", metavar="DIR", help="Of Parquet: where to sort; executors must see it."),
        common_options,
    )):  # fmt: skip
        function = option(function)
    return function


@predicate.command(
    "possibly",
    cls=Command,
    examples=(
        ("strobe sim run bank --seed 7 --journal run.journal", "write a journal"),
        ("strobe predicate possibly 'n1.balance + n2.balance < 1500' run.journal", "were two ever low together?"),
        ("strobe predicate possibly 'node.balance < 0' run.journal --expect no", "fail if anybody was in the red"),
        ("strobe predicate possibly checks.py:unfair run.journal", "a function of your own, given a cut"),
        ("strobe predicate possibly 'a.busy and b.busy' run.parquet --master 'local[8]'", "10^8 events, on Spark"),
        ("strobe predicate possibly 'a.balance < 0' live.journal --topology bank.toml", "in a run of live processes"),
    ),
)
@_options
def possibly_command(**arguments: Any) -> int:
    """Could CONDITION have held at some moment of the run in JOURNAL?

    The answer is a witness, a consistent cut in which it holds with its states and messages in flight, or the proof
    that there is none.
    """
    return _answer("possibly", possibly, **arguments)


@predicate.command(
    "definitely",
    cls=Command,
    examples=(
        ("strobe predicate definitely 'n1.balance < 900' run.journal", "whatever the order of events was"),
        ("strobe predicate definitely 'n1.done and n2.done' run.journal --expect yes", "fail if it could be avoided"),
    ),
)
@_options
def definitely_command(**arguments: Any) -> int:
    """Must CONDITION have held at some moment of the run in JOURNAL, in whichever order its events happened?

    If not, the answer is an order of the events that avoids it.
    """
    return _answer("definitely", definitely, **arguments)


def _answer(
    question: str,
    decide: Callable[[Run, Predicate, Bounds], Verdict],
    *,
    condition: str,
    journal: str,
    topology: str | None,
    epoch: int | None,
    max_cuts: int,
    expect: str | None,
    svg: str | None,
    master: str | None,
    scratch: str | None,
    session: Session,
) -> int:
    if _is_table(journal):
        return _at_scale(question, condition, journal, master, scratch, expect, svg or epoch, session)
    check_writable(svg, "--svg")
    read, run = open_run(journal, topology, epoch)
    verdict = decide(run, read_predicate(condition, run), replace(DEFAULT_BOUNDS, cuts=max_cuts))
    at = verdict.witness
    if svg is not None:
        shown = read if at is None else _with_cut(read, run, at)
        write_text(svg, render(shown, title=f"{question} {condition}"), "--svg")
    if session.json:
        session.answer({"condition": condition, **_to_json(run, verdict), **({"svg": svg} if svg else {})})
    else:
        for line in _words(run, verdict):
            session.say(*line)
        if svg is not None:
            session.say(f"diagram: {svg}")
    if verdict.holds is None:
        return 1
    return 0 if expect is None or (expect == "yes") == verdict.holds else 1


def _is_table(name: str) -> bool:
    """Whether it is a journal as Parquet; one as lines is a file."""
    return "://" in name or name.endswith(".parquet") or Path(name).is_dir()


def _at_scale(
    question: str, condition: str, table: str, master: str | None, scratch: str | None, expect: str | None,
    other: object, session: Session,
) -> int:  # fmt: skip
    from strobe.cli.journal import possibly_at_scale

    if question != "possibly" or other is not None:
        raise Misuse(
            f"{table} is Parquet, of which only `possibly` can be asked, without --svg and --epoch.",
            untouched="Nothing was looked at.",
            next="Ask a journal as it was written, if it fits into memory.",
        )
    return possibly_at_scale(condition, table, master, scratch, expect, session)


def read_predicate(text: str, run: Run) -> Predicate:
    name, colon, attribute = text.rpartition(":")
    if not (colon and name.endswith(".py") and attribute.isidentifier()):
        return read_condition(text, run.computation.nodes)
    path = Path(name)
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise Misuse(f"There is no file {name!r}.", next="Name a Python file and a function in it: checks.py:unfair.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Misuse(
            f"{name} cannot be loaded: {type(error).__name__}: {error}.", next="Fix the file and ask again."
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise Misuse(f"{name} has no function {attribute!r}.", next="It takes a cut, and says whether it holds there.")
    return function  # type: ignore[no-any-return]


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(run: Run, verdict: Verdict) -> Iterator[tuple[str | tuple[str, str], ...]]:
    if verdict.holds is None:
        yield (("not decided", "bold yellow"), ": there are more cuts than were allowed (--max-cuts).")
    elif verdict.question == "possibly":
        yield (
            (("yes", "bold green"), ": it could have held.")
            if verdict.holds
            else (("no", "bold"), ": it holds in no consistent cut of the run.")
        )
    else:
        yield (
            (("yes", "bold green"), ": it held, in whichever order the events happened.")
            if verdict.holds
            else (("no", "bold"), ": the events can have happened in an order in which it never held.")
        )
    if verdict.witness is not None:
        yield from _cut_words(run, verdict.witness)
    for node, interval in verdict.intervals.items():
        first, last = run.step(node, interval.first), run.step(node, interval.last)
        yield ("  ", (node, "bold"), f": it holds from step {first} to step {last}")
    if verdict.around:
        order = [_added(run, a, b) for a, b in pairwise(verdict.around)]
        shown = ", ".join(order[:12]) + (f" and {len(order) - 12:,} more" if len(order) > 12 else "")
        yield (f"  such an order of steps: {shown}",)
    looked = f"{plural(verdict.cuts, 'cut')} looked at, " if verdict.cuts else ""
    widest = f", at most {plural(verdict.widest, 'cut')} held at a time" if verdict.widest else ""
    yield (f"{looked}{plural(verdict.events, 'event')}, method: {verdict.method}{widest}",)


def _cut_words(run: Run, at: Positions) -> Iterator[tuple[str | tuple[str, str], ...]]:
    cut = run.cut(at)
    for node, count in zip(run.computation.nodes, at, strict=True):
        yield ("  ", (node, "bold"), f" after step {run.step(node, count)}: {in_words(cut.states[node])}")
    flying = [(channel, m) for channel, messages in cut.channels.items() for m in messages]
    for channel, message in flying[:_SHOWN]:
        ends = run.graph.by_id[channel]
        yield (f"  in flight {ends.source}→{ends.target}: {in_words(message.payload)} (message {message.seq})",)
    if len(flying) > _SHOWN:
        yield (f"  and {plural(len(flying) - _SHOWN, 'message')} more in flight; --json tells all",)


def in_words(value: Json) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {in_words(part)}" for key, part in value.items())
    return shortened(str(value), 80)


def _added(run: Run, before: Positions, after: Positions) -> str:
    node = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    return f"{run.computation.nodes[node]} {run.step(run.computation.nodes[node], after[node])}"


def _to_json(run: Run, verdict: Verdict) -> dict[str, Json]:
    nodes = run.computation.nodes
    return {
        "question": verdict.question,
        "holds": verdict.holds,
        "method": verdict.method,
        "events": verdict.events,
        "cuts": verdict.cuts,
        "widest": verdict.widest,
        "witness": None if verdict.witness is None else cut_json(run, verdict.witness),
        "intervals": {
            node: [run.step(node, interval.first), run.step(node, interval.last)]
            for node, interval in verdict.intervals.items()
        },
        "around": [
            {node: run.step(node, count) for node, count in zip(nodes, cut, strict=True)} for cut in verdict.around
        ],
    }


def cut_json(run: Run, at: Positions) -> dict[str, Json]:
    cut = run.cut(at)
    return {
        "steps": {node: run.step(node, count) for node, count in zip(run.computation.nodes, at, strict=True)},
        "states": dict(cut.states),
        "in_flight": {channel: [list(m) for m in messages] for channel, messages in cut.channels.items() if messages},
    }


def _with_cut(journal: Journal, run: Run, at: Positions) -> Journal:
    """The journal as if a snapshot had been taken at the cut, so that the diagram shows it."""
    taken = {event.cut.snapshot for event in journal.events if isinstance(event, Completed)}
    snapshot = SnapshotId(max(taken, default=0) + 1)
    steps = {node: run.step(node, count) for node, count in zip(run.computation.nodes, at, strict=True)}
    last = dict.fromkeys(steps, -1)
    for position, event in enumerate(journal.events):
        if isinstance(event, Internal | Received | Sent) and event.step <= steps[event.node]:
            last[event.node] = position
    recorded = {node: Recorded(node, steps[node], snapshot) for node in steps}
    after: dict[int, list[Event]] = {}
    for node, position in last.items():
        after.setdefault(position, []).append(recorded[node])
    events: list[Event] = list(after.get(-1, ()))
    for position, event in enumerate(journal.events):
        events += [event, *after.get(position, ())]
    cut = run.cut(at)
    channels = {channel: tuple(Message(*m) for m in messages) for channel, messages in cut.channels.items()}
    return Journal(journal.header, [*events, Completed(Cut(snapshot, cut.states, channels))])
