"""The examples, with a real Prometheus: it scrapes, every query of the dashboard has an answer, alerts fire."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strobe.telemetry.exposition import Address, MetricsServer
from strobe.telemetry.job_metrics import job_families
from strobe.telemetry.live_metrics import system_families
from tests.services import Server
from tests.support.waiting import eventually
from tests.telemetry.samples import REPORT, STATUS

pytestmark = [pytest.mark.services("prometheus"), pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples" / "monitoring"
PATIENCE = 60.0  # seconds; only a test that fails waits for so long


@pytest.fixture(scope="module")
def metrics() -> Iterator[MetricsServer]:
    server = MetricsServer(Address.of("0"))
    server.source = lambda: [*job_families(STATUS), *system_families(REPORT)]
    yield server
    server.stop()


@pytest.fixture(scope="module")
def prometheus(metrics: MetricsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With the configuration of the examples, in a hurry, and the addresses of what is there."""
    folder = tmp_path_factory.mktemp("prometheus")
    text = (EXAMPLES / "prometheus.yml").read_text()
    text = re.sub(r"targets: .*", f'targets: ["{urllib.parse.urlsplit(metrics.url).netloc}"]', text)
    (folder / "prometheus.yml").write_text(text.replace("10s", "200ms"))
    (folder / "alerts.yml").write_text((EXAMPLES / "alerts.yml").read_text())
    with Server("prometheus", folder, {"STROBE_PROMETHEUS_CONFIG": str(folder / "prometheus.yml")}) as server:
        yield server.address


def ask(address: str, path: str, **named: str) -> Any:
    with urllib.request.urlopen(f"{address}/api/v1/{path}?{urllib.parse.urlencode(named)}", timeout=30) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    return said["data"]


@pytest.mark.parametrize("what", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_finds_nothing_wrong(what: tuple[str, str]) -> None:
    done = subprocess.run(
        ["promtool", "check", what[0], str(EXAMPLES / what[1])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_finds_nothing_wrong_with_names_and_help(metrics: MetricsServer) -> None:
    with urllib.request.urlopen(metrics.url, timeout=30) as answer:
        text = answer.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    # Milliseconds a second are Flink's unit, by which people find the metric.
    complaints = [line for line in done.stderr.decode().splitlines() if "busy_time_ms" not in line]
    assert not complaints


def test_every_query_of_the_dashboard_has_an_answer(prometheus: str) -> None:
    scraped = 'count_over_time(up{job="strobe"}[1h]) > 3'
    eventually(lambda: bool(ask(prometheus, "query", query=scraped)["result"]), "up")
    for panel in json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$job", ".*").replace("$stage", ".*")
            assert ask(prometheus, "query", query=query)["result"], f"{panel['title']}: {query}"


def test_alerts_fire_when_they_should_and_not_before(prometheus: str, metrics: MetricsServer) -> None:
    def firing() -> set[str]:
        return {a["labels"]["alertname"] for a in ask(prometheus, "alerts")["alerts"] if a["state"] == "firing"}

    rules = ask(prometheus, "rules")["groups"][0]["rules"]
    eventually(lambda: all(r["health"] == "ok" for r in ask(prometheus, "rules")["groups"][0]["rules"]), "evaluated")
    assert len(rules) == (EXAMPLES / "alerts.yml").read_text().count("- alert:")
    assert not firing() & {"StrobeJobNotRunning", "StrobeCheckpointsFail", "StrobeNoCheckpoint", "StrobeLateRows"}
    late = replace(STATUS.stages[0], late_rows=500)
    worse = replace(STATUS, state="failed", failures_in_a_row=2, stages=(late,))
    metrics.source = lambda: job_families(worse)
    expected = {"StrobeJobNotRunning", "StrobeCheckpointsFail", "StrobeLateRows"}
    eventually(lambda: expected <= firing(), f"alerts: {expected}")
