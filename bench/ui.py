"""What the page costs: a job with a page open against one without; `strobe ui` itself; a browser with 60 stages.

    python bench/ui.py                       all figures, at most eight minutes
    python bench/ui.py --files 5 --rounds 1  the same, small: two or three minutes
    python bench/ui.py --quick               without Spark: the server and the browser only

*Job*: ten stages run through bounded files in one Spark session, alone and with a page open and metrics scraped every
second, alternately; a pair before that warms up. Page and scraper are a process of their own, as they would be on
another machine. The figure is the median of the pairs' ratios. *Server*: resident memory with 10,000 checkpoints in the
history, and the share of a core while nobody looks. *Browser*: from the address to the paint of 60 stages, and how long
the page takes to take in an update. A missing browser is said, and left out.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.web.homes import a_manifest, a_status, put_history, put_manifest, running, wide

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
    """`strobe ui` as people run it: its process id, and what it said of itself."""
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


def job(spark: object, work: Path, data: Path) -> float:
    """Seconds for ten stages to run through the files."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    import strobe
    from strobe.hosts.spark.job.job import start_job

    assert isinstance(spark, SparkSession)
    pipeline = strobe.Pipeline("ten", checkpoint=strobe.CheckpointConfig(interval=2.0))

    @pipeline.stage(uid="s0", trigger={"availableNow": True})
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

    began = time.perf_counter()
    started = start_job(pipeline, home=str(work / "home"), base=work, spark=spark)
    started.wait()
    if started.state is not strobe.JobState.FINISHED:
        raise SystemExit(started.error)
    return time.perf_counter() - began


def watched(spark: object, work: Path, data: Path) -> float:
    """The same with a page that looks, and a scrape every second."""
    (work / "home" / "jobs").mkdir(parents=True)
    with page(work / "home") as (_, said):
        client = subprocess.Popen([sys.executable, __file__, "--look", json.dumps(said)])
        try:
            return job(spark, work, data)
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


def ratio(rounds: int, files: int, limit: float) -> list[Figure]:
    """Pairs, until there are enough or the time is over."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from strobe.hosts.spark.jvm.session import DEFAULT_MASTER, spark_session, stop_session

    ratios: list[float] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        data.mkdir()
        for n in range(files):
            pq.write_table(pa.table({"id": list(range(n * 50_000, (n + 1) * 50_000))}), data / f"{n:04}.parquet")
        spark = spark_session("bench", DEFAULT_MASTER, log=Path(directory) / "spark.log")
        try:
            for n in range(rounds + 1):
                pair = time.monotonic()
                took = {}
                for side in (job, watched) if n % 2 else (watched, job):
                    work = Path(directory) / f"{side.__name__}-{n}"
                    work.mkdir()
                    took[side.__name__] = side(spark, work, data)
                print(f"job: alone {took['job']:.1f} s, with a page {took['watched']:.1f} s", flush=True)
                if n:
                    ratios.append(took["job"] / took["watched"])
                if time.monotonic() - began + (time.monotonic() - pair) > limit:
                    break
        finally:
            stop_session(spark)
    found = statistics.median(ratios) if ratios else None
    return [Figure(f"job: speed with a page open and scraped, {len(ratios)} pairs", found, 0.98, "", least=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without Spark")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs, at most")
    parser.add_argument("--files", type=int, default=40, help="batches of the job")
    parser.add_argument("--limit", type=float, default=380, help="seconds for the runs of the job")
    parser.add_argument("--look", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        look(json.loads(options.look))
        return
    figures = server(5.0 if options.quick else 20.0) + browser(1 if options.quick else 3)
    if not options.quick:
        figures += ratio(options.rounds, options.files, options.limit)
    print(f"  {'figure':<58} {'found':>12}  {'target':>9} {'ratio':>7}")
    for figure in figures:
        print(figure.line())


if __name__ == "__main__":
    main()
