"""Numbers from one Postgres table to another, for tests that kill the driver: endless, or bounded if BOUNDED is set."""

from __future__ import annotations

import os

from tests.spark.postgres_world import numbers

pipeline = numbers(os.environ["NUMBERS_DSN"], bounded=bool(os.environ.get("BOUNDED")), interval=0.5)
