"""Files as a sink: Parquet, JSON lines or CSV. Whoever lists the directory sees whole batches only.

A batch, or on snapshot a part, is a directory `batch=<timeline>-<number>`; the number of a part is that of its last
batch. Spark writes it under `.strobe`, which readers pass over, its files are synced, and one rename makes it visible.
So it is there as a whole or not at all, and once: a directory that is there is not written again. Spark, DuckDB and
Arrow read the directory above as one table, with the batch as a column if they are asked for it.

*Restore.* The sink notes which batches of which timelines it shows. Taken back to a snapshot, it moves what came after
aside, under `.strobe/left`; taken to a snapshot of a line that was left, it moves that back.

*Fencing.* Each driver notes its incarnation under `.strobe` and looks for a higher one before it renames anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark.connectors.base import (
    Delivery,
    Part,
    SinkContext,
    SinkFate,
    SinkOutlook,
    TransactionalSink,
    fenced_off,
    steady,
    whole_results,
)
from strobe.hosts.spark.connectors.files import restore as file_restore
from strobe.hosts.spark.connectors.files.restore import HIDDEN, LINEAGE, Lineage, directory_name
from strobe.hosts.spark.connectors.ownership import claim, why_not_mine
from strobe.hosts.spark.connectors.paths import directory_of, local_path, real_path
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId, SnapshotId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["FORMATS", "FileSink"]

FORMATS: Final = ("parquet", "json", "csv")
_PREPARED: Final = "prepared"
_DRIVERS: Final = "drivers"
_GONE: Final = ".gone"
_DRIVER: Final = re.compile(r"[0-9]{8,}")
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {"compression": "zstd"},
    "json": {"ignoreNullFields": "false"},
    # A quote within quotes is doubled, as RFC 4180 says and everybody but Spark reads it.
    "csv": {"header": "true", "escape": '"'},
}
_TEXT_CODECS: Final = ("none", "uncompressed", "bzip2", "deflate", "gzip", "lz4", "snappy")
_CODECS: Final[Mapping[str, tuple[str, ...]]] = {
    "parquet": ("none", "uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw", "lzo", "brotli"),
    "json": _TEXT_CODECS,
    "csv": _TEXT_CODECS,
}
_COMMITTER: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.cleanup-failures.ignored": "true",
}


def _has_interval(kind: DataType) -> bool:
    """Whether it holds intervals of months, days and time together; those of one kind are numbers in a file."""
    from pyspark.sql.types import ArrayType, CalendarIntervalType, MapType, StructType

    if isinstance(kind, StructType):
        return any(_has_interval(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_interval(kind.elementType)
    if isinstance(kind, MapType):
        return _has_interval(kind.valueType)
    return isinstance(kind, CalendarIntervalType)


class FileSink(TransactionalSink):
    """`FileSink("out/clicks")` writes Parquet; `format="json"` and `format="csv"` text."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "parquet",
        delivery: str = "on_batch",
        compression: str | None = None,
        header: bool | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`compression` is one that Spark knows for the format; `header` is for CSV, which has one if nothing is said;
        `options` are given to Spark's writer as they are."""
        where = f"FileSink({str(path)!r})"
        if format not in FORMATS:
            raise Misuse(f"{where}: format={format!r} is not one of {', '.join(FORMATS)}.")
        if header is not None and format != "csv":
            raise Misuse(f"{where}: only CSV has a header, and this is {format}.")
        if options is not None and not isinstance(options, Mapping):
            raise Misuse(f"{where}: options are values by name, not {options!r}.")
        self.path = local_path(path, where)
        self.format = format
        self.options: dict[str, str] = {**_DEFAULTS[format], **_COMMITTER}
        if compression is not None:
            self.options["compression"] = compression
        if header is not None:
            self.options["header"] = str(header).lower()
        self.options.update(options or {})
        self._check_compression(where)
        self._delivery = Delivery.of(delivery, "FileSink")

    def _check_compression(self, where: str) -> None:
        """Spark would look at it with the first batch only."""
        for key, value in self.options.items():
            if key.lower() not in ("compression", "codec"):
                continue
            # For text, Hadoop's codecs can be named by their class.
            a_class = self.format != "parquet" and isinstance(value, str) and "." in value
            if not a_class and str(value).lower() not in _CODECS[self.format]:
                known = ", ".join(_CODECS[self.format])
                raise Misuse(f"{where}: {key}={value!r} is not one that Spark knows for {self.format}: {known}.")

    def describe(self) -> str:
        when = ", on snapshot" if self._delivery is Delivery.ON_SNAPSHOT else ""
        return f"files in {self.path} ({self.format}{when})"

    def check_stage(self, stage: NodeId, output_mode: str) -> None:
        if output_mode == "complete":
            raise whole_results(
                self, stage, "Use output_mode='append' or 'update', or 'update' and a DeltaSink with a key"
            )

    def place(self) -> str:
        return os.path.normpath(self.path)

    def place_in(self, base: Path) -> str:
        return str(real_path(self.path, base))

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, context: SinkContext) -> None:
        self.check_stage(context.stage, context.output_mode)
        self._check_columns(context)
        self._context = context
        self._where = self._place(context)
        self._hidden = self._where / HIDDEN
        claim(self._hidden, context, self.describe(), written=self._has_batches(context))
        try:
            for directory in (_PREPARED, _DRIVERS):
                (self._hidden / directory).mkdir(parents=True, exist_ok=True)
            self._check_fence()
            self._take_over()
            self._lineage = Lineage.read(self._hidden / LINEAGE).without(context.timeline)
        except OSError as error:
            raise self._failed("cannot be opened", error) from error
        self._staging = Staging(context)
        self._through = self._newest()

    def _check_columns(self, context: SinkContext) -> None:
        from pyspark.sql.types import ArrayType, MapType, NullType, StructType, VariantType

        not_in_csv = ArrayType | MapType | StructType | VariantType | NullType
        for field in context.schema.fields:
            kind = field.dataType.simpleString()
            if self.format == "csv" and isinstance(field.dataType, not_in_csv):
                why = "CSV has no such values"
                todo = "Use format='parquet' or 'json', or turn it into text in the stage: to_json(…)."
            elif _has_interval(field.dataType):
                why = "no file has such values"
                todo = "Cast it in the stage to a string, or use an interval of days or of months: make_dt_interval(…)."
            else:
                continue
            raise Misuse(
                f"Stage {context.stage!r} writes to {self.describe()}, but column {field.name} is {kind}, and {why}.",
                untouched="Nothing was written.",
                next=todo,
            )

    def _take_over(self) -> None:
        """Note this driver's incarnation, which fences older drivers off, and delete what they were writing."""
        mine = self._hidden / _DRIVERS / f"{self._context.incarnation:08d}"
        mine.mkdir(exist_ok=True)
        fsync(mine.parent)
        for other in list(mine.parent.iterdir()):
            if _DRIVER.fullmatch(other.name) and int(other.name) < self._context.incarnation:
                # Renamed first, then deleted: deleted file by file, half of it could still be made visible by its
                # driver.
                with contextlib.suppress(FileNotFoundError):
                    os.rename(other, other.with_name(f"{other.name}{_GONE}"))
        for left in mine.parent.glob(f"*{_GONE}"):
            shutil.rmtree(left, ignore_errors=True)
        self._work = mine

    def _remove(self, directory: Path) -> None:
        """Remove it by one rename, and only if no newer driver has taken over."""
        doomed = self._work / f"{directory.name}.{uuid.uuid4().hex[:8]}"
        try:
            os.rename(directory, doomed)
        except FileNotFoundError:
            self._check_fence()
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def _check_fence(self) -> None:
        drivers = [int(d.name) for d in (self._hidden / _DRIVERS).iterdir() if _DRIVER.fullmatch(d.name)]
        context, newest = self._context, max(drivers, default=0)
        if newest > context.incarnation:
            raise fenced_off(self.describe(), context, newest)

    # ── on batch ────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self._delivery is Delivery.ON_SNAPSHOT:
            self.rows_taken = (self.rows_taken or 0) + self._staging.write(batch, batch_id)
        else:
            target = self._where / directory_name(self._context.timeline, batch_id)
            if not target.exists():
                self._check_fence()
                self._show(self._spark_writes(batch, target.name), target)
                if self.format == "parquet":  # a text file does not say how many rows it has
                    files = target.glob("*.parquet")
                    self.rows_taken = (self.rows_taken or 0) + sum(pq.read_metadata(file).num_rows for file in files)
        self._through = max(self._through, batch_id)

    def _spark_writes(self, rows: DataFrame, name: str) -> Path:
        """Have Spark write the rows into a directory that nobody looks at yet, and make it durable."""
        fresh = self._work / name
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            files = max(2, rows.sparkSession.sparkContext.defaultParallelism)
            rows.coalesce(files).write.format(self.format).options(**self.options).save(str(fresh))
            for entry in list(fresh.iterdir()):
                if entry.name.startswith(("_", ".")):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
                elif entry.stat().st_size == 0:
                    entry.unlink()
                else:
                    fsync(entry)
            fsync(fresh)
        except OSError as error:
            raise self._failed("cannot be written", error) from error
        return fresh

    def _show(self, ready: Path, target: Path) -> None:
        self._check_fence()
        try:
            if not target.exists():
                os.rename(ready, target)
            fsync(target.parent)
        except OSError as error:
            self._check_fence()  # a driver that takes over removes what this one was writing
            raise self._failed(f"cannot have {target.name}", error) from error

    # ── on snapshot ─────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, part: Part) -> Json:
        self._write_part(part)
        return None

    def commit(self, part: Part, prepared: Json) -> None:
        target = self._where / directory_name(part.timeline, part.through)
        ready = self._prepared(part)
        if not target.exists():
            if not ready.exists():
                self._write_part(part)
            self._show(ready, target)
        self._staging.forget(part)

    def abort(self, part: Part, prepared: Json) -> None:
        self._remove(self._prepared(part))

    def recover(self, parts: Iterable[Part]) -> None:
        """Delete what is prepared and not among `parts`: no snapshot names it, and its batches come in a later part."""
        kept = {self._prepared(part) for part in parts}
        for found in (self._hidden / _PREPARED).iterdir():
            if found not in kept and found.name.startswith(f"{directory_name(self._context.timeline)}-"):
                self._remove(found)

    def visible(self, part: Part, prepared: Json, context: SinkContext) -> bool | None:
        return (self._place(context) / directory_name(part.timeline, part.through)).exists()

    def by_hand(self, part: Part) -> str:
        return f"It is visible if {self._where / directory_name(part.timeline, part.through)} is there."

    def _prepared(self, part: Part) -> Path:
        return self._hidden / _PREPARED / f"{directory_name(part.timeline, part.through)}.{part.snapshot}"

    def _write_part(self, part: Part) -> None:
        from pyspark.sql import SparkSession

        ready = self._prepared(part)
        rows = self._staging.frame(SparkSession.builder.getOrCreate(), part)
        fresh = self._spark_writes(rows, ready.name)
        self._check_fence()
        try:
            self._remove(ready)
            os.rename(fresh, ready)
            fsync(ready.parent)
        except OSError as error:
            self._check_fence()
            raise self._failed(f"cannot have {ready.name}", error) from error

    # ── where it stands ─────────────────────────────────────────────────────────────────────────────────────────────

    def last_batch(self) -> int | None:
        newest = self._newest()
        return None if newest < 0 else newest

    def _newest(self) -> int:
        staged = self._staging.last_batch() if self._delivery is Delivery.ON_SNAPSHOT else None
        shown = [b for t, b in file_restore.shown(self._where) if t == self._context.timeline]
        return max(-1, -1 if staged is None else staged, *shown)

    @steady
    def position(self, snapshot: SnapshotId) -> Json:
        lineage = self._lineage.extended(self._context.timeline, self._through)
        return {"path": str(self._where), "lineage": lineage.as_json()}

    # ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        what = f"{self.describe()} of stage {context.stage!r}"
        found = file_restore.outlook(self._place(context), what, position, context, fork=fork, again=again)
        hidden, written = self._place(context) / HIDDEN, self._has_batches(context)
        problem = found.problem or why_not_mine(hidden, context, self.describe(), written=written)
        return replace(found, problem=problem)

    def _has_batches(self, context: SinkContext) -> bool:
        return any(timeline == context.timeline for timeline, _ in file_restore.shown(self._place(context)))

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:
        where, was = self._place(context), file_restore.recorded(position)
        if was is None or fate not in (SinkFate.ROLLED_BACK, SinkFate.COPIED):
            return
        try:
            if fate is SinkFate.COPIED:
                file_restore.copy(was, where)
            else:
                self._context, self._where, self._hidden = context, where, where / HIDDEN
                (self._hidden / _DRIVERS).mkdir(parents=True, exist_ok=True)
                self._take_over()
                file_restore.take_back(was, context.timeline)
        except OSError as error:
            raise self._failed("could not be restored", error) from error

    def _place(self, context: SinkContext) -> Path:
        return directory_of(self.path, context.base, self.describe())

    def _failed(self, what: str, error: Exception) -> Failed:
        return Failed(
            f"{self.describe()}: {self._where} {what}: {error}",
            untouched="What was visible there is as it was.",
            next="Check that the directory can be written to and has room.",
        )
