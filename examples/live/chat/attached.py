"""The chat service under Strobe, attached from outside: chat.py is not changed.

    strobe live up examples/live/chat/chat.toml

Two robots talk through the hub for ever. What a snapshot must show: the lines that the hub has numbered, and those that
are on their way to it, are all that the robots have said; and the last line that a robot heard, with those on their way
to it, is the last that the hub has numbered.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

from strobe.hosts.live.api.attach import Service


def _service() -> Any:
    """The module beside this file, under a name of its own."""
    spec = importlib.util.spec_from_file_location("chat_service", Path(__file__).with_name("chat.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("chat_service", importlib.util.module_from_spec(spec))
    if not hasattr(module, "handle"):
        spec.loader.exec_module(module)
    return module


chat = _service()


class Hub(Service):
    """All that is needed to attach the service: where connections go, and what the state is."""

    async def main(self) -> None:
        await self.start_server(chat.handle)

    def state(self) -> Any:
        return {"history": chat.history}

    def set_state(self, state: Any) -> None:
        chat.history[:] = state["history"]
        chat.clients.clear()


class Robot(Service):
    """A client that sends a line, reads what the hub has sent, and sends the next."""

    def __init__(self, pause: float = 0.002) -> None:
        self.pause = pause
        self.said = 0
        self.heard = 0

    async def main(self) -> None:
        reader, writer = await self.open_connection("hub")
        await asyncio.gather(self.talk(writer), self.listen(reader))

    async def talk(self, writer: Any) -> None:
        while True:
            self.said += 1
            writer.write(b"%s: line %d\n" % (self.name.encode(), self.said))
            await writer.drain()
            await asyncio.sleep(self.pause)

    async def listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            number = int(line.split()[0])
            if self.heard and number != self.heard + 1:  # it gets every line from when it connected
                raise ValueError(f"line {number} came after line {self.heard}")
            self.heard = number

    def state(self) -> Any:
        return {"said": self.said, "heard": self.heard}

    def set_state(self, state: Any) -> None:
        self.said, self.heard = state["said"], state["heard"]
