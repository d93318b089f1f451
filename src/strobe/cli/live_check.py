"""`strobe live check`: stable predicates, on a new snapshot or on an existing one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from strobe.cli.findings import print_finding
from strobe.cli.live_up import Seconds
from strobe.cli.output import Command, Session, Whole, common_options
from strobe.hosts.live.api.loading import load_topology
from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.snapshot.checks import Check
from strobe.hosts.live.snapshot.reading import load_any
from strobe.hosts.live.snapshot.snapshots import Loaded, check_fits
from strobe.hosts.live.system.commands import ask, live_runtime, running_systems
from strobe.model.errors import Misuse, StrobeError
from strobe.predicates.stable import Finding
from strobe.store.jobs import jobs_in
from strobe.store.manifest import Manifest
from strobe.store.runtime import UNKNOWN

__all__ = ["check_command"]

_ATTEMPTS = 3  # a snapshot may be deleted by retention before it is read


@click.command(
    "check",
    cls=Command,
    examples=(
        ("strobe live check table deadlock", "take a snapshot, and name those who wait for each other"),
        ("strobe live check table deadlock --every 5", "every five seconds, until there is one"),
        ("strobe live check pool termination --every 1 --expect yes", "wait until the work is done"),
        ("strobe live check ring/12 rules.py:one_token", "a function of your own, on a snapshot that there is"),
        ("strobe live check DIR deadlock --topology table.toml", "on a savepoint, wherever it was taken"),
    ),
)
@click.argument("name")
@click.argument("check")
@click.option("--every", type=Seconds(), metavar="S", help="Again every S seconds, until it is found.")
@click.option("--times", type=Whole(1), metavar="N", help="With --every: give up, not found, after N snapshots.")
@click.option("--expect", type=click.Choice(["yes", "no"]), default="no", show_default=True,
              help="Exit with 0 if this is the answer, with 1 if it is the other one.")  # fmt: skip
@click.option("--topology", "target", metavar="TOPOLOGY",
              help="Whose classes to ask.  [default: what the system was brought up with]")  # fmt: skip
@common_options
def check_command(
    name: str,
    check: str,
    every: float | None,
    times: int | None,
    expect: str,
    target: str | None,
    session: Session,
) -> int:
    """Look for a deadlock, for the end of a computation, for garbage, or for what a function of yours says.

    CHECK is deadlock, termination, garbage, or FILE.py:FUNCTION, a function that is given a cut with `states` and
    `channels`. NAME is a system that runs, of which a snapshot is taken; or else a snapshot: NAME/ID, a directory, or a
    system that is down, whose last one is meant.

    The exit code is 0 if it is not found, 1 if it is, and 2 if that could not be decided; --expect yes turns the first
    two round.
    """
    if times is not None and every is None:
        raise Misuse("--times is for --every.", next="Add --every S, or leave --times out.")
    try:
        asked = Check.named(check)
        running = name in running_systems(session.home)
        if every is not None and not running:
            raise Misuse(
                f"{name!r} is not running, so nothing new will show.",
                untouched="Nothing was looked at.",
                next="Leave --every out: a snapshot says the same every time.",
            )
        topology = _topology(name, target, session.home) if asked.needs_classes else None
        looked = 0
        while True:
            manifest, loaded = _taken(name, session.home) if running else load_any(name, session.home)
            finding = _examine(asked, manifest, loaded, topology)
            looked += 1
            if not session.json:
                print_finding(session, f"{manifest.job}, snapshot {manifest.snapshot}", finding)
            if finding.found or every is None or looked == times:
                break
            time.sleep(every)
    except Misuse:
        raise
    except StrobeError as error:
        # 1 says that it was found: whatever kept the question from being answered is told by 2.
        raise Misuse(error.what, untouched=error.untouched, next=error.next) from error
    if session.json:
        session.answer(
            {"system": manifest.job, "snapshot": manifest.snapshot, **finding.to_json(),
             "details": list(finding.details), "looked_at": looked}
        )  # fmt: skip
    return 0 if finding.found == (expect == "yes") else 1


def _taken(name: str, home: Path) -> tuple[Manifest, Loaded]:
    """A new snapshot of the running system, read before retention can delete it."""
    for attempt in range(1, _ATTEMPTS + 1):
        taken = ask(home, name, "POST", "/v1/snapshot", {}, timeout=None)
        try:
            return load_any(f"{name}/{taken['snapshot']}", home)
        except StrobeError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _examine(check: Check, manifest: Manifest, loaded: Loaded, topology: Topology | None) -> Finding:
    if topology is not None:
        check_fits(manifest, topology.graph, topology.name)
    return check(loaded, manifest.graph, topology)


def _topology(name: str, target: str | None, home: Path) -> Topology:
    if target is not None:
        return load_topology(target)
    system = name.partition("/")[0]
    if system not in jobs_in(home):
        system = load_any(name, home)[0].job
    runtime = (live_runtime(home, system) if system in jobs_in(home) else None) or UNKNOWN
    if not runtime.topology:
        raise Misuse(
            f"Which classes {system!r} consists of is not known here.",
            untouched="Nothing was looked at.",
            next="Name the topology that it was brought up with: --topology FILE.",
        )
    return load_topology(os.path.join(runtime.directory, runtime.topology))
