"""A sink of the tests' own that delivers on snapshot: rows staged as files, made visible by one rename per part.

It is as strict as a real system: a part that is made visible twice under two names, out of order, or without having
been prepared is a fault that `faults()` shows. Everything that is asked of it goes to a log file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame

import strobe
from strobe.hosts.spark.connectors.base import Part, SinkContext, TransactionalSink
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.cut import Json
from strobe.model.errors import Failed


class PartFiles(TransactionalSink):
    """Each part becomes visible as one file of JSON lines, `part-<timeline>-<snapshot>.json`, by a rename."""

    def __init__(self, path: str) -> None:
        self.path = path

    def describe(self) -> str:
        return f"parts below {self.path}"

    def place(self) -> str:
        return os.path.normpath(self.path)

    def open(self, context: SinkContext) -> None:
        self._where = Path(context.base, self.path)
        self._where.mkdir(parents=True, exist_ok=True)
        self._staging = Staging(context)
        self._log("open", None)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        self._staging.write(batch, batch_id)

    def last_batch(self) -> int | None:
        return self._staging.last_batch()

    def prepare(self, part: Part) -> Json:
        self._log("prepare", part)
        if (self._where / "refuse").exists():
            raise Failed((self._where / "refuse").read_text())
        fresh = self._target(part, "prepared")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in self._rows(part)))
        return {"file": fresh.name}

    def commit(self, part: Part, prepared: Json) -> None:
        if (self._where / "down").exists():
            raise OSError("the system is down")
        self._log("commit", part)
        assert isinstance(prepared, dict)
        if not self._target(part, "json").exists():
            self._target(part, "prepared").rename(self._target(part, "json"))
        self._staging.forget(part)

    def abort(self, part: Part, prepared: Json) -> None:
        self._log("abort", part)
        self._target(part, "prepared").unlink(missing_ok=True)
        self._staging.forget(part)

    def visible(self, part: Part, prepared: Json, context: SinkContext) -> bool:
        return Path(context.base, self.path, f"part-{part.timeline}-{part.snapshot:06d}.json").exists()

    def by_hand(self, part: Part) -> str:
        return f"mv {self._target(part, 'prepared')} {self._target(part, 'json')}"

    def recover(self, parts: Iterable[Part]) -> None:
        known = {self._target(part, "prepared") for part in parts}
        for path in self._where.glob("*.prepared"):
            if path not in known:
                path.unlink()

    def _target(self, part: Part, kind: str) -> Path:
        return self._where / f"part-{part.timeline}-{part.snapshot:06d}.{kind}"

    def _rows(self, part: Part) -> list[dict[str, object]]:
        import pyarrow.parquet as pq

        return [row for file in self._staging.files(part) for row in pq.read_table(file).to_pylist()]

    def _log(self, what: str, part: Part | None) -> None:
        with (self._where / "log").open("a") as file:
            file.write(json.dumps([what, part.handle if part else None]) + "\n")


def visible(place: Path) -> list[dict[str, object]]:
    """Every row that is visible, in the order in which parts became so."""
    return [json.loads(line) for file in sorted(place.glob("*.json")) for line in file.read_text().splitlines()]


def calls(place: Path) -> list[tuple[str, str]]:
    """What the sink was asked, in order: (what, handle)."""
    return [tuple(json.loads(line)) for line in (place / "log").read_text().splitlines()]


def numbers(source: Path, out: str, *, bounded: bool = True, **checkpoint: object) -> strobe.Pipeline:
    """A pipeline that reads Parquet files with a column `id` and delivers them on snapshot: two stages, with a channel
    between them, since tests ask about each."""
    pipeline = strobe.Pipeline(
        "numbers",
        chain=False,
        checkpoint=strobe.CheckpointConfig(**{"interval": None, **checkpoint}),  # type: ignore[arg-type]
    )

    @pipeline.stage(uid="source", trigger={"availableNow": True} if bounded else {"processingTime": "0 seconds"})
    def read(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))

    @pipeline.stage(uid="gold", reads="source", to=PartFiles(out))
    def gold(source: DataFrame) -> DataFrame:
        return source.withColumn("twice", source.id * 2)

    return pipeline


def add_file(source: Path, number: int, rows: int = 5) -> None:
    """File `number` with the ids that belong to it; there already, it is left alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source.mkdir(parents=True, exist_ok=True)
    target = source / f"{number:04d}.parquet"
    if not target.exists():
        fresh = target.with_name(f".{target.name}")  # hidden: a running job would read any other
        pq.write_table(pa.table({"id": pa.array(range(number * rows, (number + 1) * rows), pa.int64())}), fresh)
        os.rename(fresh, target)
