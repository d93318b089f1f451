"""One Spark session for all tests in this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("strobe-tests", "local[2]")
    yield session
    session.stop()
