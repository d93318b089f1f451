"""A driver for one sink: it makes the calls that a job makes, and knows what others must see after each of them.

What a job does that matters to a sink: it starts (a new object, `open`, `recover`), hands over batches in order, the
last one perhaps again; at a snapshot asks for a position and has everything since the last part prepared; commits parts
in order, perhaps more than once; dies and starts again at any moment.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from strobe.hosts.spark.connectors.base import Delivery, Part, Sink, SinkContext, TransactionalSink
from strobe.hosts.spark.stage.local_frame import DataFrame, SparkSession, local_frame
from strobe.model.cut import Json
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

__all__ = ["Driver", "Row", "Rules", "turns"]

Row = tuple[Any, ...]


class Rules(Protocol):
    """What the author of a sink has said about it."""

    schema: str
    output_mode: str
    key: Sequence[str]
    ordered: bool

    def make_sink(self, where: Path) -> Sink: ...
    def visible(self, where: Path) -> Iterable[Row]: ...
    def rows(self, batch: int, timeline: int) -> list[Row]: ...
    def spark(self) -> SparkSession: ...
    def crash(self, sink: Sink) -> None: ...


@dataclass(frozen=True)
class Prepared:
    part: Part
    said: Json


class Driver:
    """One job with one sink, under `where`. The methods are named after the calls; each notes itself in `history`."""

    def __init__(self, rules: Rules, where: Path, *, job: str = "contract", home: Path | None = None) -> None:
        self.rules = rules
        self.where = where
        self.job = job
        self.home = home or where / "home"
        self.incarnation = 0
        self.timeline = 1
        self.history: list[str] = []
        self.batches: dict[int, list[Row]] = {}  # what was handed over on this timeline
        self.base: list[list[Row]] = []  # what earlier timelines left visible
        self.prepared: list[Prepared] = []
        self.committed: list[Prepared] = []
        self.floor = -1  # the last batch before this timeline
        self.snapshot = 0
        self.sink: Sink = rules.make_sink(where)
        where.mkdir(parents=True, exist_ok=True)

    # ── what a job does ─────────────────────────────────────────────────────────────────────────────────────────────

    def context(self) -> SinkContext:
        name = "stage/0"
        return SinkContext(
            job=self.job,
            stage=NodeId("stage"),
            name=name,
            timeline=Timeline(self.timeline),
            incarnation=Incarnation(self.incarnation),
            schema=self.frame(0).schema,
            output_mode=self.rules.output_mode,
            base=self.where,
            staging=self.home / "sinks" / name / f"t{self.timeline}",
        )

    def start(self, *, other_lives: bool = False) -> None:
        """A new process takes over, whatever became of the one before: it is dead, or only thought to be."""
        if self.incarnation and not other_lives:
            self.rules.crash(self.sink)
        self.incarnation += 1
        self.note(f"start incarnation {self.incarnation}, timeline {self.timeline}")
        self.sink = self.rules.make_sink(self.where)
        self.sink.open(self.context())
        held, newest = self.sink.last_batch(), self.next - 1
        if held is not None and held > newest:
            self.wrong(f"last_batch() says {held}, but the newest batch that it was given is {newest}")
        if self.transactional is not None:
            self.transactional.recover([p.part for p in self.prepared])

    def write(self, batch: int | None = None) -> None:
        """The next batch, or one that came before."""
        batch = self.next if batch is None else batch
        frame = self.frame(batch)
        self.note(f"write batch {batch}")
        self.batches[batch] = self.rules.rows(batch, self.timeline)
        self.sink.write(frame, batch)

    def position(self) -> Json:
        self.note("position")
        said = self.sink.position(SnapshotId(self.snapshot + 1))
        return self._through_json(said, "position")

    def next_part(self) -> Part:
        self.snapshot += 1
        after, through = self.last_prepared, self.next - 1
        handle = f"{self.job}/stage/0/{self.timeline}/{self.snapshot}"
        return Part(handle, SnapshotId(self.snapshot), Timeline(self.timeline), after, through)

    def prepare(self) -> Prepared:
        part = self.next_part()
        self.note(f"prepare snapshot {part.snapshot}: batches {part.after + 1} to {part.through}")
        said = self._through_json(self._two_phase().prepare(part), "prepare")
        done = Prepared(part, said)
        self.prepared.append(done)
        return done

    def commit(self, again: Prepared | None = None) -> None:
        due = again or self.prepared[0]
        self.note(f"commit snapshot {due.part.snapshot}{' again' if again in self.committed else ''}")
        self._two_phase().commit(due.part, due.said)
        if due in self.prepared:
            self.prepared.remove(due)
            self.committed.append(due)

    def abort(self, due: Prepared, *, unknown: bool = False) -> None:
        self.note(f"abort snapshot {due.part.snapshot}")
        self._two_phase().abort(due.part, None if unknown else due.said)
        self.prepared = [p for p in self.prepared if p != due]

    # ── what must be ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def transactional(self) -> TransactionalSink | None:
        one = self.sink
        return one if isinstance(one, TransactionalSink) and one.delivery is Delivery.ON_SNAPSHOT else None

    @property
    def next(self) -> int:
        return max(self.batches, default=self.floor) + 1

    @property
    def last_prepared(self) -> int:
        return max((p.part.through for p in (*self.prepared, *self.committed)), default=self.floor)

    def expected(self) -> list[list[Row]]:
        """What must be visible now, batch by batch."""
        if self.transactional is None:
            return [*self.base, *(self.batches[b] for b in sorted(self.batches))]
        through = max((p.part.through for p in self.committed), default=self.floor)
        return [*self.base, *(self.batches[b] for b in sorted(self.batches) if b <= through)]

    def seen(self) -> list[Row]:
        return [tuple(row) for row in self.rules.visible(self.where)]

    def check(self) -> None:
        seen = self.seen()
        problem = self.differs(seen, self.expected())
        if problem:
            self.wrong(problem)

    def differs(self, seen: Sequence[Row], expected: Sequence[list[Row]]) -> str:
        """What is wrong with what is seen; empty if nothing is."""
        rules = self.rules
        if rules.key:
            at = [self.columns.index(k) for k in rules.key]
            newest = {tuple(row[i] for i in at): row for rows in expected for row in rows}
            expected = [list(newest.values())]
        flat = list(itertools.chain(*expected))
        lost, extra = Counter(flat) - Counter(seen), Counter(seen) - Counter(flat)
        if lost or extra:
            parts = [f"missing: {_shown(lost)}" if lost else "", f"too much: {_shown(extra)}" if extra else ""]
            return f"not what must be visible ({', '.join(p for p in parts if p)})"
        if rules.ordered and not rules.key:
            left = list(seen)
            for number, rows in enumerate(expected):
                here, left = left[: len(rows)], left[len(rows) :]
                if Counter(here) != Counter(rows):
                    return f"the rows are not in the order of batches: where those of batch {number} belong is {here}"
        return ""

    def wrong(self, what: str) -> None:
        told = "\n".join(f"  {number}. {line}" for number, line in enumerate(self.history, 1))
        raise AssertionError(f"{what}\nafter these calls:\n{told}")

    def note(self, what: str) -> None:
        self.history.append(what)

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def columns(self) -> list[str]:
        return list(self.frame(0).schema.names)

    def frame(self, batch: int) -> DataFrame:
        rules = self.rules
        return local_frame(rules.spark(), rules.rows(batch, self.timeline), rules.schema)

    def _two_phase(self) -> TransactionalSink:
        assert self.transactional is not None
        return self.transactional

    def _through_json(self, said: Json, call: str) -> Json:
        """As a manifest keeps it."""
        try:
            return json.loads(json.dumps(said, allow_nan=False))
        except (TypeError, ValueError) as error:
            self.wrong(f"what {call} returns cannot be kept as JSON: {error}: {said!r}")
            raise


def _shown(rows: Mapping[Row, int]) -> str:
    some = [f"{row}{f' {n} times' if n > 1 else ''}" for row, n in itertools.islice(rows.items(), 4)]
    return ", ".join(some) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")


# ── every turn ──────────────────────────────────────────────────────────────────────────────────────────────────────

State = tuple[int, int, bool]  # batches not yet prepared, parts not yet committed, whether any was ever committed
_MOST = 2


def _possible(state: State, transactional: bool) -> dict[str, State]:
    """What may come next, and where it leads."""
    waiting, prepared, any_committed = state
    go = {"restart": state}
    if waiting < _MOST:
        go["write"] = (waiting + 1, prepared, any_committed)
    if waiting:
        go["write again"] = state
        go["restart, write again"] = state
        if not transactional:
            go["settle"] = (0, 0, False)
        elif prepared < _MOST:
            go["prepare"] = (0, prepared + 1, any_committed)
    if prepared:
        go["commit"] = (waiting, prepared - 1, True)
    if any_committed:
        go["commit again"] = state
    return go


def turns(driver: Driver) -> Iterable[Callable[[], None]]:
    """Calls that together take every turn that the protocol has: each thing that may come next, in each state. Ends
    with everything visible."""
    transactional = driver.transactional is not None
    state: State = (0, 0, False)
    taken: set[tuple[State, str]] = set()

    def do(what: str) -> None:
        for word in what.split(", "):
            if word == "restart":
                driver.start()
            elif word == "write":
                driver.write()
            elif word == "write again":
                driver.write(max(driver.batches))
            elif word == "prepare":
                driver.prepare()
            elif word == "commit":
                driver.commit()
            elif word == "commit again":
                driver.commit(driver.committed[-1])

    while path := _to_untaken(state, taken, transactional):
        for action in path:
            taken.add((state, action))
            state = _possible(state, transactional)[action]
            yield lambda action=action: do(action)  # type: ignore[misc]
    if transactional and state[0]:
        yield lambda: do("prepare")
    for _ in range(3):
        if driver.prepared:
            yield lambda: do("commit")


def _to_untaken(start: State, taken: set[tuple[State, str]], transactional: bool) -> list[str]:
    """The shortest way to a turn that was not taken, and that turn; empty if there is none."""
    ways: list[tuple[State, list[str]]] = [(start, [])]
    known = {start}
    for state, way in ways:
        for action, after in _possible(state, transactional).items():
            if (state, action) not in taken:
                return [*way, action]
            if after not in known:
                known.add(after)
                ways.append((after, [*way, action]))
    return []
