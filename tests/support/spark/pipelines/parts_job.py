"""Numbers from files to a sink that delivers on snapshot, for tests that kill the driver."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.spark.two_phase import numbers

pipeline = numbers(
    Path(os.environ["NUMBERS_IN"]), os.environ["NUMBERS_OUT"], bounded=bool(os.environ.get("BOUNDED")), interval=0.3
)
