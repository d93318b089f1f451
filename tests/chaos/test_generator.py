"""The generator: each transfer once, however often it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.topics import read_all
from chaos.transfers import Transfer, transfers
from tests.support.spark.kafka_world import new_topic

pytestmark = pytest.mark.services("kafka")

ROOT = Path(__file__).parents[2]
SEED = 23


def started(servers: str, topic: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "chaos.generator", servers, str(SEED), "200", topic]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)


def sent(servers: str, topic: str) -> Iterator[Transfer]:
    return (Transfer(**json.loads(m.value() or b"{}")) for m in read_all(servers, topic))


def test_each_transfer_is_there_once_however_often_the_generator_is_killed(kafka: str) -> None:
    topic = new_topic(kafka, "generated")
    count = 0
    for kills in range(3):
        generator = started(kafka, topic)
        try:
            deadline = time.monotonic() + 120
            while len(list(sent(kafka, topic))) <= count:
                assert time.monotonic() < deadline, "nothing more was generated"
            if kills < 2:
                generator.kill()
            else:
                generator.terminate()
                assert generator.wait(60) == 0
        finally:
            generator.kill()
            generator.wait()
        count = len(list(sent(kafka, topic)))
    assert sorted(sent(kafka, topic)) == list(transfers(SEED, count))
