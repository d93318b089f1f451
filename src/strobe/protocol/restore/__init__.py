"""Bringing a snapshot back to life: prepare, everyone ready, start; and the fence between incarnations.

Theory of operation
-------------------
A restore gives the whole system an old state while messages, writers and timers of its later life are still about.
Two rules keep the lives apart:

1. *Nobody starts before everyone is ready.* The coordinator orders every node to load the snapshot; a node stops its
   application first and says when it is ready; when all have, the coordinator says start. Between its order and its
   start a node neither delivers nor sends application messages: what a peer that has started already sends is held.
2. *The fence.* Every message carries the incarnation of its sender. An older one is dropped. A newer one proves that
   the receiver belongs to a life that is over: it stops, and waits for an order.

Whatever goes wrong (a node dies or refuses, the time is over, the coordinator itself dies) is answered by beginning
again with a higher incarnation; rule 2 makes the remains of the failed attempt harmless. An incarnation is claimed
durably before its first order leaves, so two attempts never share one, even of two coordinators. The *timeline* names
what the nodes write: it rises with every restore, and again when an attempt fails after its first start, because
somebody may have written under it.

The phases of a node are a table in `participant`, those of the coordinator in `coordinator`;
`docs/reference/phases.md` draws both.
"""

from strobe.protocol.restore.coordinator import RestoreCoordinator
from strobe.protocol.restore.messages import Fence
from strobe.protocol.restore.participant import Phase, RestoreParticipant

__all__ = ["Fence", "Phase", "RestoreCoordinator", "RestoreParticipant"]
