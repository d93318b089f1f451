"""The parts of a restore that need no Spark: options, job record, offsets, and comparing what stages keep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strobe.cli.restore import parse_partitions
from strobe.hosts.spark.checkpoint.files import batch_files
from strobe.hosts.spark.checkpoint.offsets import mark_offsets, rearrange_offsets, renumber_offsets
from strobe.hosts.spark.checkpoint.stage_files import note_starts, relocate_state, start_positions
from strobe.hosts.spark.home.record import NEW, Intent, record_from_json, record_json
from strobe.hosts.spark.restore.channels import Renumbering
from strobe.hosts.spark.restore.evolve import changed_state, compare_stages, rearranged
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId, SnapshotId

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")

# ── options and memory ──────────────────────────────────────────────────────────────────────────────────────────────


def test_partitions_are_for_all_stages_or_for_one() -> None:
    assert parse_partitions(("8", "balances=16", "a=1")) == (8, {"balances": 16, "a": 1})
    assert parse_partitions(()) == (None, {})


@pytest.mark.parametrize("word", ["0", "-1", "x", "", "=3", "a=", "a=0", "1.5", "a=b"])
def test_what_is_no_number_of_partitions_is_refused(word: str) -> None:
    with pytest.raises(Misuse, match="not a number of partitions"):
        parse_partitions((word,))


@pytest.mark.parametrize("options", [{"partitions": 0}, {"stage_partitions": {"a": -1}}, {"claim_mode": "grab"}])
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        RestoreOptions(**options)


def test_a_job_record_survives_being_written_and_an_old_one_can_be_read() -> None:
    intent = Intent("ledger/1", "root", "fork", claim=True, partitions=3, stage_partitions={"a": 2})
    record = replace(NEW, restoring=intent, pinned=(SnapshotId(4),), stages={A: {"operators": []}})
    assert record_from_json(record_json(record).encode()) == record
    assert record_from_json(b'{"incarnation": 0, "timeline": 1, "snapshot": 0, "generation": 0}') == NEW


NUMBERS = '"incarnation": 3, "timeline": 1, "snapshot": 0, "generation": 0'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"timeline": 1, "snapshot": 0, "generation": 0}', "missing required field `incarnation`"),
        ('{"incarnation": "3", "timeline": 1, "snapshot": 0, "generation": 0}', "incarnation"),
        (f'{{{NUMBERS}, "restoring": {{"snapshot": "a/1", "root": "r"}}}}', "missing required field `how`"),
        (
            f'{{{NUMBERS}, "restoring": {{"snapshot": "a/1", "root": "r", "how": "fork", "later": 1}}}}',
            "unknown field `later`",
        ),
        ("[]", "Expected `object`"),
        ("{", "not JSON"),
    ],
)
def test_a_job_record_that_is_not_one_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        record_from_json(text.encode())


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def checkpoint(root: Path, *sources: str) -> Path:
    (root / "offsets").mkdir(parents=True)
    meta = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"}})
    for batch in ("3", "4"):
        (root / "offsets" / batch).write_text("\n".join(["v1", meta, *sources]))
    return root


def lines(root: Path) -> list[Any]:
    found = [path.read_text().splitlines()[2:] for path in sorted((root / "offsets").iterdir())]
    assert found[0] == found[1]
    return [json.loads(line) if line.startswith("{") else line for line in found[0]]


def channel(name: str, version: int) -> str:
    return json.dumps({"channel": name, "version": version})


def test_positions_are_renumbered_commit_for_commit() -> None:
    versions = Renumbering(((12, 3), (14, 4), (19, 5)))
    assert [versions[old] for old in (0, 11, 12, 13, 14, 18, 19, 25)] == [0, 0, 3, 3, 4, 4, 5, 5]


def test_offsets_on_channels_are_renumbered_and_others_left_alone(tmp_path: Path) -> None:
    root = checkpoint(tmp_path, channel("a", 14), '{"logOffset":7}', "-", channel("b", 9))
    mark_offsets(root)
    assert [line.get("version") for line in lines(root) if isinstance(line, dict)] == [None, None, None]
    renumber_offsets(root, {A: lambda old: old - 10})
    expected = [{"channel": "a", "version": 4}, {"logOffset": 7}, "-", {"channel": "b", "version": 0}]
    assert lines(root) == expected
    renumber_offsets(root, {A: lambda old: old - 10})
    assert lines(root) == expected, "once"


def test_offsets_follow_the_order_of_the_new_plan(tmp_path: Path) -> None:
    root = checkpoint(tmp_path, channel("a", 14), channel("b", 9), channel("a", 14))
    rearrange_offsets(root, (B, C, A), {C: 5})
    assert lines(root) == [{"channel": n, "version": v} for n, v in (("b", 9), ("c", 5), ("a", 14))]


def test_a_stage_that_is_added_begins_where_it_was_told_whatever_the_generation(tmp_path: Path) -> None:
    place = tmp_path / "stages/late/t2/spark"
    note_starts(place, {A: 7})
    assert start_positions(tmp_path / "stages/late/t2.1/spark") == {A: 7}
    assert start_positions(tmp_path / "stages/late/t3/spark") == {}


def test_schemas_of_a_processor_are_found_where_the_checkpoint_is_laid_out(tmp_path: Path) -> None:
    notes = tmp_path / "state/0/_metadata/v2/0"
    notes.parent.mkdir(parents=True)
    notes.write_text('v2\n{"stateSchemaFilePaths":["file:/old/t1/spark/state/0/_stateSchema/default/0_ab"]}')
    relocate_state(tmp_path)
    assert f'["file:{tmp_path}/state/0/_stateSchema/default/0_ab"]' in notes.read_text()


def test_partitions_that_the_state_no_longer_has_are_not_part_of_a_snapshot(tmp_path: Path) -> None:
    """Spark leaves their directories when the state is given fewer; they have no files of later batches."""
    root = checkpoint(tmp_path, "-")
    (root / "metadata").write_text('{"id": "x"}')
    for name in ("commits/3", "commits/4", "state/0/0/5.snapshot", "state/0/1/5.snapshot", "state/0/2/3.snapshot"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("v1\n{}")
    found = {str(path) for path in batch_files(root, 4)}
    assert {name for name in found if name.startswith("state")} == {"state/0/0/5.snapshot", "state/0/1/5.snapshot"}


# ── what stages keep ────────────────────────────────────────────────────────────────────────────────────────────────


def aggregate(value: str = "sum(amount)", kind: str = "sum(BIGINT)", key: str = "INT") -> dict[str, Any]:
    columns = [{"name": "account", "type": key}], [{"name": value, "type": kind}]
    return {"kind": "aggregate", "keys": columns[0], "values": columns[1]}


def described(*operators: dict[str, Any], sources: tuple[str, ...] = ("channel a",)) -> dict[str, Any]:
    return {"operators": list(operators), "sources": list(sources)}


def judged(before: dict[str, Any], after: dict[str, Any]) -> list[bool]:
    """Of each difference, whether the state cannot go on."""
    return [d.harmful for d in compare_stages(before, after)]


def test_the_same_operators_do_not_differ() -> None:
    assert judged(described(aggregate()), described(aggregate())) == []


@pytest.mark.parametrize(
    "after",
    [
        described(),
        described(aggregate(), {"kind": "limit"}),
        described(aggregate(kind="max(BIGINT)")),
        described(aggregate(key="BIGINT")),
        described({"kind": "distinct", "keys": []}),
        described(aggregate(), sources=("FileSource",)),
    ],
)
def test_another_shape_of_state_cannot_go_on(after: dict[str, Any]) -> None:
    assert judged(described(aggregate()), after) == [True]
    assert changed_state(A, compare_stages(described(aggregate()), after)) is not None


def test_other_names_are_only_told() -> None:
    differences = compare_stages(described(aggregate()), described(aggregate(value="sum(fee)")))
    assert [d.harmful for d in differences] == [False]
    assert "sum(amount)" in differences[0].sentence
    assert changed_state(A, differences) is None


def test_variables_of_a_processor_go_by_name() -> None:
    def processor(**variables: str) -> dict[str, Any]:
        values = [{"name": name, "type": kind} for name, kind in variables.items()]
        return described({"kind": "transformWithState", "keys": [], "values": values})

    assert judged(processor(n="value of int"), processor(m="list of int", n="value of int")) == []
    assert judged(processor(n="value of int"), processor(n="value of bigint")) == [True]
    assert judged(processor(n="value of int", m="list of int"), processor(n="value of int")) == [False]


def test_channels_are_found_again_in_any_order_and_other_sources_are_not() -> None:
    two = described(sources=("channel a", "channel b"))
    assert rearranged(two, described(sources=("channel b", "channel a", "channel b"))) == (B, A, B)
    assert rearranged(two, two) is None
    assert rearranged(described(sources=("FileSource",)), two) is None
    assert judged(two, described(sources=("channel b", "channel a"))) == []
    assert judged(two, described(sources=("channel a", "channel c"))) == [False]


def test_a_snapshot_that_does_not_describe_its_stages_is_compared_with_nothing() -> None:
    assert compare_stages({}, described(aggregate())) == []
    assert compare_stages(None, described(aggregate())) == []
