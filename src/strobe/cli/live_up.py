"""`strobe live up` and `strobe live node`: the commands that run until the system ends."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from strobe.cli.detach import run_detached, starter
from strobe.cli.log_files import PrivateLogFile, Redacted
from strobe.cli.output import Command, Session, common_options
from strobe.cli.system_view import PlainView, QuietView, TableView, farewell
from strobe.cli.watching import Watchers, Watching, watching_options
from strobe.hosts.live.api.loading import load_topology
from strobe.hosts.live.api.topology import DEFAULTS, Topology
from strobe.hosts.live.journal.journals import journal_directory
from strobe.hosts.live.node.by_hand import run_by_hand
from strobe.hosts.live.system.report import Report
from strobe.hosts.live.system.serving import Plan, serve
from strobe.model.errors import StrobeError
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.layout import JobLayout
from strobe.store.signing import SIGNED_BY

__all__ = ["Seconds", "node_command", "up_command"]

_INTERVAL = 10.0
_LOGGERS = ("strobe.live", "strobe.notify", "opentelemetry")


class Seconds(click.ParamType[float]):
    """A number of seconds, above zero or from zero up."""

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not (0 <= number < 1e7) or (number == 0 and not self.zero):
            self.fail(f"{value!r} is not a number of seconds{' from 0 up' if self.zero else ' above 0'}.", param, ctx)
        return number


@click.command(
    "up",
    cls=Command,
    examples=(
        ("strobe live up bank.toml", "start the system, or go on from its last snapshot"),
        ("strobe live up bank.py:bank --interval 1", "declared in Python, a snapshot every second"),
        ("strobe live up bank.toml --restore bank/12", "go back to snapshot 12"),
        ("strobe live up bank.toml --restore DIR --home elsewhere", "from a savepoint that was taken elsewhere"),
        ("strobe live up bank.toml --journal --for 5", "five seconds, with a journal to verify and to draw"),
        ("strobe live up --notify https://ops.example/hook bank.toml", "somebody is told when a node dies"),
        ("strobe live up -d bank.toml", "in the background; see `strobe live status` and `down`"),
    ),
)
@click.argument("target", metavar="TOPOLOGY")
@click.option(
    "--interval",
    type=Seconds(zero=True),
    metavar="S",
    help=f"Seconds between snapshots; 0 for none but those asked for.  [default: the file's, or {_INTERVAL:g}]",
)
@click.option("--restore", metavar="SNAPSHOT", help="Start from this one: NAME, NAME/ID, or a directory.")
@click.option("--signed-by", metavar="KEY", envvar=SIGNED_BY, show_envvar=True,
              help="With --restore: the public key (a PEM file, or env:NAME) that it must be signed by.")  # fmt: skip
@click.option("--journal", is_flag=True, help="Keep a journal, for `strobe live journal`. Costs time and disk.")
@click.option("--for", "seconds", type=Seconds(), metavar="S", help="End by itself after so many seconds.")
@click.option(
    "--wait",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="S",
    help="How long to wait until all nodes are reached.",
)
@watching_options
@click.option("--detach", "-d", is_flag=True, help="Return when the system runs; it goes on in the background.")
@click.option("--starter-pipe", type=int, hidden=True)
@common_options
def up_command(
    target: str,
    interval: float | None,
    restore: str | None,
    signed_by: str | None,
    journal: bool,
    seconds: float | None,
    wait: float,
    watching: Watching,
    detach: bool,
    starter_pipe: int | None,
    session: Session,
) -> int:
    """Start a system of processes, and show it at work.

    TOPOLOGY is FILE.toml, or FILE.py or FILE.py:NAME. The same command goes on from the last snapshot: after an
    interrupt, after a crash. A node that is killed is started again, and all go back to the last snapshot together.
    """
    topology = load_topology(target)
    plan = Plan(
        topology,
        session.home,
        target,
        _settings(topology, interval),
        restore,
        journal,
        wait,
        seconds,
        signed_by,
    )
    if detach and starter_pipe is None:
        started = run_detached(topology.name, session.home, ("live", "up"))
        if session.json:
            session.answer({"system": started.job, "pid": started.pid, "log": str(started.log)})
        else:
            session.say((started.job, "bold"), f" runs in the background as process {started.pid}.")
            session.say(("log  ", "bold"), str(started.log))
            session.say(f"next: strobe live status {started.job}   strobe live down {started.job}")
        return 0
    quiet = session.json or detach
    view: QuietView
    if quiet:
        view = QuietView()
    else:
        console = session.console
        view = TableView(console, topology.name) if console.is_terminal else PlainView(session.say)
    with (
        starter(starter_pipe) as told,
        _Logs(session.home, topology.name, view),
        Watchers(watching, topology.name, live=True) as watchers,
    ):
        if watchers.url is not None and not quiet:
            session.say(("metrics ", "bold"), watchers.url)
        running, show = view.running, view.show

        def say_running(report: Report) -> None:
            told.running()
            watchers.watch_system(report)
            running(report)

        def show_report(report: Report) -> None:
            watchers.watch_system(report)
            show(report)

        view.running = say_running  # type: ignore[method-assign]
        view.show = show_report  # type: ignore[method-assign]
        try:
            with view:
                ending = serve(plan, view, watchers.hear_system)
        except StrobeError as error:
            watchers.tell("system.failed", error.what)
            raise
    if session.json and not detach:
        last = None if ending.report is None else ending.report.to_json()
        session.answer({"system": ending.system, "why": ending.why, "snapshot": ending.snapshot,
                        "trouble": ending.trouble, "report": last})  # fmt: skip
    elif not quiet:
        session.say(farewell(ending))
    return 0


def _settings(topology: Topology, interval: float | None) -> CoordinatorSettings:
    settings = topology.checkpoints or replace(DEFAULTS, interval=round(_INTERVAL * 1000))
    return settings if interval is None else replace(settings, interval=round(interval * 1000) or None)


@click.command(
    "node",
    cls=Command,
    examples=(
        ("strobe live node bank.toml b", "start node b here; `strobe live up bank.toml` elsewhere connects to it"),
        ("strobe live node bank.toml b --listen 0.0.0.0:7001", "where its address is not one of this machine"),
    ),
)
@click.argument("target", metavar="TOPOLOGY")
@click.argument("name", metavar="NODE")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: the node's address]")
@click.option("--journal", is_flag=True, help="Keep this node's part of the journal, in the home directory.")
@common_options
def node_command(target: str, name: str, listen: str | None, journal: bool, session: Session) -> None:
    """Start one node by hand, on the machine where it is to run.

    It waits for the system, and ends when that is taken down. Both need the same topology and the same key file.
    Keep it running under whatever restarts services on that machine: a node that ends is waited for.
    """
    topology = load_topology(target)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=f"%(asctime)s {name} %(message)s")

    def ready(address: tuple[str, int]) -> None:
        if session.json:
            session.answer({"node": name, "system": topology.name, "host": address[0], "port": address[1]})
        else:
            session.say((name, "bold"), f" listens on {address[0]}:{address[1]} and waits for {topology.name}.")
        sys.stdout.flush()

    run_by_hand(
        topology,
        name,
        listen=listen,
        journal=journal_directory(session.home, topology.name) if journal else None,
        ready=ready,
    )


class _Logs:
    """The system's log goes to its file; warnings go to the view as well, above what it shows."""

    def __init__(self, home: Path, name: str, view: QuietView) -> None:
        self._loggers = [logging.getLogger(name) for name in _LOGGERS]
        self._file = _LogFile(home.absolute() / JobLayout(name).driver_log, delay=True)
        self._file.setFormatter(Redacted("%(asctime)s %(levelname)s %(message)s"))
        self._shown = logging.Handler(logging.WARNING)
        self._shown.setFormatter(Redacted("%(asctime)s %(message)s", "%H:%M:%S"))
        self._shown.emit = self._show  # type: ignore[method-assign]
        self._view = view
        self._last = ""

    def _show(self, record: logging.LogRecord) -> None:
        """Show a line. One that is repeated, such as by a peer with a wrong key, is shown once."""
        said = record.getMessage()
        if said != self._last:
            self._last = said
            self._view.note(self._shown.format(record))

    def __enter__(self) -> None:
        self._before = [(logger.level, logger.propagate) for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(self._file)
            logger.addHandler(self._shown)

    def __exit__(self, *_: object) -> None:
        for logger, (level, propagate) in zip(self._loggers, self._before, strict=True):
            logger.removeHandler(self._file)
            logger.removeHandler(self._shown)
            logger.setLevel(level)
            logger.propagate = propagate
        self._file.close()


class _LogFile(PrivateLogFile):
    """Opened by the first line, which comes after the system is claimed. A full disk must not stop the system."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass
