"""Checkpoints and batches as OpenTelemetry traces (extra `otel`), sent by OTLP over http/protobuf.

A checkpoint is a trace: a span from its trigger to its end, below it one for each stage, below that one for each phase
of the stage's part, and one for the manifest. A batch is a trace of one span. All times are those that the job has
measured; nothing is measured here.

What is sent where is for the standard variables to say (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, …). Spans are
sent in the background, and thrown away if the receiver does not keep up or is not there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Status, StatusCode

from strobe import __version__
from strobe.hosts.spark.job.observer import BatchDone, Event, SnapshotEnded
from strobe.model.errors import Misuse
from strobe.store.times import utc_seconds

__all__ = ["Traces", "check_settings"]

_GOODBYE: Final = 5.0  # seconds for the last spans
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def check_settings(environment: Mapping[str, str]) -> bool:
    """Whether spans are to be sent; Misuse if the environment asks for what is not there."""
    for name in _PROTOCOLS:
        if environment.get(name, "http/protobuf") != "http/protobuf":
            raise Misuse(
                f"{name} is {environment[name]!r}: traces are sent by http/protobuf only.",
                untouched="Nothing was started.",
                next="Unset it, and let OTEL_EXPORTER_OTLP_ENDPOINT name the receiver's HTTP port (4318).",
            )
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp")
    if exporter not in ("otlp", "none"):
        raise Misuse(
            f"OTEL_TRACES_EXPORTER is {exporter!r}: traces are sent by otlp, or not at all (none).",
            untouched="Nothing was started.",
            next="Unset it.",
        )
    return exporter == "otlp" and environment.get("OTEL_SDK_DISABLED", "false").lower() != "true"


class Traces:
    """Hear what a job's observer tells, by `hear`."""

    def __init__(self, job: str) -> None:
        self._job = job
        service = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "strobe"}
        self._provider = TracerProvider(resource=Resource.create(service))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("strobe", __version__)

    def hear(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self._batch(event)
        elif isinstance(event, SnapshotEnded):
            self._snapshot(event)

    def stop(self) -> None:
        """Send what is left, if that goes quickly."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_GOODBYE)

    def _batch(self, event: BatchDone) -> None:
        report = event.report
        attributes: dict[str, str | int | float] = {
            "strobe.stage": event.stage,
            "strobe.batch.id": report.batch,
            "strobe.batch.rows": report.rows,
            "strobe.batch.late_rows": report.late_rows,
            **{f"strobe.batch.{name}_ms": ms for name, ms in report.phases.items()},
        }
        if report.watermark is not None:
            attributes["strobe.watermark"] = report.watermark
        span = self._span("batch", report.began, None, attributes)
        span.end(_ns(report.ended))

    def _snapshot(self, event: SnapshotEnded) -> None:
        progress = event.progress
        began = utc_seconds(progress.started)
        ended = began + progress.duration_ms / 1000
        root = self._span(
            progress.kind.value, began, None,
            {"strobe.snapshot.id": int(progress.snapshot), "strobe.snapshot.status": progress.status,
             "strobe.snapshot.bytes_new": progress.bytes_new, "strobe.snapshot.bytes_total": progress.bytes_total,
             "strobe.snapshot.rows_in_flight": progress.rows_in_flight, "strobe.snapshot.slowest": progress.slowest},
        )  # fmt: skip
        below = trace.set_span_in_context(root)
        for uid, part in event.parts.items():
            attributes: dict[str, str | int | float] = {
                "strobe.stage": uid,
                "strobe.part.bytes_new": part.bytes_new,
                "strobe.part.bytes_total": part.bytes_total,
            }
            if part.batch is not None:
                attributes["strobe.batch.id"] = part.batch
            stage = self._span("stage", began, below, attributes)
            at = began
            for phase, ms in part.phases.items():
                if ms > 0:
                    inside = trace.set_span_in_context(stage)
                    span = self._span(phase, at, inside, {"strobe.stage": uid, "strobe.phase": phase})
                    at += ms / 1000
                    span.end(_ns(at))
            stage.end(_ns(at))
        if progress.status == "complete":
            manifest = self._span("manifest", ended - progress.manifest_ms / 1000, below, {"strobe.phase": "manifest"})
            manifest.end(_ns(ended))
        else:
            root.set_status(Status(StatusCode.ERROR, progress.reason))
        root.end(_ns(ended))

    def _span(
        self, name: str, began: float, context: Context | None, attributes: Mapping[str, str | int | float]
    ) -> Span:
        # A new context for what has no parent: whatever the thread is in is none of ours.
        named = {"strobe.job": self._job, **attributes}
        return self._tracer.start_span(name, context or Context(), start_time=_ns(began), attributes=named)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
