"""Parts of a journal that are damaged, or something else by now: said in words, and not waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.hosts.live.api.topology import NodeSpec, Topology
from strobe.hosts.live.journal import merge as merging
from strobe.hosts.live.journal.journals import note_graph, whole_journal
from strobe.hosts.live.journal.parts import PartWriter, part_path
from strobe.model.errors import Damaged, Misuse
from strobe.model.events import Internal
from strobe.model.ids import Incarnation, NodeId
from strobe.store.layout import JobLayout
from tests.support.live.apps import Account
from tests.support.live.systems import bank

FIRST = Incarnation(1)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The directory of a journal of two nodes, of one step each."""
    topology = bank("ab")
    note_graph(tmp_path, topology)
    directory = tmp_path / JobLayout(topology.name).journal
    for node in map(NodeId, "ab"):
        part = PartWriter(directory, node, FIRST)
        part.initial({"balance": 1})
        part.write(Internal(node, 1, None))
        part.close()
    return directory


def read(tmp_path: Path) -> list[object]:
    return list(whole_journal(tmp_path, bank("ab").name).events())


def test_a_sound_one_is_read(tmp_path: Path, journal: Path) -> None:
    assert read(tmp_path) == [Internal(NodeId("a"), 1, None), Internal(NodeId("b"), 1, None)]


@pytest.mark.parametrize(
    "line",
    [
        b"1", b"{}", b"[]", b'"initial"', b'["internal"]', b'[["internal"]]', b"[" * 100_000, b"\xff", b"1" * 5000,
        b'["crash","a"]', b'["internal","b",1,null]', b'["lost","a-b",1]', b'["initial"]',
        b'["snapshot",{"snapshot":1,"states":{},"channels":{}}]',
    ],
    ids=range(14),
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_line_that_is_none_of_the_node_s_is_named(tmp_path: Path, journal: Path, line: bytes, first: bool) -> None:
    part = part_path(journal, "a", FIRST)
    part.write_bytes(line + b"\n" if first else part.read_bytes() + line + b"\n")
    if (line, first) == (b'["initial"]', False):
        assert len(read(tmp_path)) == 2  # a second one counts for nothing
    else:
        with pytest.raises(Damaged, match=str(journal)):
            read(tmp_path)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [_pipe, Path.mkdir, _device])
@pytest.mark.parametrize("name", ["a.lines", "coordinator.lines"])
def test_a_part_that_is_no_file_is_not_waited_for(
    tmp_path: Path, journal: Path, put: Callable[[Path], None], name: str
) -> None:
    part = part_path(journal, name.removesuffix(".lines"), FIRST)
    part.unlink(missing_ok=True)
    put(part)
    with pytest.raises(Damaged, match=f"{name} cannot be read"):
        read(tmp_path)


def test_a_line_without_end_is_not_taken_into_memory(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_LONGEST", 1000)
    with part_path(journal, "a", FIRST).open("ab") as part:
        part.truncate(1 << 40)
    with pytest.raises(Damaged, match="too long"):
        read(tmp_path)


@pytest.mark.parametrize("change", [
    {"protocol": "none"}, {"protocol": None}, {"graph": []}, {"graph": {}}, {"graph": {"nodes": [], "channels": []}},
    {"graph": {"nodes": [1], "channels": []}}, {"graph": {"nodes": ["a"], "channels": [1]}}, {"graph": "x"},
])  # fmt: skip
def test_a_note_of_the_graph_that_makes_no_sense_is_named(tmp_path: Path, journal: Path, change: object) -> None:
    note = journal / "graph.json"
    assert isinstance(change, dict)
    note.write_text(json.dumps({**json.loads(note.read_text()), **change}))
    with pytest.raises(Damaged, match=r"graph\.json cannot be read"):
        read(tmp_path)


def test_a_node_that_has_the_coordinator_s_name_has_no_part_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="keeps no journal"):
        note_graph(tmp_path, Topology("x", (NodeSpec(NodeId("coordinator"), Account),)))
