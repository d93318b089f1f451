"""The contract of a sink, as tests that anybody can run against their own.

Derive from `SinkContract`, say how the sink is made and what others see of it, and let pytest find the class. The
tests make the calls that a job makes, in every order that the protocol allows, with a restart between any two of them
and in the middle of each, and compare what is visible with what must be. The rows are real Spark DataFrames.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

from strobe.hosts.spark.connectors.base import Sink, SinkFate, TransactionalSink
from strobe.hosts.spark.stage.local_frame import SparkSession, local_frame
from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.testing.driving import Driver, Row, turns
from strobe.testing.lines import Died, at_each_line, places

__all__ = ["SinkContract", "check_contract"]


class SinkContract:
    """What a sink must do whatever happens. `make_sink` and `visible` are yours; the rest has defaults."""

    schema: str = "k BIGINT, v STRING"  # of the rows that the sink is given, as Spark writes it
    key: Sequence[str] = ()  # for a sink that keeps one row per key: the newest
    output_mode: str = "append"
    ordered: bool = False  # `visible` gives the rows in the order of batches, and that is promised
    fenced: bool = False  # a driver that was given up and wakes again is refused
    points: int = 8  # at most so many lines of a call are tested, by a look before them and by a crash there

    # ── yours ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def make_sink(self, where: Path) -> Sink:
        """A new object, as the author of a pipeline makes it. `where` is an empty directory at first, and the base of
        relative paths; a restarted driver gets the same."""
        raise NotImplementedError("make_sink says how the sink is made")

    def visible(self, where: Path) -> Iterable[Row]:
        """The rows that somebody else reads now, as tuples in the order of the columns."""
        raise NotImplementedError("visible says what others see")

    def rows(self, batch: int, timeline: int) -> list[Row]:
        """The rows of a batch. Override it together with `schema`; batch 2 has none, and some rows look the same."""
        if batch == 2:
            return []
        tag = f"batch {batch}" if timeline == 1 else f"batch {batch} of timeline {timeline}"
        return [(batch * 10, tag), (batch * 10 + 1, None), (7, 'the "same", for äll'), (8, tag)]

    def spark(self) -> SparkSession:
        from strobe.hosts.spark.jvm.session import spark_session

        return spark_session("strobe-testing", "local[1]")

    def crash(self, sink: Sink) -> None:
        """The process of this sink is gone. Close what the operating system would have closed, and nothing more."""

    def sources(self, sink: Sink) -> set[str]:
        """The files whose lines are tested, by a look and by a crash: where the sink's class and its bases are
        written."""
        classes = [c for c in type(sink).__mro__ if c not in (object, Sink, TransactionalSink)]
        return {file for c in classes if c.__module__ != "abc" and (file := _file_of(c))}

    def setup_method(self) -> None:
        self._places: list[Path] = []

    def teardown_method(self) -> None:
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)

    def driver(self) -> Driver:
        """A job that has just started, in a place of its own."""
        place = Path(tempfile.mkdtemp(prefix="strobe-contract-"))
        self._places.append(place)
        driver = Driver(self, place / "base", home=place / "home")
        driver.start()
        driver.check()
        return driver

    # ── every sink ──────────────────────────────────────────────────────────────────────────────────────────────────

    def test_it_says_where_it_writes(self) -> None:
        driver = self.driver()
        told = driver.sink.describe()
        assert told, "describe() must say where it writes"
        driver.position()

    def test_every_batch_becomes_visible_once(self) -> None:
        driver = self.driver()
        for _ in range(4):
            self._deliver(driver)
        driver.sink.close()
        driver.check()

    def test_a_batch_that_comes_again_is_visible_once(self) -> None:
        driver = self.driver()
        for _ in range(2):
            driver.write()
            driver.write(max(driver.batches))
            driver.check()
            driver.start()
            driver.write(max(driver.batches))
            self._settle(driver)

    def test_every_turn_that_the_protocol_has(self) -> None:
        driver = self.driver()
        for turn in turns(driver):
            turn()
            driver.check()

    def test_a_restart_between_any_two_calls(self) -> None:
        for every in (1, 2, 3):  # calls between two restarts
            driver = self.driver()
            for number, call in enumerate(self._script(driver), 1):
                call()
                driver.check()
                if number % every == 0:
                    driver.start()
                    driver.check()
                    if driver.next - 1 > driver.last_prepared:
                        driver.write(driver.next - 1)  # Spark had not committed it
                        driver.check()

    def test_a_call_that_dies_midway_is_mended_by_the_next_driver(self) -> None:
        for call in self._calls():
            lines = self._count_lines(call)
            for line in places(lines, self.points):
                driver = self.driver()
                run = call(driver)

                def die(number: int, place: str, line: int = line, driver: Driver = driver) -> None:
                    if number == line:
                        driver.note(f"… dies there: {place}")
                        raise Died

                try:
                    at_each_line(self.sources(driver.sink), die, run)
                except Died:
                    driver.start()
                    self._go_on(driver, call.__name__)
                self._settle(driver)
                self._deliver(driver)

    def test_a_reader_never_sees_half_of_it(self) -> None:
        for call in self._calls():
            looked = set(places(self._count_lines(call), self.points))
            driver = self.driver()
            run = call(driver)
            before, after = driver.expected(), self._after(driver, call)

            def look(number: int, place: str, driver: Driver = driver, before: Any = before, after: Any = after,
                     looked: set[int] = looked) -> None:  # fmt: skip
                if number in looked:
                    seen = driver.seen()
                    problem = driver.differs(seen, before)
                    if problem and driver.differs(seen, after):
                        driver.wrong(f"a reader who looks before {place}, sees neither what was nor what is to be: "
                                     f"{problem}")  # fmt: skip

            at_each_line(self.sources(driver.sink), look, run)

    def test_a_driver_that_was_given_up_changes_nothing(self) -> None:
        if not self.fenced:
            raise SkipTest("this sink does not promise it (fenced = False)")
        driver = self.driver()
        for _ in range(3):
            self._deliver(driver)
        old = driver.sink
        driver.start(other_lives=True)
        driver.write()
        same, late = driver.next - 1, driver.next
        others = local_frame(self.spark(), self.rows(same, 99), self.schema)
        refused = []
        for batch, frame in ((same, others), (late, driver.frame(late))):
            driver.note(f"the driver that was given up writes batch {batch}")
            try:
                old.write(frame, batch)
            except StrobeError:
                refused.append(batch)
            driver.check()
        if driver.transactional is None and late not in refused:
            driver.wrong("the driver that was given up was not refused")
        self.crash(old)
        self._settle(driver)
        self._deliver(driver)

    def test_a_new_timeline_has_batches_of_its_own(self) -> None:
        driver = self.driver()
        position = self._deliver_snapshot(driver)
        kept = driver.expected()
        self._deliver(driver)
        self._restore(driver, position, kept)
        self._deliver(driver)
        self._deliver(driver)
        driver.start()
        self._deliver(driver)

    def test_a_fork_leaves_the_original_alone(self) -> None:
        driver = self.driver()
        position = self._deliver_snapshot(driver)
        kept = driver.expected()
        fork = Driver(self, driver.where.with_name("fork"), job="fork", home=driver.home.with_name("fork-home"))
        fork.incarnation, fork.timeline, fork.floor = 1, 2, 0
        outlook = fork.sink.outlook(position, fork.context(), fork=True, again=False)
        if outlook.problem is not None:
            raise SkipTest(f"this sink cannot be forked: {outlook.problem.what}")
        fork.sink.restore(position, fork.context(), outlook.fate)
        fork.base = kept if outlook.fate is SinkFate.COPIED else fork.base
        if outlook.fate is SinkFate.KEPT:
            raise SkipTest("a fork of this sink writes where it is told to; nothing to compare")
        fork.start()
        fork.check()
        self._deliver(fork)
        driver.check()
        self._deliver(driver)
        fork.check()

    # ── sinks that deliver on snapshot ──────────────────────────────────────────────────────────────────────────────

    def test_nothing_is_visible_before_its_snapshot_is_complete(self) -> None:
        driver = self._on_snapshot()
        for _ in range(2):
            driver.write()
            driver.check()
        driver.prepare()
        driver.check()
        driver.write()
        driver.check()
        driver.commit()
        driver.check()

    def test_a_part_is_visible_once_however_often_it_is_committed(self) -> None:
        driver = self._on_snapshot()
        driver.write()
        done = driver.prepare()
        driver.commit()
        driver.commit(done)
        driver.check()
        driver.start()
        driver.commit(done)
        driver.check()
        self._deliver(driver)
        driver.commit(done)
        driver.check()

    def test_an_abandoned_part_becomes_visible_with_the_next(self) -> None:
        for restart in (False, True):
            driver = self._on_snapshot()
            driver.write()
            driver.prepare()
            driver.write()
            if restart:
                driver.start()
            driver.prepare()
            driver.check()
            driver.commit()
            driver.check()
            if restart:
                driver.start()
            driver.commit()
            driver.check()

    def test_an_aborted_part_is_gone(self) -> None:
        for unknown in (False, True):
            driver = self._on_snapshot()
            position = self._deliver_snapshot(driver)
            kept = driver.expected()
            driver.write()
            lost = driver.prepare()
            self._restore(driver, position, kept, lost, unknown=unknown)
            self._deliver(driver)

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_snapshot(self) -> Driver:
        driver = self.driver()
        if driver.transactional is None:
            raise SkipTest("this sink delivers on batch")
        return driver

    def _deliver(self, driver: Driver) -> None:
        """One more batch, all the way."""
        driver.write()
        self._settle(driver)

    def _settle(self, driver: Driver) -> None:
        if driver.transactional is not None:
            if driver.next - 1 > driver.last_prepared:
                driver.prepare()
            while driver.prepared:
                driver.commit()
        driver.check()

    def _deliver_snapshot(self, driver: Driver) -> Json:
        """One more batch and a snapshot behind it; the sink's position there."""
        driver.write()
        position = driver.position()
        self._settle(driver)
        return position

    def _go_on(self, driver: Driver, call: str) -> None:
        """What the job does after the call in which it died: a batch comes again; a part that was not prepared becomes
        part of the next, under another name; a commit is made by `_settle`."""
        if call == "write":
            driver.write(driver.next - 1)
        elif call == "prepare":
            driver.write()

    def _script(self, driver: Driver) -> list[Callable[[], object]]:
        if driver.transactional is None:
            return [driver.write] * 3
        write, prepare, commit = driver.write, driver.prepare, driver.commit
        return [write, write, prepare, write, commit, write, prepare, commit]

    def _calls(self) -> list[Callable[[Driver], Callable[[], object]]]:
        """Calls to look into: each brings a driver to where the call can be made."""

        def write(driver: Driver) -> Callable[[], object]:
            driver.write()
            return driver.write

        def prepare(driver: Driver) -> Callable[[], object]:
            write(driver)()
            return driver.prepare

        def commit(driver: Driver) -> Callable[[], object]:
            prepare(driver)()
            return driver.commit

        return [write] if self.driver().transactional is None else [write, prepare, commit]

    def _after(self, driver: Driver, call: Callable[[Driver], Callable[[], object]]) -> list[list[Row]]:
        """What may be visible at the end of the call."""
        if driver.transactional is None:
            return [*driver.expected(), self.rows(driver.next, driver.timeline)]
        return list(driver.batches.values()) if call.__name__ == "commit" else driver.expected()

    def _count_lines(self, call: Callable[[Driver], Callable[[], object]]) -> int:
        count = 0

        def one_more(number: int, place: str) -> None:
            nonlocal count
            count = number + 1

        driver = self.driver()
        run = call(driver)
        at_each_line(self.sources(driver.sink), one_more, run)
        return count

    def _restore(
        self, driver: Driver, position: Json, kept: list[list[Row]], lost: Any = None, *, unknown: bool = False
    ) -> None:
        """Back to a snapshot, in place: a new timeline, which begins with what was visible then, or with all that was
        visible if the sink cannot take anything back."""
        now, named = driver.expected(), tuple(p.part for p in driver.committed[:1])
        self.crash(driver.sink)
        driver.timeline, driver.incarnation = driver.timeline + 1, driver.incarnation + 1
        sink = self.make_sink(driver.where)
        context = replace(driver.context(), named=named)
        outlook = sink.outlook(position, context, fork=False, again=False)
        assert outlook.problem is None, f"outlook: {outlook.problem}"
        driver.note(f"restore: {outlook.fate.value}, {outlook.detail}")
        for _ in range(2):  # doing it again changes nothing
            sink.restore(position, context, outlook.fate)
        driver.base = kept if outlook.fate is SinkFate.ROLLED_BACK else now
        driver.batches, driver.prepared, driver.committed, driver.floor = {}, [], [], 0
        driver.start()
        if lost is not None:
            for _ in range(2):
                driver.abort(lost, unknown=unknown)
        driver.check()


def _file_of(one: type) -> str | None:
    try:
        return inspect.getsourcefile(one)
    except TypeError:
        return None


def check_contract(contract: SinkContract) -> list[str]:
    """Run all of it without a test runner; the names of the tests that passed. The first that fails raises."""
    passed = []
    for name, test in inspect.getmembers(contract, inspect.ismethod):
        if name.startswith("test_"):
            contract.setup_method()
            try:
                test()
                passed.append(name)
            except SkipTest:
                continue
            finally:
                contract.teardown_method()
    return passed
