"""What a stage's checkpoint says of its own place goes with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strobe.hosts.spark.checkpoint.stage_files import relocate_state
from strobe.hosts.spark.restore.rescale import _plainly_spelled

SCHEMA = "state/0/_stateSchema/default/0_5880cd16"


@pytest.mark.parametrize("name", ["plain", "with a space", "größe", "100%25", 'quo"ted'])
@pytest.mark.parametrize("was", ["file:/old place/t1/spark", "file:/old%20place/t1/spark"])
def test_the_schemas_of_a_state_are_named_as_spark_reads_them(tmp_path: Path, name: str, was: str) -> None:
    """Spark takes the text as the path itself: an encoded one leads nowhere, and the stage could not start again."""
    checkpoint = tmp_path / name / "spark"
    metadata = checkpoint / "state/0/_metadata/v2/0"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("v2\n" + json.dumps({"stateSchemaFilePaths": [f"{was}/{SCHEMA}"]}), encoding="utf-8")
    relocate_state(checkpoint)
    (named,) = json.loads(metadata.read_text(encoding="utf-8").splitlines()[1])["stateSchemaFilePaths"]
    assert named == f"file:{checkpoint}/{SCHEMA}"


@pytest.mark.parametrize("name", ["plain", "with a space", "größe"])
def test_spark_repartitions_what_it_is_led_to_by_a_path_that_needs_no_encoding(tmp_path: Path, name: str) -> None:
    checkpoint = tmp_path / name
    checkpoint.mkdir()
    with _plainly_spelled(checkpoint) as place:
        assert (place == checkpoint) is (name == "plain")
        assert place.resolve() == checkpoint.resolve()
        (place / "there").touch()
    assert (checkpoint / "there").exists()
