"""Journals as Parquet on Spark: the same verdicts as those of the journals in memory that they were made from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from strobe.hosts.spark.journals import possibly as at_scale
from strobe.hosts.spark.journals.check import check
from strobe.hosts.spark.journals.columns import truth
from strobe.hosts.spark.journals.forward import Intervals, Messages
from strobe.hosts.spark.journals.tables import export, open_table
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.predicates.condition import read_condition
from strobe.predicates.conjunctive import intervals, possibly_all
from strobe.predicates.replay import run_of
from strobe.verify.consistency import check_journal
from strobe.verify.history import History
from strobe.verify.journal import Journal
from strobe.verify.violation import Rule
from tests.predicates.computations import computations, labels
from tests.verify.bank import Bank, random_run

SEEDS = (0, 2, 5)  # four nodes, one, five; a conjunction that never held, and two that did
CUT_RULES = (Rule.EFFECT_WITHOUT_CAUSE, Rule.MISSING_MESSAGE, Rule.EXTRA_MESSAGE, Rule.LATE_MESSAGE)


def written(journal: Journal, directory: Path) -> Path:
    history = History(journal)
    export(history, run_of(history, Bank(journal.header.graph)), None, directory)
    return directory


def write(file: Path, **columns: list[int]) -> None:
    pq.write_table(pa.table(columns, pa.schema([(name, pa.int64()) for name in columns])), file)


# ── the walk, without Spark ─────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_walk_over_files_finds_the_cut_that_the_walk_in_memory_finds(data: st.DataObject) -> None:
    run = data.draw(computations(steps=8))
    truths = data.draw(labels(run, st.booleans()))
    asked = {n: truths[n] for n in data.draw(st.sets(st.integers(0, len(run.nodes) - 1)))}
    offset = data.draw(st.integers(0, 3))  # steps need not be counted from 1
    with TemporaryDirectory() as name:
        folder = Path(name)
        messages, holds = [], []
        for node, needs in enumerate(run.needs):
            met = [(step + offset, *need) for step, need in enumerate(needs, 1) if need is not None]
            steps, senders, sent = ([row[i] for row in met] for i in range(3))
            file = folder / f"m{node}.parquet"
            write(file, step=steps, sender=senders, sent=[number + offset for number in sent])
            messages.append(Messages([file]))
            stretches = intervals(asked[node]) if node in asked else []
            file = folder / f"i{node}.parquet"
            write(file, first=[i.first + offset for i in stretches], last=[i.last + offset for i in stretches])
            holds.append(Intervals([file]) if node in asked else None)
        nodes = [
            at_scale.Node(NodeId(n), offset, offset + length) for n, length in zip(run.nodes, run.lengths, strict=True)
        ]
        found = at_scale._walk(nodes, messages, holds)
    expected = possibly_all(run, asked)
    assert found == (None if expected is None else [count + offset for count in expected])


# ── on Spark ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang", "agreed-clock"])
def test_cuts_are_judged_as_in_memory(spark: SparkSession, tmp_path: Path, protocol: str) -> None:
    """The third protocol is a wrong one: each node records when its own clock says so."""
    wrong = 0
    for seed in SEEDS:
        print("seed", seed)
        journal = random_run(Random(seed), protocol, snapshots=3)
        here, there = check_journal(journal), check(open_table(spark, str(written(journal, tmp_path / str(seed)))))
        found = Counter({(b.rule, b.snapshot): b.count for b in there.broken})
        expected = Counter((v.rule, v.snapshot) for v in here.violations if v.rule in CUT_RULES)
        assert found == expected
        assert [s.snapshot for s in there.snapshots] == sorted(s.snapshot for s in here.snapshots)
        assert (there.sent, there.received) == (here.sent, here.received)
        wrong += len(expected)
        if not here.violations:
            assert {s.snapshot: s.in_flight for s in there.snapshots} == {
                s.snapshot: s.in_flight for s in here.snapshots
            }
    assert (wrong > 0) == (protocol == "agreed-clock")


def test_what_is_wrong_in_a_journal_is_counted_and_named(spark: SparkSession, tmp_path: Path) -> None:
    journal = next(
        found
        for found in (random_run(Random(seed), snapshots=1) for seed in range(100))
        if any(s.in_flight >= 2 for s in check_journal(found).snapshots)
    )
    rows = pq.read_table(written(journal, tmp_path / "right") / "events.parquet").to_pylist()
    held = [row for row in rows if row["kind"] == "held"]
    received = [row for row in rows if row["kind"] == "received"]
    never_sent = {**received[0], "kind": "held", "node": None, "step": None, "seq": 9_999, "snapshot": 1, "state": None}
    rows.remove(held[0])
    rows += [never_sent, {**received[-1], "kind": "sent", "seq": 10_000, "state": None}]
    # the same message once more, in a step of its own
    last = max((row for row in rows if row["kind"] in ("internal", "received") and row["node"] == received[0]["node"]),
               key=lambda row: row["step"])  # fmt: skip
    rows.append({**received[0], "step": last["step"] + 1})
    (tmp_path / "wrong").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "wrong" / "events.parquet")
    report = check(open_table(spark, str(tmp_path / "wrong")))
    assert {b.rule: (b.count, b.messages) for b in report.broken} == {
        Rule.MISSING_MESSAGE: (1, ((held[0]["channel"], held[0]["seq"]),)),
        Rule.INVENTED_MESSAGE: (1, ((never_sent["channel"], 9_999),)),
        Rule.DUPLICATE_DELIVERY: (1, ((received[0]["channel"], received[0]["seq"]),)),
    }
    assert report.never_received == 1
    assert not report.ok


def test_a_conjunction_is_decided_as_in_memory_by_spark_and_by_python(spark: SparkSession, tmp_path: Path) -> None:
    """Bank's states are plain numbers, so they are put under a name first."""
    answers = set()
    for seed in SEEDS:
        print("seed", seed)
        history = History(random_run(Random(seed), snapshots=1))
        run = run_of(history, Bank(history.graph))
        plain = open_table(spark, str(written(history.journal, tmp_path / str(seed))))
        events = plain.withColumn("state", F.when(F.col("state").isNotNull(), F.struct(F.col("state").alias("money"))))
        bound = 60 + 10 * seed
        nodes = run.computation.nodes[:3]
        truths = {i: [state < bound for state in run.states(node)] for i, node in enumerate(nodes)}
        expected = possibly_all(run.computation, truths)
        for how, condition in (("Spark", "{}.money < {}"), ("Python", "{}.money // 1 < {}")):
            text = " and ".join(condition.format(node, bound) for node in nodes)
            answer = at_scale.possibly(events, text, tmp_path / f"{seed}-{how}")
            steps = None if expected is None else {
                node: run.step(node, count) for node, count in zip(run.computation.nodes, expected, strict=True)
            }  # fmt: skip
            assert answer.witness == steps
            assert answer.evaluated == how
        answers.add(expected is None)
    assert answers == {True, False}


CONDITIONS = [
    "a.n < 3", "a.n + 1 >= a.m", "-a.n <= a.m - 2", "0 <= a.n < 5", "a.x > 1.5", "a.x + a.n > 2", "a.x == a.x",
    "a.x != a.x", "a.t == 'b'", "a.t > 'a'", "len(a.t) > 1", "a.t in ['b', 'cc']", "a.n not in [1, 2]", "not a.f",
    "a.f and a.n > 0 or a.m == 2", "abs(a.n) > 1", "a.s.k <= 1", "a.n == a.f", "a.n", "a.n // 2 == 1", "a.t + a.t",
    "a.l[0] == 1", "len(a.l) > 0", "a.x < a.n",
]  # fmt: skip


def test_a_condition_that_spark_evaluates_means_what_it_means_in_python(spark: SparkSession) -> None:
    values = [
        {"n": n, "m": m, "x": x, "t": t, "f": n > 0, "s": {"k": m}, "l": [n]}
        for n in (-2, 0, 1, 2**62) for m in (2, 2**62) for x in (-1.0, 1.75, float("nan")) for t in ("", "b", "cc")
    ]  # fmt: skip
    states = spark.createDataFrame(
        [(i, value) for i, value in enumerate(values)],
        "i INT, state STRUCT<n: BIGINT, m: BIGINT, x: DOUBLE, t: STRING, f: BOOLEAN, s: STRUCT<k: BIGINT>, "
        "l: ARRAY<BIGINT>>",
    )
    columns = {text: truth(text, states.schema["state"].dataType) for text in CONDITIONS}
    in_spark = {text: column for text, column in columns.items() if column is not None}
    assert len(in_spark) == len(CONDITIONS) - 6  # the last ones but one are Python's
    asked = [column.alias(f"c{i}") for i, column in enumerate(in_spark.values())]
    rows = states.select("i", *asked).orderBy("i").collect()
    for index, text in enumerate(in_spark):
        condition = read_condition(text, [NodeId("a")])
        expected = [condition.holds({NodeId("a"): value}) for value in values]
        assert [row[f"c{index}"] for row in rows] == expected, text


def test_questions_that_make_no_sense_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    journal = random_run(Random(1), snapshots=1)
    events = open_table(spark, str(written(journal, tmp_path / "run")))
    named = events.withColumn("state", F.when(F.col("state").isNotNull(), F.struct(F.col("state").alias("money"))))
    a, b = journal.header.graph.nodes[:2]
    for number, (table, text, why) in enumerate([
        (named, f"{a}.money + {b}.money < 3", "is not a conjunction"),
        (named, "zed.money < 3", "there is no node 'zed'"),
        (named, f"{a}.monye < 3", "cannot be evaluated"),
        (named.withColumn("state", F.lit(None).cast(named.schema["state"].dataType)), f"{a}.money < 3", "is null"),
        (named.drop("state"), f"{a}.money < 3", "has no column 'state'"),
        (named.filter("step <> 2"), f"{a}.money < 3", "not counted one by one"),
    ]):  # fmt: skip
        with pytest.raises(Misuse, match=why):
            at_scale.possibly(table, text, tmp_path / f"s{number}")
    named.drop("seq").write.parquet(str(tmp_path / "other"))
    with pytest.raises(Misuse, match="its column 'seq' is missing"):
        open_table(spark, str(tmp_path / "other"))
    (tmp_path / "no").mkdir()
    (tmp_path / "no" / "x.parquet").write_text("no")
    with pytest.raises(Misuse, match=r"Cannot read Parquet from .* is not a Parquet file"):
        open_table(spark, str(tmp_path / "no"))
    with pytest.raises(Misuse, match="is not an empty directory"):
        written(journal, tmp_path / "run")
