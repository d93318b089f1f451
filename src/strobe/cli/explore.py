"""`strobe sim explore`: every schedule of a small system, and the smallest run that shows what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from strobe.cli.figures import plural
from strobe.cli.findings import answer_shortest
from strobe.cli.options import check_option, file_options, known, protocol_options, write_files
from strobe.cli.output import Command, Session, Whole, check_writable, common_options
from strobe.hosts.sim.checks import Check
from strobe.hosts.sim.explore import Counterexample, ExploreConfig, ExploreProgress, ExploreReport, explore
from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.search import shortest
from strobe.hosts.sim.shrink import shrink
from strobe.hosts.sim.system import Run, replay
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["explore_command"]


@click.command(
    "explore",
    cls=Command,
    examples=(
        ("strobe sim explore bank", "every schedule of three branches with four transfers and a snapshot"),
        ("strobe sim explore two-process -p agreed-clock", "a wrong protocol, and the smallest run that shows it"),
        ("strobe sim explore philosophers --check deadlock", "the shortest schedule that leads to a deadlock"),
        ("strobe sim explore philosophers --check deadlock -k 1 -p agreed-clock", "snapshots that show one falsely"),
        ("strobe sim explore bank --nodes 2 --channels reorder -p lai-yang", "channels that reorder"),
    ),
)
@click.argument("workload")
@click.option("--script", metavar="NAME", help="Which of the workload's small scripts; the first by default.")
@click.option("--nodes", "-n", type=Whole(), metavar="N", help="The first script with so many nodes.")
@protocol_options
@click.option("--snapshots", "-k", type=Whole(), metavar="K",
              help="How many snapshots are taken, each at any time.  [default: 1, with --check none]")  # fmt: skip
@click.option("--initiator", "initiators", multiple=True, metavar="NODE",
              help="Where every snapshot starts; may be given again. Chosen for you otherwise.")  # fmt: skip
@click.option("--mutant", metavar="NAME", help="A variant of the protocol that breaks one rule; see `strobe sim list`.")
@click.option("--max-states", type=Whole(1), default=5_000_000, show_default=True, metavar="N",
              help="Give up after so many distinct states.")  # fmt: skip
@check_option
@file_options
@common_options
def explore_command(
    workload: str,
    script: str | None,
    nodes: int | None,
    protocol: str | None,
    channels: Order,
    force: bool,
    snapshots: int | None,
    initiators: tuple[str, ...],
    mutant: str | None,
    max_states: int,
    check: str | None,
    svg: str | None,
    journal: str | None,
    session: Session,
) -> int:
    """Try every schedule of a small system built from WORKLOAD.

    A schedule says in which order the nodes act, messages arrive and snapshots start. All of them are tried, each
    distinct state once. If something is wrong in one, it is shrunk to the smallest run that still fails, and --journal
    and --svg write that run. The exit code is 0 if every schedule is well and 1 otherwise.

    With --check the question is another one. Without snapshots: which is the shortest schedule after which it holds?
    With snapshots (-k): does one show it although it does not hold? Found, the exit code is 1.
    """
    name = known(workload, WORKLOADS, "workload")
    if mutant is not None:
        known(mutant, MUTANTS, "mutant")
        protocol = protocol or MUTANTS[mutant].protocols[0]
    config = ExploreConfig(
        workload=name,
        script=_script(name, script, nodes),
        protocol=known(protocol or "chandy-lamport", PROTOCOLS, "protocol"),
        channels=channels,
        snapshots=(1 if check is None else 0) if snapshots is None else snapshots,
        initiators=tuple(NodeId(node) for node in initiators),
        mutant=mutant,
        force=force,
        max_states=max_states,
        check=None if check is None else Check.named(check),
    )
    check_writable(svg, "--svg")
    check_writable(journal, "--journal")
    if config.check is not None and not config.snapshots:
        with _progress() as on_progress:
            way = shortest(config.system(), config.check, on_progress, max_states=max_states)
        return answer_shortest(session, config, way, svg, journal)
    with _progress() as on_progress:
        report = explore(config, on_progress)
    smallest = _smallest(report)
    files = write_files(smallest.journal, svg, journal) if smallest is not None else {}
    if session.json:
        session.answer({**_json(config, report, smallest), **files})
    else:
        _print(session, config, report, smallest)
        for what, path in files.items():
            session.say(f"{'diagram' if what == 'svg' else what}: {path}")
    return 0 if report.ok else 1


def _script(name: str, script: str | None, nodes: int | None) -> str | None:
    """The script that was asked for by name or by number of nodes; None is the workload's first."""
    scripts = WORKLOADS[name].scripts()
    if script is not None:
        known(script, scripts, "script")
        if nodes is not None and scripts[script].nodes != nodes:
            raise Misuse(f"The script {script!r} has {plural(scripts[script].nodes, 'node')}, not {nodes}.",
                         next="Leave --nodes or --script out.")  # fmt: skip
        return script
    if nodes is None:
        return None
    for found, made in scripts.items():
        if made.nodes == nodes:
            return found
    offers = ", ".join(f"{found} ({plural(made.nodes, 'node')})" for found, made in scripts.items())
    raise Misuse(f"The workload {name!r} has no script with {plural(nodes, 'node')}.", next=f"Its scripts: {offers}.")


# ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _progress() -> Iterator[Callable[[ExploreProgress], None]]:
    """A bar on a terminal, a line for each tenth otherwise; on standard error, so that results stay clean."""
    if not sys.stderr.isatty():
        told = 0

        def tell(progress: ExploreProgress) -> None:
            nonlocal told
            tenth = int(progress.fraction * 10)
            if told < tenth < 10:
                told = tenth
                click.echo(f"{tenth * 10} % explored, {progress.states:,} states", err=True)

        yield tell
        return
    columns = (TextColumn("exploring"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               TextColumn("{task.fields[states]:,} states"), TimeElapsedColumn())  # fmt: skip
    from rich.console import Console

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, states=0)
        yield lambda progress: bar.update(task, completed=progress.fraction, states=progress.states)


# ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _smallest(report: ExploreReport) -> Run | None:
    """The smallest failing run: nodes, channels, actions and choices are removed as long as it still fails."""
    if not report.counterexamples:
        return None
    example = min(report.counterexamples, key=lambda c: len(c.schedule))
    return shrink(replay(report.system, example.schedule))


def _print(session: Session, config: ExploreConfig, report: ExploreReport, smallest: Run | None) -> None:
    graph = report.system.graph
    system = f"{plural(len(graph.nodes), 'node')}, {plural(len(graph.channels), 'channel')}"
    variant = f", mutant {config.mutant}" if config.mutant else ""
    session.say(
        (config.workload, "bold"),
        f": {system}, {config.protocol}, {config.channels} channels, {plural(config.snapshots, 'snapshot')}{variant}",
    )
    session.say(
        f"{plural(report.schedules, 'schedule')}, {plural(report.states, 'distinct state')}, "
        f"{plural(report.transitions, 'transition')}, {plural(report.cuts, 'different snapshot')}"
    )
    if not report.complete:
        session.say(
            ("not everything was explored", "bold red"),
            f": it stopped at {report.states:,} states; --max-states raises the limit.",
        )
    if report.ok and config.check is not None:
        session.say(("no phantom", "green"), f": every snapshot that shows {config.check.name} shows what is there")
    elif report.ok:
        session.say(("no violation", "green"), ": every snapshot in every schedule is a consistent cut")
    elif report.counterexamples:
        session.say(("violations", "bold red"), f": {plural(report.failing, 'schedule')} of {report.schedules:,}")
        for example in report.counterexamples:
            session.say(("  ! ", "bold red"), example.failure.sentence)
    if smallest is not None:
        session.say(f"The smallest run found that fails ({_size(smallest)}):")
        for number, choice in enumerate(smallest.schedule, 1):
            session.say(f"  {number:>2}. {choice}")
        session.say(("  ! ", "bold red"), smallest.failures[0].sentence)


def _size(run: Run) -> str:
    graph = run.system.graph
    parts = ((len(graph.nodes), "node"), (len(graph.channels), "channel"), (len(run.schedule), "choice"))
    return ", ".join(plural(count, thing) for count, thing in parts)


def _json(config: ExploreConfig, report: ExploreReport, smallest: Run | None) -> dict[str, Json]:
    return {
        "ok": report.ok, "workload": config.workload, "script": config.script, "protocol": config.protocol,
        "mutant": config.mutant, "order": config.channels, "snapshots": config.snapshots,
        "nodes": len(report.system.graph.nodes), "channels": len(report.system.graph.channels),
        "complete": report.complete, "schedules": report.schedules, "failing": report.failing,
        "states": report.states, "transitions": report.transitions, "cuts": report.cuts, "ends": report.ends,
        "depth": report.depth,
        "violations": [_example_json(example) for example in report.counterexamples],
        "smallest": None if smallest is None else _smallest_json(smallest),
    }  # fmt: skip


def _smallest_json(run: Run) -> dict[str, Json]:
    return {
        "nodes": list(run.system.graph.nodes), "channels": [channel.id for channel in run.system.graph.channels],
        "schedule": [str(choice) for choice in run.schedule], "failures": [str(failure) for failure in run.failures],
    }  # fmt: skip


def _example_json(example: Counterexample) -> dict[str, Json]:
    failure = example.failure
    return {
        "kind": str(failure.kind), "sentence": failure.sentence, "snapshot": failure.snapshot,
        "schedule": list(example.names),
    }  # fmt: skip
