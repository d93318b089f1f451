"""The coordinator: when a snapshot starts, when it is complete, when it is given up, and which ones are kept.

Theory of operation
-------------------
A snapshot is *pending* from its trigger until every participant has acknowledged; then its manifest is *being
written*; when the manifest is durable it is *complete*. Law 4 in effects: `WriteManifest` comes only after the last
acknowledgement, `AnnounceComplete` (sinks commit) only after `ManifestWritten`, `Dispose` of an older one only after
that. Anything else that can happen to a pending snapshot ends in `AnnounceAbort`; complete ones stay untouched.

Time is an input: the host sends `Tick(now)` before other inputs and at the moment that the last `WakeAt` named. `now`
is any clock that does not go backwards, in milliseconds. The settings mean what they mean in Flink:

* interval counts from start to start; min pause from the end of one to the start of the next;
* a manual trigger waits for neither, only for a place among max concurrent; savepoints do not wait for that either;
* tolerable failures counts failures in a row (timeouts, declines, failed writes); a participant that dies, or an
  abort that somebody asked for, is not a failure of the snapshot;
* a cut that is refused says nothing against the stages, whose state and channels are intact: another one is taken when
  it is time. It counts as a failure, but fails the job only with more than `TOLERABLE_REFUSALS` failures in a row, if
  fewer are tolerated: a job that has no snapshot any more must say so, because channels grow and sinks wait;
* a checkpoint that completes makes older pending checkpoints pointless: they are given up. Savepoints were asked for
  and stay.

Participants die and come back. While one is missing nothing starts; when it returns the schedule goes on.
"""

from strobe.protocol.coordinator.machine import Coordinator

__all__ = ["Coordinator"]
