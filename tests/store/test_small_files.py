"""A small file of a home is read as a whole, or refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strobe.store.small_files import open_regular, read_object, read_small


def test_a_file_is_read_and_one_that_is_missing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'{"a": 1}')
    assert read_small(tmp_path / "a") == b'{"a": 1}'
    assert read_object(tmp_path / "a") == {"a": 1}
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "b")


def test_a_pipe_a_directory_and_a_link_to_one_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "directory", "link"):
        with pytest.raises(OSError, match="not a regular file"):
            read_small(tmp_path / name)
        with pytest.raises(OSError):
            open_regular(tmp_path / name)


def test_a_file_of_terabytes_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    with pytest.raises(OSError, match="larger than such a file can be"):
        read_small(tmp_path / "sparse")
    (tmp_path / "a").write_bytes(b"12345")
    assert read_small(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="larger"):
        read_small(tmp_path / "a", 4)


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 99_999, b'{"a":' * 99_999, b"\xff", b"NaN", b'{"a":1}x'])
def test_what_is_no_object_is_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError):
        read_object(tmp_path / "a")
