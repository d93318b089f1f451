"""`python -m strobe.hosts.live.node.main`: one node, as an operating-system process.

The first line of standard input says which one, as JSON; the first line of standard output answers with the port. The
node ends when it is told to, when a handler fails, or when standard input closes: then whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from strobe.hosts.live.api.topology import load_class, parse_address
from strobe.hosts.live.node.node import Node, NodeConfig
from strobe.hosts.live.wire.framing import check_limit
from strobe.hosts.live.wire.tls import Tls
from strobe.model.errors import StrobeError
from strobe.model.graph import graph_from_json
from strobe.model.ids import NodeId

__all__ = ["main", "node_config", "run_node"]


def node_config(value: dict[str, Any]) -> NodeConfig:
    for entry in reversed(value["path"]):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    name = value["name"]
    tls = None if value["tls"] is None else Tls(**value["tls"])
    return NodeConfig(
        name=NodeId(name),
        cls=load_class(value["class"], name),
        params=value["params"],
        graph=graph_from_json(value["graph"]),
        key=bytes.fromhex(value["key"]),
        address=parse_address(value["address"], name),
        protocol=value["protocol"],
        root=value["root"],
        journal=None if value["journal"] is None else Path(value["journal"]),
        fork_above=value["fork_above"],
        window=value["window"],
        max_frame=check_limit(value["max_frame"]),
        listen_tls=None if tls is None else tls.accepting(),
        dial_tls=None if tls is None else tls.dialling(),
    )


async def run_node(config: NodeConfig, ready: Any = None) -> None:
    """Runs the node until it ends. `ready` is called with its address."""
    node = Node(config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(node.trouble)
    address = await node.listen()
    if ready is not None:
        ready(address)
    try:
        await node.ended
    finally:
        node.close()
        await asyncio.sleep(0)


def main() -> int:
    try:
        value: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    except ValueError:
        print("This runs one node of a live system, and is started by it: standard input says which.", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {value['name']} %(levelname)s %(message)s"
    )

    async def run() -> None:
        config = node_config(value)

        def ready(address: tuple[str, int]) -> None:
            print(json.dumps({"host": address[0], "port": address[1]}), flush=True)
            _prints_to_log()
            gc.collect()
            gc.freeze()
            os.set_blocking(0, False)
            with contextlib.suppress(PermissionError):  # standard input is a file: it cannot be closed by the starter
                asyncio.get_running_loop().add_reader(0, _parent_gone)

        await run_node(config, ready)

    try:
        asyncio.run(run())
    except StrobeError as error:  # once the node runs this goes to the log, like everything else
        print(json.dumps({"error": str(error), "exit": error.exit_code}), flush=True)
        return error.exit_code
    return 0


def _prints_to_log() -> None:
    """Send standard output to the log: nobody reads the pipe any more, and what handlers print would fill it and block
    them."""
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _parent_gone() -> None:
    with contextlib.suppress(BlockingIOError):
        if not os.read(0, 4096):
            os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
