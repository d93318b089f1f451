"""The rows of a batch, or part, as Spark sees them: staged in files, in the table's types, and which of them it takes.

It accepts the same rows as `RowRules.split` does for an Arrow table, computed by Spark. Values of another type than the
table's are cast by the very same code, on the executors. Every rejected row comes to the driver, because it must be
named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StringType, StructField, StructType

from strobe.hosts.spark.connectors.dead_letters import Rejected
from strobe.hosts.spark.connectors.delta.keys import longest_partition
from strobe.hosts.spark.connectors.delta.rows import RowRules, fit_column, values_of

__all__ = ["BATCH", "Incoming", "Staged", "col"]

BATCH: Final = "__strobe_batch"
_WHY: Final = "__strobe_why"  # why a row is rejected; null if it is not
_ROW: Final = "__strobe_row"  # a rejected row as it came, if it was cast
_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_EXACT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


@dataclass(frozen=True, slots=True)
class Staged:
    """A file with rows of a batch."""

    batch: int
    file: Path


def col(name: str) -> Column:
    """The column of that name, whatever it is."""
    return F.col("`" + name.replace("`", "``") + "`")


class Incoming:
    """Rows of files whose names begin with their batch and `-`."""

    def __init__(
        self, spark: SparkSession, staged: Sequence[Staged], rules: RowRules, options: Mapping[str, str]
    ) -> None:
        self._spark, self._rules, self._options = spark, rules, dict(options)
        self.is_fitting = True
        by_schema: dict[str, list[Staged]] = {}
        for one in staged:
            by_schema.setdefault(pq.read_schema(one.file).metadata[_SCHEMA].decode(), []).append(one)
        schemas = {text: StructType.fromJson(json.loads(text)) for text in by_schema}
        held = {name for schema in schemas.values() for name in schema.names}
        self.present = [name for name in rules.names if name in held]
        frames = [self._read(schemas[text], files) for text, files in by_schema.items()]
        self.frame = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)

    def _read(self, schema: StructType, files: Sequence[Staged]) -> DataFrame:
        paths = [str(one.file) for one in files]
        number = F.substring_index(F.col("_metadata.file_name"), "-", 1).cast("long")
        frame = self._spark.read.schema(schema).options(**self._options).parquet(*paths)
        frame = frame.select("*", number.alias(BATCH))
        wanted = {f.name: f for f in self._rules.schema.fields}
        if set(schema.names) <= set(wanted) and all(_same(wanted[f.name].dataType, f.dataType) for f in schema.fields):
            return frame.select(*map(col, schema.names), BATCH, F.lit(None).cast("string").alias(_WHY),
                                F.lit(None).cast("binary").alias(_ROW))  # fmt: skip
        self.is_fitting = False
        kept = [f for f in self._rules.schema.fields if f.name in schema.names]
        target = [self._rules.columns[f.name] for f in kept]
        result = StructType(
            [
                *(StructField(f.name, f.dataType, True) for f in kept),
                *StructType().add(BATCH, "long").add(_WHY, "string").add(_ROW, "binary").fields,
            ]
        )
        return frame.mapInArrow(partial(_cast, target), result)

    # ── rows that the table does not take ───────────────────────────────────────────────────────────────────────────

    @cached_property
    def _judged(self) -> DataFrame:
        """The rows, each with the first reason why it is rejected, if any."""
        whys = [F.col(_WHY)]
        for name in (n for n in self._rules.partitions if n in self.present):
            why = f"the text of column {name}, a partition, is longer than {longest_partition(name)} bytes"
            match self._rules.kind(name):
                case StringType():
                    whys.append(F.when(_escaped_length(col(name)) > longest_partition(name), F.lit(why)))
                case FloatType() | DoubleType():
                    long = F.udf(partial(_too_long, longest_partition(name)), "boolean")
                    whys.append(F.when(long(col(name)), F.lit(why)))
                case _:
                    pass
        for name in (n for n in self._rules.required if n in self.present):
            whys.append(F.when(self._value(name).isNull(), F.lit(f"column {name} must not be null")))
        ready = self.frame.select(
            *(self._value(name).alias(name) for name in self.present), BATCH, _ROW,
            *(col(name).alias(f"__strobe_{i}") for i, name in enumerate(self._emptied)),
            F.coalesce(*whys).alias(_WHY),
        )  # fmt: skip
        for name, expression in self._rules.constraints.items():
            broken = F.expr(f"NOT coalesce(({expression}), false)")
            said = F.when(broken, F.lit(f"it violates the constraint {name}: {expression}"))
            ready = ready.withColumn(_WHY, F.coalesce(F.col(_WHY), said))
        return ready

    @property
    def _emptied(self) -> list[str]:
        """Partitions in which an empty text is a null."""
        return [name for name in self._rules.partitions if self._rules.is_text(name) and name in self.present]

    def _value(self, name: str) -> Column:
        return F.when(col(name) != "", col(name)) if name in self._emptied else col(name)

    @property
    def _has_rules(self) -> bool:
        rules = self._rules
        return bool(not self.is_fitting or self._emptied or rules.required or rules.constraints or rules.partitions)

    @cached_property
    def good(self) -> DataFrame:
        """Rows that pass every check that looks at one row alone."""
        frame = self._judged.filter(F.col(_WHY).isNull()) if self._has_rules else self.frame
        return frame.select(*map(col, self.present), BATCH)

    def broken(self, batch: int | None, *, all_of_them: bool) -> list[Rejected]:
        if not self._has_rules:
            return []
        return self._rejected(self._judged.filter(F.col(_WHY).isNotNull()), batch, all_of_them=all_of_them)

    # ── rows of one key ─────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _compared(self) -> DataFrame:
        """Good rows, with whether all rows of their batch and key are equal, and how many newer rows their key has."""
        keys = [col(name) for name in self._rules.key]
        text = F.to_json(F.struct(*(col(name).alias(f"c{i}") for i, name in enumerate(self.present))), _EXACT)
        together = Window.partitionBy(BATCH, *keys)
        return self.good.withColumn("__strobe_text", text).withColumn(
            "__strobe_same", F.min("__strobe_text").over(together) == F.max("__strobe_text").over(together)
        )

    @cached_property
    def newest(self) -> DataFrame:
        """The newest row of each key, without keys for which that is ambiguous."""
        order = Window.partitionBy(*(col(name) for name in self._rules.key)).orderBy(F.col(BATCH).desc())
        clear = self._compared.filter("__strobe_same").withColumn("__strobe_n", F.row_number().over(order))
        return clear.filter("__strobe_n = 1").select(*map(col, self.present), BATCH)

    def ambiguous(self, batch: int | None, *, all_of_them: bool) -> list[Rejected]:
        key, why = self._rules.key, ""
        for name in (n for n in self._emptied if n in key):
            if self.frame.filter(col(name) == "").limit(1).count():
                why += f"; an empty string in {name}, a partition, is a null"
        reason = f"another row of the batch has the same key ({', '.join(key)}){why}"
        found = self._compared.filter("NOT __strobe_same").withColumn(_WHY, F.lit(reason))
        return self._rejected(found.withColumn(_ROW, F.lit(None).cast("binary")), batch, all_of_them=all_of_them)

    def _rejected(self, rows: DataFrame, batch: int | None, *, all_of_them: bool) -> list[Rejected]:
        # What was in a partition before it became a null is shown as it came.
        back = {n: f"__strobe_{i}" for i, n in enumerate(self._emptied) if f"__strobe_{i}" in rows.columns}
        shown = [(col(back[n]) if n in back else col(n)).alias(n) for n in self.present]
        chosen = rows.select(*shown, BATCH, _WHY, _ROW)
        table = (chosen if all_of_them else chosen.orderBy(BATCH).limit(1)).toArrow()
        found = []
        for number, why in enumerate(table[_WHY].to_pylist()):
            came = table[_ROW][number].as_py()
            row = table.slice(number, 1).select(self.present) if came is None else _from_bytes(came)
            found.append(Rejected(values_of(row)[0], why, table[BATCH][number].as_py() if batch is None else batch))
        if found and not all_of_them:
            found *= rows.count()
        return found


def _cast(target: Sequence[pa.Field], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: rows in the types of the table's columns; of one that does not fit, why, and the row itself."""
    for batch in batches:
        rows, bad = pa.Table.from_batches([batch]), dict[int, str]()
        columns = [fit_column(rows, field, bad) for field in target]
        came = [_to_bytes(rows.slice(n, 1).drop_columns([BATCH])) if n in bad else None for n in range(rows.num_rows)]
        whys = [bad.get(n) for n in range(rows.num_rows)]
        names = [*(field.name for field in target), BATCH, _WHY, _ROW]
        made = pa.table([*columns, rows[BATCH], pa.array(whys, pa.string()), pa.array(came, pa.binary())], names=names)
        yield from made.to_batches()


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _from_bytes(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _same(there: Any, here: Any) -> bool:
    """Whether two types are the same, except for what may be null."""
    return bool(there.simpleString() == here.simpleString())


def _escaped_length(text: Column) -> Column:
    """How long a text is with everything escaped but plain letters, as `urllib.parse.quote` does it."""
    return F.octet_length(text) * 3 - F.length(F.regexp_replace(text, "[^A-Za-z0-9_.~-]", "")) * 2


def _too_long(most: int, value: float | None) -> bool:
    return value is not None and len(format(Decimal(repr(value)), "f")) > most
