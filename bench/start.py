"""How long Spark takes to start, with the record of its classes that `make setup` makes and without it.

    python bench/start.py                    five rounds, both sides alternately
    python bench/start.py --quick            one round

Each side is a new process: until the session is up, until it has counted ten rows, and the processor time of its JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from strobe.hosts.spark.jvm.class_archive import archive_path
from strobe.hosts.spark.jvm.java import find_java


def side(options: str) -> None:
    import resource

    from strobe.hosts.spark.jvm.session import spark_session

    began = time.perf_counter()
    spark = spark_session("start", "local[2]", extra={"spark.driver.extraJavaOptions": options} if options else None)
    up = time.perf_counter() - began
    spark.range(10).count()
    counted = time.perf_counter() - began
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"up": up, "counted": counted, "processor": used.ru_utime + used.ru_stime}))


def run(options: str) -> dict[str, float]:
    command = [sys.executable, __file__, f"--side={options or 'with'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        side("" if args.side == "with" else args.side)
        return
    if not archive_path().is_file():
        raise SystemExit("There is no record of classes. Make it first: make setup")
    java = find_java()
    os.environ["JAVA_HOME"] = str(java)
    own = next(iter(Path(java).glob("lib/**/classes.jsa")), None)
    if own is None:
        raise SystemExit(f"The Java in {java} has no archive of its own to compare with.")
    found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for _ in range(1 if args.quick else args.rounds):
        found["with"].append(run(""))
        found["without"].append(run(f"-XX:SharedArchiveFile={own}"))
    print(f"{'seconds (medians)':24}{'with':>8}{'without':>10}{'ratio':>8}")
    for key, name in (("up", "session is up"), ("counted", "ten rows counted"), ("processor", "processor time")):
        mine, other = (statistics.median(f[key] for f in found[side]) for side in ("with", "without"))
        print(f"{name:24}{mine:8.2f}{other:10.2f}{mine / other:8.2f}")


if __name__ == "__main__":
    main()
