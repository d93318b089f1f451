"""Spark's own web page. It is off unless a pipeline's `conf` turns it on, and then on loopback."""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["ui_address"]


def ui_address(spark: SparkSession | None) -> str:
    """Where it is; empty if it is off, or Spark is gone."""
    try:
        return (spark.sparkContext.uiWebUrl if spark is not None else None) or ""
    except Exception:  # py4j's, of whatever class
        return ""
