"""What a sink showed at the cut: tables and directories as the snapshot notes them.

A Delta table is read at its version, a directory of files by the batches that belong to the cut. Other sinks (a topic,
a database) cannot be read as they were, and the relation says so. The place is where it was when the snapshot was
taken; nothing there is followed but regular files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from strobe.look.delta_log import read_files, table_at
from strobe.model.cut import Json
from strobe.model.errors import Failed
from strobe.model.paths import check_absolute
from strobe.store.tree import Tree

__all__ = ["sink_rows"]

_BATCH: Final = re.compile(r"batch=([0-9]{1,18})-([0-9]{1,18})")


def sink_rows(name: str, position: Json) -> pa.Table:
    if isinstance(position, Mapping) and isinstance(position.get("path"), str):
        root = Path(check_absolute(position["path"], "path"))
        if position.get("version").__class__ is int:
            return _delta(root, int(str(position["version"])))
        if isinstance(position.get("lineage"), list):
            return _directory(root, position["lineage"])
    raise Failed(
        f"sink {name} keeps no rows that could be read as they were at the cut",
        next="Delta tables and directories of files can be asked.",
    )


def _delta(root: Path, version: int) -> pa.Table:
    table = table_at(root, version)
    tables = [rows for _, rows in read_files(table, table.files)]
    if tables:
        return pa.concat_tables(tables)
    return pa.schema([pa.field(c.name, c.type.arrow) for c in table.columns]).empty_table()


def _directory(root: Path, lineage: list[Any]) -> pa.Table:
    last: dict[int, int] = {int(line[0]): int(line[1]) for line in lineage}
    tables = list(_files(root, last))
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _files(root: Path, last: Mapping[int, int]) -> Iterator[pa.Table]:
    tree = Tree(root)
    # What a restore has moved aside may belong to this cut, if it is of a line that was left.
    for above in ("", *(f".strobe/left/{n}/" for n in _children(tree, ".strobe/left")), ".strobe/left/"):
        names = _children(tree, above.rstrip("/")) if above else sorted(p.name for p in root.iterdir() if p.is_dir())
        for name in names:
            match = _BATCH.fullmatch(name)
            if match is None or int(match[2]) > last.get(int(match[1]), -1):
                continue
            for file in sorted(tree.names(above + name)):
                if not file.startswith((".", "_")):
                    with tree.open_read(f"{above}{name}/{file}") as opened:
                        yield _rows(file, pa.PythonFile(opened))


def _children(tree: Tree, key: str) -> list[str]:
    return tree.children(key)


def _rows(name: str, file: Any) -> pa.Table:
    if ".parquet" in name:
        return pq.read_table(file)
    if ".json" in name:
        return pyarrow.json.read_json(pa.BufferReader(file.read()))
    if ".csv" in name:
        return pyarrow.csv.read_csv(pa.BufferReader(file.read()))
    raise Failed(f"{name} is not a Parquet, JSON or CSV file")
