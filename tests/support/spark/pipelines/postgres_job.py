"""Numbers from one Postgres table to another, for tests that kill the driver: endless, or bounded if BOUNDED is set."""

from __future__ import annotations

import os

import strobe
from tests.support.spark.postgres_world import numbers

dsn = os.environ["NUMBERS_DSN"]
sink = strobe.PostgresSink(dsn, "target", delivery="on_snapshot", schema=os.environ.get("SCHEMA", "fixed"))
evolved = bool(os.environ.get("EVOLVED"))
pipeline = numbers(dsn, bounded=bool(os.environ.get("BOUNDED")), interval=0.5, sink=sink, evolved=evolved)
