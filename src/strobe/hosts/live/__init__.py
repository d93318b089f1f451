"""Snapshots of live processes: what a user imports.

In the order in which a newcomer may read the modules: `process` and `topology` (what a user writes), `codec`,
`framing`, `session`, `auth`, `link` (how bytes travel), `life` and `node` (one process) with `timers`, `capture`,
`recording`, `parts`; `control` and `peers` (what coordinator and nodes say), `snapshots` and `memory` (what is kept),
`revival` and `coordinator` (who decides), `system` (all of it), `merge` and `journals` (the journal afterwards),
`reading` (a snapshot afterwards), `checks` and `checking` (stable predicates on snapshots); `loading`, `serving`,
`commands`, `report`, `by_hand` (what the command line does).
"""

from strobe.hosts.live.breakpoints import Break
from strobe.hosts.live.codec import message
from strobe.hosts.live.options import NodeOptions
from strobe.hosts.live.process import Process
from strobe.hosts.live.reading import read_cut
from strobe.hosts.live.system import Status, System
from strobe.hosts.live.tls import Tls
from strobe.hosts.live.topology import NodeSpec, Topology, complete, joined, read_topology, ring
from strobe.predicates.deadlock import Wait, all_of, any_of, at_least
from strobe.predicates.stable import Finding
from strobe.predicates.tokens import tokens

__all__ = [
    "Break", "Finding", "NodeOptions", "NodeSpec", "Process", "Status", "System", "Tls", "Topology", "Wait", "all_of",
    "any_of", "at_least", "complete", "joined", "message", "read_cut", "read_topology", "ring", "tokens",
]  # fmt: skip
