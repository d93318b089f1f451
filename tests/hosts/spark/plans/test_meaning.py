"""What a changed file means for state: a table of a query before, the query after, and the verdict.

Nothing runs: plans are made and compared. `streams` gives two sources with an event time each, as channels would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from strobe.hosts.spark.jvm.python_source import open_stream
from strobe.hosts.spark.plans.changes import Weight, uncompared
from strobe.hosts.spark.plans.description import describe_stage
from strobe.hosts.spark.restore.evolve import changed_state, compare_stages, said
from strobe.model.ids import NodeId

pytestmark = pytest.mark.spark

UID = NodeId("stage")
Query = Callable[[DataFrame, DataFrame], DataFrame]


def streams(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    def rate(prefix: str) -> DataFrame:
        columns = {"ts": "timestamp", "at": "timestamp + interval 1 hour", "id": "value", "k": "value % 3",
                   "a": "value * 2", "b": "value * 5", "name": "cast(value as string)"}  # fmt: skip
        return spark.readStream.format("rate").load().selectExpr(*(f"{e} as {prefix}{n}" for n, e in columns.items()))

    return rate(""), rate("r")


def described(query: Query, spark: SparkSession, mode: str = "update") -> dict[str, Any]:
    return describe_stage(query(*streams(spark)), mode)


def late(events: DataFrame, column: str = "ts", delay: str = "10 minutes") -> DataFrame:
    return events.withWatermark(column, delay)


def windowed(length: str, slide: str | None = None, start: str | None = None, column: str = "ts") -> Query:
    return lambda e, r: late(e).groupBy(F.window(column, length, slide, start), "k").agg(F.sum("a").alias("total"))


def session(gap: str) -> Query:
    """`gap` is a length of time, or an expression that gives one."""
    return lambda e, r: late(e).groupBy(F.session_window("ts", F.expr(gap) if "(" in gap else gap), "k").count()


def totals(value: str = "a", *keys: str, function: str = "sum") -> Query:
    by = keys or ("k",)
    return lambda e, r: e.groupBy(*map(F.expr, by)).agg(F.expr(f"{function}({value})").alias("x"))


def joined(
    condition: str = "id = rid and rts between ts and ts + interval 1 hour",
    how: str = "inner",
    columns: tuple[str, ...] = ("id", "a", "rb"),
) -> Query:
    return lambda e, r: late(e).join(late(r, "rts"), F.expr(condition), how).select(*columns)


def keep_state(key: Any, batches: Any, state: Any) -> Iterator[Any]:
    yield from batches


def in_pandas(timeout: str = "NoTimeout", mode: str = "update", key: str = "k") -> Query:
    return lambda e, r: late(e).groupBy(key).applyInPandasWithState(keep_state, "n long", "n long", mode, timeout)


def processor(*variables: tuple[str, str, int | None]) -> type[StatefulProcessor]:
    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            for name, schema, ttl in variables:
                setattr(self, name, handle.getValueState(name, schema, ttl))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield from ()

        def close(self) -> None: ...

    return Keeper


def transformed(*variables: tuple[str, str, int | None], time: str = "ProcessingTime", key: str = "k") -> Query:
    return lambda e, r: e.groupBy(key).transformWithState(processor(*variables)(), "n long", "update", time)


def double(x: int) -> int:
    return x * 2


def triple(x: int) -> int:
    return x * 3


def by_udf(function: Any) -> Query:
    return lambda e, r: e.groupBy(F.udf(function, "long")("id").alias("bucket")).count()


def through_python(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


@dataclass(frozen=True)
class Case:
    name: str
    before: Query
    after: Query
    modes: tuple[str, str] = ("update", "update")
    word: str = ""  # must be in what is said


COUNTED: Query = lambda e, r: e.groupBy("k").agg(F.count("*").alias("n"))  # noqa: E731

REFUSED = [
    Case("window length", windowed("10 seconds"), windowed("20 seconds"), word="window(timestamp, 10 seconds)"),
    Case("window slide", windowed("10 seconds", "5 seconds"), windowed("10 seconds", "2 seconds"), word="every 2 sec"),
    Case("tumbling to sliding", windowed("10 seconds"), windowed("10 seconds", "5 seconds")),
    Case("window start", windowed("1 hour"), windowed("1 hour", start="5 minutes"), word="from 5 minutes"),
    Case("window on another time", windowed("1 hour"), windowed("1 hour", column="at")),
    Case("session gap", session("5 minutes"), session("10 minutes"), word="10 minutes"),
    Case("session gap that varies", session("5 minutes"), session("if(k > 1, '5 minutes', '1 m')")),
    Case("another column summed", totals("a"), totals("b"), word="sum"),
    Case("the summed value computed otherwise", totals("a"), totals("a / 100")),
    Case("the summed value computed otherwise, same type", totals("a"), totals("a - 1")),
    Case("another function", totals("a"), totals("a", function="max"), word="max"),
    Case("a condition inside the aggregate", totals("a"), totals("case when b > 3 then a end")),
    Case(
        "a filtered aggregate",
        lambda e, r: e.groupBy("k").agg(F.expr("sum(a) filter (where b > 3)")),
        lambda e, r: e.groupBy("k").agg(F.expr("sum(a) filter (where b > 4)")),
    ),
    Case(
        "the precision of a sketch",
        lambda e, r: e.groupBy("k").agg(F.approx_count_distinct("a", 0.05)),
        lambda e, r: e.groupBy("k").agg(F.approx_count_distinct("a", 0.01)),
    ),
    Case("another key of the same type", totals("a", "k"), totals("a", "id"), word="grouped by"),
    Case("the key computed otherwise", totals("a", "id % 10"), totals("a", "id % 100"), word="% 100"),
    Case("keys in another order", totals("a", "k", "id"), totals("a", "id", "k"), word="order"),
    Case("one more key", totals("a", "k"), totals("a", "k", "name")),
    Case(
        "aggregates in another order",
        lambda e, r: e.groupBy("k").agg(F.sum("a").alias("x"), F.sum("b").alias("y")),
        lambda e, r: e.groupBy("k").agg(F.sum("b").alias("y"), F.sum("a").alias("x")),
        word="order",
    ),
    Case(
        "an aggregate that nobody uses any more",
        lambda e, r: e.groupBy("k").agg(F.sum("a").alias("x"), F.sum("b").alias("y")),
        lambda e, r: e.groupBy("k").agg(F.sum("a").alias("x"), F.sum("b").alias("y")).select("k", "x"),
    ),
    Case("output mode", COUNTED, COUNTED, ("update", "complete"), "complete"),
    Case("output mode of windows", windowed("1 hour"), windowed("1 hour"), ("append", "update"), "append"),
    Case(
        "watermark column",
        lambda e, r: late(e, "ts").dropDuplicates(["id"]),
        lambda e, r: late(e, "at").dropDuplicates(["id"]),
        word="watermark",
    ),
    Case(
        "duplicates by other columns",
        lambda e, r: e.dropDuplicates(["id"]),
        lambda e, r: e.dropDuplicates(["k"]),
        word="duplicates",
    ),
    Case(
        "duplicates within a watermark by other columns",
        lambda e, r: late(e).dropDuplicatesWithinWatermark(["a"]),
        lambda e, r: late(e).dropDuplicatesWithinWatermark(["b"]),
    ),
    Case(
        "duplicates for ever to within a watermark",
        lambda e, r: late(e).dropDuplicates(["a"]),
        lambda e, r: late(e).dropDuplicatesWithinWatermark(["a"]),
    ),
    Case("join type", joined(), joined(how="left"), word="LeftOuter"),
    Case("join key", joined(), joined("a = rid and rts between ts and ts + interval 1 hour"), word="join"),
    Case("join range", joined(), joined("id = rid and rts between ts and ts + interval 2 hours"), word="2 hours"),
    Case("join on an equality in a filter behind it", joined("id = rid"), lambda e, r: (
        late(e).join(late(r, "rts"), F.expr("id = rid")).where("k = rk").select("id", "a", "rb"))),
    Case("join keeps another column", joined(), joined(columns=("id", "b", "rb"))),
    Case("join keeps one more column", joined(), joined(columns=("id", "a", "rb", "ra"))),
    Case("a self-join turned round", lambda e, r: _self_join(e, "x.a = y.b"), lambda e, r: _self_join(e, "x.b = y.a")),
    Case("timeout of applyInPandasWithState", in_pandas("ProcessingTimeTimeout"), in_pandas("EventTimeTimeout")),
    Case("a timeout where there was none", in_pandas(), in_pandas("EventTimeTimeout")),
    Case("mode of applyInPandasWithState", in_pandas(), in_pandas(mode="append"), word="output mode"),
    Case("key of applyInPandasWithState", in_pandas(), in_pandas(key="id")),
    Case("type of a state variable", transformed(("n", "n int", None)), transformed(("n", "n long", None)), word="'n'"),
    Case("key of a processor", transformed(("n", "n int", None)), transformed(("n", "n int", None), key="id")),
    Case("time mode of a processor", transformed(("n", "n int", None)), transformed(("n", "n int", None), time="none")),
    Case(
        "a dimension more in a cube",
        lambda e, r: e.rollup("k", "id").count(),
        lambda e, r: e.cube("k", "id").count(),
    ),
    Case("another operator behind", COUNTED, lambda e, r: late(e).groupBy(F.window("ts", "1 hour"), "k").count()),
    Case("a key through a function that was not there", totals("1", "id", function="count"), by_udf(double)),
    Case(
        "another field of a parsed value",
        lambda e, r: _parsed(e, "x long, y long").groupBy("v.x").count(),
        lambda e, r: _parsed(e, "x long, y long").groupBy("v.y").count(),
    ),
    Case("SQL distinct by another column", lambda e, r: _sql(e, "select distinct a as v from {e}"),
         lambda e, r: _sql(e, "select distinct b as v from {e}")),
    Case("the order of a union's branches does not hide a change", lambda e, r: _both(e, "a", "b"),
         lambda e, r: _both(e, "a", "id")),
]  # fmt: skip

ALLOWED = [
    Case("a new name between", totals("a"), lambda e, r: totals("amount")(e.withColumnRenamed("a", "amount"), r)),
    Case("a new name of the result", totals("a"), lambda e, r: totals("a")(e, r).withColumnRenamed("x", "y")),
    Case("a new name of the key", totals("a"), totals("a", "k as kind")),
    Case("a filter before", totals("a"), lambda e, r: totals("a")(e.where("b > 7"), r)),
    Case("a filter behind", totals("a"), lambda e, r: totals("a")(e, r).where("x > 7")),
    Case("a column more before", totals("a"), lambda e, r: totals("a")(e.withColumn("z", F.lit(1)), r)),
    Case("a select before", totals("a"), lambda e, r: totals("a")(e.select("a", "k"), r)),
    Case(
        "withColumn in another order",
        lambda e, r: totals("p")(e.withColumn("p", F.col("a") + 1).withColumn("q", F.col("b") + 1), r),
        lambda e, r: totals("p")(e.withColumn("q", F.col("b") + 1).withColumn("p", F.col("a") + 1), r),
    ),
    Case(
        "one step or two",
        totals("a + b + id"),
        lambda e, r: totals("s + id")(e.withColumn("s", F.col("a") + F.col("b")), r),
    ),
    Case("operands turned round", totals("a + b"), totals("b + a")),
    Case("a comparison turned round", totals("if(a > 3, 1, 0)"), totals("if(3 < a, 1, 0)")),
    Case("SQL for functions", totals("a"), lambda e, r: _sql(e, "select k, sum(a) as x from {e} group by k")),
    Case(
        "a common table expression",
        totals("a"),
        lambda e, r: _sql(e, "with c as (select a, k from {e}) select k, sum(a) as x from c group by k"),
    ),
    Case("count of one, count of all", COUNTED, lambda e, r: e.groupBy("k").agg(F.count(F.lit(1)))),
    Case(
        "a value more from the same aggregate",
        totals("a"),
        lambda e, r: e.groupBy("k").agg(F.sum("a").alias("x"), (F.sum("a") * 2).alias("twice")),
    ),
    Case("a gap in other words", session("10 minutes"), session("600 seconds")),
    Case("a window in other words", windowed("1 hour"), windowed("60 minutes", "1 hour")),
    Case("a delay", lambda e, r: late(e).dropDuplicates(["id"]),
         lambda e, r: late(e, delay="1 hour").dropDuplicates(["id"]), word="delay"),
    Case("a watermark where there was none", lambda e, r: e.groupBy(F.window("ts", "1 hour")).count(),
         lambda e, r: late(e).groupBy(F.window("ts", "1 hour")).count(), word="watermark"),
    Case("the body of a function", by_udf(double), by_udf(triple)),
    Case("Python code before", totals("a"), lambda e, r: totals("a")(e.mapInPandas(through_python, e.schema), r),
         word="python"),
    Case("join: names", joined(), lambda e, r: (
        late(e.withColumnsRenamed({"id": "order", "ts": "ordered"}), "ordered")
        .join(late(r, "rts"), F.expr("rid = order and ordered <= rts and rts <= ordered + interval 60 minutes"))
        .select("order", "a", "rb"))),
    Case("join: aliases", lambda e, r: _self_join(e, "x.a = y.b"), lambda e, r: _self_join(e, "v.a = w.b", "v", "w")),
    Case("join: a column that is not used", joined(), lambda e, r: joined()(e.withColumn("z", F.lit(2)), r)),
    Case("a static table joined before", totals("a"), lambda e, r: totals("a")(_enriched(e), r)),
    Case("a function of rows where the parsed value has more fields",
         lambda e, r: _parsed(e, "x long, y long").groupBy("v.x").count(),
         lambda e, r: _parsed(e, "x long, y long, z string").groupBy("v.x").count()),
    Case("branches of a union in another order", lambda e, r: _both(e, "a", "b"), lambda e, r: _both(e, "b", "a")),
    Case("a lambda", lambda e, r: e.groupBy(F.transform(F.array("k"), lambda x: x + 1)).count(),
         lambda e, r: e.groupBy(F.transform(F.array("k"), lambda y: y + 1)).count()),
    Case("a limit", lambda e, r: e.limit(5), lambda e, r: e.limit(10), ("append", "append"), word="10"),
    Case("a variable more", transformed(("n", "n int", None)), transformed(("n", "n int", None), ("m", "m int", None))),
    Case("a time to live", transformed(("n", "n int", 1000)), transformed(("n", "n int", 2000)), word="2000"),
    Case("output mode without state", lambda e, r: e.select("a"), lambda e, r: e.select("a"), ("append", "update")),
    Case("another expression without state", lambda e, r: e.select("a"), lambda e, r: e.selectExpr("b + 1 as a"),
         ("append", "append")),
    Case("hints and partitions", totals("a"), lambda e, r: totals("a")(e.repartition(3, "k").hint("rebalance"), r)),
    Case("random numbers beside", lambda e, r: totals("a")(e.withColumn("u", F.rand()), r),
         lambda e, r: totals("a")(e.withColumn("u", F.rand()), r)),
    Case("random numbers in the key", lambda e, r: e.withColumn("u", F.rand() > 0.5).groupBy("u").count(),
         lambda e, r: e.withColumn("u", F.rand() > 0.5).groupBy("u").count()),
]  # fmt: skip


def _self_join(e: DataFrame, condition: str, left: str = "x", right: str = "y") -> DataFrame:
    return e.alias(left).join(e.alias(right), F.expr(condition)).select(f"{left}.id", f"{right}.k")


def _parsed(e: DataFrame, schema: str) -> DataFrame:
    return e.select(F.from_json("name", schema).alias("v"))


def _sql(e: DataFrame, text: str) -> DataFrame:
    return e.sparkSession.sql(text, e=e)


def _both(e: DataFrame, *columns: str) -> DataFrame:
    first, *others = (e.selectExpr("k", f"{c} as delta") for c in columns)
    for other in others:
        first = first.unionByName(other)
    return first.groupBy("k").agg(F.sum("delta").alias("x"))


def _enriched(e: DataFrame) -> DataFrame:
    return e.join(e.sparkSession.createDataFrame([(1, "one")], "k long, word string"), "k", "left")


def names(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", REFUSED, ids=names)
def test_a_change_that_would_mix_results_is_refused(spark: SparkSession, case: Case) -> None:
    before, after = (described(q, spark, m) for q, m in zip((case.before, case.after), case.modes, strict=True))
    problem = changed_state(UID, compare_stages(before, after))
    assert problem is not None
    assert case.word in problem.what
    assert "new uid" in problem.next
    assert "replaces='stage'" in problem.next


@pytest.mark.parametrize("case", ALLOWED, ids=names)
def test_a_change_that_leaves_the_state_its_meaning_is_no_alarm(spark: SparkSession, case: Case) -> None:
    before, after = (described(q, spark, m) for q, m in zip((case.before, case.after), case.modes, strict=True))
    differences = compare_stages(before, after)
    assert changed_state(UID, differences) is None, differences
    assert bool(differences) == bool(case.word), differences
    assert case.word in " ".join(d.sentence for d in differences)


@pytest.mark.parametrize("case", [*REFUSED[::6], *ALLOWED[::6]], ids=names)
def test_the_same_query_made_again_does_not_differ(spark: SparkSession, case: Case) -> None:
    first, second = (described(case.after, spark, case.modes[1]) for _ in range(2))
    assert first["meaning"] is not None
    assert first["meaning"] == second["meaning"]
    assert compare_stages(first, second) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.session.timeZone", "Asia/Kathmandu"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.shuffle.partitions", "7"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.adaptive.enabled", "false"),
    ],
)
def test_settings_of_the_session_make_no_difference(spark: SparkSession, setting: str, value: str) -> None:
    def query(e: DataFrame, r: DataFrame) -> DataFrame:
        keys = (F.to_date("ts"), F.expr("ts > timestamp'2031-05-17 09:30:00Z'"), F.col("name").cast("int"))
        return late(e).groupBy(F.window("ts", "1 day"), *keys).agg(F.avg(F.col("a") / 3))

    queries: list[Query] = [query, joined(), session("5 minutes")]
    before = [described(q, spark) for q in queries]
    session_, was = spark, spark.conf.get(setting)
    session_.conf.set(setting, value)
    try:
        after = [described(q, spark) for q in queries]
    finally:
        session_.conf.set(setting, was or "")
    assert [compare_stages(b, a) for b, a in zip(before, after, strict=True)] == [[], [], []]


def test_a_literal_time_is_the_same_on_a_machine_in_another_zone(spark: SparkSession) -> None:
    def query(e: DataFrame, r: DataFrame) -> DataFrame:
        return e.groupBy(F.expr("ts > timestamp_seconds(1)"), F.expr("ts > timestamp'2031-05-17 09:30:00Z'")).count()

    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    here, before = zones.getDefault(), described(query, spark)
    zones.setDefault(zones.getTimeZone("Asia/Kathmandu"))
    try:
        after = described(query, spark)
    finally:
        zones.setDefault(here)
    assert before["meaning"] == after["meaning"]
    assert "2031-05-17T09:30:00+00:00" in str(before["meaning"])


def test_one_more_branch_of_a_union_over_a_channel_is_said(spark: SparkSession) -> None:
    """Other sources are known to Spark by their number, and cannot come more often; channels can."""
    before, after = (described(lambda e, r, c=c: _both(e, *c), spark) for c in (("a", "b"), ("a", "b", "id")))  # type: ignore[misc]
    assert changed_state(UID, compare_stages(before, after)) is not None
    channels = [{**d, "sources": ["channel rate"] * n} for d, n in ((before, 2), (after, 3))]
    (difference,) = compare_stages(*channels)
    assert (difference.weight, " or " in difference.sentence) == (Weight.HARMLESS, True)


AGGREGATES = """
any_value(a); approx_count_distinct(a); approx_percentile(a, 0.5); array_agg(a); avg(a); bit_and(a); bit_or(a);
bit_xor(a); bool_and(a > 1); bool_or(a > 1); collect_list(a); collect_set(a); corr(a, b); count(*); count(a, b);
count_if(a > 1); covar_pop(a, b); covar_samp(a, b); every(a > 1); first(a); first_value(a); histogram_numeric(a, 5);
kurtosis(a); last(a); listagg(name); max(a); max_by(a, b); mean(a); median(a); min(a); min_by(a, b); mode(a);
percentile(a, 0.5); regr_avgx(a, b); regr_count(a, b); regr_r2(a, b); regr_slope(a, b); skewness(a); some(a > 1);
stddev(a); string_agg(name); sum(a); sum(a) FILTER (WHERE b > 1); try_avg(a); try_sum(a); var_pop(a); variance(a)
"""


def test_every_aggregate_is_described(spark: SparkSession) -> None:
    """Also those that Spark replaces by others before it runs them."""
    events, _ = streams(spark)
    for name in AGGREGATES.split(";"):
        (operator,) = describe_stage(events.groupBy("k").agg(F.expr(name)), "update")["operators"]
        assert [value["keeps"] for value in operator["values"]], name


def test_what_may_mix_is_allowed_if_it_is_asked_for_and_what_does_not_fit_is_not(spark: SparkSession) -> None:
    mixed = compare_stages(described(windowed("1 hour"), spark), described(windowed("2 hours"), spark))
    assert [d.weight for d in mixed] == [Weight.MIXED]
    assert "--allow-changed-state stage" in changed_state(UID, mixed).next  # type: ignore[union-attr]
    assert changed_state(UID, mixed, allowed=True) is None
    assert "mix" in said(mixed)[0]
    unfit = compare_stages(described(totals("a"), spark), described(totals("a", "k", "name"), spark))
    assert changed_state(UID, unfit, allowed=True) is not None


def test_what_was_not_compared_is_said(spark: SparkSession) -> None:
    plain, python, kept = (described(q, spark) for q in (totals("a"), by_udf(double), in_pandas()))
    assert uncompared(plain, plain) == []
    assert "double" in uncompared(python, python)[0]
    assert "keep_state" in uncompared(kept, kept)[0]
    older = {k: v for k, v in plain.items() if k != "meaning"}
    assert "only operators and types" in uncompared(older, plain)[0]
    assert "only operators and types" in uncompared({**plain, "meaning": {"version": 99}}, plain)[0]
    stateless = described(lambda e, r: e.select("a"), spark)
    assert uncompared({k: v for k, v in stateless.items() if k != "meaning"}, stateless) == []


def test_a_channel_that_is_read_instead_of_another_has_its_columns() -> None:
    def description(channel: str, key: str) -> dict[str, Any]:
        operator = {"kind": "aggregate", "keys": [[f"{channel}::{key}"]], "functions": [["count(1)"]]}
        meaning = {"version": 1, "operators": [operator], "watermarks": [], "functions": [], "output_mode": "update"}
        return {"operators": [], "sources": [f"channel {channel}"], "meaning": meaning}

    assert [d.harmful for d in compare_stages(description("a", "k"), description("b", "k"))] == [False]
    assert [d.harmful for d in compare_stages(description("a", "k"), description("b", "l"))] == [False, True]


def test_the_number_of_a_python_stream_in_its_session_is_no_part_of_what_a_stage_reads(spark: SparkSession) -> None:
    """A stage more in front of it, or a second start in the session, gives it another one."""

    class Events(DataSource):
        @classmethod
        def name(cls) -> str:
            return "strobe_events"

    def stage() -> dict[str, Any]:
        return describe_stage(open_stream(spark, Events, "k long, a long", {}).groupBy("k").sum("a"), "update")

    first, second = stage(), stage()
    assert first["sources"] == ["strobe_events"]
    assert compare_stages(first, second) == []
    numbered = json.loads(json.dumps(first).replace("strobe_events", "strobe_events_7"))  # as it was written once
    assert compare_stages(numbered, second) == []
    other = json.loads(json.dumps(first).replace("strobe_events", "strobe_postgres"))
    assert compare_stages(other, second) != []
