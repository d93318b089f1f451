"""`strobe live`: systems of processes, brought up here, and asked from other terminals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from strobe.cli.figures import human_bytes, plural
from strobe.cli.live_check import check_command
from strobe.cli.live_up import node_command, up_command
from strobe.cli.options import write_files
from strobe.cli.output import Command, Session, check_writable, common_options
from strobe.cli.system_view import check_lines, head_of, node_table, snapshot_table
from strobe.hosts.live.journal.journals import whole_journal
from strobe.hosts.live.system.commands import ask, live_runtime, the_system
from strobe.hosts.live.system.report import report_from_json
from strobe.model.text import shortened
from strobe.store.holding import is_held
from strobe.store.layout import MANIFEST
from strobe.store.places import checkpoints_of
from strobe.store.runtime import UNKNOWN
from strobe.verify.journal import Journal

__all__ = ["live"]


@click.group()
def live() -> None:
    """Run processes that are snapshotted while they run.

    A system is a set of nodes, each a process of its own, joined by channels over TCP. `up` starts it and stays; the
    other commands reach it from other terminals. Where NAME may be left out, it is the only system that runs.
    """


live.add_command(up_command)
live.add_command(node_command)
live.add_command(check_command)

_of = click.option("--of", "name", metavar="NAME", help="Which system, if several run.")


@live.command("status", cls=Command, examples=(("strobe live status bank", "its nodes, their rates, its snapshots"),))
@click.argument("name", required=False)
@common_options
def status_command(name: str | None, session: Session) -> None:
    """Show a system: messages per second, queues, snapshots."""
    system = the_system(session.home, name)
    if not is_held(session.home, system):
        runtime = live_runtime(session.home, system) or UNKNOWN
        state = "dead" if runtime.state in ("starting", "running") else runtime.state
        kept = list(checkpoints_of(session.home, system).list())
        if session.json:
            session.answer({"system": system, "state": state, "error": runtime.error, "retained": kept})
            return
        session.say((system, "bold"), f"  {state}  (not running)")
        if runtime.error:
            session.say(("error: ", "red"), runtime.error)
        session.say(f"snapshots: {', '.join(map(str, kept)) or 'none'}")
        session.say(f"`strobe live up {runtime.topology or 'TOPOLOGY'}` goes on from the last one.")
        return
    value = ask(session.home, system, "GET", "/v1/status")
    if session.json:
        session.answer(value)
        return
    report = report_from_json(value)
    console = session.console
    console.print(head_of(report), soft_wrap=True)
    console.print(node_table(report.nodes))
    if report.snapshots:
        console.print(snapshot_table(report.snapshots))
    for node in report.nodes:
        if node.trouble:
            session.say((f"{node.node}: {node.trouble}", "red"))
    if report.reason:
        session.say((f"not taken: {report.reason}", "red"))
    for line in check_lines(report):
        session.say(line)


@live.command(
    "snapshot",
    cls=Command,
    examples=(
        ("strobe live snapshot bank", "take one now, and wait for it"),
        ("strobe live snapshot bank --to there", "a savepoint: a copy that can be moved anywhere"),
        ("strobe live snapshot bank --from a", "let node a start it"),
    ),
)
@click.argument("name", required=False)
@click.option("--to", "directory", metavar="DIR", help="Write a savepoint there, which no retention deletes.")
@click.option("--from", "initiators", metavar="NODE", multiple=True, help="Where it starts.  [default: everywhere]")
@common_options
def snapshot_command(name: str | None, directory: str | None, initiators: tuple[str, ...], session: Session) -> None:
    """Take a snapshot now; returns when it is complete and durable."""
    body: dict[str, Any] = {"initiators": list(initiators)}
    if directory is not None:
        body["directory"] = str(click.Path(resolve_path=True).convert(directory, None, None))
    system = the_system(session.home, name)
    taken = ask(session.home, system, "POST", "/v1/snapshot", body, timeout=None)
    if session.json:
        session.answer(taken)
        return
    figures = ""
    if {"took_ms", "bytes_total", "messages_in_flight"} <= taken.keys():
        figures = (
            f" in {taken['took_ms']:.0f} ms: {human_bytes(taken['bytes_total'])}, "
            f"{plural(taken['messages_in_flight'], 'message')} in flight"
        )
    session.say(f"{taken.get('kind', 'snapshot')} {taken['snapshot']} of {system} is complete{figures}")
    session.say(("at   ", "bold"), str(taken["where"]))


@live.command(
    "restore",
    cls=Command,
    examples=(
        ("strobe live restore bank 12", "everybody goes back to snapshot 12, while the system is up"),
        ("strobe live restore bank DIR", "to a savepoint, also one that was taken elsewhere"),
    ),
)
@click.argument("name")
@click.argument("snapshot")
@common_options
def restore_command(name: str, snapshot: str, session: Session) -> None:
    """Take a running system back to one of its snapshots.

    SNAPSHOT is a number, as `strobe live status` shows it, or else the directory of a snapshot, or NAME/ID. What
    happened since is undone; a new snapshot is taken at once, so that the system goes on from there if it is ended.
    """
    system = the_system(session.home, name)
    wanted: int | str = int(snapshot) if snapshot.isdecimal() else snapshot
    if Path(snapshot, MANIFEST).is_file():
        wanted = str(Path(snapshot).resolve())  # the system may run in another directory
    done = ask(session.home, system, "POST", "/v1/restore", {"snapshot": wanted}, timeout=None)
    if session.json:
        session.answer(done)
    else:
        session.say(f"{system} is back at snapshot {snapshot}, as incarnation {done['incarnation']}.")


@live.command("kill", cls=Command, examples=(("strobe live kill a", "SIGKILL; watch the system come back"),))
@click.argument("node")
@_of
@common_options
def kill_command(node: str, name: str | None, session: Session) -> None:
    """Kill a node's process, to see what happens: all go back to the last snapshot, together."""
    system = the_system(session.home, name)
    done = ask(session.home, system, "POST", "/v1/kill", {"node": node})
    if session.json:
        session.answer(done)
    else:
        session.say(f"{node} of {system}, process {done['pid']}, is killed. See: strobe live status {system}")


@live.command(
    "break",
    cls=Command,
    examples=(
        ("strobe live break 'node.balance < 0'", "wait until it holds at some node"),
        ("strobe live break 'a.balance > 500 and a.turn > 10'", "at node a"),
    ),
)
@click.argument("condition")
@_of
@common_options
def break_command(condition: str, name: str | None, session: Session) -> None:
    """Wait until a condition holds at a node, then take a savepoint of the whole system, and show it.

    The system goes on. An interrupt ends the waiting.
    """
    system = the_system(session.home, name)
    if not session.json:
        session.say(f"waiting until {condition} holds in {system} …")
    hit = ask(session.home, system, "POST", "/v1/break", {"condition": condition}, timeout=None)
    if session.json:
        session.answer(hit)
        return
    session.say(("it holds at ", "bold"), (str(hit["node"]), "bold red"), f": savepoint {hit['snapshot']}")
    for node, state in hit["states"].items():
        session.say((f"  {node:<12} ", "bold red" if node == hit["node"] else "bold"), _short(state))
    for channel, content in hit["channels"].items():
        if content:
            session.say(f"  {channel:<12} {len(content)} in flight: ", _short(content))
    session.say(("at   ", "bold"), str(hit["where"]))


def _short(value: Any, limit: int = 200) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), limit)


@live.command(
    "down",
    cls=Command,
    examples=(
        ("strobe live down bank", "take a last snapshot, then end it"),
        ("strobe live down bank --now", "end it; what came after the last snapshot is given up"),
    ),
)
@click.argument("name", required=False)
@click.option("--now", is_flag=True, help="Without a last snapshot.")
@common_options
def down_command(name: str | None, now: bool, session: Session) -> None:
    """End a system, and all of its nodes; returns when no process of it is running."""
    system = the_system(session.home, name)
    done = ask(session.home, system, "POST", "/v1/down", {"snapshot": not now}, timeout=None)
    if session.json:
        session.answer(done)
        return
    kept = f"snapshot {done['snapshot']} keeps its state" if done["snapshot"] else "no last snapshot was taken"
    session.say(f"{system} is down; {kept}{': ' + done['trouble'] if done['trouble'] else ''}.")


@live.command(
    "journal",
    cls=Command,
    examples=(
        ("strobe live journal bank bank.journal", "what happened, as one file; then: strobe sim verify bank.journal"),
        ("strobe live journal bank bank.journal --svg bank.svg", "and the space–time diagram"),
    ),
)
@click.argument("name")
@click.argument("file")
@click.option("--svg", metavar="FILE", help="Draw the space–time diagram into this file.")
@common_options
def journal_command(name: str, file: str, svg: str | None, session: Session) -> None:
    """Write the journal of a system that ran with --journal, and has ended, into one file."""
    check_writable(file, "FILE")
    check_writable(svg, "--svg")
    system = the_system(session.home, name)
    merging = whole_journal(session.home, system)
    events = merging.write(file)
    files = {"journal": file}
    if svg is not None:
        files |= write_files(Journal(merging.header, list(merging.events())), svg, None)
    if session.json:
        session.answer({"system": system, "events": events, "files": files})
        return
    session.say(f"{system}: {events:,} events of {len(merging.header.graph.nodes)} nodes")
    for what, path in files.items():
        session.say(f"{'diagram' if what == 'svg' else what}: {path}")
