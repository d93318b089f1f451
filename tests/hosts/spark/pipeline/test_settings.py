"""What the page shows of a stage's settings: as its file has them, without secrets."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.pipeline.settings import settings_of


def test_settings_are_those_of_the_file_without_secrets() -> None:
    pipeline = strobe.Pipeline("shop")
    conf = {"spark.sql.shuffle.partitions": "3", "spark.hadoop.fs.s3a.secret.key": "hush"}

    @pipeline.stage(uid="orders", trigger={"processingTime": "2 seconds"}, max_rows_per_batch=500, conf=conf)
    def orders(spark: SparkSession) -> DataFrame:
        raise AssertionError

    assert settings_of(pipeline) == {
        "orders": {
            "output_mode": "append",
            "trigger": "processingTime 2 seconds",
            "max_rows_per_batch": "500",
            "spark.sql.shuffle.partitions": "3",
            "spark.hadoop.fs.s3a.secret.key": "***",
        }
    }
