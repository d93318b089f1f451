"""A broker for benchmarks: the one in STROBE_TEST_KAFKA, or one of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services import Server, variable


@contextmanager
def broker(scratch: Path) -> Iterator[str]:
    if found := os.environ.get(variable("kafka")):
        yield found
        return
    with Server("kafka", scratch) as server:
        yield server.address
