"""Metrics are a function of the status; the reference page and the examples name those that there are."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from strobe.hosts.spark.snapshot.metrics import InvariantStatus, JobStatus, status_from_json, status_json
from strobe.model.errors import Misuse
from strobe.telemetry.exposition import Address, MetricsServer, render
from strobe.telemetry.families import Metric, MetricKind, Of
from strobe.telemetry.job_metrics import INVARIANT_METRICS, JOB_METRICS, SINK_METRICS, STAGE_METRICS, job_families
from strobe.telemetry.live_metrics import LIVE_INVARIANT_METRICS, NODE_METRICS, SYSTEM_METRICS, system_families
from tests.telemetry.samples import REPORT, STAGE, STATUS

ROOT = Path(__file__).parents[2]
SECTIONS: dict[str, tuple[Of[Any], ...]] = {
    "A job": JOB_METRICS,
    "A stage": STAGE_METRICS,
    "A sink": SINK_METRICS,
    "An invariant": INVARIANT_METRICS,
    "A live system": SYSTEM_METRICS,
    "A node of a live system": NODE_METRICS,
    "An invariant of a live system": LIVE_INVARIANT_METRICS,
}
METRICS: dict[str, Metric] = {row.metric.name: row.metric for table in SECTIONS.values() for row in table}


def values(status: JobStatus = STATUS) -> dict[str, float]:
    """Each sample as text, without the label of the job."""
    text = render(job_families(status))[0].decode()
    found = {}
    for family in parse(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items() if k != "job_name")
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_every_metric_has_a_sample_when_everything_is_known() -> None:
    given = {family.metric.name for family in (*job_families(STATUS), *system_families(REPORT))}
    assert given == set(METRICS)


def test_samples_say_what_the_status_says() -> None:
    found = values()
    assert found["strobe_job_state{state=running}"] == 1
    assert found["strobe_job_state{state=failed}"] == 0
    assert found["strobe_job_last_checkpoint_duration_seconds"] == pytest.approx(0.1)
    assert found["strobe_job_last_checkpoint_phase_seconds{phase=start_delay}"] == pytest.approx(0.06)
    assert found["strobe_job_num_restarts_total"] == 2
    assert found["strobe_stage_busy_time_ms_per_second{stage=per-minute}"] == 250
    assert found["strobe_stage_current_input_watermark_timestamp_seconds{stage=per-minute}"] == 1936776600.25
    assert found["strobe_stage_pending_files{stage=per-minute}"] == 2
    assert found["strobe_sink_parts_in_doubt{sink=gold,stage=per-minute}"] == 1


def test_an_invariant_without_a_verdict_has_no_verdict() -> None:
    found = values(replace(STATUS, invariants=(InvariantStatus("sum", "warn"),)))
    assert [name for name in found if name.startswith("strobe_invariant")] == [
        "strobe_invariant_num_violations_total{invariant=sum}", "strobe_invariant_num_skipped_total{invariant=sum}",
    ]  # fmt: skip
    failed = values(replace(STATUS, invariants=(InvariantStatus("sum", "warn", "failed", 4),)))
    assert "strobe_invariant_violated{invariant=sum}" not in failed
    assert failed["strobe_invariant_failed{invariant=sum}"] == 1


def test_phases_add_up_to_the_duration() -> None:
    found = values()
    phases = [value for name, value in found.items() if "phase_seconds" in name]
    assert sum(phases) == pytest.approx(found["strobe_job_last_checkpoint_duration_seconds"])


def test_what_is_not_known_is_left_out() -> None:
    bare = replace(STAGE, watermark=None, busy=None, backlog=None, state_store=None, rows_out=None, lag_rows=None)
    found = values(
        replace(STATUS, stages=(bare,), checkpoints=(), invariants=(), next_checkpoint_s=None, supervisor=None)
    )
    for word in (
        "watermark",
        "busy",
        "pending",
        "rocksdb",
        "state_rows",
        "last_checkpoint",
        "out_total",
        "lag_",
    ):
        assert not [name for name in found if word in name]
    assert found["strobe_job_num_restarts_total"] == 0


def test_a_status_from_the_control_api_gives_the_same_metrics() -> None:
    assert job_families(status_from_json(json.loads(json.dumps(status_json(STATUS))))) == job_families(STATUS)


def test_several_jobs_are_one_page() -> None:
    other = replace(STATUS, job="other")
    text = render([*job_families(STATUS), *job_families(other)])[0].decode()
    assert text.count("# TYPE strobe_job_uptime_seconds ") == 1
    assert re.findall(r'strobe_job_uptime_seconds\{job_name="(\w+)"\}', text) == ["shop", "other"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "<img onerror=x>", "stage 🙂"])
def test_hostile_names_are_escaped(name: str) -> None:
    stages = (replace(STAGE, uid=name),)
    text = render(job_families(replace(STATUS, stages=stages)))[0].decode()
    labels = {s.labels["stage"] for f in parse(text) for s in f.samples if f.name == "strobe_stage_state_rows"}
    assert labels == {name}


def test_openmetrics_is_served_to_those_who_ask_for_it() -> None:
    families = [*job_families(STATUS), *system_families(REPORT)]
    text, content_type = render(families, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    parsed = list(parse_openmetrics(text.decode()))  # type: ignore[no-untyped-call]
    assert len(parsed) == len(METRICS)


def test_metrics_are_served_over_http_and_asked_for_at_each_scrape() -> None:
    server = MetricsServer(Address.of("0"))
    try:
        assert server.url.startswith("http://127.0.0.1:")
        assert _get(server.url) == b""
        for state in ("running", "failed"):
            server.source = lambda state=state: job_families(replace(STATUS, state=state))  # type: ignore[misc]
            assert f'state="{state}"}} 1.0'.encode() in _get(server.url)
    finally:
        server.stop()


def _get(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def test_a_port_in_use_is_refused_in_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Misuse, match=rf"Metrics cannot be served at 127.0.0.1:{port}: Address already in use"):
            MetricsServer(Address.of(str(port)))


@pytest.mark.parametrize(
    ("text", "address"),
    [("9249", ("127.0.0.1", 9249)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:80", ("::1", 80))],
)
def test_an_address_is_a_port_or_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert Address.of(text) == Address(*address)


@pytest.mark.parametrize("text", ["", "http", "70000", ":80", "host:", "-1", "1.5", "٣"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="is not a port"):
        Address.of(text)


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_are_spelled_as_prometheus_wants_them() -> None:
    assert len(METRICS) == sum(map(len, SECTIONS.values())), "a name is used twice"
    for metric in METRICS.values():
        assert re.fullmatch(r"strobe_(job|stage|sink|invariant|live)_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert not metric.help.endswith(".")


def test_the_reference_page_lists_exactly_these_metrics() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for title, table in SECTIONS.items():
        rows = [line for line in page.split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines() if line[:3] == "| `"]
        assert rows == [
            f"| `{m.name}` | {m.kind.value} | {', '.join(f'`{label}`' for label in m.labels)} | "
            f"{f'`{m.flink}`' if m.flink else '–'} | {m.help} |"
            for m in (row.metric for row in table)
        ]


def expressions() -> dict[str, str]:
    """Every query of the dashboard and of the alerts, by where it is."""
    dashboard = json.loads((ROOT / "examples" / "monitoring" / "dashboard.json").read_text())
    found = {f"panel {p['title']!r}": t["expr"] for p in dashboard["panels"] for t in p.get("targets", ())}
    alerts = (ROOT / "examples" / "monitoring" / "alerts.yml").read_text()
    for name, text in re.findall(r"- alert: (\w+)\n(.*?)(?=\n      - alert|\Z)", alerts, re.DOTALL):
        found[name] = text
    return found


@pytest.mark.parametrize(("where", "text"), expressions().items())
def test_dashboard_and_alerts_use_metrics_that_there_are(where: str, text: str) -> None:
    used = set(re.findall(r"\bstrobe_(?:job|stage|sink|invariant|live)_\w+", text))
    assert used - {"strobe"} <= set(METRICS), where
    assert used or 'up{job="strobe"}' in text


def test_the_how_to_says_what_to_do_about_every_alert() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    alerts = [name for name in expressions() if name.startswith("Strobe")]
    assert re.findall(r"^\| `(Strobe\w+)` \|", page, re.MULTILINE) == alerts
