"""Adding a batch without rows to a query's offset log, and changing what its entries say.

Spark writes the entry `offsets/N` before it runs batch N, and a query that starts runs the batch that its log ends
with, if that is not committed. So an entry that is added while the query is down is a batch that it will run: one that
begins and ends where the last committed one ended has no rows, and is judged by the watermark that the entry names.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.checkpoint import bad_files
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.model.errors import Damaged

__all__ = ["add", "change", "make_first", "next_watermark", "remove"]


def add(checkpoint: Path, watermark_ms: int) -> int | None:
    """Add a batch without rows behind the last committed one. None if there is none. The log must end with a committed
    batch.
    """
    committed = spark_checkpoint.last_committed(checkpoint)
    if committed is None:
        return None
    version, meta, *sources = _lines(checkpoint / "offsets" / str(committed))
    head = json.loads(meta)
    head["batchWatermarkMs"] = watermark_ms
    head["batchTimestampMs"] = max(int(SYSTEM.time() * 1000), int(head["batchTimestampMs"]))
    _write(checkpoint / "offsets" / str(committed + 1), [version, json.dumps(head, separators=(",", ":")), *sources])
    return committed + 1


def change(path: Path, name: str, value: int) -> None:
    """Give one field of an entry in the offset or commit log another value."""
    version, meta, *rest = _lines(path)
    head = json.loads(meta)
    head[name] = value
    _write(path, [version, json.dumps(head, separators=(",", ":")), *rest])


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def next_watermark(checkpoint: Path, batch: int) -> int:
    """The watermark that the committed `batch` has earned for the one after it."""
    value: Any = json.loads(_lines(checkpoint / "commits" / str(batch))[1])
    return int(value.get("nextBatchWatermarkMs", 0))


def make_first(checkpoint: Path, batch: int, partitions: int, *, keep_watermark: bool) -> None:
    """Make the committed `batch` batch 0: it ends at the same place, and has not run. For a query without state, in a
    copy that nothing uses yet."""
    version, meta, *sources = _lines(checkpoint / "offsets" / str(batch))
    head = json.loads(meta)
    head["batchWatermarkMs"] = next_watermark(checkpoint, batch) if keep_watermark else 0
    head.setdefault("conf", {})["spark.sql.shuffle.partitions"] = str(partitions)
    bad_files.renumber(checkpoint, batch)
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name)
        (checkpoint / name).mkdir()
    _write(checkpoint / "offsets" / "0", [version, json.dumps(head, separators=(",", ":")), *sources])


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
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    write_durably(path, "\n".join(lines))
