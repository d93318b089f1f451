"""A few rows as a DataFrame that costs Spark no job to read: they are part of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["DataFrame", "SparkSession", "local_frame"]


def local_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """`rows` in the order of the columns; `schema` as Spark writes it: "k BIGINT, v STRING"."""
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    named = [dict(zip(columns.names, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(named, schema=to_arrow_schema(columns, timezone="UTC"))
    return spark.createDataFrame(table, columns)
