"""A stage's last batch: one without rows, at the end of event time, so that every timer fires and every window closes.

Spark moves a query's watermark by the rows that come, and by nothing else. But what a batch is judged by stands in its
entry in the offset log, which is written before the batch runs, and a query that starts runs the batch that its log
ends with. So while the query is down an entry is added to its log: no new rows, the watermark at the end of the year
9999. The query starts, runs that batch like any other, and is stopped again.

Afterwards the watermark is put back to what it would have been. The state knows what has been emitted; rows that come
after a later start are judged by the watermark that their predecessors had earned, not thrown away as ten thousand
years late.

The log alone tells which step comes next, so a stage that dies in the middle goes on with it at its next start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strobe.hosts.spark.checkpoint import empty_batch
from strobe.hosts.spark.checkpoint import files as spark_checkpoint

__all__ = ["END_OF_TIME", "add", "drop_refused", "due", "put_back"]

END_OF_TIME: Final = 253_402_300_799_999  # ms: 9999-12-31T23:59:59.999Z; in µs it still fits into 64 bits


def add(checkpoint: Path) -> int | None:
    """Add the last batch to the log, behind the last committed one. None if there is none: then nothing waits.

    The log must end with a committed batch.
    """
    return empty_batch.add(checkpoint, END_OF_TIME)


def due(checkpoint: Path) -> int | None:
    """The last batch, if it is in the log and not committed: the query will run it first."""
    logged, committed = spark_checkpoint.last_logged(checkpoint), spark_checkpoint.last_committed(checkpoint)
    if logged is None or logged == committed or _watermark(checkpoint, logged) != END_OF_TIME:
        return None
    # Behind it Spark may have planned another, which was refused.
    return None if logged > 0 and _watermark(checkpoint, logged - 1) == END_OF_TIME else logged


def drop_refused(checkpoint: Path, written: int) -> None:
    """Remove the log's entry of a batch that was never begun. Batches up to `written` have visible rows and stay. What
    the removed one would have read is read by the next one."""
    logged, committed = spark_checkpoint.last_logged(checkpoint), spark_checkpoint.last_committed(checkpoint)
    if logged is not None and logged != committed and logged > written:
        empty_batch.remove(checkpoint / "offsets" / str(logged))


def put_back(checkpoint: Path) -> None:
    """If the last batch is committed: set the watermark back to what it would have been without it."""
    committed = spark_checkpoint.last_committed(checkpoint)
    if committed is None or committed == 0:
        return
    if END_OF_TIME not in (_watermark(checkpoint, committed), empty_batch.next_watermark(checkpoint, committed)):
        return
    logged = spark_checkpoint.last_logged(checkpoint)
    if logged is not None and logged > committed:
        empty_batch.remove(checkpoint / "offsets" / str(logged))  # refused: nothing of it was begun
    before = max(_watermark(checkpoint, committed - 1), empty_batch.next_watermark(checkpoint, committed - 1))
    empty_batch.change(checkpoint / "offsets" / str(committed), "batchWatermarkMs", before)
    empty_batch.change(checkpoint / "commits" / str(committed), "nextBatchWatermarkMs", before)


def _watermark(checkpoint: Path, batch: int) -> int:
    return spark_checkpoint.read_offsets(checkpoint, batch).watermark_ms
