"""Snapshots as OpenTelemetry traces (extra `otel`), sent by OTLP over http/protobuf.

A snapshot is a trace: a span from its trigger to its end, below it one for each stage or node, below that one for each
phase of its part, and one for the manifest. All times are those that the host has measured; nothing is measured here.

The standard variables say what is sent where (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, …). Spans are
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
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.manifest import NodeRecord

__all__ = ["Attributes", "Spans", "check_settings"]

Attributes = dict[str, str | int | float]

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


class Spans:
    """`attributes` stand on every span: whose it is."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        service = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "strobe"}
        self._provider = TracerProvider(resource=Resource.create(service))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("strobe", __version__)

    def stop(self) -> None:
        """Send what is left, if that is quick."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_GOODBYE)

    def span(self, name: str, began: float, ended: float, attributes: Attributes) -> None:
        """A trace of one span. Times are in Unix seconds."""
        self._begin(name, began, None, attributes).end(_ns(ended))

    def snapshot(
        self,
        name: str,
        began: float,
        duration_ms: float,
        attributes: Attributes,
        *,
        part: str,
        parts: Mapping[NodeId, NodeRecord],
        manifest_ms: float | None,
        failure: str | None = None,
    ) -> None:
        """A trace of a span for the whole, one below it for each `part` (a stage, a node), and below that its phases,
        one after the other. `manifest_ms` is the end of it; None if no manifest was written."""
        ended = began + duration_ms / 1000
        root = self._begin(name, began, None, attributes)
        below = trace.set_span_in_context(root)
        for uid, record in parts.items():
            about: Attributes = {
                f"strobe.{part}": uid,
                "strobe.part.bytes_new": record.bytes_new,
                "strobe.part.bytes_total": record.bytes_total,
            }
            if record.batch is not None:
                about["strobe.batch.id"] = record.batch
            span = self._begin(part, began, below, about)
            at = began
            for phase, ms in record.phases.items():
                if ms > 0:
                    of_phase: Attributes = {f"strobe.{part}": uid, "strobe.phase": phase}
                    child = self._begin(phase, at, trace.set_span_in_context(span), of_phase)
                    at += ms / 1000
                    child.end(_ns(at))
            span.end(_ns(at))
        if manifest_ms is not None:
            manifest = self._begin("manifest", ended - manifest_ms / 1000, below, {"strobe.phase": "manifest"})
            manifest.end(_ns(ended))
        if failure is not None:
            root.set_status(Status(StatusCode.ERROR, failure))
        root.end(_ns(ended))

    def _begin(self, name: str, began: float, context: Context | None, attributes: Attributes) -> Span:
        # A new context for what has no parent: the thread's own context may belong to somebody else.
        named = {**self._attributes, **attributes}
        return self._tracer.start_span(name, context or Context(), start_time=_ns(began), attributes=named)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
