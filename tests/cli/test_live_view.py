"""The tables of `strobe status` and the live view."""

from __future__ import annotations

from rich.console import Console

from strobe.cli.live_view import stage_table
from strobe.hosts.spark.metrics import StageStatus


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
