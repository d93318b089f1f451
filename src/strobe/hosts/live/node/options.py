"""What all nodes of a system have in common, and what a node's process is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.node.capture import LARGE
from strobe.hosts.live.wire.auth import check_key
from strobe.hosts.live.wire.framing import MAX_FRAME
from strobe.hosts.live.wire.session import WINDOW
from strobe.hosts.live.wire.tls import Tls
from strobe.model.errors import Failed, Misuse
from strobe.model.graph import graph_to_json
from strobe.model.ids import NodeId
from strobe.store.private import open_private
from strobe.store.small_files import read_small

__all__ = ["NodeOptions", "open_log", "read_key"]

_LARGEST_KEY: Final = 1 << 16


@dataclass(frozen=True)
class NodeOptions:
    """What all nodes of a system have in common."""

    key: bytes
    journal: Path | None = None
    fork_above: int = LARGE
    window: int = WINDOW
    max_frame: int = MAX_FRAME
    tls: Tls | None = None
    path: tuple[str, ...] = field(default_factory=tuple)  # where modules are looked for, first

    def __post_init__(self) -> None:
        check_key(self.key)

    def to_json(self, topology: Topology, name: str) -> dict[str, Any]:
        spec = topology.spec(name)
        if self.tls is not None and topology.protocol == "lai-yang":
            raise Misuse(
                "Datagrams cannot be encrypted: a system over lai-yang takes no TLS.",
                untouched="Nothing was started.",
                next="Use chandy-lamport, whose channels are TCP, or leave TLS out: datagrams carry a seal anyway.",
            )
        return {
            "name": name,
            "class": spec.path,
            "params": dict(spec.params),
            "address": spec.address,
            "graph": graph_to_json(topology.graph),
            "protocol": topology.protocol,
            "root": topology.root,
            "key": self.key.hex(),
            "journal": None if self.journal is None else str(self.journal),
            "fork_above": self.fork_above,
            "window": self.window,
            "max_frame": self.max_frame,
            "tls": None if self.tls is None else self.tls.to_json(),
            "path": list(self.path),
        }


def open_log(directory: Path, node: NodeId) -> BinaryIO:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return open(directory / f"{node}.log", "ab", opener=open_private)
    except OSError as error:
        raise Failed(
            f"The log of node {node} cannot be written to {directory}: {error.strerror}.",
            untouched="Nothing was started.",
            next="Choose another home, or make it writable.",
        ) from error


def read_key(file: str) -> bytes:
    try:
        return read_small(Path(file), _LARGEST_KEY).strip()
    except OSError as error:
        raise Misuse(
            f"The key {file} cannot be read: {error.strerror}.",
            next="Make one: python -c 'import secrets; print(secrets.token_hex(32))' > cluster.key",
        ) from error
