"""What commands print, read with one's own eyes: whole tables, plain words, the name that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.cli.job_list import newest_checkpoint
from strobe.cli.live_view import stage_table
from strobe.cli.output import Session
from strobe.cli.snapshots import _in_words
from strobe.hosts.spark.snapshot.metrics import StageStatus
from tests.cli.conftest import Strobe

LONG = "orders-of-all-shops-enriched-with-prices-and-addresses-of-their-customers"


def test_a_table_in_a_pipe_is_neither_cut_short_nor_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stage = StageStatus(LONG, "running", 7, 1234.0, 5, None, None, 120.0, None, 0)
    Session(json=False, place=".").console.print(stage_table((stage,)))
    heading, line = capsys.readouterr().out.splitlines()
    assert line.split()[0] == LONG
    assert line.split()[-2:] == ["–", "–"], "what is not known is not 0"
    assert heading.split()[-4:] == ["lag", "rows", "state", "rows"]


@pytest.mark.parametrize(
    ("kept", "told"),
    [((), "no checkpoint"), ((15,), "newest checkpoint 15"), ((13, 14, 15), "newest checkpoint 15 (3 are kept)")],
)
def test_the_id_of_a_checkpoint_cannot_be_taken_for_a_count(kept: tuple[int, ...], told: str) -> None:
    assert newest_checkpoint("ledger", kept) == told


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lst", "list"), ("chekpoint", "checkpoint"), ("inspct", "inspect"), ("nothing-like-it", "")],
)
def test_a_command_that_is_nearly_right_is_answered_with_the_one_that_was_meant(
    strobe: Strobe, typed: str, meant: str
) -> None:
    done = strobe(typed, "ledger")
    assert done.code == 2
    question = f" Did you mean {meant!r}?" if meant else ""
    assert done.err.splitlines()[0] == f"error: No such command {typed!r}.{question}"


@pytest.mark.parametrize("command", ["status", "logs", "inspect", "cancel"])
def test_a_job_that_is_nearly_right_is_answered_with_the_one_that_was_meant(
    strobe: Strobe, command: str, tmp_path: Path
) -> None:
    (tmp_path / ".strobe/jobs/ledger").mkdir(parents=True)
    assert "next:  Did you mean 'ledger'? The jobs there: ledger." in strobe(command, "leger").err


def test_what_a_sink_says_of_itself_is_shown_in_words() -> None:
    delta = {"letters": {"batch": 2, "timeline": 1}, "path": "/out", "version": 4}
    assert _in_words(delta) == "path /out, letters (batch 2, timeline 1), version 4"
    assert _in_words({"lineage": [[1, 4], [2, 9]], "path": "/files"}) == "path /files, lineage (1 4) (2 9)"
    assert _in_words(None) == "nothing to go back to"
    assert _in_words({"offset": None, "seen": []}) == "seen none"
    assert _in_words("as it is") == "as it is"
