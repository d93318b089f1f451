"""Journals as Parquet on Spark: how the time grows with the events.

    python bench/journals.py                      10^6 and 10^7 events of 100 nodes
    python bench/journals.py --events 100000000   10^8, which takes some 10 GB of disk
    python bench/journals.py --quick              10^5

The run is a ring: each node acts and sends to the next, and receives what the one before it sent some steps ago; it has
five snapshots. In one session it measures the check of all snapshots, with loss and duplication, and `possibly` of a
conjunction over ten nodes that holds only at the very end, so that every message is looked at. The time for each event
should stay as it is or fall as the journal grows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from strobe.hosts.spark.journals.check import check
from strobe.hosts.spark.journals.possibly import possibly
from strobe.hosts.spark.journals.tables import open_table
from strobe.hosts.spark.jvm.session import spark_session

NODES = 100
DELAY = 8  # rounds that a message is on its way
SNAPSHOTS = 5
ASKED = 10


def ring(session: SparkSession, events: int) -> DataFrame:
    """In round r (from 1) node n takes step 2r - 1, in which it sends message r to n + 1, and, from round DELAY + 1 on,
    a step in which it receives message r - DELAY; before that, an internal one."""
    rounds = events // (3 * NODES)
    rows = session.range(rounds * NODES).selectExpr(f"id % {NODES} AS n", f"id DIV {NODES} + 1 AS r")
    name, channel = "concat('n', n)", f"concat('n', n, '>n', (n + 1) % {NODES})"
    before = f"concat('n', (n + {NODES - 1}) % {NODES}, '>n', n)"
    state = "named_struct('load', CAST(hash(n, r) & 1023 AS BIGINT), 'round', r)"
    nothing = "CAST(NULL AS STRING) AS channel, CAST(NULL AS BIGINT) AS seq, CAST(NULL AS BIGINT) AS snapshot"
    stateless = "CAST(NULL AS STRUCT<load: BIGINT, round: BIGINT>) AS state"
    acts = rows.selectExpr(
        "'internal' AS kind", f"{name} AS node", "2 * r - 1 AS step", *nothing.split(", "), f"{state} AS state"
    )
    sends = rows.selectExpr(
        "'sent' AS kind", f"{name} AS node", "2 * r - 1 AS step", f"{channel} AS channel", "r AS seq",
        "CAST(NULL AS BIGINT) AS snapshot", stateless,
    )  # fmt: skip
    seconds = rows.selectExpr(
        f"IF(r > {DELAY}, 'received', 'internal') AS kind", f"{name} AS node", "2 * r AS step",
        f"IF(r > {DELAY}, {before}, NULL) AS channel", f"IF(r > {DELAY}, r - {DELAY}, NULL) AS seq",
        "CAST(NULL AS BIGINT) AS snapshot", f"{state} AS state",
    )  # fmt: skip
    cuts = session.range(1, SNAPSHOTS + 1).selectExpr("id AS snapshot", f"id * {rounds} DIV {SNAPSHOTS + 1} AS at")
    cuts = cuts.crossJoin(session.range(NODES).withColumnRenamed("id", "n"))
    records = cuts.selectExpr(
        "'recorded' AS kind", f"{name} AS node", "2 * at AS step", "CAST(NULL AS STRING) AS channel",
        "CAST(NULL AS BIGINT) AS seq", "snapshot", stateless,
    )  # fmt: skip
    held = cuts.selectExpr("*", f"explode(sequence(greatest(at - {DELAY} + 1, 1), at)) AS r").selectExpr(
        "'held' AS kind", "CAST(NULL AS STRING) AS node", "CAST(NULL AS BIGINT) AS step", f"{channel} AS channel",
        "r AS seq", "snapshot", stateless,
    )  # fmt: skip
    return acts.unionByName(sends).unionByName(seconds).unionByName(records).unionByName(held)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--scratch", help="where journals and what is sorted go")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sizes = [100_000] if options.quick else sorted(options.events)
    session = spark_session(
        "bench", options.master, extra={"spark.sql.shuffle.partitions": "64", "spark.driver.memory": "4g"}
    )
    per_event: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        warm = Path(name) / "warm"
        ring(session, 30_000).write.parquet(str(warm))
        check(open_table(session, str(warm)))
        for events in sizes:
            place = Path(name) / str(events)
            ring(session, events).write.parquet(str(place / "journal"))
            table = open_table(session, str(place / "journal"))
            start = time.perf_counter()
            report = check(table)
            checked = time.perf_counter() - start
            assert report.ok, report.sentence
            assert {s.in_flight for s in report.snapshots} == {NODES * DELAY}
            rounds = events // (3 * NODES)
            text = " and ".join(f"n{i}.round >= {rounds}" for i in range(ASKED))
            start = time.perf_counter()
            answer = possibly(table, text, place / "scratch")
            walked = time.perf_counter() - start
            assert answer.holds
            for what, took in (("check", checked), ("possibly", walked)):
                per_event.setdefault(what, []).append(took / report.events)
                print(
                    f"{what:10} {report.events:>13,} events {took:9.1f} s {took / report.events * 1e6:8.2f} µs an event"
                )
    session.stop()
    for what, times in per_event.items():
        if len(times) > 1:
            print(f"{what:10} largest ÷ smallest, for each event: {times[-1] / times[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
