"""A sink in a directory that its own rows come from is refused before anything is written there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Misuse
from tests.support.spark.ledger_data import delta_rows

pytestmark = pytest.mark.spark


def copying(data: Path, sink: strobe.Sink, *, chain: bool = True) -> strobe.Pipeline:
    pipeline = strobe.Pipeline("copy", checkpoint=strobe.CheckpointConfig(interval=None), chain=chain)

    @pipeline.stage(uid="rows", trigger={"availableNow": True})
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id INT").json(str(data))

    @pipeline.stage(uid="copies", reads="rows", to=sink)
    def copies(rows: DataFrame) -> DataFrame:
        return rows

    return pipeline


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "in put").mkdir()
    (tmp_path / "in put" / "0.json").write_text(json.dumps({"id": 1}) + "\n")
    (tmp_path / "link").symlink_to("in put")
    return tmp_path / "in put"


@pytest.mark.parametrize(
    "sink",
    [
        lambda: strobe.FileSink("in put", format="json"),
        lambda: strobe.FileSink("link", delivery="on_snapshot"),
        lambda: strobe.FileSink("in put/below/here"),
        lambda: strobe.DeltaSink("./in put"),
    ],
    ids=["files", "link", "below", "delta"],
)
@pytest.mark.parametrize("chain", [True, False], ids=["chained", "channel"])
def test_a_sink_where_its_own_rows_come_from_is_refused(
    spark: SparkSession, tmp_path: Path, data: Path, sink: Callable[[], strobe.Sink], chain: bool
) -> None:
    pipeline = copying(data, sink(), chain=chain)
    with pytest.raises(Misuse, match=r"Stage 'copies' would write to .*in put, which .*reads, and its own rows") as no:
        start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert "Nothing was started" in str(no.value)
    assert os.listdir(data) == ["0.json"]


@pytest.mark.parametrize("path", ["in put/table", "input"])
def test_a_sink_elsewhere_and_a_table_below_are_not(spark: SparkSession, tmp_path: Path, data: Path, path: str) -> None:
    job = start_job(copying(data, strobe.DeltaSink(path)), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    job.wait()
    assert delta_rows(tmp_path / path, "select id from t") == [(1,)]
