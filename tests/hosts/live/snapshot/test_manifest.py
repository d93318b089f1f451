"""Parts into a manifest: law 1 is checked before anything becomes visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.live.api.codec import encode_message, encode_state
from strobe.hosts.live.api.topology import joined
from strobe.hosts.live.snapshot.bulk import packed
from strobe.hosts.live.snapshot.snapshots import Gathering, NodePart, gathered, load, write
from strobe.hosts.live.wire.control import PartTaken, TimerState
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.consistency import InconsistentCut
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.manifest import Manifest
from strobe.store.snapshots import SnapshotStore

A, B = NodeId("a"), NodeId("b")
GRAPH = Graph((A, B), joined(("a", "b")))
TIME = "2031-05-17T09:30:00.250Z"
TIMER = TimerState("tick", 0.25, 1.5)


def part(**changes: Any) -> PartTaken:
    whole: dict[str, Any] = {
        "incarnation": 1, "snapshot": 1, "state_bytes": 0, "sent": {}, "received": {}, "contents": {},
        "content_bytes": {}, "timers": [],
        "step": 3, "gap_ms": 0.1, "write_ms": 0.2, "align_ms": 0.3, "forked": False, **changes,
    }  # fmt: skip
    return PartTaken(**whole)


def gather(store: SnapshotStore, *, sent: int, received: int, held: int) -> Gathering:
    gathering = Gathering(SnapshotId(1), Kind.CHECKPOINT, Incarnation(1), Timeline(1), TIME, store.begin(SnapshotId(1)))
    items = [encode_message(number) for number in range(received + 1, received + held + 1)]
    state = encode_state({"x": 1}, "a")
    gathering.parts[A] = NodePart(part(sent={"a-b": sent}, timers=[TIMER]), state)
    contents = {ChannelId("a-b"): b"".join(packed(items, held))} if held else {}
    gathering.parts[B] = NodePart(part(received={"a-b": received}, contents={"a-b": held}), state, contents)
    return gathering


def written(store: SnapshotStore, gathering: Gathering) -> Manifest:
    return write(gathering, GRAPH, "job", "chandy-lamport", TIME, None, "test")


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(FilesystemStore(tmp_path), JobLayout("job"), "job")


def test_what_was_gathered_is_what_is_loaded(store: SnapshotStore) -> None:
    gathering = gather(store, sent=7, received=4, held=3)
    written(store, gathering)
    loaded = load(store, SnapshotId(1), GRAPH)
    expected = gathered(gathering)
    assert (loaded.states, loaded.contents, loaded.sent, loaded.received) == (
        expected.states, expected.contents, expected.sent, expected.received
    )  # fmt: skip
    assert loaded.timers == {A: [TIMER], B: []}


@pytest.mark.parametrize(
    ("sent", "received", "held", "what"),
    [
        (7, 4, 2, "holds 2 messages, but a had sent 7 and b had received 4"),
        (7, 4, 4, "holds 4 messages"),
        (3, 4, 0, "an effect without its cause"),
    ],
)
def test_a_cut_that_is_not_consistent_never_becomes_a_snapshot(
    store: SnapshotStore, sent: int, received: int, held: int, what: str
) -> None:
    with pytest.raises(InconsistentCut, match=what):
        written(store, gather(store, sent=sent, received=received, held=held))
    assert store.list() == ()
