"""`/api/v1`: one registry, from which requests are checked, answered and described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from strobe import __version__
from strobe.model.errors import Misuse
from strobe.web.commands import Commands
from strobe.web.home_place import HomePlace
from strobe.web.home_reader import HomeReader
from strobe.web.snapshot_reader import SnapshotReader
from strobe.web.statuses import Statuses
from strobe.web.system_reader import SystemReader
from strobe.web.views import (
    Answer,
    JobRow,
    JobView,
    Plan,
    Restorable,
    Rows,
    Session,
    SnapshotPage,
    SnapshotView,
    SystemView,
)

__all__ = ["OPERATIONS", "Desk", "NotThere", "Operation"]

Given = dict[str, Any]


class NotThere(Misuse):
    """The job, system or snapshot does not exist."""


# ── what requests take ──────────────────────────────────────────────────────────────────────────────────────────────


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class SavepointOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`directory`: absolute, and new or empty; by default below the job's home."""

    directory: str | None = None


class StopOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`drain`: let the sources end and everything run through first."""

    directory: str | None = None
    drain: bool = False


class CancelOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`retention` of its checkpoints: `retain` or `delete`; by default as its pipeline says."""

    retention: str | None = None


class PlanOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fork`: the name of a new job beside the old one; empty to go back in place."""

    fork: str = ""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`query` in DuckDB's SQL, as `strobe sql` takes it; `.tables` lists what can be asked."""

    query: str


class KillOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str


class BreakOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`condition` over the nodes' states, as `strobe live break` takes it. Answered when it has held."""

    condition: str


class Desk:
    """Everything that an operation needs."""

    def __init__(self, place: HomePlace, *, read_only: bool = False) -> None:
        self.place = place
        self.read_only = read_only or place.in_bucket
        home = place.directory
        self.statuses = Statuses(home)
        self.snapshots = SnapshotReader(home, place.in_bucket)
        self.jobs = HomeReader(place, self.statuses, self.snapshots)
        self.systems = SystemReader(home, self.jobs, self.snapshots)
        self.commands = Commands(home, self.snapshots, in_bucket=place.in_bucket)

    def session(self) -> Session:
        return Session(__version__, self.place.shown, self.read_only, sql=find_spec("duckdb") is not None)

    def known(self, name: str) -> str:
        try:
            self.jobs.kind(name)
        except Misuse as error:
            raise NotThere(error.what, untouched=error.untouched, next=error.next) from None
        return name


@dataclass(frozen=True)
class Operation:
    """`answer` comes back; `takes` is the body of a POST; `query` are numbers that may stand in the address. `act` gets
    the desk, the names in the path, the numbers, and the body as a record. `reads`: a POST that changes nothing, and is
    answered where nothing may be ordered, too."""

    name: str
    method: str
    path: str
    summary: str
    answer: Any
    act: Callable[[Desk, Given, Given, Any], Any] = field(repr=False)
    takes: type[msgspec.Struct] = Nothing
    query: tuple[str, ...] = ()
    reads: bool = False


def _order(what: str) -> Callable[[Desk, Given, Given, Any], Answer]:
    def act(desk: Desk, at: Given, numbers: Given, body: Any) -> Answer:
        given = {k: v for k, v in msgspec.to_builtins(body).items() if v is not None}
        return desk.commands.order(desk.known(at["job"]), what, given)

    return act


def _order_system(what: str) -> Callable[[Desk, Given, Given, Any], Answer]:
    def act(desk: Desk, at: Given, numbers: Given, body: Any) -> Answer:
        return desk.commands.order_system(desk.known(at["job"]), what, msgspec.to_builtins(body))

    return act


def _snapshot(desk: Desk, at: Given, numbers: Given, body: Any) -> SnapshotView:
    try:
        return desk.snapshots.one(desk.known(at["job"]), at["snapshot"])
    except Misuse as error:
        raise NotThere(error.what, untouched=error.untouched, next=error.next) from None


def _page(desk: Desk, at: Given, numbers: Given, body: Any) -> SnapshotPage:
    return desk.snapshots.page(desk.known(at["job"]), numbers.get("before"), min(numbers.get("limit", 100), 1000))


_JOB: Final = "/jobs/{job}"
_ONE: Final = "/jobs/{job}/snapshots/{snapshot:int}"
_SYSTEM: Final = "/systems/{job}"
OPERATIONS: Final = (
    Operation("session", "GET", "/session", "which home is shown", Session, lambda d, a, n, b: d.session()),
    Operation("jobs", "GET", "/jobs", "all jobs and live systems", list[JobRow], lambda d, a, n, b: d.jobs.jobs()),
    Operation(
        "job", "GET", _JOB, "a job: its graph, its stages, barriers under way", JobView,
        lambda d, a, n, b: d.jobs.job(d.known(a["job"])),
    ),
    Operation(
        "snapshots", "GET", f"{_JOB}/snapshots", "every snapshot that was tried, newest first", SnapshotPage, _page,
        query=("before", "limit"),
    ),
    Operation("snapshot", "GET", _ONE, "one snapshot: where its time went, what it holds", SnapshotView, _snapshot),
    Operation(
        "restorable", "GET", f"{_ONE}/restorable", "whether all that it needs is there", Restorable,
        lambda d, a, n, b: d.commands.restorable(d.known(a["job"]), a["snapshot"]),
    ),
    Operation(
        "verify", "POST", f"{_ONE}/verify", "check every byte, and the cut", Answer,
        lambda d, a, n, b: d.commands.verify(d.known(a["job"]), a["snapshot"]), reads=True,
    ),
    Operation(
        "plan", "POST", f"{_ONE}/plan", "what a restore or a fork would do; changes nothing", Plan,
        lambda d, a, n, b: d.commands.plan(d.known(a["job"]), a["snapshot"], b.fork), PlanOrder,
    ),
    Operation(
        "dispose", "POST", f"{_ONE}/dispose", "delete a savepoint, or a checkpoint of a job that does not run", Answer,
        lambda d, a, n, b: d.commands.dispose(d.known(a["job"]), a["snapshot"]),
    ),
    Operation(
        "sql", "POST", f"{_ONE}/sql", "ask its state and its rows in flight with SQL", Rows,
        lambda d, a, n, b: d.commands.sql(d.known(a["job"]), a["snapshot"], b.query), Query, reads=True,
    ),
    Operation("checkpoint", "POST", f"{_JOB}/checkpoint", "take a checkpoint now", Answer, _order("checkpoint")),
    Operation(
        "savepoint", "POST", f"{_JOB}/savepoint", "copy all that the job is, while it runs on", Answer,
        _order("savepoint"), SavepointOrder,
    ),
    Operation("stop", "POST", f"{_JOB}/stop", "end it with a savepoint", Answer, _order("stop"), StopOrder),
    Operation("cancel", "POST", f"{_JOB}/cancel", "end it", Answer, _order("cancel"), CancelOrder),
    Operation(
        "system", "GET", _SYSTEM, "a system of live processes", SystemView,
        lambda d, a, n, b: d.systems.system(d.known(a["job"])),
    ),
    Operation(
        "system_snapshot", "POST", f"{_SYSTEM}/snapshot", "take a snapshot now", Answer, _order_system("snapshot")
    ),
    Operation(
        "break", "POST", f"{_SYSTEM}/break", "stop at the first state in which a condition holds", Answer,
        _order_system("break"), BreakOrder,
    ),
    Operation(
        "kill", "POST", f"{_SYSTEM}/kill", "kill the process of a node", Answer, _order_system("kill"), KillOrder
    ),
    Operation("down", "POST", f"{_SYSTEM}/down", "take a last snapshot, then end it", Answer, _order_system("down")),
)  # fmt: skip
