"""The tables of `strobe status` and the live view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from strobe.cli.live_view import phase_table, stage_table
from strobe.hosts.spark.snapshot.metrics import StageStatus
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind


def shown(*stages: StageStatus) -> list[str]:
    console = Console(width=80, record=True)
    console.print(stage_table(stages))
    return console.export_text().splitlines()


def stage(uid: str, *, restarts: int = 0, dead_letters: int = 0) -> StageStatus:
    return StageStatus(uid, "running", 7, 1234.0, 5, 5, 12345, 120.0, 1_000_000, restarts, dead_letters=dead_letters)


def test_what_is_rare_has_a_column_only_when_it_happened() -> None:
    heading, *lines = shown(stage("transfers"), stage("balances"))
    assert "restarts" not in heading
    assert "dead letters" not in heading
    heading, *lines = shown(stage("transfers", dead_letters=1200), stage("balances"))
    assert heading.split()[-2:] == ["dead", "letters"]
    assert "restarts" not in heading
    assert [line.split()[-1] for line in lines] == ["1,200", "–"]
    heading, *lines = shown(stage("transfers", restarts=3), stage("balances", dead_letters=4))
    assert [line.split()[-2:] for line in lines] == [["3", "–"], ["–", "4"]]
    assert all("1,000,000" in line and "12,345" in line for line in lines), "a figure is cut short"


def checkpoint(number: int, status: str = "complete", **figures: float) -> Progress:
    took: dict[str, Any] = {f"{name}_ms": value for name, value in figures.items()}
    began = Progress(SnapshotId(number), Kind.CHECKPOINT, status, "2031-05-17T09:30:00.250Z", slowest="balances")
    return replace(began, duration_ms=sum(took.values()), **took)


def test_where_the_time_of_a_checkpoint_went_is_shown_in_full_and_adds_up() -> None:
    console = Console(width=80, record=True)
    done = checkpoint(1, start_delay=25_000, alignment=900, sync=3, manifest=40)
    table = phase_table((done, checkpoint(2, "failed")))
    assert table is not None
    console.print(table)
    heading, *lines = (" ".join(line.split()) for line in console.export_text().splitlines())
    assert heading == "id took start delay alignment sync async manifest slowest stage"
    assert lines == ["1 25.9 s 25.0 s 900 ms 3.0 ms 0.0 ms 40.0 ms balances"], "one that failed has no phases"


def test_a_phase_that_most_checkpoints_do_not_have_is_shown_when_it_took_time() -> None:
    table = phase_table((checkpoint(1, sync=3), checkpoint(2, sync=3, prepare=800)))
    assert table is not None
    assert "prepare" in [column.header for column in table.columns]
    assert "channels" not in [column.header for column in table.columns]
    assert phase_table((checkpoint(2, "in progress"),)) is None
