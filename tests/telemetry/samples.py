"""A status with something in every field, and receivers for what is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from strobe.hosts.live.system.checking import CheckReport
from strobe.hosts.live.system.invariants import InvariantReport
from strobe.hosts.live.system.report import NodeReport, Report, SnapshotReport
from strobe.hosts.spark.snapshot.metrics import (
    Backlog,
    BadFileStatus,
    InvariantStatus,
    JobStatus,
    SinkStatus,
    StageStatus,
    StateStatus,
    SupervisorStatus,
)
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind

AT = "2031-05-17T09:30:00.250Z"
STATE = StateStatus(1000, 4096, 10, 5, 12.0, 100, 200, 3, 4, 50, 60, 7, 8, 9.0, 10.0)
STAGE = StageStatus(
    "per-minute", "running", 7, 1234.0, 5, 50, 12, 120.0, 1000, 1, dead_letters=2, watermark=AT, busy=0.25,
    backlog=Backlog(5, 2, 300), state_store=STATE, batches=8, rows_in_total=400, late_rows=3, rows_in_per_second=6.5,
    rows_out_per_second=1.5, bad_files=4, latest_bad_files=(BadFileStatus("/in/a", "cut off", AT, 7),),
)  # fmt: skip
CHECKPOINT = Progress(
    SnapshotId(4), Kind.CHECKPOINT, "complete", AT, duration_ms=100.0, start_delay_ms=60.0, sync_ms=10.0,
    async_ms=20.0, manifest_ms=10.0, slowest="per-minute", bytes_new=10, bytes_total=99, rows_in_flight=6,
)  # fmt: skip
STATUS = JobStatus(
    "shop", "running", 4711, 2, 1, AT, 61.0, (STAGE,), 3, 1, 0, (CHECKPOINT,),
    sinks=(SinkStatus("per-minute/gold", "a table", 1, 2, failures=3, rows=40, rows_per_second=0.5, dead_letters=2),),
    invariants=(InvariantStatus("sum", "warn", "violated", 4, 2, 1, "the sum is off"),),
    next_checkpoint_s=7.5, supervisor=SupervisorStatus(99, 2, 10, "killed", AT),
)  # fmt: skip
REPORT = Report(
    "bank", "running", 12, 5.0, 3, 1, 4, 1, "", (4,), (5,),
    (NodeReport("a", "running", 13, 10, 20, 1.0, 2.0, 3, 4, 1, 2),),
    (SnapshotReport(4, "checkpoint", AT, 12.0, 1.0, 2.0, 30, 40, 5),),
    (CheckReport("deadlock", False, 4, "none"), CheckReport("garbage", None, 4, "could not be checked")),
    invariants=(InvariantReport("none is made", "violated", 4, 2, 1, "the sum is off"),),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Takes every POST. Answers with `answers` in turn, then with 200."""

    url: str
    answers: list[int] = field(default_factory=list)
    posts: list[Received] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count: int, patience: float = 60.0) -> list[Received]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.posts) >= count, patience), f"only {len(self.posts)} came"
            return list(self.posts)


def spans_of(post: Received) -> list[Any]:
    """The spans in one request of OTLP."""
    body = gzip.decompress(post.body) if post.headers.get("Content-Encoding") == "gzip" else post.body
    request = ExportTraceServiceRequest.FromString(body)
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def attribute(span: Any, name: str) -> Any:
    for pair in span.attributes:
        if pair.key == name:
            return getattr(pair.value, pair.value.WhichOneof("value"))
    return None


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with made.arrived:
                made.posts.append(Received(self.path, dict(self.headers), body))
                code = made.answers.pop(0) if made.answers else 200
                made.arrived.notify_all()
            self.send_response(code)
            if code == 302:
                self.send_header("Location", made.url + "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Receiver(f"http://127.0.0.1:{server.server_address[1]}", list(answers))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
