"""Full copies of a state from outside: archives that are not what they should be end in words, and fill no disk."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import pytest

from strobe.look import state_files
from strobe.look.relations import UNREADABLE
from strobe.look.state_files import StoreFiles

STORE = StoreFiles(0, 0, "default", "2.zip", ())
METADATA = b'v1\n{"sstFiles": []}'


def archive(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return out.getvalue()


def laid(data: bytes, scratch: Path) -> object:
    return state_files._lay_together(STORE, lambda path: data, lambda blob, to: None, scratch)


def test_an_archive_as_spark_writes_it_is_laid_out(tmp_path: Path) -> None:
    assert laid(archive(metadata=METADATA, CURRENT=b"x"), tmp_path) == {}
    assert (tmp_path / "CURRENT").read_bytes() == b"x"


def test_many_files_that_each_are_small_enough_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "_LARGEST_SMALL_FILE", 1000)
    data = archive(metadata=METADATA, **{f"f{n}": b"\0" * 999 for n in range(100)})
    with pytest.raises(ValueError, match="too large"):
        laid(data, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000


def test_an_archive_without_metadata_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no metadata"):
        laid(archive(CURRENT=b"x"), tmp_path)


@pytest.mark.parametrize("at", range(30, 60, 3))
def test_a_damaged_stream_is_unreadable(tmp_path: Path, at: int) -> None:
    data = bytearray(archive(metadata=METADATA + b" " * 99, CURRENT=bytes(range(256)) * 9))
    data[at] ^= 0xFF
    with contextlib.suppress(*UNREADABLE):
        laid(bytes(data), tmp_path)


def test_what_a_damaged_stream_raises_is_one_of_the_unreadable(tmp_path: Path) -> None:
    """A block of a kind that there is not: what zlib says of it is not an OSError, and not a ValueError."""
    data = bytearray(archive(metadata=METADATA))
    data[30 + len("metadata")] = 0xFF
    with pytest.raises(UNREADABLE):
        laid(bytes(data), tmp_path)
