"""What the page costs: a job with a page open against one without; `strobe ui` itself; a browser with 60 stages.

    python bench/ui.py                       a job of ten stages, half a minute for each side
    python bench/ui.py --quick               without Spark: the server and the browser only

*Job*: ten stages run through bounded files, alone and with a page open and metrics scraped every second, alternately.
The ratio of their seconds should be 0.98 or more. *Server*: resident memory with 10,000 checkpoints in the history, and
the share of a core while nobody looks. *Browser*: from the address to the first paint of 60 stages, and how long the
page takes to take in an update. A missing browser is said, and left out.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.web.homes import a_manifest, a_status, put_history, put_manifest, running, wide

TICKS = os.sysconf("SC_CLK_TCK")


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
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def processor(pid: int) -> float:
    """Seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def server(seconds: float) -> None:
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
            print(f"server     {resident(pid):.0f} MiB, {idle:.2%} of a core while nobody looks")


def browser(rounds: int) -> None:
    from tests.web.browser import chromium, start_browser

    path = chromium()
    if path is None:
        print("browser    no Chromium here")
        return
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
        print(
            f"browser    60 stages are there after {statistics.median(paints):.0f} ms, "
            f"an update takes {statistics.median(updates):.0f} ms (to the next frame)"
        )


# ── a job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def job(work: Path, data: Path) -> float:
    """Seconds for ten stages to run through the files."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    import strobe
    from strobe.hosts.spark.job.job import start_job

    pipeline = strobe.Pipeline("ten", checkpoint=strobe.CheckpointConfig(interval=2.0))

    @pipeline.stage(uid="s0", trigger={"availableNow": True})
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(data))

    for n in range(1, 9):

        @pipeline.stage(uid=f"s{n}", reads=f"s{n - 1}")
        def on(rows: DataFrame) -> DataFrame:
            return rows.withColumn("id", F.col("id") + 1)

    @pipeline.stage(uid="s9", reads="s8", output_mode="update", to=strobe.DeltaSink("sums", key="k"))
    def sums(rows: DataFrame) -> DataFrame:
        return rows.groupBy((F.col("id") % 1000).alias("k")).agg(F.sum("id").alias("total"))

    began = time.perf_counter()
    started = start_job(pipeline, home=str(work / "home"), base=work)
    started.wait()
    if started.state is not strobe.JobState.FINISHED:
        raise SystemExit(started.error)
    return time.perf_counter() - began


def watched(work: Path, data: Path) -> float:
    """The same with a page that looks, and a scrape every second."""
    (work / "home" / "jobs").mkdir(parents=True)
    end = threading.Event()
    with page(work / "home") as (_, said):

        def look() -> None:
            token = said["url"].partition("=")[2]
            request = urllib.request.Request(
                f"{said['address']}/api/v1/events?watch=job/ten", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=60) as stream:
                while not end.is_set():
                    stream.readline()

        def scrape() -> None:
            while not end.wait(1.0):
                ask(said, "/metrics")

        for work_of in (look, scrape):
            threading.Thread(target=work_of, daemon=True).start()
        took = job(work, data)
        end.set()
    return took


def ratio(rounds: int, files: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        data.mkdir()
        for n in range(files):
            pq.write_table(pa.table({"id": list(range(n * 50_000, (n + 1) * 50_000))}), data / f"{n:04}.parquet")
        alone: list[float] = []
        open_: list[float] = []
        for n in range(rounds):
            for name, side, took in (("alone", job, alone), ("page", watched, open_)):
                work = Path(directory) / f"{name}-{n}"
                work.mkdir()
                took.append(side(work, data))
                print(f"job        {name}: {took[-1]:.1f} s", flush=True)
        print(f"job        {statistics.median(alone) / statistics.median(open_):.2f} of the speed without a page")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without Spark")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=40, help="batches of the job")
    options = parser.parse_args()
    server(5.0 if options.quick else 20.0)
    browser(1 if options.quick else options.rounds)
    if not options.quick:
        ratio(options.rounds, options.files)


if __name__ == "__main__":
    main()
