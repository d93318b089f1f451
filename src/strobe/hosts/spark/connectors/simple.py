"""Sinks for trying things out, and for anything that Strobe has no sink for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from strobe.hosts.spark.connectors.base import Sink
from strobe.model.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ConsoleSink", "ForeachBatchSink"]


class ConsoleSink(Sink):
    """Prints each batch. At least once: what has been printed cannot be taken back."""

    def __init__(self, rows: int = 20) -> None:
        if rows < 1:
            raise Misuse(f"ConsoleSink(rows={rows}): it must show at least one row.")
        self.rows = rows

    def describe(self) -> str:
        return "console"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        shown = batch.limit(self.rows + 1).toArrow().to_pylist()
        for row in shown[: self.rows]:
            print(f"batch {batch_id}: {row}", flush=True)
        if len(shown) > self.rows:
            print(f"batch {batch_id}: … more than {self.rows} rows", flush=True)


class ForeachBatchSink(Sink):
    """Calls `function(batch, batch_id)`. A batch may come again after a crash, with its id: be idempotent by that."""

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        if not callable(function):
            raise Misuse(f"ForeachBatchSink needs a function of (batch, batch id), not {function!r}.")
        self.function = function

    def describe(self) -> str:
        return f"function {getattr(self.function, '__name__', self.function)}"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        self.function(batch, batch_id)
