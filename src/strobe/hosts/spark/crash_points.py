"""Named crash points: every step between "batch computed" and "snapshot complete".

A test sets STROBE_CRASH_AT=NAME (or NAME:K for the K-th time it is passed, or NAME@STAGE) and the process is killed
with SIGKILL exactly there: no handler runs, no buffer is flushed. Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Final

from strobe.model.errors import Misuse
from strobe.store.points import POINTS as STORE_POINTS

__all__ = ["POINTS", "point"]

POINTS: Final[Mapping[str, str]] = {
    **STORE_POINTS,
    "batch.computed": "the batch's rows are in Parquet files, nothing names them yet",
    "batch.in-channel": "the batch's commit is in the channel, its sinks have not been written",
    "batch.in-sink": "the batch is in channel and sinks, Spark has not committed it",
    "due.added": "a batch without rows that is due is in its query's log, it has not run",
    "snapshot.id-reserved": "the coordinator has taken a new id, no stage knows of it",
    "snapshot.triggered": "the first stage has been told to start the snapshot",
    "snapshot.state-recorded": "a stage has decided on its cut, its barrier is not out",
    "snapshot.barrier-placed": "a stage's barrier is in its channel, nothing is uploaded",
    "snapshot.files-listed": "a stage knows which files it must upload, none is",
    "snapshot.part-durable": "all of a stage's files and its channel are durable, nobody knows",
    "snapshot.acknowledged": "the coordinator has a stage's part",
    "snapshot.all-acknowledged": "every part is there, the manifest is not written",
    "snapshot.announced": "the stages have been told, older snapshots are not disposed of",
    "snapshot.disposing": "an older snapshot is about to be disposed of",
    "snapshot.disposed": "retention is done, channels are not trimmed",
    "sink.part-noted": "a sink's part is noted in its ledger, the sink has not prepared it",
    "sink.part-prepared": "a sink has prepared its part, its ledger does not know",
    "sink.vote-durable": "a sink's ledger says that its part is prepared, the vote is not out",
    "commit.decided": "a manifest that names parts of sinks is durable, no sink knows",
    "verdict.noted": "what the invariants of a snapshot say is durable, nothing has followed from it",
    "release.noted": "a person's release is durable, nothing has followed from it",
    "commit.begun": "a sink is about to make a part visible",
    "kafka.in-transaction": "a part's messages and its record are in an open Kafka transaction",
    "commit.visible": "a part is visible, its sink's ledger does not know",
    "commit.forgotten": "a sink's ledger has the part as committed, the coordinator does not know",
    "commit.settled": "every sink has committed a snapshot, nothing is disposed of",
    "channel.trimmed": "a channel is trimmed, the others are not",
    "restore.planned": "a restore is planned and possible, nothing is written",
    "restore.stage-copied": "a stage's checkpoint is copied out of the snapshot, it is not durable",
    "restore.repartitioned": "a stage's state is rewritten with another number of partitions, nothing uses it",
    "restore.laid-out": "everything that a restore needs is laid out, the job does not know",
    "restore.begun": "the new timeline and the intent are noted, channels and sinks are not cut back",
    "restore.channel-cut": "a channel is at the snapshot's cut, the next one is not",
    "restore.sink-back": "a sink is at the snapshot's cut, the next one is not",
    "restore.cut": "channels and sinks are cut back, the intent still stands",
    "restore.done": "the restore is done, no stage has started",
    "settle.part-committed": "a restore has made a part visible that its snapshot names, the ledger does not know",
    "settle.part-aborted": "a restore has thrown a part away that its snapshot does not name, the ledger does not know",
    "unchain.copied": "the checkpoint of a query is copied to be divided, at a plain run",
    "unchain.divided": "every copy is a query of its own, the job does not know",
    "unchain.done": "the job goes on with the divided queries, no stage has started",
    "rescale.copied": "a stage's checkpoint is copied to be rewritten with another number of partitions",
    "rescale.repartitioned": "all copies are rewritten, the job does not know",
    "rescale.done": "the job goes on with the rewritten state, no stage has started",
    "savepoint.target-taken": "a savepoint's directory has its marker, and nothing else",
    "savepoint.rows-copied": "the rows in flight of one channel are copied, the manifest is not written",
    "savepoint.complete": "a savepoint's manifest is durable, its marker is still there",
    "stop.savepoint-complete": "the savepoint of a stop is complete, the stages stand and have not ended",
    "drain.sources-ended": "a drain has ended the sources, rows are still in the channels",
    "drain.channels-empty": "nothing is left in the channels, no window has been closed early",
    "drain.last-batch-added": "a stage's last batch is in its query's log, it has not run",
    "drain.last-batch-run": "a stage's last batch is committed, its watermark is not put back",
}


class _Order:
    """What STROBE_CRASH_AT asked for."""

    def __init__(self, order: str) -> None:
        where, _, count = order.partition(":")
        self.name, _, self.stage = where.partition("@")
        self.left = int(count) if count.isdigit() else 0 if count else 1
        self.lock = threading.Lock()
        if self.name and (self.name not in POINTS or self.left < 1):
            raise Misuse(
                f"STROBE_CRASH_AT={order!r}: there is no such crash point.",
                next=f"The crash points are: {', '.join(POINTS)}.",
            )


_order = _Order(os.environ.get("STROBE_CRASH_AT", ""))


def point(name: str, stage: str = "") -> None:
    """Die here if this is the point that was asked for."""
    if name == _order.name and _order.stage in ("", stage):
        with _order.lock:
            _order.left -= 1
            if _order.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
