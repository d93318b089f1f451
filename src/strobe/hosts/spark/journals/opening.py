"""A journal as Parquet, in a Spark session of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from strobe.hosts.spark.journals.tables import open_table, reading
from strobe.hosts.spark.jvm.session import DEFAULT_MASTER, end_spark, spark_session
from strobe.model.errors import Misuse

__all__ = ["opened"]

_SETTINGS: Final = {"spark.sql.shuffle.partitions": "64"}  # adaptive execution joins small ones


@contextmanager
def opened(table: str, master: str | None) -> Iterator[DataFrame]:
    """Its events; Spark ends with the block, and what goes wrong in it is said in words."""
    if "://" not in table and not Path(table).exists():
        raise Misuse(
            f"There is no {table!r}.", next="Name a directory that `strobe journal export` has written, or a journal."
        )
    session = spark_session("strobe-journal", master or DEFAULT_MASTER, extra=_SETTINGS)
    try:
        with reading(table):
            yield open_table(session, table)
    finally:
        end_spark()
