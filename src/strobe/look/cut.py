"""A snapshot that can be asked: `open_snapshot("ledger/12")`.

An open cut protects its snapshot: the job that took it deletes neither the snapshot nor the rows that were in flight.
Use it as a context manager, or close it; when the process ends, the protection ends, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from strobe.look.cache import StateCache, cache_directory
from strobe.look.engine import Engine, Limits
from strobe.look.relations import Fallback, Relation, relations_of
from strobe.model.errors import Failed, Misuse
from strobe.model.suggest import did_you_mean
from strobe.store.chained import why_no_channel
from strobe.store.leases import Lease, take_lease
from strobe.store.locate import Located, locate
from strobe.store.manifest import Manifest

__all__ = ["Cut", "open_snapshot", "save_parquet"]


class Cut:
    """Made by `open_snapshot`. Not for several threads at once."""

    def __init__(
        self, found: Located, manifest: Manifest, lease: Lease | None, limits: Limits, fallback: Fallback | None
    ) -> None:
        self.found = found
        self.manifest = manifest
        self._lease = lease
        self._limits = limits
        self.cache = StateCache(cache_directory())
        self._relations = relations_of(found, manifest, fallback, self.cache)
        self._engine: Engine | None = None
        self._others: dict[str, Cut] = {}

    def sql(self, query: str) -> pa.Table:
        """The rows that a query gives. `Misuse` if it is wrong, `Failed` if it takes too long or too much, `Damaged` if
        a relation that it names cannot be read."""
        if self._engine is None:
            self._engine = Engine(self._limits, partial(why_no_channel, self.manifest))
            self._engine.add(self._relations)
            for name, other in self._others.items():
                self._engine.add(other._relations, name)
        return self._engine.sql(query)

    def relations(self) -> tuple[Relation, ...]:
        """Everything that a query can name."""
        return self._relations

    def relation(self, name: str) -> Relation:
        """The relation of this full name, such as `state.balances`."""
        for each in self._relations:
            if each.full_name.lower() == name.lower():
                return each
        names = [each.full_name for each in self._relations]
        guess = why_no_channel(self.manifest, name) or did_you_mean(name, names)
        raise Misuse(
            f"There is no relation {name!r} in snapshot {self.manifest.snapshot} of {self.manifest.job}.",
            next=f"{guess}Its relations: {', '.join(names)}.",
        )

    def state(self, stage: str) -> pa.Table:
        """The state of a stage, or one of its tables (`joined__left`). pandas and Polars take it as it is."""
        return self.relation(f"state.{stage}").load()

    def add(self, name: str, other: Cut) -> None:
        """The relations of another cut, for queries of this one: `name.state.balances`. Both are closed together."""
        if name in self._others:
            raise Misuse(f"Two snapshots are called {name!r}.", next="Give each another name.")
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._others[name] = other

    @property
    def others(self) -> Mapping[str, Cut]:
        return self._others

    def close(self) -> None:
        """Stop protecting the snapshot, and write what was decoded to the cache. Closing twice is not an error."""
        for other in self._others.values():
            other.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self.cache.keep()

    def __enter__(self) -> Cut:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.manifest.kind.value} {self.manifest.snapshot} of {self.manifest.job}>"


def open_snapshot(
    snapshot: str,
    home: str | Path | None = None,
    *,
    memory: str = "1GB",
    timeout: float | None = None,
    fallback: Fallback | None = None,
) -> Cut:
    """A snapshot by its name: `JOB` (its newest), `JOB/12`, a directory, or `s3://…`.

    `home` is where jobs live (`.strobe`, or what `STROBE_HOME` says). `memory` and `timeout`, in seconds, bound each
    query.
    """
    place = Path(os.environ.get("STROBE_HOME", ".strobe") if home is None else home)
    for _ in range(3):
        found = locate(snapshot, place)
        lease = _lease(found)
        try:
            # The lease is held: if the manifest is there now, it stays.
            return Cut(found, found.load(), lease, Limits(memory, timeout), fallback)
        except BaseException as error:
            if lease is not None:
                lease.release()
            if not isinstance(error, Misuse) or found.snapshot in found.store.list():
                raise  # else it was deleted before the lease was held; its job may have a newer one
    raise Failed(f"Snapshot {snapshot} was deleted while it was being opened.", next="Name one that is retained.")


def save_parquet(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path)


def _lease(found: Located) -> Lease | None:
    """A lease on a checkpoint. A savepoint needs none: Strobe never deletes it."""
    if found.home is None:
        return None
    return take_lease(found.home, found.store.job, found.snapshot)
