"""What the page costs: a job with a page open against one without; `strobe ui` itself; a browser with 60 stages.

    python bench/ui.py                           all figures, seven minutes
    python bench/ui.py --seconds 5 --rounds 2    the same, small: two minutes
    python bench/ui.py --quick                   without Spark: the server and the browser only

*Job*: ten stages with more input than they can read; a page with metrics scraped every second is opened and closed
while they run, and the rows that all stages read are counted. The first pair is a warm-up. Page and scraper are a
process of their own, as they would be on another machine. The figure is the median of the pairs' ratios.
*Server*: resident memory with 10,000 checkpoints in the history, and the share of a core while nobody looks.
*Browser*: from the address to the paint of 60 stages, and how long the page takes to show an update. If there is no
browser, the output says so and leaves this out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._report import figure
from tests.web.homes import a_manifest, a_status, put_history, put_manifest, running, wide

if TYPE_CHECKING:
    from strobe.hosts.spark.job.job import Job

SETTLING = 3.0  # seconds, after the page was opened or closed
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """A target is an upper bound, unless it is the `least` that is wanted."""

    what: str
    found: float | None
    target: float
    unit: str
    least: bool = False

    def line(self) -> str:
        if self.found is None:
            return f"  {self.what:<58} {'not measured':>12}"
        met = self.found >= self.target if self.least else self.found < self.target
        sign = ">=" if self.least else "<"
        found, target = f"{self.found:.2f}{self.unit}", f"{sign} {self.target:g}{self.unit}"
        return (
            f"  {self.what:<58} {found:>12}  {target:>9} {self.found / self.target:>7.2f}  {'met' if met else 'MISSED'}"
        )


@contextmanager
def page(home: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """`strobe ui` as people run it: its process id, and what it printed about itself."""
    line = [sys.executable, "-m", "strobe.cli.main", "ui", "--port", "0", "--json", "--home", str(home)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            said += process.stdout.readline()
        try:
            yield process.pid, json.loads(said)
        finally:
            process.terminate()


def ask(said: dict[str, str], path: str) -> bytes:
    token = said["url"].partition("=")[2]
    request = urllib.request.Request(said["address"] + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def resident(pid: int) -> float:
    """MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))


def processor(pid: int) -> float:
    """Seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def server(seconds: float) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        put_history(home, "ledger", 10_000, fails=97)
        put_manifest(home, a_manifest("ledger", 10_000))
        with running(home, "ledger", lambda body: a_status("ledger")), page(home) as (pid, said):
            for path in ("/jobs", "/jobs/ledger", "/jobs/ledger/snapshots", "/jobs/ledger/snapshots/10000"):
                ask(said, f"/api/v1{path}")
            before = processor(pid)
            time.sleep(seconds)
            idle = (processor(pid) - before) / seconds
            return [
                Figure("strobe ui: memory, 10,000 checkpoints", resident(pid), 80, " MB"),
                Figure("strobe ui: of a core while nobody looks", idle * 100, 1, " %"),
            ]


def browser(rounds: int) -> list[Figure]:
    first, update = "browser: 60 stages are painted after", "browser: an update takes, to the next frame"
    from tests.web.browser import chromium, start_browser

    path = chromium()
    if path is None:
        print("browser: no Chromium here")
        return [Figure(first, None, 1000, " ms"), Figure(update, None, 50, " ms")]
    with tempfile.TemporaryDirectory() as directory, start_browser(path) as started:
        home = Path(directory)
        reads = wide(60)
        put_manifest(home, a_manifest("wide", 1, reads))
        status = a_status("wide", reads)

        def changing(body: object) -> object:
            status["stages"][0]["batch"] += 1
            return status

        with running(home, "wide", changing), page(home) as (_, said):
            context = started.new_context(viewport={"width": 1280, "height": 800})
            tab = context.new_page()
            tab.goto(said["url"])
            paints, updates = [], []
            for _ in range(rounds):
                tab.goto("about:blank")
                began = time.perf_counter()
                tab.goto(f"{said['address']}/#/job/wide", wait_until="commit")
                tab.wait_for_selector(".box")
                paints.append((time.perf_counter() - began) * 1000)
                while tab.evaluate("performance.getEntriesByName('update').length") <= 3:
                    time.sleep(0.05)
                updates += tab.evaluate("performance.getEntriesByName('update').slice(1).map((e) => e.duration)")
        return [
            Figure(first, statistics.median(paints), 1000, " ms"),
            Figure(update, statistics.median(updates), 50, " ms"),
        ]


# ── a job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(spark: object, work: Path, data: Path) -> Job:
    """Ten stages, with more files than they will be able to read."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    import strobe
    from strobe.hosts.spark.job.job import start_job

    assert isinstance(spark, SparkSession)
    pipeline = strobe.Pipeline("ten", checkpoint=strobe.CheckpointConfig(interval=2.0))

    @pipeline.stage(uid="s0")
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(data))

    for n in range(1, 9):

        @pipeline.stage(uid=f"s{n}", reads=f"s{n - 1}")
        def on(**read: DataFrame) -> DataFrame:
            (rows,) = read.values()
            return rows.withColumn("id", F.col("id") + 1)

    @pipeline.stage(uid="s9", reads="s8", output_mode="update", to=strobe.DeltaSink("sums", key="k"))
    def sums(s8: DataFrame) -> DataFrame:
        return s8.groupBy((F.col("id") % 1000).alias("k")).agg(F.sum("id").alias("total"))

    return start_job(pipeline, home=str(work / "home"), base=work, spark=spark)


def rate(job: Job, seconds: float) -> float:
    """Rows a second that all stages read, after the effects of the last change are over."""
    time.sleep(SETTLING)
    began, before = time.monotonic(), sum(stage.rows_in_total for stage in job.status().stages)
    time.sleep(seconds)
    if job.state.over:
        raise SystemExit(job.error or "the job ended before it was measured")
    return (sum(stage.rows_in_total for stage in job.status().stages) - before) / (time.monotonic() - began)


@contextmanager
def looked_at(said: dict[str, str]) -> Iterator[None]:
    """The page is open somewhere, and Prometheus scrapes."""
    client = subprocess.Popen([sys.executable, __file__, "--look", json.dumps(said)])
    try:
        yield
    finally:
        client.terminate()
        client.wait()


def look(said: dict[str, str]) -> None:
    """What an open page and Prometheus do, until it is ended."""

    def scrape() -> None:
        while True:
            ask(said, "/metrics")
            time.sleep(1.0)

    threading.Thread(target=scrape, daemon=True).start()
    token = said["url"].partition("=")[2]
    request = urllib.request.Request(
        f"{said['address']}/api/v1/events?watch=job/ten", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=600) as stream:
        while stream.readline():
            pass


def ratio(rounds: int, seconds: float) -> list[Figure]:
    """One job; the page is opened and closed while it runs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from strobe.hosts.spark.jvm.session import DEFAULT_MASTER, spark_session, stop_session

    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        work, data = Path(directory), Path(directory) / "data"
        data.mkdir()
        (work / "home" / "jobs").mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(50_000))}), data / "00000.parquet")
        for n in range(1, int((rounds + 2) * 2 * (seconds + SETTLING)) * 5):  # five a second are more than it can do
            (data / f"{n:05}.parquet").hardlink_to(data / "00000.parquet")
        spark = spark_session("bench", DEFAULT_MASTER, log=work / "spark.log")
        job = start(spark, work, data)
        try:
            with page(work / "home") as (_, said):
                for n in range(rounds + 1):
                    found = {}
                    for looking in (True, False) if n % 2 else (False, True):
                        with looked_at(said) if looking else nullcontext():
                            found[looking] = rate(job, seconds)
                    print(f"job: {found[False]:,.0f} rows/s alone, {found[True]:,.0f} with a page", flush=True)
                    if n:  # the first warms up
                        ratios.append(found[True] / found[False])
        finally:
            job.cancel()
            stop_session(spark)
    what = f"job: speed with a page open and scraped, {len(ratios)} pairs"
    return [Figure(what, statistics.median(ratios), 0.98, "", least=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without Spark")
    parser.add_argument("--rounds", type=int, default=9, help="how often the page is opened and closed")
    parser.add_argument("--seconds", type=float, default=15, help="how long each time")
    parser.add_argument("--look", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        look(json.loads(options.look))
        return
    figures = server(5.0 if options.quick else 20.0) + browser(1 if options.quick else 3)
    if not options.quick:
        figures += ratio(options.rounds, options.seconds)
    print(f"  {'figure':<58} {'found':>12}  {'target':>9} {'ratio':>7}")
    for one in figures:
        print(one.line())
        if one.found is not None:
            least, most = (one.target, None) if one.least else (None, one.target)
            figure("ui.py", one.what, one.found, at_least=least, at_most=most, unit=one.unit)


if __name__ == "__main__":
    main()
