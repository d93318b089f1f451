"""Looks at complete checkpoints while the job runs, and at what they hold:
`python -m chaos.auditor HOME SERVERS OUT`.

A checkpoint is good if every byte is what its manifest says, its positions are a consistent cut (law 1), and no money
is in two places or in none: for each account, what the state of `balances` holds plus the postings on their way to it
plus those of transfers on their way to `postings` is what the transfers that the source had read amount to. The offsets
in the checkpoint and the topic itself say which transfers those are. So this is not only a sum that stays at zero:
every account is compared with the truth, at every cut.

One line of JSON for each checkpoint goes to OUT. Checkpoints that are disposed of before they are looked at, or while
they are, do not count. Ends on SIGTERM, after having looked at the newest.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Consumer, KafkaException

from chaos.driver import JOB
from chaos.topics import PARTITIONS, TRANSFERS, read_from
from chaos.transfers import Posting, Transfer, balances, postings
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.store.consistency import check_manifest
from strobe.store.locate import Located
from strobe.store.manifest import Manifest
from strobe.store.places import checkpoints_of

__all__ = ["Audit", "Holdings", "Read", "audit_money", "main"]

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Audit:
    snapshot: int
    transfers: int  # that the source had read
    in_flight: int  # rows, on all channels
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Holdings:
    """What a checkpoint holds: transfers and postings in flight, and (cents, postings) by account."""

    transfers: tuple[Transfer, ...]
    postings: tuple[Posting, ...]
    accounts: Mapping[int, tuple[int, int]]


def audit_money(read: Iterable[Transfer], holds: Holdings) -> list[str]:
    """What is wrong with the money of a checkpoint whose source had read these transfers."""
    wanted = {a: (b.cents, b.postings) for a, b in balances(postings(read)).items()}
    under_way = balances([*postings(holds.transfers), *holds.postings])
    problems = []
    for account in sorted({*wanted, *holds.accounts, *under_way}):
        cents, number = holds.accounts.get(account, (0, 0))
        on_the_way = under_way.get(account)
        if on_the_way is not None:
            cents, number = cents + on_the_way.cents, number + on_the_way.postings
        if (cents, number) != wanted.get(account, (0, 0)):
            should = wanted.get(account, (0, 0))
            problems.append(
                f"account {account} has {cents} cents from {number} postings, should have {should[0]} from {should[1]}"
            )
    total = sum(c for c, _ in holds.accounts.values()) + sum(b.cents for b in under_way.values())
    return [*([f"money is not conserved: {total} cents"] if total else []), *problems[:3]]


class Read:
    """The topic of transfers by partition and offset, read on as far as needed."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer({
            "bootstrap.servers": servers, "group.id": f"auditor-{uuid.uuid4().hex}", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 2,
        })  # fmt: skip
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._rows: dict[int, list[tuple[int, Transfer]]] = {p: [] for p in range(PARTITIONS)}

    def below(self, offsets: Mapping[int, int]) -> list[Transfer]:
        """Every transfer that a reader at these offsets has read."""
        if any(self._next[p] < offset for p, offset in offsets.items()):
            for message in read_from(self._consumer, TRANSFERS, dict(self._next)):
                partition, offset = message.partition() or 0, message.offset() or 0
                self._rows[partition].append((offset, Transfer(**json.loads(message.value() or b"{}"))))
                self._next[partition] = offset + 1
        return [row for p, end in offsets.items() for offset, row in self._rows[p] if offset < end]

    def close(self) -> None:
        self._consumer.close()


def offsets_of(manifest: Manifest) -> dict[int, int]:
    """Where the source stood, by partition."""
    said: Any = manifest.nodes[NodeId("transfers")].offsets
    while isinstance(said, str | list):
        said = json.loads(said) if isinstance(said, str) else said[0] if said else None
    return {int(p): int(offset) for p, offset in (said or {}).get(TRANSFERS, {}).items()}


def holdings(directory: Path, written: Iterable[Any]) -> Holdings:
    """What an export holds."""
    kinds: dict[str, list[str]] = {}
    for one in written:
        if one.error:
            raise StrobeError(f"{one.path} of the checkpoint cannot be read: {one.error}")
        kinds.setdefault(f"{one.kind} {one.of}", []).append(str(directory / one.path))
    with duckdb.connect() as connection:

        def rows(kind: str, *columns: str) -> list[tuple[Any, ...]]:
            files = kinds.get(kind)
            return [] if not files else connection.read_parquet(files).select(*columns).fetchall()

        state = kinds.get("state balances", [])
        names = connection.read_parquet(state).columns if state else []
        values = [name for name in names if name.startswith("value_")]
        return Holdings(
            tuple(Transfer(*row) for row in rows("in flight transfers", "id", "source", "target", "cents")),
            tuple(Posting(*row) for row in rows("in flight postings", "id", "leg", "account", "cents")),
            {a: (c, n) for a, c, n in rows("state balances", "key_account", *values)},
        )


class Auditor:
    def __init__(self, home: Path, servers: str, out: Path) -> None:
        from strobe.hosts.spark.jvm.java import find_java
        from strobe.hosts.spark.jvm.session import spark_session

        os.environ["JAVA_HOME"] = str(find_java())
        self.home, self.out = home, out
        self.read = Read(servers)
        light = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        self.spark = spark_session("chaos-auditor", "local[1]", extra=light)
        self.seen: set[SnapshotId] = set()
        self.tries = 0

    def look(self) -> bool:
        """Look at the newest checkpoint that was not looked at yet. False if there is none."""
        store = checkpoints_of(self.home, JOB)
        fresh = [s for s in store.list() if s not in self.seen]
        if not fresh:
            return False
        found = Located(store, fresh[-1], str(fresh[-1]), self.home)
        try:
            audit = self._audit(found)
        except KafkaException:
            raise
        except Exception as error:
            # It was disposed of meanwhile, or is being disposed of; if it stays, it cannot be read, which is a fault.
            self.tries += 1
            print(f"checkpoint {found.snapshot}: {type(error).__name__}: {error}", flush=True)
            if found.snapshot not in store.list() or self.tries < _TRIES:
                return True
            audit = Audit(int(found.snapshot), 0, 0, (f"it cannot be read: {type(error).__name__}: {error}",))
        self.tries = 0
        if found.snapshot in store.list():
            self.seen.update(fresh)
            with self.out.open("a") as file:
                file.write(json.dumps(asdict(audit)) + "\n")
        return True

    def _audit(self, found: Located) -> Audit:
        from strobe.hosts.spark.snapshot.export import export_snapshot

        manifest = found.load()
        problems = [str(p) for p in found.store.verify(found.snapshot) if p.harmful]
        problems += [str(v) for v in check_manifest(manifest)]
        directory = Path(tempfile.mkdtemp(prefix="chaos-audit-"))
        try:
            holds = holdings(directory, export_snapshot(found, directory, self.home, self.spark))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        read = self.read.below(offsets_of(manifest))
        problems += audit_money(read, holds)
        return Audit(int(found.snapshot), len(read), len(holds.transfers) + len(holds.postings), tuple(problems))


def main(home: str, servers: str, out: str) -> int:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    auditor = Auditor(Path(home), servers, Path(out))
    while not told.wait(0.5):
        with contextlib.suppress(KafkaException):  # it cannot be reached for a moment
            auditor.look()
    for _ in range(20):
        try:
            if not auditor.look():
                return 0
        except KafkaException:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3]))
