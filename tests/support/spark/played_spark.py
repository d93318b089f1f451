"""Spark's query loop, played one step at a time, over real agents, channels and offset logs.

A query does what Spark does, in the order in which Spark does it, and can be left between any two steps: run the batch
that was logged and not committed; ask every reader how far; log the offsets; run the batch; commit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from strobe.hosts.spark.channel.log import DataFile
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.model.ids import NodeId
from strobe.store.manifest import NOTHING
from tests.support.spark.agent_world import Reads
from tests.support.spark.scheduled_parts import Account, Query


class PlayedSpark:
    rng: random.Random
    root: Path
    reads: Reads
    accounts: dict[str, Account]
    rows: dict[str, dict[int, int]]  # of each channel, by version

    def _query(self, uid: str, query: Query) -> Iterator[None]:
        path, inputs = query.agent.checkpoint, self.reads[uid]
        committed, logged = spark_checkpoint.last_committed(path), spark_checkpoint.last_logged(path)
        batch = NOTHING if committed is None else committed
        ends = dict.fromkeys(inputs, 0) if batch == NOTHING else self._logged(uid, batch)
        supply = 0 if batch == NOTHING else self._supply(uid, batch)
        for _ in range(self.rng.choice((1, 1, 30))):  # a query takes its time to come up
            yield
        if logged is not None and logged > batch:
            yield from self._batch(uid, query, logged)
            batch, ends, supply = logged, self._logged(uid, logged), self._supply(uid, logged)
        while not query.agent.registered:
            yield  # its first question is not answered yet
        while True:
            planned = dict(ends)
            for producer in inputs:
                planned[producer] = query.agent.latest(f"{uid}<{producer}", NodeId(producer), ends[producer])
                yield
            fresh = self.rng.randrange(0, 6) if not inputs and self.rng.random() < 0.4 else 0
            if planned == ends and not fresh:
                yield
                continue
            batch, ends, supply = batch + 1, planned, supply + fresh
            self._log(uid, batch, ends, supply)
            yield
            yield from self._batch(uid, query, batch)

    def _batch(self, uid: str, query: Query, batch: int) -> Iterator[None]:
        account, agent = self.accounts[uid], query.agent
        arrived = agent.arrive(batch)
        while not arrived.answered:
            yield  # the stage stands still
        arrived.wait()
        query.in_batch = True
        yield
        ends = self._logged(uid, batch)
        read = {p: self.rows_upto(p, end) for p, end in ends.items()}
        before = account.read[batch - 1]
        source = self._supply(uid, batch) - (self._supply(uid, batch - 1) if batch else 0)
        rows = sum(read.values()) - sum(before.values()) + source
        # Some batches leave nothing: their rows are filtered, or go into state. Others must not grow in a loop.
        out = 0 if (batch * 7 + len(uid)) % 3 == 0 else min(rows, 5)
        account.read[batch], account.written[batch] = read, account.written[batch - 1] + out
        if agent.output is not None and out:
            agent.show_batch(batch)
            made = agent.output.append([DataFile(f"data/1/{batch}-0/x.parquet", out, out * 8)], batch)
            if made is not None:
                self.rows[uid][made.version] = out
        yield
        agent.end_batch(batch)
        query.in_batch = False
        yield
        (agent.checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        yield

    def _log(self, uid: str, batch: int, ends: dict[str, int], supply: int) -> None:
        sources = [json.dumps({"channel": p, "version": v}) for p, v in ends.items()] or [json.dumps({"rows": supply})]
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        (self.root / "stages" / uid / "offsets" / str(batch)).write_text("\n".join(["v1", head, *sources]))

    def _logged(self, uid: str, batch: int) -> dict[str, int]:
        sources = spark_checkpoint.read_offsets(self.root / "stages" / uid, batch).sources
        return {s["channel"]: s["version"] for s in sources if isinstance(s, dict) and "channel" in s}

    def _supply(self, uid: str, batch: int) -> int:
        """Rows that a source stage has read of the world outside."""
        (first, *_) = spark_checkpoint.read_offsets(self.root / "stages" / uid, batch).sources
        return first.get("rows", 0) if isinstance(first, dict) else 0

    def rows_upto(self, channel: str, version: int) -> int:
        return sum(rows for v, rows in self.rows[channel].items() if v <= version)
