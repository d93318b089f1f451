"""Traces, as a receiver gets them: a checkpoint with its stages and phases, a batch; failures say so."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from strobe.hosts.spark.job.observer import BatchDone, Event, SnapshotEnded
from strobe.hosts.spark.stage.meter import BatchReport
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.manifest import NodeRecord, Timing
from strobe.telemetry.spans import check_settings
from strobe.telemetry.traces import Traces
from tests.telemetry.samples import CHECKPOINT, attribute, receiver, spans_of

PART = NodeRecord(batch=7, bytes_new=10, sync_ms=10.0, async_ms=20.0, timing=Timing(start_delay_ms=60.0))


def sent(monkeypatch: pytest.MonkeyPatch, *events: Event, **environment: str) -> tuple[list[Any], list[str]]:
    """The spans that arrive, and the paths and services that they arrive at and from."""
    with receiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        traces = Traces("shop")
        for event in events:
            traces.hear(event)
        traces.stop()
        return [span for post in made.posts for span in spans_of(post)], [post.path for post in made.posts]


def ms(span: Any) -> float:
    return round(float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6, 3)


def test_a_checkpoint_has_a_child_for_each_stage_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SnapshotEnded(CHECKPOINT, {NodeId("per-minute"): PART, NodeId("clicks"): replace(PART, async_ms=5.0)})
    spans, paths = sent(monkeypatch, ended)
    assert set(paths) == {"/v1/traces"}
    (root,) = (s for s in spans if not s.parent_span_id)
    assert (root.name, ms(root), attribute(root, "strobe.snapshot.id")) == ("checkpoint", 100, 4)
    assert attribute(root, "strobe.job") == "shop"
    assert {s.trace_id for s in spans} == {root.trace_id}
    children = [s for s in spans if s.parent_span_id == root.span_id]
    stages = {attribute(s, "strobe.stage"): s for s in children if s.name == "stage"}
    assert set(stages) == {"per-minute", "clicks"}
    (manifest,) = (s for s in children if s.name == "manifest")
    assert manifest.end_time_unix_nano == root.end_time_unix_nano
    phases = [s for s in spans if s.parent_span_id == stages["per-minute"].span_id]
    assert [(s.name, ms(s)) for s in phases] == [("start_delay", 60), ("sync", 10), ("async", 20)]
    for before, after in itertools.pairwise(phases):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert ms(stages["per-minute"]) + ms(manifest) == ms(root)


def test_a_checkpoint_that_failed_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = replace(CHECKPOINT, status="failed", reason="no room on the disk")
    (span,), _ = sent(monkeypatch, SnapshotEnded(failed, {}))
    assert (span.status.code, span.status.message) == (2, "no room on the disk")


def test_a_batch_is_a_span_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    report = BatchReport("run", 7, 1_900_000_000.5, 250.0, 1000, 3, {"addBatch": 200.0})
    (span,), _ = sent(monkeypatch, BatchDone(NodeId("clicks"), report))
    assert (span.name, ms(span), span.parent_span_id) == ("batch", 250, b"")
    assert span.start_time_unix_nano == pytest.approx(1_900_000_000.5e9, abs=1000)
    assert [attribute(span, f"strobe.{name}") for name in ("stage", "batch.id", "batch.rows", "batch.late_rows")] == [
        "clicks", 7, 1000, 3,
    ]  # fmt: skip


def test_the_standard_variables_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = BatchReport("run", 7, 1_900_000_000.5, 250.0, 1000, 3)
    spans, _ = sent(monkeypatch, BatchDone(NodeId("clicks"), report), OTEL_TRACES_SAMPLER="always_off")
    assert spans == []


def test_a_receiver_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    traces = Traces("shop")
    traces.hear(SnapshotEnded(CHECKPOINT, {}))
    traces.stop()  # comes back, although nobody answers


def test_settings_that_cannot_be_followed_are_refused() -> None:
    assert check_settings({})
    assert not check_settings({"OTEL_SDK_DISABLED": "true"})
    assert not check_settings({"OTEL_TRACES_EXPORTER": "none"})
    for wrong in ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_TRACES_EXPORTER": "zipkin"}):
        with pytest.raises(Misuse, match=next(iter(wrong))):
            check_settings(wrong)
