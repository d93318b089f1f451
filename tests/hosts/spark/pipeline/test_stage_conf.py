"""The settings of a stage count for it, from its declaration to its sources, and for nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Misuse
from tests.support.spark.jobs import run_to_the_end
from tests.support.spark.ledger_data import delta_rows

pytestmark = pytest.mark.spark

COMPACT = "spark.sql.streaming.fileSource.log.compactInterval"
ANSI = "spark.sql.ansi.enabled"


def pipeline(root: Path, conf: dict[str, str]) -> strobe.Pipeline:
    declared = strobe.Pipeline("settings", checkpoint=strobe.CheckpointConfig(interval=None))

    def rows(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.schema("n string").option("maxFilesPerTrigger", 1).json(str(root / "in"))
        return lines.select("n", F.col("n").try_cast("int").alias("tried"), F.lit(spark.conf.get(ANSI)).alias("ansi"))

    ends = {"availableNow": True}
    declared.stage("own", trigger=ends, conf=conf, to=strobe.DeltaSink(str(root / "own")))(rows)
    declared.stage("plain", trigger=ends, to=strobe.DeltaSink(str(root / "plain")))(rows)

    @declared.stage("cast", reads="own", conf=conf, to=strobe.DeltaSink(str(root / "cast")))
    def cast(own: DataFrame) -> DataFrame:
        return own.select("n", F.col("n").cast("int").alias("number"))

    return declared


def test_a_stages_settings_reach_its_plan_and_its_sources_and_no_other_stage(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "in").mkdir()
    for i, text in enumerate(("1", "two", "3", "4")):
        (tmp_path / f"in/{i}.json").write_text(json.dumps({"n": text}))
    before = spark.conf.get(ANSI)
    run_to_the_end(pipeline(tmp_path, {COMPACT: "2", ANSI: "false"}), tmp_path / "home", spark)

    def compacted(uid: str) -> list[str]:
        return sorted(p.name for p in tmp_path.glob(f"home/jobs/settings/stages/{uid}/t*/spark/sources/0/*.compact"))

    assert compacted("own") == ["1.compact", "3.compact"]
    assert compacted("plain") == []
    assert delta_rows(tmp_path / "cast", "select n, number from t order by n") == [
        ("1", 1), ("3", 3), ("4", 4), ("two", None)
    ]  # fmt: skip
    assert delta_rows(tmp_path / "own", "select distinct ansi from t") == [("false",)]
    assert delta_rows(tmp_path / "plain", "select distinct ansi from t") == [(before,)]
    assert spark.conf.get(ANSI) == before


def test_a_setting_that_spark_takes_only_at_its_start_is_refused_with_the_stages_name(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "in").mkdir()
    asked = pipeline(tmp_path, {"spark.sql.warehouse.dir": "/nowhere"})
    with pytest.raises(Misuse, match=r"'own' cannot have spark.sql.warehouse.dir = '/nowhere'.*the pipeline's conf"):
        start_job(asked, home=str(tmp_path / "home"), spark=spark)
