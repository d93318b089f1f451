"""A workload of the simulator as a live process: the same functions, the same parameters, real processes."""

from __future__ import annotations

import zlib
from typing import Any

from strobe.hosts.live.api.process import Process
from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.workloads.bank import Bank


class BankProcess(Process):
    def __init__(self, nodes: int, params: dict[str, Any], seed: int) -> None:
        self.workload = Bank(nodes, params)
        self.seed = seed
        self.steps = 0
        self.value: Any = None

    def on_start(self) -> None:
        self.every(0.001)

    def on_timer(self, name: str) -> None:
        self.steps += 1
        dice = Dice(zlib.crc32(f"{self.seed} {self.name} {self.steps}".encode()))
        action = self.workload.next_action(self.name, self.snapshot(), dice)
        if action is None:
            self.cancel(name)
        else:
            self._move(*self.workload.act(self.name, self.snapshot(), action))

    def on_message(self, sender: str, message: Any) -> None:
        assert self.channel is not None
        self._move(*self.workload.receive(self.name, self.snapshot(), self.channel, message))

    def snapshot(self) -> Any:
        return self.workload.initial(self.name) if self.value is None else self.value

    def restore(self, state: Any) -> None:
        self.value = state

    def _move(self, value: Any, sends: Any) -> None:
        self.value = value
        for channel, payload in sends:
            self.send(channel, payload)
