"""The file of verdicts has one writer: the driver that opened it last."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome, Verdict
from strobe.store import verdicts
from strobe.store.layout import JobLayout
from strobe.store.verdicts import VerdictLog, read_verdicts


def verdict(snapshot: int) -> Verdict:
    return Verdict("it holds", SnapshotId(snapshot), Outcome.HOLDS)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / JobLayout("job").root).mkdir(parents=True)
    return tmp_path


def noted(home: Path) -> list[int]:
    return [int(v.snapshot) for v in read_verdicts(home, "job")]


def test_a_driver_that_was_given_up_adds_no_verdict(home: Path) -> None:
    old = VerdictLog(home, "job")
    old.append(verdict(1))
    new = VerdictLog(home, "job")
    new.append(verdict(2))
    old.append(verdict(3))
    new.append(verdict(4))
    assert noted(home) == [1, 2, 4]


def test_a_torn_line_costs_one_verdict(home: Path) -> None:
    VerdictLog(home, "job").append(verdict(1))
    with (home / JobLayout("job").verdicts).open("ab") as file:
        file.write(b'{"invariant": "it h')
    VerdictLog(home, "job").append(verdict(2))
    assert noted(home) == [1, 2]


def test_a_line_that_did_not_fit_costs_one_verdict(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = VerdictLog(home, "job")

    class Full(io.RawIOBase):
        def write(self, data: object) -> int:
            file.write(b'{"invar')
            raise OSError(28, "No space left on device")

    file, log._lines._file = log._lines._file, Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        log.append(verdict(1))
    log._lines._file = file
    log.append(verdict(2))
    assert noted(home) == [2]


def test_the_oldest_go_when_there_are_too_many(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_KEPT", 3)
    monkeypatch.setattr(verdicts, "_ROOM", 6)
    for snapshot in range(1, 9):
        VerdictLog(home, "job").append(verdict(snapshot))
    assert noted(home) == [5, 6, 7, 8]
