"""Full copies of a state from outside: archives that are not what they should be end in words, and fill no disk."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import zipfile
from concurrent.futures import ProcessPoolExecutor
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


# ── what RocksDB, and the library around it, would do by itself ─────────────────────────────────────────────────────


class Evil:
    """Whoever unpickles it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._mark,)


def copy_of(directory: Path, entries: dict[bytes, object], *, raw: bool) -> dict[str, bytes]:
    """The files of a RocksDB with these entries."""
    from rocksdict import Options, Rdict

    db = Rdict(str(directory), options=Options(raw_mode=raw))
    for key, value in entries.items():
        db[key] = value
    db.flush(True)
    db.close()
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.suffix not in (".log", "")} | {
        file.name: file.read_bytes() for file in directory.iterdir() if file.name.startswith(("MANI", "OPT", "CURR"))
    }


def entries_in(files: dict[str, bytes], scratch: Path, tables: dict[str, str] | None = None) -> list[bytes]:
    """The values of a store whose archive has these files, with all that makes RocksDB read its own options."""
    ssts = {name: content for name, content in files.items() if name.endswith(".sst")}
    local = {name: name for name in ssts} | (tables or {})
    listed = [{"localFileName": name, "dfsSstFileName": stored} for name, stored in local.items()]
    metadata = {"sstFiles": listed, "columnFamilyMapping": {"default": 0}}
    small = {name: content for name, content in files.items() if name not in {*ssts, *(tables or {})}}
    data = archive(metadata=b"v1\n" + json.dumps(metadata).encode(), **small)
    store = StoreFiles(0, 0, "default", "2.zip", (), {stored: stored for stored in local.values()})
    stored = {local[name]: files[name] for name in local}
    scratch.mkdir()
    found = state_files.read_entries(store, lambda _: data, lambda blob, to: _write(to, stored[blob]), scratch)
    return [value for chunk in found.chunks for value in chunk.values.to_list()]


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_no_state_is_unpickled(tmp_path: Path) -> None:
    """The library that reads RocksDB asks a file beside it whether values are pickles."""
    files = copy_of(tmp_path / "db", {b"k": Evil(tmp_path / "owned")}, raw=False)
    assert "rocksdict-config.json" in files
    with contextlib.suppress(*UNREADABLE):
        entries_in(files, tmp_path / "one")
    with contextlib.suppress(*UNREADABLE):
        entries_in(files, tmp_path / "two", {"rocksdict-config.json": "7-x.sst"})
    assert not (tmp_path / "owned").exists()


def test_a_table_of_the_state_has_the_name_of_a_table(tmp_path: Path) -> None:
    files = copy_of(tmp_path / "db", {b"k": b"v"}, raw=True)
    for number, name in enumerate(("CURRENT", "rocksdict-config.json", "OPTIONS-000009", "LOCK", "x.sst", "7.log")):
        with pytest.raises(ValueError, match="no table of RocksDB"):
            entries_in({**files, name: b"{}"}, tmp_path / str(number), {name: "7-x.sst"})


@pytest.mark.parametrize(
    "option", ["table_cache_numshardbits=30", "max_file_opening_threads=1000000", "wal_dir=/", "max_open_files=0"]
)
def test_options_that_come_with_a_state_are_not_obeyed(option: str, tmp_path: Path) -> None:
    """One of them ends the process, so it is read in another one."""
    files = copy_of(tmp_path / "db", {b"k": b"v"}, raw=True)
    (options,) = (name for name in files if name.startswith("OPTIONS"))
    kept = [line for line in files[options].decode().splitlines() if not line.strip().startswith(option.split("=")[0])]
    kept.insert(kept.index("[DBOptions]") + 1, f"  {option}")
    files[options] = "\n".join(kept).encode()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(entries_in, files, tmp_path / "there").result() == [b"v"]


def test_lists_are_still_appended_to_as_the_options_say(tmp_path: Path) -> None:
    files = copy_of(tmp_path / "db", {b"k": b"v"}, raw=True)
    (options,) = (name for name in files if name.startswith("OPTIONS"))
    appended = b"merge_operator={id=StringAppendOperator;delimiter=,;}"
    files[options] = files[options].replace(b"merge_operator=nullptr", appended)
    assert appended in files[options]
    assert entries_in(files, tmp_path / "there") == [b"v"]
    (kept,) = (tmp_path / "there").glob("OPTIONS-*")
    assert appended in kept.read_bytes()
