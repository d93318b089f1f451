"""`strobe sim`: simulated systems, run from a seed, so that every schedule can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import click

from strobe.cli.explore import explore_command
from strobe.cli.findings import print_finding
from strobe.cli.judge import Judgement, judge, print_judgement
from strobe.cli.options import check_option, file_options, known, parse_params, protocol_options, write_files
from strobe.cli.output import Command, Session, Whole, check_writable, common_options
from strobe.cli.recorded import application_of, is_pure, topology_option
from strobe.hosts.sim.checks import Check, show
from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, SimResult, run, workload_of
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.hosts.sim.workloads import workload as workload_named
from strobe.model.errors import Damaged, Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.predicates.faithful import NotDeterministic
from strobe.predicates.replay import run_of
from strobe.verify.history import History
from strobe.verify.journal import Journal, read_journal

__all__ = ["sim"]


@click.group()
def sim() -> None:
    """Run, explore and verify simulated systems.

    A simulated system runs from a seed: the same seed gives the same run, byte for byte. Every snapshot that is taken
    is verified against the journal of the run, and proved reachable by replaying a reordering of it.
    """


sim.add_command(explore_command)

# ── run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

FAULTS_HELP = (
    "What goes wrong, as a list like lose=20,crashes=1. lose and duplicate, lose-markers and duplicate-markers are in "
    "thousandths of what is sent, and break what every protocol rests on; partitions, slow (nodes) and crashes are "
    "numbers, and must break nothing."
)


@sim.command(
    "run",
    cls=Command,
    examples=(
        ("strobe sim run bank", "four branches of a bank, one snapshot, verified and proved"),
        ("strobe sim run bank -n 12 --snapshots 3 --seed 7 --svg run.svg", "a larger one, as a picture"),
        ("strobe sim run bank --protocol agreed-clock", "a wrong way to take snapshots, caught"),
        ("strobe sim run bank --faults crashes=2,partitions=1", "crashes and partitions change nothing"),
        ("strobe sim run philosophers -k 4 --check deadlock", "does a snapshot show a deadlock?"),
        ("strobe sim run bank --channels reorder --protocol lai-yang", "channels that reorder"),
    ),
)
@click.argument("workload")
@click.option("--nodes", "-n", type=Whole(), metavar="N", help="How many nodes; each workload has its own default.")
@protocol_options
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE",
              help="A parameter of the workload; may be given again.")  # fmt: skip
@click.option("--seed", "-s", type=Whole(), default=0, show_default=True, metavar="S",
              help="The same seed gives the same run.")  # fmt: skip
@click.option("--snapshots", "-k", type=Whole(), default=1, show_default=True, metavar="K",
              help="How many snapshots to take during the run.")  # fmt: skip
@click.option("--initiator", "initiators", multiple=True, metavar="NODE",
              help="Where every snapshot starts; may be given again. Chosen for you otherwise.")  # fmt: skip
@click.option("--delays", default="uniform", show_default=True, metavar="D",
              help="How long messages take: fixed:10, uniform:1:20, long-tailed:2:400, bursty:1:10:50.")  # fmt: skip
@click.option("--faults", default="", metavar="LIST", help=FAULTS_HELP)
@check_option
@file_options
@common_options
def run_command(
    workload: str,
    nodes: int | None,
    protocol: str | None,
    channels: Order,
    force: bool,
    params: tuple[str, ...],
    seed: int,
    snapshots: int,
    initiators: tuple[str, ...],
    delays: str,
    faults: str,
    check: str | None,
    svg: str | None,
    journal: str | None,
    session: Session,
) -> int:
    """Run WORKLOAD once and verify its snapshots.

    Every snapshot is checked to be a consistent cut, proved reachable by replaying the run's own steps in another
    order, and tested against the workload's invariant. With --check it is also asked whether it shows a deadlock, say,
    and whether what it shows is true. The exit code is 0 if all is well and 1 if anything is not, or is found.
    """
    asked = None if check is None else Check.named(check)
    config = SimConfig(
        workload=known(workload, WORKLOADS, "workload"),
        params=parse_params(params),
        nodes=nodes,
        protocol=known(protocol or "chandy-lamport", PROTOCOLS, "protocol"),
        order=channels,
        seed=seed,
        snapshots=snapshots,
        initiators=tuple(NodeId(node) for node in initiators),
        delays=delays,
        faults=Faults.parse(faults),
        force=force,
    )
    check_writable(svg, "--svg")
    check_writable(journal, "--journal")
    if asked is not None:
        asked.fits(workload_named(config.workload, config.nodes, config.params))
    result = run(config)
    assert result.journal is not None
    load = workload_of(result.journal.header)
    judgement = judge(result.journal, load, load.check)
    files = write_files(judgement.journal, svg, journal)
    troubles = list(_troubles(result))
    shown = () if asked is None else show(asked, load, result)
    ok = judgement.ok and not troubles and not any(one.finding.found for one in shown)
    if session.json:
        aborted = {str(snapshot): why for snapshot, why in result.aborted.items()}
        session.answer(
            {**judgement.to_json(), "ok": ok, "crashes": result.crashes, "aborted": aborted, "end": result.end,
             "troubles": troubles, **({} if asked is None else {"checks": [one.to_json() for one in shown]}), **files}
        )  # fmt: skip
    else:
        print_judgement(session, judgement)
        for snapshot, why in result.aborted.items():
            session.say((f"snapshot {snapshot}", "bold"), f": aborted, {why}")
        for trouble in troubles:
            session.say(("  ! ", "bold red"), trouble)
        for one in shown:
            print_finding(session, f"snapshot {one.snapshot}", one.finding)
            if one.phantom:
                session.say(("  ! ", "bold red"), "a phantom: the run came to its end without it")
        _print_files(session, files)
    return 0 if ok else 1


def _troubles(result: SimResult) -> Iterable[str]:
    """Problems that the journal does not show: how the run itself ended."""
    if result.end is not None:
        yield f"At the end of the run: {result.end}"
    if not result.at_rest:
        yield f"The run did not come to rest within {result.config.max_events:,} events."
    for snapshot in result.incomplete:
        yield f"Snapshot {snapshot} never became complete."
    yield from result.refused


def _print_files(session: Session, files: Mapping[str, str]) -> None:
    for what, path in files.items():
        session.say(f"{'diagram' if what == 'svg' else what}: {path}")


# ── verify ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@sim.command(
    "verify",
    cls=Command,
    examples=(
        ("strobe sim run bank --journal run.journal", "write a journal"),
        ("strobe sim verify run.journal", "verify it again, without the run"),
        ("strobe sim verify run.journal --svg run.svg", "and draw it"),
    ),
)
@click.argument("journal")
@click.option("--svg", metavar="FILE", help="Draw the space–time diagram into this file.")
@click.option("--proof/--no-proof", default=True, show_default=True,
              help="Prove each snapshot reachable by replaying the run in another order.")  # fmt: skip
@topology_option
@common_options
def verify_command(journal: str, svg: str | None, proof: bool, topology: str | None, session: Session) -> int:
    """Verify the snapshots in JOURNAL.

    Reads nothing but the journal; with --topology, the proof replays the handlers of live processes. The exit code is 0
    if every snapshot is a consistent cut, 1 if one is not or cannot be proved, and 2 if the journal is damaged.
    """
    check_writable(svg, "--svg")
    try:
        read = Journal(*read_journal(journal))
    except Damaged as error:
        # A damaged journal is an answer to "is this a journal?", given before anything was verified.
        raise Misuse(error.what, untouched=error.untouched, next=error.next) from error
    judgement, unproved = _judge(read, proof, topology)
    files = write_files(read, svg, None)
    if session.json:
        session.answer({**judgement.to_json(), "unproved": unproved, **files})
    else:
        print_judgement(session, judgement)
        if unproved:
            session.say(f"not proved: {unproved}")
        _print_files(session, files)
    return 0 if judgement.ok and (topology is None or unproved is None or not proof) else 1


def _judge(journal: Journal, proof: bool, topology: str | None) -> tuple[Judgement, str | None]:
    """Judge with the workload that the journal names, if it exists here; else say why not."""
    if not is_pure(journal.header) or topology is not None:
        return _judge_live(journal, proof, topology)
    # In a run that was shrunk, parts of the system are missing: its invariant no longer applies.
    params = {key: value for key, value in journal.header.params.items() if key != "partial"}
    whole = len(params) == len(journal.header.params)
    try:
        load = workload_of(replace(journal.header, params=params))
    except StrobeError as error:
        return judge(journal, None, None), error.what
    check = load.check if whole else None
    return (judge(journal, load, check), None) if proof else (judge(journal, None, check), "--no-proof")


def _judge_live(journal: Journal, proof: bool, topology: str | None) -> tuple[Judgement, str | None]:
    if not proof or topology is None:
        why = "--no-proof" if not proof else "it is of live processes; --topology FILE brings their classes."
        return judge(journal, None, None), why
    app = application_of(journal.header, topology)
    history = History(journal)
    try:
        for epoch in history.epochs:  # a handler that is not deterministic is named here, and not by the proof
            replayed = run_of(history, app, epoch.number, compared=True)
            for node in history.graph.nodes:
                replayed.states(node)
    except NotDeterministic as error:
        return judge(journal, None, None), error.what
    return judge(journal, app, None, cut_short=True), None


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@sim.command("list", cls=Command, examples=(("strobe sim list", "what there is to run"),))
@common_options
def list_command(session: Session) -> int:
    """Workloads, protocols and mutants, with a line on each."""
    if session.json:
        session.answer(
            {
                "workloads": [
                    {"name": name, "description": load.description, "nodes": load.default_nodes,
                     "params": dict(load.defaults), "scripts": {k: s.description for k, s in load.scripts().items()}}
                    for name, load in WORKLOADS.items()
                ],
                "protocols": [
                    {"name": name, "description": spec.description, "needs_fifo": spec.needs_fifo,
                     "correct": spec.is_correct}
                    for name, spec in PROTOCOLS.items()
                ],
                "mutants": [
                    {"name": name, "rule": mutant.rule, "protocols": list(mutant.protocols)}
                    for name, mutant in MUTANTS.items()
                ],
            }
        )  # fmt: skip
        return 0
    sections: dict[str, dict[str, str]] = {
        "Workloads": {name: load.description for name, load in WORKLOADS.items()},
        "Protocols": {name: spec.description for name, spec in PROTOCOLS.items()},
        "Mutants, each of which breaks one rule": {name: mutant.rule for name, mutant in MUTANTS.items()},
    }
    width = max(len(name) for section in sections.values() for name in section)
    for number, (title, section) in enumerate((t, s) for t, s in sections.items() if s):
        if number:
            session.say("")
        session.say((title, "bold"))
        for name, description in section.items():
            session.say("  ", (name.ljust(width), "cyan"), f"  {description}")
    return 0
