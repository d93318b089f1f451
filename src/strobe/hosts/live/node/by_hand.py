"""One node, started by hand where it is to run: it listens, and waits for the system to reach it.

It outlives a coordinator that dies, and takes orders from the next one; it ends when the system is taken down, when a
handler fails, or by a signal. It knows the system by the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from strobe.hosts.live.api.topology import Topology, parse_address
from strobe.hosts.live.node.main import node_config, run_node
from strobe.hosts.live.node.options import NodeOptions, read_key
from strobe.model.errors import Misuse

__all__ = ["run_by_hand"]


def run_by_hand(
    topology: Topology, name: str, *, listen: str | None, journal: Path | None, ready: Callable[[tuple[str, int]], None]
) -> None:
    """Runs the node to its end. `listen` is where, if that is not the address by which the others reach it."""
    spec = topology.spec(name)
    if not spec.is_remote:
        raise Misuse(
            f"Node {name} is started by the system itself: its address {spec.address} is on this machine.",
            untouched="Nothing was started.",
            next="Say `remote = true` in its table, if it is to be started by hand.",
        )
    if topology.key_file is None:
        raise Misuse(
            f"Node {name} has no key by which it knows the system.",
            untouched="Nothing was started.",
            next='Name a file that both can read: key_file = "cluster.key"',
        )
    options = NodeOptions(read_key(topology.key_file), journal=journal, tls=topology.tls, path=topology.path)
    value = options.to_json(topology, name)
    if listen is not None:
        parse_address(listen, name)
        value["address"] = listen
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(value, ready))


async def _run(value: dict[str, object], ready: Callable[[tuple[str, int]], None]) -> None:
    task = asyncio.ensure_future(run_node(node_config(value), ready))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, task.cancel)
    await task
