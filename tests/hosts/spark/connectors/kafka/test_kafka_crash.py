"""SIGKILL of a driver that writes to Kafka, between the manifest and the end of the transaction: each message once.

One job lives through all of it, as in the other crash tests. A consumer that reads committed messages only never sees
one twice, not even between two deaths, and no transaction is left open when the job has resumed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.spark.kafka_jobs import PIPELINE, doubled_rows, once, put_numbers
from tests.support.spark.kafka_world import new_topic, pinned

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.services("kafka")]

CASES = {"kafka": ["commit.decided", "kafka.in-transaction", "commit.visible"]}


def strobe_run(root: Path, source: str, target: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(root / "home")],
        env={**os.environ, "NUMBERS_IN": source, "NUMBERS_OUT": target, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_driver_killed_around_its_transaction_loses_and_repeats_nothing(kafka: str, tmp_path: Path) -> None:
    source, target = new_topic(kafka, "in"), new_topic(kafka, "out")
    last = 0
    for point in CASES["kafka"]:
        put_numbers(kafka, source, last, last + 100)
        last += 100
        at = f"{point}:2" if point.startswith("kafka.") else point  # the first transaction says who writes from now on
        run = strobe_run(tmp_path, source, target, STROBE_CRASH_AT=at)
        assert run.returncode == -signal.SIGKILL, f"{at} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
        seen = doubled_rows(kafka, target)
        assert set(seen.values()) <= {1}
        assert set(seen) <= set(range(last))
    run = strobe_run(tmp_path, source, target, BOUNDED="1")
    assert run.returncode == 0, run.stderr
    assert doubled_rows(kafka, target) == once(0, last)
    assert not pinned(kafka, [target, "strobe-commits"])


def test_a_driver_killed_around_the_transaction_of_a_batch_loses_and_repeats_nothing(
    kafka: str, tmp_path: Path
) -> None:
    source, target = new_topic(kafka, "in"), new_topic(kafka, "out")
    last = 0
    for at in ("kafka.in-transaction:2", "batch.in-sink@doubled"):
        put_numbers(kafka, source, last, last + 100)
        last += 100
        run = strobe_run(tmp_path, source, target, STROBE_CRASH_AT=at, DELIVERY="on_batch")
        assert run.returncode == -signal.SIGKILL, f"{at} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
        seen = doubled_rows(kafka, target)
        assert set(seen.values()) <= {1}
    run = strobe_run(tmp_path, source, target, BOUNDED="1", DELIVERY="on_batch")
    assert run.returncode == 0, run.stderr
    assert doubled_rows(kafka, target) == once(0, last)
    assert not pinned(kafka, [target, "strobe-commits"])
