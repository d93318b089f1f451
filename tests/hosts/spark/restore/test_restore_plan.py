"""What is known before a restore: the plan, and every reason against it. Nothing is ever changed by looking."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.rehearse import dry_run
from strobe.hosts.spark.restore.plan import ChannelAction, How, RestoreOptions, RestorePlan, StageAction
from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from tests.support.spark.ledger_data import read_transfers, write_transfers
from tests.support.spark.restoring import await_postings, ledger, start

pytestmark = pytest.mark.spark


class Past(NamedTuple):
    """A ledger that has run, been snapshotted and stopped."""

    root: Path
    data: Path
    checkpoint: SnapshotId
    savepoint: Path

    def tree(self) -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    root = tmp_path_factory.mktemp("past")
    data = write_transfers(root / "in", files=2, rows=30)
    job = start(ledger(data), root, spark)
    await_postings(job, root, 60)
    checkpoint = job.checkpoint(120)
    savepoint = Path(job.savepoint(root / "savepoint"))
    write_transfers(data, files=3, rows=30)
    await_postings(job, root, 90)
    job.stop()
    return Past(root, data, checkpoint, savepoint)


@pytest.fixture(autouse=True)
def untouched(past: Past) -> Iterator[None]:
    before = past.tree()
    yield
    assert past.tree() == before, "looking has changed something"


def plan(
    past: Past,
    spark: SparkSession,
    pipeline: strobe.Pipeline | None = None,
    *,
    home: Path | None = None,
    base: Path | None = None,
    **options: Any,
) -> RestorePlan:
    options.setdefault("snapshot", f"ledger/{past.checkpoint}")
    return dry_run(
        pipeline or ledger(past.data),
        restore=RestoreOptions(**options),
        home=str(home or past.root / "home"),
        base=base or past.root,
        spark=spark,
    )


def problem(plan: RestorePlan, kind: type[StrobeError], *words: str) -> StrobeError:
    """The one reason against the plan; it says what is untouched and what to do."""
    (found,) = plan.problems
    assert isinstance(found, kind), found
    for word in words:
        assert word in str(found), str(found)
    assert found.untouched
    assert found.next
    assert plan.exit_code == kind.exit_code
    return found


def test_a_rollback_says_what_is_laid_out_cut_back_and_rolled_back(past: Past, spark: SparkSession) -> None:
    found = plan(past, spark)
    assert found.problems == ()
    assert found.how is How.ROLLBACK
    assert {s.uid: s.action for s in found.stages} == dict.fromkeys(
        ("transfers", "postings", "balances"), StageAction.RESTORED
    )
    assert {(c.name, c.action, c.behind) for c in found.channels} == {
        ("transfers", ChannelAction.CUT, 1),
        ("postings", ChannelAction.CUT, 1),
    }
    assert [s.fate.value for s in found.sinks] == ["rolled back", "rolled back"]
    assert json.loads(json.dumps(found.as_json()))["would_succeed"] is True


def test_a_savepoint_in_place_rebuilds_the_channels(past: Past, spark: SparkSession) -> None:
    found = plan(past, spark, snapshot=str(past.savepoint))
    assert (found.how, found.problems) == (How.REBUILD, ())
    assert {c.action for c in found.channels} == {ChannelAction.REFILLED}


def test_a_fork_copies_the_tables_to_another_base(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    found = plan(past, spark, ledger(past.data).renamed("staging"), base=tmp_path)
    assert (found.how, found.problems) == (How.FORK, ())
    assert [s.fate.value for s in found.sinks] == ["copied", "copied"]


def test_a_fork_that_would_write_where_the_original_writes_is_refused(past: Past, spark: SparkSession) -> None:
    found = plan(past, spark, ledger(past.data).renamed("staging"))
    assert len(found.problems) == 2
    assert "--base" in found.problems[0].next
    assert found.exit_code == 2


def test_an_unfit_number_of_partitions_is_refused(past: Past, spark: SparkSession) -> None:
    with pytest.raises(Misuse, match="0 partitions"):
        RestoreOptions(partitions=0)
    with pytest.raises(Misuse, match="no stage 'nobody'"):
        plan(past, spark, stage_partitions={"nobody": 2})


def test_rescaling_is_part_of_the_plan_for_stages_with_state_only(past: Past, spark: SparkSession) -> None:
    found = plan(past, spark, partitions=5, stage_partitions={"balances": 3})
    assert {s.uid: s.partitions for s in found.stages} == {"transfers": None, "postings": None, "balances": (2, 3)}
    assert found.problems == ()


@pytest.mark.parametrize("name", ["nowhere", "ledger/999", "ledger/x"])
def test_a_snapshot_that_is_not_there_is_misuse(past: Past, spark: SparkSession, name: str) -> None:
    with pytest.raises(Misuse):
        plan(past, spark, snapshot=name)


def test_a_directory_that_is_no_snapshot_is_misuse(past: Past, spark: SparkSession) -> None:
    with pytest.raises(Misuse, match=r"manifest\.json"):
        plan(past, spark, snapshot=str(past.data))


def test_a_snapshot_of_another_pipeline_is_refused(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    other = strobe.Pipeline("other")

    @other.stage(uid="elsewhere", to=strobe.DeltaSink("elsewhere"))
    def elsewhere(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, past.data)

    found = plan(past, spark, other, snapshot=str(past.savepoint), home=tmp_path)
    assert "another pipeline" in found.problems[0].what
    assert found.exit_code == 2


def test_a_newer_format_is_refused(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(past.savepoint, newer)
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(StrobeError, match="99"):
        plan(past, spark, snapshot=str(newer))


def test_too_little_room_is_said_beforehand(past: Past, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(past.root)._replace(free=1000)
    monkeypatch.setattr("strobe.hosts.spark.restore.planning.shutil.disk_usage", lambda path: usage)
    problem(plan(past, spark), Failed, "too little room", "1,000")


def test_a_savepoint_with_a_lost_file_is_refused(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(past.savepoint, broken)
    next(path for path in sorted(broken.rglob("*")) if path.is_file() and path.parent.parent.name == "blobs").unlink()
    problem(plan(past, spark, snapshot=str(broken)), Damaged, "not whole")


def test_a_damaged_byte_is_found_if_it_is_looked_for_and_else_said_to_be_unchecked(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(past.savepoint, broken)
    blob = max((p for p in broken.rglob("*") if p.is_file() and p.parent.parent.name == "blobs"), key=os.path.getsize)
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    looked_at = plan(past, spark, snapshot=str(broken))
    assert looked_at.problems == ()
    assert any("--verify" in sentence and "bytes" in sentence for sentence in looked_at.unchecked)
    assert any("--rehearse" in sentence for sentence in looked_at.as_json()["unchecked"])
    read = plan(past, spark, snapshot=str(broken), verify=True)
    problem(read, Damaged, "not whole", "is damaged")
    assert read.exit_code == 1
    sound = plan(past, spark, snapshot=str(past.savepoint), verify=True)
    assert (sound.problems, [s for s in sound.unchecked if "--verify" in s]) == ((), [])


def test_rows_of_a_channel_that_are_gone_are_missed_beforehand(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    """A copy of the home, whose channel has lost a file that was in flight."""
    home = tmp_path / "home"
    shutil.copytree(past.root / "home", home)
    shutil.rmtree(home / "jobs/ledger/channels/postings")
    found = plan(past, spark, home=home)
    assert any("Channel postings is gone" in p.what for p in found.problems)


def test_a_savepoint_cannot_be_claimed(past: Past, spark: SparkSession) -> None:
    problem(plan(past, spark, snapshot=str(past.savepoint), claim_mode="claim"), Misuse, "cannot be claimed")


def test_nothing_to_plan_without_a_snapshot(past: Past, spark: SparkSession) -> None:
    with pytest.raises(Misuse, match="-s SNAPSHOT"):
        plan(past, spark, snapshot=None)


# ── changed files ───────────────────────────────────────────────────────────────────────────────────────────────────


def changed(
    data: Path,
    *,
    key: str = "account",
    value: Any = None,
    uid: str = "balances",
    delta: str = "BIGINT",
    turned: bool = False,
) -> strobe.Pipeline:
    """The ledger with something changed; `turned`: declared in the opposite order."""
    pipeline = strobe.Pipeline("ledger")

    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.selectExpr("id", "src as account", f"cast(-amount as {delta}) as delta")
        return debit.union(transfers.selectExpr("id", "dst as account", f"cast(amount as {delta}) as delta"))

    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy(key).agg((F.sum("delta") if value is None else value()).alias("balance"))

    stages: list[tuple[str, Any, dict[str, Any]]] = [
        ("transfers", transfers, {}),
        ("postings", postings, {"reads": "transfers", "to": strobe.DeltaSink("postings")}),
        (uid, balances, {"reads": "postings", "output_mode": "update", "to": strobe.DeltaSink("balances", key=key)}),
    ]
    for name, function, options in reversed(stages) if turned else stages:
        pipeline.stage(uid=name, **options)(function)
    return pipeline


def test_the_order_in_the_file_and_code_without_state_may_change(past: Past, spark: SparkSession) -> None:
    assert plan(past, spark, changed(past.data, turned=True)).problems == ()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"value": lambda: F.max("delta")}, "max(BIGINT)"),
        ({"value": lambda: F.sum("delta") + F.count("id")}, "count(BIGINT)"),
        ({"key": "id"}, "id BIGINT"),
    ],
    ids=["another aggregate", "one more aggregate", "another key"],
)
def test_state_that_does_not_fit_the_code_is_said_with_the_ways_out(
    past: Past, spark: SparkSession, change: dict[str, Any], word: str
) -> None:
    found = plan(past, spark, changed(past.data, **change))
    first = found.problems[0]
    assert "The state of stage 'balances' no longer fits its code" in first.what
    assert word in first.what
    assert "new uid" in first.next
    assert found.exit_code == 2


def test_results_that_would_mix_are_refused_unless_that_is_allowed(past: Past, spark: SparkSession) -> None:
    other = changed(past.data, value=lambda: F.sum(F.col("delta") * 2))
    found = plan(past, spark, other)
    assert "--allow-changed-state balances" in problem(found, Misuse, "sum((2 * delta))", "would mix").next
    assert found.exit_code == 2
    allowed = plan(past, spark, other, allow_changed_state=("balances",))
    assert allowed.problems == ()
    assert any("mix" in warning for warning in allowed.warnings)


def test_a_channel_whose_columns_changed_is_said(past: Past, spark: SparkSession) -> None:
    found = plan(past, spark, changed(past.data, delta="INT"))
    assert any("'delta' was bigint, and is int now" in p.what and "wider" in p.next for p in found.problems)
    changes = [c for channel in plan(past, spark, changed(past.data)).as_json()["channels"] for c in channel["changes"]]
    assert changes == []


def test_a_removed_stage_is_refused_with_what_would_be_lost(past: Past, spark: SparkSession) -> None:
    found = plan(past, spark, changed(past.data, uid="totals"))
    assert "rows of state" in found.problems[0].what
    assert "--allow-non-restored-state" in found.problems[0].next
    allowed = plan(past, spark, changed(past.data, uid="totals"), allow_non_restored_state=True)
    assert allowed.problems == ()
    assert {s.uid: s.action for s in allowed.stages}["balances"] is StageAction.DROPPED  # type: ignore[index]


def test_the_home_of_another_job_is_not_taken(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint that was taken somewhere else is not part of this job's history."""
    home = tmp_path / "copy"
    shutil.copytree(past.root / "home", home)
    snapshot = past.root / f"home/jobs/ledger/snapshots/chk-{past.checkpoint:06d}"
    found = plan(past, spark, home=home, snapshot=str(snapshot), base=tmp_path)
    assert "is not part of it" in found.problems[0].what
    assert os.path.commonpath([home, tmp_path]) == str(tmp_path)
