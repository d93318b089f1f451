"""The session that the tests of the Spark host share."""

from tests.hosts.spark.conftest import spark

__all__ = ["spark"]
