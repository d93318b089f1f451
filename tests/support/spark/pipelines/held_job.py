"""The numbers job with an invariant that holds its rows back, for tests that kill the driver; violated with WRONG=1."""

from __future__ import annotations

import os

from tests.support.spark.pipelines.parts_job import pipeline

pipeline.invariant(
    "nothing is wrong", sql=f"select 1 as wrong where {os.environ.get('WRONG', '0')} = 1", on_violation="hold"
)

__all__ = ["pipeline"]
