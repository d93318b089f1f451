"""A pool of workers who steal work from each other, and whose end is detected without anybody in charge.

The work is to count the ways in which queens can stand on a board without threatening each other. A task is a board
that is filled up to some row; working on it makes more tasks. A worker without tasks asks the others in turn for half
of theirs, again and again. So there is always a message under way and always a timer set, even when all is done.
`is_active` and `is_work` say what counts as work, and a snapshot can see that nobody has a task and none is in flight.

    strobe live up -d pool.toml
    strobe live check pool termination --every 0.2 --expect yes
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strobe.hosts.live import Process, message


@message
@dataclass(frozen=True, slots=True)
class Steal:
    """Do you have work for me?"""


@message
@dataclass(frozen=True, slots=True)
class Tasks:
    """Here is half of mine; it may be nothing."""

    boards: list[list[int]]


def is_safe(board: list[int], column: int) -> bool:
    return all(c != column and abs(c - column) != len(board) - row for row, c in enumerate(board))


@dataclass
class Worker(Process):
    queens: int = 7
    begins: bool = False
    seconds: float = 0.002  # that a task takes
    tasks: list[list[int]] = field(default_factory=list)
    solutions: int = 0
    worked: int = 0
    asked: int = 0

    def on_start(self) -> None:
        if self.begins:
            self.tasks.append([])
        self.every(self.seconds, "work")

    def on_timer(self, name: str) -> None:
        if not self.tasks:
            self.cancel("work")
            self.asked += 1
            self.send(self.peers[self.asked % len(self.peers)], Steal())
            return
        board = self.tasks.pop()
        self.worked += 1
        if len(board) == self.queens:
            self.solutions += 1
        else:
            self.tasks += [[*board, column] for column in range(self.queens) if is_safe(board, column)]

    def on_message(self, sender: str, message: Steal | Tasks) -> None:
        if isinstance(message, Steal):
            half = len(self.tasks) // 2
            self.send(sender, Tasks(self.tasks[:half]))
            self.tasks = self.tasks[half:]
        else:
            self.tasks += message.boards
            self.every(self.seconds, "work")

    # ── asked of snapshots ──────────────────────────────────────────────────────────────────────────────────────────

    def is_active(self) -> bool:
        return bool(self.tasks)

    def is_work(self, sender: str, message: Steal | Tasks) -> bool:
        return isinstance(message, Tasks) and bool(message.boards)
