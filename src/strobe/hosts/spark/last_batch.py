"""A stage's last batch: one without rows, at the end of event time, so that every timer fires and every window closes.

Spark moves a query's watermark by the rows that come, and by nothing else. But what a batch is judged by stands in its
entry in the offset log, which is written before the batch runs, and a query that starts runs the batch that its log
ends with. So while the query is down an entry is added to its log: no new rows, the watermark at the end of the year
9999. The query starts, runs that batch like any other, and is stopped again.

Afterwards the watermark is put back to what it would have been. The state knows what has been emitted; rows that come
after a later start are judged by the watermark that their predecessors had earned, not thrown away as ten thousand
years late.

Each step can be found out from the log alone, so a stage that dies in the middle goes on with it at its next start.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from strobe.hosts.spark import spark_checkpoint
from strobe.model.errors import Damaged

__all__ = ["END_OF_TIME", "add", "drop_refused", "due", "put_back"]

END_OF_TIME: Final = 253_402_300_799_999  # ms: 9999-12-31T23:59:59.999Z; in µs it still fits into 64 bits


def add(checkpoint: Path) -> int | None:
    """Add the last batch to the log, behind the last committed one. None if there is none: then nothing waits.

    The log must end with a committed batch.
    """
    committed = spark_checkpoint.last_committed(checkpoint)
    if committed is None:
        return None
    version, meta, *sources = _lines(checkpoint / "offsets" / str(committed))
    head = json.loads(meta)
    head["batchWatermarkMs"] = END_OF_TIME
    head["batchTimestampMs"] = max(int(time.time() * 1000), int(head["batchTimestampMs"]))
    _write(checkpoint / "offsets" / str(committed + 1), [version, json.dumps(head, separators=(",", ":")), *sources])
    return committed + 1


def due(checkpoint: Path) -> int | None:
    """The last batch, if it is in the log and not committed: the query will run it first."""
    logged, committed = spark_checkpoint.last_logged(checkpoint), spark_checkpoint.last_committed(checkpoint)
    if logged is None or logged == committed or _watermark(checkpoint, logged) != END_OF_TIME:
        return None
    # Behind it Spark may have planned another, which was refused.
    return None if logged > 0 and _watermark(checkpoint, logged - 1) == END_OF_TIME else logged


def drop_refused(checkpoint: Path, written: int) -> None:
    """Take back the log's entry of a batch that was never begun: of those up to `written` something is visible. What
    it would have read is read by the next one."""
    logged, committed = spark_checkpoint.last_logged(checkpoint), spark_checkpoint.last_committed(checkpoint)
    if logged is not None and logged != committed and logged > written:
        _remove(checkpoint / "offsets" / str(logged))


def put_back(checkpoint: Path) -> None:
    """If the last batch is committed: the watermark is again what it would have been without it."""
    committed = spark_checkpoint.last_committed(checkpoint)
    if committed is None or committed == 0:
        return
    offsets, commit = checkpoint / "offsets" / str(committed), checkpoint / "commits" / str(committed)
    if END_OF_TIME not in (_watermark(checkpoint, committed), _next_watermark(commit)):
        return
    logged = spark_checkpoint.last_logged(checkpoint)
    if logged is not None and logged > committed:
        _remove(checkpoint / "offsets" / str(logged))  # refused: nothing of it was begun
    before = max(_watermark(checkpoint, committed - 1), _next_watermark(checkpoint / "commits" / str(committed - 1)))
    for path, name in ((offsets, "batchWatermarkMs"), (commit, "nextBatchWatermarkMs")):
        version, meta, *rest = _lines(path)
        head = json.loads(meta)
        head[name] = before
        _write(path, [version, json.dumps(head, separators=(",", ":")), *rest])


def _watermark(checkpoint: Path, batch: int) -> int:
    return spark_checkpoint.read_offsets(checkpoint, batch).watermark_ms


def _next_watermark(commit: Path) -> int:
    lines = _lines(commit)
    value: Any = json.loads(lines[1])
    return int(value.get("nextBatchWatermarkMs", 0))


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text().split("\n")
    except OSError as error:
        raise Damaged(f"Spark's checkpoint file {path} cannot be read: {error.strerror}.") from error
    if len(lines) < 2:
        raise Damaged(f"Spark's checkpoint file {path} is cut off.")
    return lines


def _write(path: Path, lines: list[str]) -> None:
    """Whole or not at all. Hadoop keeps a checksum beside some files; one that no longer fits would be an error."""
    temporary = path.with_name(f".{path.name}.strobe")
    with temporary.open("w") as file:
        file.write("\n".join(lines))
        file.flush()
        os.fsync(file.fileno())
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    os.replace(temporary, path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
