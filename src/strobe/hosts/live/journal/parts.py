"""What each node writes of a run, one file per node and incarnation.

The lines are those of a journal (`strobe.verify.lines`); `journal.merge` puts the files together. A node's
lines reach the operating system before the messages that they speak of reach the network: whatever another node has
received, its sender's file shows as sent, even if the sender was killed a moment later.
"""

from __future__ import annotations

import os
from pathlib import Path

from strobe.model.cut import Json
from strobe.model.events import Event
from strobe.model.ids import Incarnation, NodeId
from strobe.verify.lines import encode, fields_of

__all__ = ["COORDINATOR", "PartWriter", "part_path"]

COORDINATOR = "coordinator"


def part_path(directory: Path, name: str, incarnation: Incarnation) -> Path:
    return directory / f"{incarnation:06d}" / f"{name}.lines"


class PartWriter:
    def __init__(self, directory: Path, name: NodeId | str, incarnation: Incarnation) -> None:
        path = part_path(directory, name, incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._lines: list[str] = []

    def initial(self, state: Json) -> None:
        """The state before the first step: the first line, where the system starts from the beginning."""
        self._lines.append(encode(["initial", state]))

    def write(self, event: Event) -> None:
        self._lines.append(encode(fields_of(event)))

    def flush(self) -> None:
        if self._lines:
            data = memoryview(("\n".join(self._lines) + "\n").encode())
            self._lines.clear()
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1
