"""Small files are put in place as a whole, and durably."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from strobe.hosts.shared.durable import write_durably


def test_the_file_is_the_old_one_until_it_is_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "a.json", list[tuple[str, str]]()
    path.write_text("old")
    replace, sync = os.replace, os.fsync

    def note(what: str) -> None:
        seen.append((what, path.read_text()))

    def noting_replace(fresh: Path, to: Path) -> None:
        note("replace")
        replace(fresh, to)

    def noting_sync(fd: int) -> None:
        note(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "fsync", noting_sync)
    assert write_durably(path, "new")
    assert seen == [(str(tmp_path / ".a.json.fresh"), "old"), ("replace", "old"), (str(tmp_path), "new")]
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_disk_that_is_full_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, "new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.json": "old"}


def test_one_that_is_not_to_be_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    assert write_durably(path, "first", replace=False)
    assert not write_durably(path, b"second", replace=False)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"owner": "first"}
