"""One Spark session for all tests in this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm.session import POLLING_DELAY, spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Sources are looked at more often than in a job: tests wait for each row.
    session = spark_session("strobe-tests", "local[2]", extra={POLLING_DELAY: "20ms"})
    yield session
    session.stop()
