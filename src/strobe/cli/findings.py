"""What a check has found, in words and as JSON."""

from __future__ import annotations

from strobe.cli.figures import plural
from strobe.cli.options import write_files
from strobe.cli.output import Session
from strobe.hosts.sim.explore import ExploreConfig
from strobe.hosts.sim.search import Shortest
from strobe.hosts.sim.system import replay
from strobe.predicates.stable import Finding

__all__ = ["answer_shortest", "print_finding"]


def print_finding(session: Session, where: str, finding: Finding) -> None:
    session.say((where, "bold"), ": ", (finding.sentence, "bold red" if finding.found else "green"))
    for line in finding.details:
        session.say(f"  {line}")


def answer_shortest(
    session: Session, config: ExploreConfig, way: Shortest, svg: str | None, journal: str | None
) -> int:
    """The shortest schedule, or that there is none. The exit code is 0 if there is none."""
    files = write_files(replay(way.system, way.schedule).journal, svg, journal) if way.found else {}
    graph, finding = way.system.graph, way.finding
    if session.json:
        session.answer(
            {"ok": way.complete and not way.found, "workload": config.workload, "script": config.script,
             "nodes": len(graph.nodes), "channels": len(graph.channels), "order": config.channels,
             "complete": way.complete, "states": way.states, "transitions": way.transitions,
             "schedule": [str(choice) for choice in way.schedule] if way.found else None,
             **finding.to_json(), **files}
        )  # fmt: skip
        return 0 if way.complete and not way.found else 1
    system = f"{plural(len(graph.nodes), 'node')}, {plural(len(graph.channels), 'channel')}"
    session.say((config.workload, "bold"), f": {system}, {config.channels} channels, no snapshots")
    session.say(f"{plural(way.states, 'distinct state')}, {plural(way.transitions, 'transition')}")
    if way.found:
        session.say(f"The shortest schedule after which it holds ({plural(len(way.schedule), 'choice')}):")
        for number, choice in enumerate(way.schedule, 1):
            session.say(f"  {number:>2}. {choice}")
        print_finding(session, "then", finding)
    elif way.complete:
        session.say(("not found", "green"), f": {finding.check} holds after no schedule")
    else:
        session.say(
            ("not everything was explored", "bold red"),
            f": it stopped at {way.states:,} states; --max-states raises the limit.",
        )
    for what, path in files.items():
        session.say(f"{'diagram' if what == 'svg' else what}: {path}")
    return 0 if way.complete and not way.found else 1
