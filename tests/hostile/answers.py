"""What a stranger may answer who listens at the port of a driver that is gone, and speaks HTTP and JSON.

`VALID` has an answer of each operation, as a driver gives it. A stranger gives values that are none, or one of these
with something else in it, or the answer to another question.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from strobe.hosts.live.system.checking import CheckReport
from strobe.hosts.live.system.invariants import InvariantReport
from strobe.hosts.live.system.report import ChannelReport, NodeReport, Report, SnapshotReport
from strobe.hosts.spark.home.supervision import SupervisorStatus
from strobe.hosts.spark.job.api import Ended
from strobe.hosts.spark.snapshot.metrics import (
    Backlog,
    BadFileStatus,
    BarrierStatus,
    ChannelStatus,
    HeldStatus,
    InvariantStatus,
    JobStatus,
    SinkStatus,
    StageStatus,
    StateStatus,
)
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.hosts.spark.snapshot.savepoints import Savepoint
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.releases import Release
from tests.hostile.mutations import hostile, places

__all__ = ["NO_OBJECTS", "VALID", "http", "wrong_answer"]

_AT: Final = "2031-05-17T09:30:00.000Z"
_FIVE: Final = SnapshotId(5)
_TAKEN: Final = Progress(_FIVE, Kind.CHECKPOINT, "complete", _AT, 41.3, sync_ms=0.3, slowest="balances", acknowledged=2)
_LOST: Final = Progress(SnapshotId(4), Kind.SAVEPOINT, "failed", _AT, 41.3, reason="timeout")
_STAGE: Final = StageStatus(
    "balances", "running", 7, 1.5, 10, 10, 0, 3.5, 2, 0, error="x", dead_letters=1, watermark=_AT, busy=0.5,
    backlog=Backlog(1, 2, 3), state_store=StateStatus(1, 2, 3, 4, 5.0), bad_files=1,
    latest_bad_files=(BadFileStatus("a.csv", "torn", _AT, 3),),
)  # fmt: skip
_STATUS: Final = JobStatus(
    "ledger", "running", 4711, 1, 1, _AT, 17.5, (_STAGE,), 5, 1, 0, (_LOST, _TAKEN),
    sinks=(SinkStatus("balances/0", "out", 0, 0),),
    next_checkpoint_s=3.5,
    spark_ui="http://127.0.0.1:4040",
    supervisor=SupervisorStatus(1, 0, 5, "x", _AT),
    channels=(ChannelStatus("postings", "balances", False, 1, 1),),
    barriers=(BarrierStatus(6, "balances", "aligning", ("postings",), ()),),
    invariants=(InvariantStatus("balanced", "hold", "violated", 5),),
    held=HeldStatus(5, 5, 1, _AT, "it does not hold"),
)  # fmt: skip
_SAVED: Final = Savepoint(_FIVE, "ledger", "/backup/one", "ab" * 32, 1000, 3)
_REPORT: Final = Report(
    "bank", "running", 4711, 17.5, 1, 0, 5, 1, "timeout", (4, 5), (6,),
    (NodeReport("a", "running", 1, 2, 3, 4.5, 5.5, 6, 7, 8, 9, "x"),),
    (SnapshotReport(5, "checkpoint", _AT, 41.3, 0.3, 0.1, 10, 100, 3),),
    (CheckReport("deadlock", False, 5, "none", ("x",), 4),), (ChannelReport("a-b", "a", "b", 1, 1, 0, True),),
    (InvariantReport("balanced", "holds", 5),),
)  # fmt: skip
VALID: Final[Mapping[tuple[str, str, str], dict[str, Any]]] = {
    ("spark", "GET", "/v1/status"): to_builtins(_STATUS),
    ("spark", "POST", "/v1/checkpoint"): to_builtins(_TAKEN),
    ("spark", "POST", "/v1/savepoint"): to_builtins(_SAVED),
    ("spark", "POST", "/v1/stop"): to_builtins(_SAVED),
    ("spark", "POST", "/v1/cancel"): to_builtins(Ended("ledger", "canceled")),
    ("spark", "POST", "/v1/release"): to_builtins(Release(_FIVE, "me@here", _AT, 1)),
    ("live", "GET", "/v1/status"): to_builtins(_REPORT),
    ("live", "POST", "/v1/snapshot"): {
        "system": "bank", **to_builtins(_REPORT.snapshots[0]), "where": "/backup/jobs/bank/snapshots/chk-000005",
    },
    ("live", "POST", "/v1/restore"): {"system": "bank", "snapshot": 5, "incarnation": 2},
    ("live", "POST", "/v1/kill"): {"system": "bank", "node": "a", "pid": 4711},
    ("live", "POST", "/v1/break"): {
        "system": "bank", "condition": "node.balance < 0", "node": "a", "snapshot": 5, "where": "/backup/two",
        "states": {"a": {"balance": -1}}, "channels": {"a-b": [{"amount": 1}]},
    },
    ("live", "POST", "/v1/down"): {"system": "bank", "why": "it was told to end", "snapshot": 5, "trouble": ""},
}  # fmt: skip
NO_OBJECTS: Final[tuple[bytes, ...]] = (
    b"[]", b"[[]]", b'["checkpoints"]', b"null", b"true", b"7", b"-1", b"1e999", b"NaN", b'"status"', b'""',
    b'"\\u001b[2J"', b"9" * 5000, b"[" * 90_000, b'{"a":' * 400 + b"1" + b"}" * 400, b"", b"{", b"\xff\xfe", b"\0" * 99,
    b'{"error":null}',
)  # fmt: skip


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(), len(body), body,
    )  # fmt: skip


def wrong_answer(dice: random.Random, canary: Path) -> bytes:
    """As it goes over the connection."""
    what = dice.randrange(6)
    if what == 0:
        return http(dice.choice(NO_OBJECTS), dice.choice(("200 OK", "200 OK", "201 x", "409 x", "500 x")))
    value: Any = json.loads(json.dumps(dice.choice(list(VALID.values()))))
    if what == 1:
        return http(json.dumps(value).encode())
    if what == 2:
        value = {name: hostile(dice, canary) for name in value}
    for _ in range(dice.choice((1, 1, 2, 5))):
        where = list(places(value))
        if not where:
            break
        _, parent, key = dice.choice(where)
        if dice.random() < 0.2:
            del parent[key]
        else:
            parent[key] = hostile(dice, canary)
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5)
    return http(text.encode(errors="surrogatepass"))
