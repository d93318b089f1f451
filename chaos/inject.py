"""How each kind of fault is done, and undone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from chaos.plan import KINDS, Fault
from chaos.processes import kill, marked
from chaos.proxy import Mode, Proxy
from chaos.world import World
from tests.services import Server

__all__ = ["Scene", "inject"]

JUMP = 3000  # seconds, at most, that a clock jumps forwards or back; a topic accepts times up to an hour ahead


class Scene(Protocol):
    """What a fault needs of the run that it happens in."""

    @property
    def world(self) -> World: ...

    def note(self, text: str) -> None: ...

    def killed(self) -> None:
        """Something has been killed: count it."""

    def kill_driver(self, pids: list[int]) -> None:
        """The same, for the present driver or all that belongs to it."""

    def sleep(self, seconds: float) -> None:
        """Supervising meanwhile."""


def inject(run: Scene, fault: Fault) -> None:
    """Do it, wait as long as it lasts, and undo it."""
    _HOW[fault.kind.name](run, fault)


def _kill_driver(run: Scene, fault: Fault) -> None:
    start = run.world.driver.present
    if start is not None and start.alive:
        run.kill_driver([start.process.pid])


def _kill_machine(run: Scene, fault: Fault) -> None:
    start = run.world.driver.present
    if start is not None and start.alive:
        run.kill_driver(marked(start.mark))


def _kill_executor(run: Scene, fault: Fault) -> None:
    start = run.world.driver.present
    pids = start.jvm() if start is not None else []
    if pids:
        run.killed()
        kill(pids)


def _kill_worker(run: Scene, fault: Fault) -> None:
    start = run.world.driver.present
    pids = start.workers() if start is not None else []
    if pids:
        run.killed()
        first = int(fault.amount * len(pids))
        kill(pids[first:])


def _kill_generator(run: Scene, fault: Fault) -> None:
    if run.world.generator is not None and run.world.generator.poll() is None:
        run.killed()
        run.world.generator.kill()
        run.world.generator.wait()


def _kill_server(server: Callable[[Scene], Server]) -> Callable[[Scene, Fault], None]:
    def do(run: Scene, fault: Fault) -> None:
        run.killed()
        server(run).kill()
        run.sleep(fault.lasts)
        server(run).start()

    return do


def _pause_server(server: Callable[[Scene], Server]) -> Callable[[Scene, Fault], None]:
    def do(run: Scene, fault: Fault) -> None:
        server(run).pause()
        try:
            _last(run, fault)
        finally:
            server(run).go_on()

    return do


def _pause_driver(run: Scene, fault: Fault) -> None:
    start = run.world.driver.present
    if start is None:
        return
    asleep = marked(start.mark)
    kill(asleep, signal.SIGSTOP)
    time.sleep(fault.lasts)
    kill(asleep, signal.SIGCONT)


def _replace_driver(run: Scene, fault: Fault) -> None:
    """A driver that was stopped for longer than its lease goes on when another has the job: it must not do anything."""
    driver = run.world.driver
    start = driver.present
    if start is None or not driver.running:
        return
    asleep = marked(start.mark)
    kill(asleep, signal.SIGSTOP)
    time.sleep(fault.lasts)
    driver.give_up()
    run.sleep(2 + 20 * fault.amount)
    kill(asleep, signal.SIGCONT)
    run.sleep(3)


def _proxied(mode: Mode, proxy: Callable[[Scene], Proxy | None]) -> Callable[[Scene, Fault], None]:
    def do(run: Scene, fault: Fault) -> None:
        through = proxy(run)
        assert through is not None
        through.set(mode, delay=0.05 + 0.5 * fault.amount)
        try:
            _last(run, fault)
        finally:
            through.set(Mode.OPEN)

    return do


def _full_disk(run: Scene, fault: Fault) -> None:
    run.world.fill_disk()
    try:
        _last(run, fault)
    finally:
        run.world.make_room()


def _clock_jump(run: Scene, fault: Fault) -> None:
    run.world.set_clock(round((2 * fault.amount - 1) * JUMP))
    if fault.kill:
        run.sleep(1)
        _kill_machine(run, fault)


def _last(run: Scene, fault: Fault) -> None:
    run.sleep(fault.lasts / 2)
    if fault.kill:
        run.note("      and the driver is killed meanwhile")
        _kill_machine(run, fault)
    run.sleep(fault.lasts / 2)


_HOW: Mapping[str, Callable[[Scene, Fault], None]] = {
    "kill driver": _kill_driver,
    "kill machine": _kill_machine,
    "kill executor": _kill_executor,
    "kill worker": _kill_worker,
    "kill broker": _kill_server(lambda run: run.world.kafka),
    "kill postgres": _kill_server(lambda run: run.world.postgres),
    "kill generator": _kill_generator,
    "pause driver": _pause_driver,
    "pause broker": _pause_server(lambda run: run.world.kafka),
    "pause postgres": _pause_server(lambda run: run.world.postgres),
    "replace driver": _replace_driver,
    "refuse kafka": _proxied(Mode.REFUSE, lambda run: run.world.kafka_proxy),
    "refuse postgres": _proxied(Mode.REFUSE, lambda run: run.world.postgres_proxy),
    "silence kafka": _proxied(Mode.SILENT, lambda run: run.world.kafka_proxy),
    "silence postgres": _proxied(Mode.SILENT, lambda run: run.world.postgres_proxy),
    "full disk": _full_disk,
    "slow store": _proxied(Mode.SLOW, lambda run: run.world.store_proxy),
    "refuse store": _proxied(Mode.REFUSE, lambda run: run.world.store_proxy),
    "clock jump": _clock_jump,
}
assert set(_HOW) == set(KINDS)
