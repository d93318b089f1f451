"""A chat service as anybody would write it: asyncio streams, one line per message. It knows nothing of snapshots.

    python examples/live/chat/chat.py 7000          a server; talk to it with: nc 127.0.0.1 7000

Whatever a client says is sent to everyone who is connected, with its number in the history.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

history: list[str] = []
clients: set[Any] = set()


async def handle(reader: asyncio.StreamReader, writer: Any) -> None:
    """One client, from its first line to its last."""
    clients.add(writer)
    try:
        while line := await reader.readline():
            history.append(line.decode().rstrip())
            for each in clients:
                each.write(b"%d %b" % (len(history), line))
            await writer.drain()
    finally:
        clients.discard(writer)
        writer.close()


async def serve(port: int) -> None:
    server = await asyncio.start_server(handle, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
