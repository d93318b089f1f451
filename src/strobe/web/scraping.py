"""`/metrics` of the page: those of every job and live system that runs and answers, and which do not."""

from __future__ import annotations

import contextlib

from strobe.hosts.live.system.report import report_from_json
from strobe.hosts.spark.snapshot.metrics import status_from_json
from strobe.model.errors import StrobeError
from strobe.telemetry.exposition import render
from strobe.telemetry.families import Family, Metric, MetricKind, Sample
from strobe.telemetry.job_metrics import job_families
from strobe.telemetry.live_metrics import system_families
from strobe.web.home_reader import HomeReader

__all__ = ["ANSWERS", "scrape"]

ANSWERS = Metric("strobe_up", MetricKind.GAUGE, "1 if the job or system runs and answers, else 0.", ("name", "kind"))


def scrape(jobs: HomeReader, accept: str) -> tuple[bytes, str]:
    """The metrics as text, and its content type."""
    families: list[Family] = []
    answers: list[Sample] = []
    for name in jobs.names():
        row, asked = jobs.row(name)
        answers.append(Sample((name, row.kind), 1.0 if asked.status is not None else 0.0))
        with contextlib.suppress(StrobeError):  # a job of another version answers in another form
            if asked.status is not None:
                live = row.kind == "live"
                families += (
                    system_families(report_from_json(asked.status))
                    if live
                    else job_families(status_from_json(asked.status))
                )
    return render([Family(ANSWERS, tuple(answers)), *families], accept)
