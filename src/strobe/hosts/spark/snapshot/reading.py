"""A table of state read by Spark's own reader, for what `look` does not decode itself.

The columns are those of Spark's reader, `key_…` and `value_…`, as in an export. Values of VARIANT are given as JSON:
Arrow and DuckDB would have their bytes, and Spark hands over no null among them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strobe.hosts.spark.checkpoint.layout import lay_out_stage
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import passing_session
from strobe.hosts.spark.snapshot.export import flatten
from strobe.look.state_tables import StateTable
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from strobe.store.locate import Located

__all__ = ["read_with_spark", "reader_options"]


def reader_options(table: StateTable) -> dict[str, str]:
    """How Spark's reader is told which table is meant."""
    options = {"operatorId": str(table.operator)}
    if table.operator_name.startswith("symmetricHashJoin"):
        options["joinSide"] = "right" if table.name.endswith("__right") else "left"
    elif table.variable.startswith("$"):
        options["readRegisteredTimers"] = "true"
    elif table.variable:
        options["stateVarName"] = table.variable
    else:
        options["storeName"] = table.store
    return options


def read_with_spark(found: Located, table: StateTable) -> pa.Table:
    """Starts Spark, or uses the session that is there, which then stays."""
    os.environ.setdefault("JAVA_HOME", str(find_java()))
    with passing_session("strobe-sql", "local[2]") as spark:
        try:
            with tempfile.TemporaryDirectory(prefix="strobe-sql-") as scratch:
                lay_out_stage(found, found.load(), NodeId(table.stage), Path(scratch))
                frame = spark.read.format("statestore").options(**reader_options(table)).load(scratch)
                return _variants_as_json(flatten(frame)).toArrow()
        except Exception as error:
            raise Failed(f"Spark cannot read it either: {str(error).partition(chr(10))[0][:300]}") from error


def _variants_as_json(frame: DataFrame) -> DataFrame:
    columns = {f"`{f.name.replace('`', '``')}`": "variant" in f.dataType.simpleString() for f in frame.schema.fields}
    texts = [F.to_json(F.col(name)) if variant else F.col(name) for name, variant in columns.items()]
    return frame.select(*(text.alias(name) for text, name in zip(texts, frame.columns, strict=True)))
