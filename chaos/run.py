"""One run: faults as planned until the job has survived enough kills, then no more faults, a drain, and the verdict.

The order is always the same. The generator feeds the ledger; a fault comes, lasts, and is fixed; whatever ended is
started again, as a supervisor would do. At the end everything is up, the generator stops, the job catches up and is
stopped with `--drain`, and all outputs are compared with the truth. If the job does not start, or makes no progress,
while nothing is broken, the run has failed, as it has when a row is lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from chaos.driver import JOB
from chaos.inject import inject
from chaos.outputs import judge, left_behind
from chaos.plan import CLOSING_POINTS, KINDS, WORKING_POINTS, Fault, Moment, Plan
from chaos.processes import kill, marked
from chaos.verdicts import Verdict
from chaos.world import World
from strobe.store.places import checkpoints_of

__all__ = ["Options", "Outcome", "Run"]

COME_UP = 900.0  # seconds for a job to come up, or to complete a checkpoint, while nothing is broken
CATCH_UP = 600.0  # seconds without a further row, at the end
PAUSE = 1.0  # seconds before a driver that gave up is started again
POINT = 25.0  # seconds for a running driver to reach the point where it is to die


@dataclass(frozen=True, slots=True)
class Options:
    kills: int = 20
    seed: int = 1
    rate: int = 100  # transfers a second
    store: str = "disk"
    minutes: float | None = None  # after which no more faults come
    closing: int = len(CLOSING_POINTS)  # at this many points of the drain the driver is killed, too
    audit: bool = True
    faults: int | None = None  # after which no more come, whatever has been killed
    kinds: tuple[str, ...] = tuple(KINDS)


@dataclass
class Outcome:
    kills: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    audits: int = 0
    looks: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return sum(v.lost for v in self.verdicts)

    @property
    def duplicated(self) -> int:
        return sum(v.duplicated for v in self.verdicts)

    @property
    def good(self) -> bool:
        return bool(self.verdicts) and all(v.good for v in self.verdicts) and not self.problems


class Stalled(Exception):
    """Nothing is broken, and yet the job makes no progress."""


class Run:
    def __init__(self, options: Options, world: World, say: Callable[[str], None]) -> None:
        self.options, self._world, self._say = options, world, say
        self.outcome = Outcome()
        without = [kind for kind in KINDS if kind not in options.kinds]
        without += ["full disk"] if world.disk is None else []
        without += ["slow store", "refuse store"] if world.store_proxy is None else []
        without += ["clock jump"] if world.clock is None else []
        points = WORKING_POINTS
        if world.store_proxy is not None:  # files in directories are the other store's
            points = tuple(p for p in points if not p.startswith("store.file."))
        self.plan = Plan(options.seed, without, points)
        self._began = time.monotonic()
        self._looked = 0.0
        self._pause_until = 0.0
        self._arming = True

    @property
    def world(self) -> World:
        return self._world

    # ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────

    def go(self) -> Outcome:
        world = self.world
        try:
            world.start_generator()
            if self.options.audit:
                world.start_auditor()
            self._under_faults()
            self._in_peace()
        except Stalled as error:
            self.outcome.problems.append(str(error))
        finally:
            world.heal()
        self._say("everything is read and compared")
        world.stop_generator()
        self._read_audits()
        self.outcome.verdicts = judge(world.outputs, self.options.seed)
        self.outcome.problems += left_behind(world.outputs)
        return self.outcome

    def _under_faults(self) -> None:
        options, began = self.options, time.monotonic()
        for fault in self.plan.faults():
            if self._enough or (options.faults is not None and fault.step > options.faults):
                return
            if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
                self._say(f"the time of {options.minutes:g} minutes is over")
                return
            self._await_moment(fault)
            if self._enough:
                return
            self.note(f"{fault.step:4d}  {fault.kind.name}" + (f" for {fault.lasts} s" if fault.lasts else ""))
            self.outcome.faults[fault.kind.name] = self.outcome.faults.get(fault.kind.name, 0) + 1
            inject(self, fault)

    def _in_peace(self) -> None:
        """No more faults, except a driver that dies while it is being stopped, if that was asked for."""
        world = self.world
        world.heal()
        self._arming = False
        for point in CLOSING_POINTS[: self.options.closing]:
            self._stop_driver()
            world.driver.start(point)
            self._await(lambda: world.driver.running, COME_UP, "the job does not come up")
            self._stop(world.work / f"savepoint-{point}", drain=point.startswith("drain."))
            self._await(lambda: world.driver.present is None, 30, None, reap_only=True)
            if point not in self.outcome.points:
                self.note(f"      it did not come past {point}")
        if world.driver.present is not None and world.driver.present.point:
            self._stop_driver()
        self._await(lambda: world.driver.running, COME_UP, "the job does not come up")
        world.stop_generator()
        sent = len({t.id for t in world.outputs.sent()})
        self._say(f"{sent} transfers were sent; the job catches up")
        self._catch_up(2 * sent)
        self._stop(world.work / "savepoint", drain=True)
        if not self._await(lambda: world.driver.present is None, COME_UP, None, reap_only=True):
            raise Stalled("the job does not end after `strobe stop --drain`")

    # ── pieces ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f} s  {self.outcome.kills:4d} kills  {text}")

    def killed(self) -> None:
        self.outcome.kills += 1

    def kill_driver(self, pids: list[int]) -> None:
        """We are about to kill the driver; it does not die at a crash point."""
        start = self.world.driver.present
        if start is not None:
            start.point = ""
        self.killed()
        kill(pids)

    def sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tick()
            time.sleep(0.1)

    def tick(self, *, reap_only: bool = False) -> None:
        """What a supervisor does all the time: start again what has ended."""
        world = self.world
        start = world.driver.present
        how = world.driver.reap()
        if how is not None and start is not None:
            if how == "signal 9" and start.point:
                name = start.point.partition(":")[0]
                self.outcome.points[name] = self.outcome.points.get(name, 0) + 1
                self.killed()
                self.note(f"      the driver died at {start.point}")
            elif how != "signal 9":
                self._pause_until = time.monotonic() + PAUSE
                if not reap_only:
                    self.note(f"      the driver ended by itself: {how}: {world.driver.last_words()}")
        if world.driver.present is None and not reap_only and time.monotonic() >= self._pause_until:
            birth = self.plan.start()
            world.driver.start(birth.point if self._arming else "", mode=birth.mode)
        if world.generator is not None and world.generator.poll() is not None:
            world.start_generator()
        if time.monotonic() - self._looked > 1.0:
            self._looked = time.monotonic()
            self._look()

    def _look(self) -> None:
        """What others see in Postgres at any time: balances of whole transfers."""
        try:
            options = "-c statement_timeout=1000"
            with psycopg.connect(self.world.postgres.address, connect_timeout=2, options=options) as connection:
                found = connection.execute("SELECT sum(cents), sum(postings) FROM balances").fetchone()
        except psycopg.Error:
            return  # it is down, or stopped
        cents, number = found or (None, None)
        if number is not None:
            self.outcome.looks += 1
            if cents != 0 or number % 2:
                self.outcome.problems.append(f"Postgres showed balances of {cents} cents from {number} postings")

    def _await_moment(self, fault: Fault) -> None:
        driver = self.world.driver
        if fault.moment is Moment.RUNNING:
            self._await(lambda: driver.running or self._enough, COME_UP, "the job does not come up")
        elif fault.moment is Moment.CHECKPOINT:
            before = self._newest()
            self._await(lambda: self._newest() > before or self._enough, COME_UP, "no checkpoint is completed")
        self.sleep(fault.wait)
        start = driver.present
        if start is not None and start.point and fault.moment is not Moment.AT_ONCE:
            self._await(lambda: not start.alive, POINT, None)

    @property
    def _enough(self) -> bool:
        return self.outcome.kills >= self.options.kills

    def _newest(self) -> int:
        try:
            return max(checkpoints_of(self.world.home, JOB).list(), default=0)
        except Exception:  # no home yet, or a store that cannot be reached
            return 0

    def _await(
        self, happened: Callable[[], bool], patience: float, otherwise: str | None, *, reap_only: bool = False
    ) -> bool:
        """Wait for it, and supervise meanwhile. `otherwise`: why it is a failure if it does not happen."""
        deadline = time.monotonic() + patience
        while not happened():
            kills = self.outcome.kills
            self.tick(reap_only=reap_only)
            if self.outcome.kills > kills:
                deadline = time.monotonic() + patience
            if time.monotonic() > deadline:
                if otherwise is not None:
                    raise Stalled(f"{otherwise} within {patience:.0f} s, while nothing is broken")
                return False
            time.sleep(0.1)
        return True

    def _stop_driver(self) -> None:
        driver = self.world.driver
        if driver.present is not None:
            start = driver.present
            self.kill_driver(marked(start.mark))
            start.process.wait()
            driver.reap()

    def _stop(self, savepoint: Path, *, drain: bool) -> None:
        arguments = ["stop", JOB, *(["--drain"] if drain else []), "--savepoint", str(savepoint)]
        self.note(f"      strobe {' '.join(arguments)}")
        done = subprocess.run(
            [sys.executable, "-m", "strobe.cli.main", *arguments, "--home", str(self.world.home)],
            capture_output=True, text=True, timeout=600, check=False,
            env=self.world.command_env,
        )  # fmt: skip
        with (self.world.work / "stop.log").open("a") as log:
            log.write(done.stdout + done.stderr)

    def _catch_up(self, wanted: int) -> None:
        """Until Postgres has all postings, or gets no more."""
        found, changed = -1, time.monotonic()
        while time.monotonic() - changed < CATCH_UP:
            self.tick()
            try:
                now = int(self.world.outputs.query("SELECT count(*) FROM postings")[0][0])
            except psycopg.Error:
                now = found
            if now >= wanted:
                return
            if now != found:
                found, changed = now, time.monotonic()
            time.sleep(0.5)
        self.outcome.problems.append(f"the job stands still at {found} postings of {wanted}")

    def _read_audits(self) -> None:
        self.world.stop_auditor()
        path = self.world.work / "audits.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            audit = json.loads(line)
            self.outcome.audits += 1
            self.outcome.problems += [f"checkpoint {audit['snapshot']}: {p}" for p in audit["problems"]]
        if self.options.audit and not self.outcome.audits:
            self.outcome.problems.append("no checkpoint was looked at; see auditor.log")
