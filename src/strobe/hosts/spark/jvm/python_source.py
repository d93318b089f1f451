"""Opening a stream of a Python data source, each under a registration of its own.

Spark does not look a Python source up when the stream is opened but when its query starts, in the query's thread, and
takes what is registered under the name by then. Of queries that read the same source all would get the same
registration, and with it the same java.util.HashMap of environment variables, into which each of them puts settings
as it starts. Two that start at once can break the map for good: its size no longer agrees with its entries, and every
task that is sent out with it fails with an OptionalDataException until the driver ends. Under a name of its own no
two streams share a map.

The workers import this module, so it stays light.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

__all__ = ["open_stream", "without_numbers"]

_PREFIX: Final = "strobe_"  # of the names of Strobe's own sources
_NUMBERED: Final = re.compile(rf"\b({_PREFIX}[a-z]+)_\d+\b")
_numbers = itertools.count(1)


def open_stream(
    spark: SparkSession, source: type[DataSource], schema: StructType | str, options: Mapping[str, str]
) -> DataFrame:
    """A streaming DataFrame of `source`, with what `source.name()` says and a number as its format."""
    # Spark looks for sources in the session that is active in this thread, which may be another one.
    session: Any = SparkSession
    session._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    name = f"{source.name()}_{next(_numbers)}"
    spark.dataSource.register(type(source.__name__, (source,), {"name": classmethod(lambda _: name)}))
    return spark.readStream.format(name).schema(schema).options(**options).load()


def without_numbers(text: str) -> str:
    """The text with plain names of sources, without the numbers of their streams in this session."""
    return _NUMBERED.sub(r"\1", text)
