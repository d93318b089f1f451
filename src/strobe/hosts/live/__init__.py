"""Snapshots of live processes: what a user imports.

The packages, each of which stands on those before it: `wire` (how bytes travel), `api` (what a user writes), `snapshot`
(a snapshot, written, read and checked), `journal` (what a run leaves to be read), `node` (one process), `coordinator`
(who decides), `system` (all of it, and what the command line asks of it).
"""

from strobe.hosts.live.api.codec import message
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.api.topology import NodeSpec, Topology, complete, joined, read_topology, ring
from strobe.hosts.live.coordinator.breakpoints import Break
from strobe.hosts.live.node.options import NodeOptions
from strobe.hosts.live.snapshot.reading import read_cut
from strobe.hosts.live.system.system import Status, System
from strobe.hosts.live.wire.tls import Tls
from strobe.predicates.deadlock import Wait, all_of, any_of, at_least
from strobe.predicates.stable import Finding
from strobe.predicates.tokens import tokens

__all__ = [
    "Break", "Finding", "NodeOptions", "NodeSpec", "Process", "Status", "System", "Tls", "Topology", "Wait", "all_of",
    "any_of", "at_least", "complete", "joined", "message", "read_cut", "read_topology", "ring", "tokens",
]  # fmt: skip
