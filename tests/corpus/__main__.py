"""python -m tests.corpus [--entry NAME …] [--how plain|killed|restored …] [--seed S] [--real]

Runs entries of the corpus as plain Spark and as jobs, and says whether their tables are the same.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from strobe.hosts.spark.jvm.session import end_spark, spark_session
from tests.corpus.entry import names
from tests.corpus.jobs import HOWS, run_job
from tests.corpus.plain import run_plain


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.corpus")
    parser.add_argument("--entry", action="append", choices=names(), help="default: all")
    parser.add_argument("--how", action="append", choices=HOWS, help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the directories of runs that differ")
    parser.add_argument("--show", action="store_true", help="print the tables of plain Spark")
    told = parser.parse_args(arguments)
    spark = spark_session("corpus", "local[2]")
    bad = 0
    for name in told.entry or names():
        root = Path(tempfile.mkdtemp(prefix=f"corpus-{name}-"))
        began = time.monotonic()
        try:
            expected = run_plain(name, spark, root / "expected")
        except Exception:
            traceback.print_exc()
            bad += 1
            print(f"{name}: plain Spark failed", flush=True)
            continue
        print(
            f"{name}: plain Spark {time.monotonic() - began:.1f} s,",
            {k: len(v) for k, v in expected.items()},
            flush=True,
        )
        if told.show:
            for uid, rows in expected.items():
                print(f"  {uid}", *rows, sep="\n    ")
        for how in told.how or HOWS:
            began = time.monotonic()
            try:
                found = run_job(name, how, told.seed, spark, root / how)
            except Exception:
                traceback.print_exc()
                found = {}
            same = found == expected
            bad += not same
            print(f"{name}: {how} {'same' if same else 'DIFFERENT'} {time.monotonic() - began:.1f} s", flush=True)
            for uid in expected if not same else ():
                there, wanted = Counter(found.get(uid, [])), Counter(expected[uid])
                for row in sorted((wanted - there).elements()):
                    print(f"  {uid}: missing {row}")
                for row in sorted((there - wanted).elements()):
                    print(f"  {uid}: too much {row}")
        if told.keep and bad:
            print(f"  {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    end_spark()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
