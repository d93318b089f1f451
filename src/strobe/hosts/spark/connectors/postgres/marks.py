"""What a sink keeps in Postgres beside its rows: who may write, how far the table has come, what is prepared.

`strobe_sinks` has one row for each sink: the job's home that owns it, and the incarnation that may write.
`strobe_batches` has one for each sink and timeline: the last batch that is visible. Both are in the schema of the
sink's table.

A prepared transaction is called `strobe/OWNER/JOB/STAGE/SINK/TIMELINE/SNAPSHOT/AFTER-THROUGH/ATTEMPT`, so that it is
found by its name after any crash, of the driver or of Postgres, by this job and by nobody else: two homes may have jobs
of the same name.

*Fencing.* COMMIT PREPARED takes no condition, and cannot be part of a transaction that looks at the sink's row. So
whoever commits, and whoever takes over, holds an advisory lock of the sink meanwhile: a driver that was given up either
commits before the new one's number is there, or finds it and does not commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.connectors.base import Part, SinkContext, Unreachable
from strobe.hosts.spark.connectors.ownership import check_no_copy
from strobe.hosts.spark.connectors.postgres.connect import Dsn, quoted
from strobe.hosts.spark.connectors.postgres.load import MARKS, SINKS
from strobe.hosts.spark.connectors.starts import begin, check_start
from strobe.model.errors import Fenced, Misuse

__all__ = ["Marks", "PreparedPart", "owner_of"]

_LONGEST: Final = 199  # bytes of a prepared transaction's name
_NUMBERS: Final = re.compile(r"(\d+)/(\d+)/(-?\d+)-(\d+)/[0-9a-f]+")
_PATIENCE: Final = 10.0  # seconds for connections of an older driver to end
_OWNER: Final = "owner"
_START: Final = "start of"


def owner_of(context: SinkContext, what: str) -> str:
    """What tells this home's sink from one of the same name in another home; made when first asked for. Misuse if this
    home is a copy of another one that is still there. `what` is the sink in words."""
    path = context.staging.parent / _OWNER
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Postgres will know the name: after a loss of power it must be the same here.
        write_durably(path, uuid.uuid4().hex)
    check_no_copy(path, what)
    return path.read_text().strip()


def known_owner(context: SinkContext) -> str | None:
    path: Path = context.staging.parent / _OWNER
    return path.read_text().strip() if path.exists() else None


@dataclass(frozen=True)
class PreparedPart:
    """A prepared transaction of a sink."""

    gid: str
    timeline: int
    snapshot: int
    after: int
    through: int


@dataclass(frozen=True)
class Marks:
    """`schema` is that of the sink's table."""

    dsn: Dsn
    schema: str
    table: str
    context: SinkContext
    owner: str

    @property
    def sink(self) -> str:
        return f"{self.context.job}/{self.context.name}"

    @property
    def application(self) -> str:
        """What the connections of this incarnation are called."""
        return f"{self._applications}{self.context.incarnation}"

    @property
    def _applications(self) -> str:
        return f"strobe {hashlib.sha256(f'{self.owner}/{self.sink}'.encode()).hexdigest()[:16]} "

    def of(self, name: str) -> str:
        return quoted(self.schema, name).replace("%", "%%")

    # ── start ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def set_up(self, connection: psycopg.Connection[Any]) -> None:
        """Make the two tables and this sink's row, and shut out every other driver of it."""
        self._make_tables(connection)
        self._check_owner(connection)
        self.send_away(connection, older=True)
        with self._alone(connection), connection.transaction():
            self._follow(connection)
            standing = connection.execute(
                f"INSERT INTO {self.of(SINKS)} AS s (sink, owner, table_name, incarnation, at) "
                "VALUES (%s, %s, %s, %s, now()) ON CONFLICT (sink) DO UPDATE SET incarnation = excluded.incarnation, "
                "table_name = excluded.table_name, at = now() "
                "WHERE s.incarnation <= excluded.incarnation AND s.owner = excluded.owner RETURNING 1",
                (self.sink, self.owner, self.table, int(self.context.incarnation)),
            ).fetchone()
            if standing is None:
                self._check_owner(connection)
                raise self._fenced()

    def _follow(self, connection: psycopg.Connection[Any]) -> None:
        """Note which start of which home this is; Misuse if another home has written since (`starts`). A row of
        `strobe_sinks` has the name of the start in the place of an owner."""
        kept, incarnation, what = self._kept, self.context.incarnation, f"Table {self.table} at {self.dsn.address}"
        row = f"{_START} {self.sink}"
        last = connection.execute(f"SELECT owner FROM {self.of(SINKS)} WHERE sink = %s", (row,)).fetchone()
        check_start(None if last is None else str(last[0]), kept, incarnation, what)
        connection.execute(
            f"INSERT INTO {self.of(SINKS)} (sink, owner, table_name, incarnation, at) VALUES (%s, %s, %s, %s, now()) "
            "ON CONFLICT (sink) DO UPDATE SET owner = excluded.owner, incarnation = excluded.incarnation, at = now()",
            (row, begin(kept, incarnation).name, self.table, int(incarnation)),
        )

    @property
    def _kept(self) -> Path:
        return self.context.staging.parent / _OWNER

    def _fenced(self) -> Fenced:
        return Fenced(
            f"A newer driver than incarnation {self.context.incarnation} of job {self.context.job!r} writes to "
            f"{self.table} at {self.dsn.address}.",
            untouched="Nothing was written.",
        )

    @contextlib.contextmanager
    def _alone(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Hold the sink's lock: meanwhile no other driver of this sink commits or takes over. The connection of an
        older driver that holds the lock is ended; Unreachable if that does not help."""
        lock = (f"strobe {self.schema} {self.owner} {self.sink}",)
        deadline = SYSTEM.monotonic() + _PATIENCE
        while connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", lock).fetchone() != (True,):
            if SYSTEM.monotonic() > deadline:
                raise Unreachable(
                    f"Sink {self.sink!r}: another driver of it holds its lock in Postgres at {self.dsn.address}.",
                    untouched="Nothing was written.",
                )
            SYSTEM.sleep(0.02)
        try:
            yield
        finally:
            with contextlib.suppress(psycopg.OperationalError):  # the connection is gone, and the lock with it
                connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)

    def _make_tables(self, connection: psycopg.Connection[Any]) -> None:
        there = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename IN (%s, %s)",
            (self.schema, SINKS, MARKS),
        ).fetchone()
        if there == (2,):
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('strobe tables'))")  # for two drivers at once
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {quoted(self.schema, SINKS)} (sink text PRIMARY KEY, owner text NOT NULL, "
                "table_name text NOT NULL, incarnation bigint NOT NULL, at timestamptz NOT NULL)".encode()
            )
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {quoted(self.schema, MARKS)} (sink text, timeline bigint, "
                "batch bigint NOT NULL, incarnation bigint NOT NULL, at timestamptz NOT NULL, "
                "PRIMARY KEY (sink, timeline))".encode()
            )

    def other_owner(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether a job of this name in another home has written here."""
        there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (quoted(self.schema, SINKS),)).fetchone()
        if there != (True,):
            return False
        held = connection.execute(f"SELECT owner FROM {self.of(SINKS)} WHERE sink = %s", (self.sink,)).fetchone()
        return held is not None and held[0] != self.owner

    def _check_owner(self, connection: psycopg.Connection[Any]) -> None:
        if self.other_owner(connection):
            raise self.clash()

    def clash(self) -> Misuse:
        return Misuse(
            f"Sink {self.context.name!r} of a job {self.context.job!r} in another home writes to Postgres at "
            f"{self.dsn.address}, schema {self.schema}: the batches of the two would be taken for each other's.",
            untouched="Nothing was written.",
            next="Run the job with that home, or give this one another name. If the other is gone for good: "
            f"DELETE FROM {quoted(self.schema, SINKS)} WHERE sink IN ('{self.sink}', '{_START} {self.sink}'); "
            f"DELETE FROM {quoted(self.schema, MARKS)} WHERE sink = '{self.sink}'",
        )

    def send_away(self, connection: psycopg.Connection[Any], *, older: bool = False) -> None:
        """End the connections of this sink's other attempts, of this incarnation or of older ones: one that sleeps in
        the middle of a transaction holds locks."""
        others = "application_name LIKE %s" if older else "application_name = %s"
        name = f"{self._applications}%" if older else self.application
        mine = f"{others} AND pid <> pg_backend_pid() AND usename = current_user"
        deadline = SYSTEM.monotonic() + _PATIENCE
        while True:
            ended = connection.execute(
                f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {mine}", (name,)
            ).fetchone()
            if ended in (None, (0,)) or SYSTEM.monotonic() > deadline:
                return
            SYSTEM.sleep(0.02)

    # ── how far ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def visible(self, connection: psycopg.Connection[Any], timeline: int) -> int | None:
        """The last batch of the timeline that others see; None before the first part."""
        found = connection.execute(
            f"SELECT batch FROM {self.of(MARKS)} WHERE sink = %s AND timeline = %s", (self.sink, timeline)
        ).fetchone()
        return None if found is None else int(found[0])

    def begin(self, connection: psycopg.Connection[Any], timeline: int, after: int) -> int:
        """The last visible batch, noted as `after` before the first part of a timeline."""
        found = self.visible(connection, timeline)
        if found is not None:
            return found  # the row may be locked, by a transaction that is prepared
        connection.execute(
            f"INSERT INTO {self.of(MARKS)} (sink, timeline, batch, incarnation, at) VALUES (%s, %s, %s, %s, now()) "
            "ON CONFLICT DO NOTHING",
            (self.sink, timeline, after, int(self.context.incarnation)),
        )
        found = self.visible(connection, timeline)
        return after if found is None else found

    # ── prepared transactions ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def prefix(self) -> str:
        name = f"strobe/{self.owner[:8]}/{self.sink}/"
        return name if len(name.encode()) < 120 else f"strobe/{hashlib.sha256(name.encode()).hexdigest()[:32]}/"

    def gid(self, part: Part, after: int) -> str:
        """A new name for an attempt to prepare the part's batches after `after`."""
        numbers = f"{part.timeline}/{part.snapshot}/{after}-{part.through}/{uuid.uuid4().hex[:8]}"
        gid = self.prefix + numbers
        assert len(gid.encode()) <= _LONGEST, gid
        return gid

    def prepared(self, connection: psycopg.Connection[Any]) -> Iterator[PreparedPart]:
        """This sink's prepared transactions, of all timelines. Those of another role, or with a name that this sink
        would not give, are left out: they could be neither committed nor rolled back."""
        found = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s) AND database = current_database() "
            "AND owner = current_user",
            (self.prefix,),
        ).fetchall()
        for (gid,) in found:
            match = _NUMBERS.fullmatch(gid.removeprefix(self.prefix))
            if match is not None:
                timeline, snapshot, after, through = (int(number) for number in match.groups())
                yield PreparedPart(gid, timeline, snapshot, after, through)

    def roll_back(self, connection: psycopg.Connection[Any], gid: str) -> None:
        self._end(connection, "ROLLBACK", gid)

    def commit(self, connection: psycopg.Connection[Any], gid: str) -> bool:
        """False if there is no such transaction (any more); Fenced if a newer driver has the sink."""
        with self._alone(connection):
            newest = connection.execute(
                f"SELECT incarnation FROM {self.of(SINKS)} WHERE sink = %s AND owner = %s", (self.sink, self.owner)
            ).fetchone()
            if newest is None or newest[0] > int(self.context.incarnation):
                raise self._fenced()
            return self._end(connection, "COMMIT", gid)

    def _end(self, connection: psycopg.Connection[Any], how: str, gid: str) -> bool:
        try:
            connection.execute(f"{how} PREPARED '{gid}'".encode())
        except psycopg.errors.UndefinedObject:
            return False
        return True
