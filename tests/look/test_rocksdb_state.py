"""A full copy of RocksDB, and changes after it."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from strobe.look.state_files import stores_of
from strobe.look.state_schema import operators_of
from strobe.look.state_tables import entries_of, rows_of, tables_of
from strobe.store.base import Data
from strobe.store.manifest import BlobRef
from tests.look.world import changelog, row, state

COUNT = 3000


def copied(directory: Path, entries: dict[bytes, bytes]) -> dict[str, Data]:
    """Version 1 of a store, as Spark keeps it: RocksDB's files in an archive, and the large ones beside it."""
    from rocksdict import Options, Rdict

    db = Rdict(str(directory), options=Options(raw_mode=True))
    for key, value in entries.items():
        db[key] = value
    db.flush(True)
    db.close()
    tables = sorted(directory.glob("*.sst"))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for file in directory.iterdir():
            if file.name.startswith(("MANIFEST", "CURRENT", "OPTIONS")):
                packed.write(file, file.name)
        listed = [{"localFileName": t.name, "dfsSstFileName": f"{t.stem}-x.sst"} for t in tables]
        packed.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed}))
    found: dict[str, Data] = {f"state/0/0/SSTs/{t.stem}-x.sst": t.read_bytes() for t in tables}
    return {**found, "state/0/0/1.zip": archive.getvalue()}


def read(files: dict[str, Data]) -> list[tuple[int, int]]:
    def content(path: str) -> bytes:
        data = files[path]
        return data if isinstance(data, bytes) else data.read_bytes()

    refs = {path: BlobRef("0" * 64, 0) for path in files}
    (table,) = tables_of("balances", operators_of(refs, content), None)
    (store,) = stores_of(refs)

    def lay_out(path: str, target: Path) -> None:
        target.write_bytes(content(path))

    entries = entries_of(table, store, content, lay_out)
    rows = [tuple(each.values()) for batch in rows_of(table, entries) for each in batch.to_pylist()]
    return sorted(rows)


def test_changes_take_the_place_of_what_the_copy_has(tmp_path: Path) -> None:
    files = copied(tmp_path / "db", {row(n): row(n * 10) for n in range(COUNT)})
    meta = {path: data for path, data in state().items() if "changelog" not in path}
    expected = {n: n * 10 for n in range(COUNT)}
    assert read({**meta, **files}) == sorted(expected.items())
    changes: list[dict[int, int | None]] = [{5: None, 6: 1, COUNT: 2}, {6: 3, 7: None, 5: 4}]
    for number, each in enumerate(changes, 2):
        files[f"state/0/0/{number}.changelog"] = changelog(each)
        expected = {k: v for k, v in {**expected, **each}.items() if v is not None}
    assert read({**meta, **files}) == sorted(expected.items())


def test_a_copy_that_lacks_a_file_says_which(tmp_path: Path) -> None:
    files = copied(tmp_path / "db", {row(1): row(2)})
    meta = {path: data for path, data in state().items() if "changelog" not in path}
    (large,) = (path for path in files if "SSTs" in path)
    del files[large]
    with pytest.raises(ValueError, match=large.rpartition("/")[2]):
        read({**meta, **files})
