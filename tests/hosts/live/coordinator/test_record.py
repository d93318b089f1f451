"""The job record of a live system: numbers that never go back, so a file without them is damaged, not new."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.hosts.live.coordinator.record import RecordFile
from strobe.model.errors import Damaged, Fenced
from strobe.model.ids import Incarnation, SnapshotId, Timeline
from strobe.store.layout import JobLayout


def test_what_was_claimed_is_there_at_the_next_start(tmp_path: Path) -> None:
    record = RecordFile(tmp_path, "bank")
    record.open()
    assert (record.now.incarnation, record.now.timeline, record.now.snapshot) == (0, 0, 0)
    record.claim(Incarnation(1), Timeline(1))
    record.reserve(SnapshotId(100))
    with pytest.raises(Fenced, match="Incarnation 1 of bank has been claimed"):
        record.claim(Incarnation(1), Timeline(2))
    record.close()
    again = RecordFile(tmp_path, "bank")
    again.open()
    assert (again.now.incarnation, again.now.timeline, again.now.snapshot) == (1, 1, 100)
    again.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"timeline": 1, "snapshot": 4}', "missing required field `incarnation`"),
        ('{"incarnation": "2", "timeline": 1, "snapshot": 4}', "Expected `int`, got `str`"),
        ('{"incarnation": 2, "timeline": 1.5, "snapshot": 4}', "Expected `int`, got `float`"),
        ("[]", "not a JSON object"),
        ("", "is empty"),
    ],
)
def test_a_record_that_is_not_whole_is_damaged(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / JobLayout("bank").incarnation
    path.parent.mkdir(parents=True)
    path.write_text(text)
    record = RecordFile(tmp_path, "bank")
    with pytest.raises(Damaged, match=why) as caught:
        record.open()
    record.close()
    assert "must not be lower than what was claimed before" in str(caught.value)
    assert path.read_text() == text
