"""Tables of transitions: the docs draw them as they are, and each move in them is one that its machine makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from strobe.model.errors import HostFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator import Coordinator, machine
from strobe.protocol.coordinator.messages import (
    AbortRequested,
    Acknowledged,
    CoordinatorSettings,
    ManifestFailed,
    ManifestWritten,
    NodeLost,
    NodeReady,
    Tick,
    TriggerRequested,
)
from strobe.protocol.restore import RestoreCoordinator, RestoreParticipant
from strobe.protocol.restore import coordinator as restores
from strobe.protocol.restore import participant as nodes
from strobe.protocol.restore.messages import (
    CancelRestore,
    LoadFailed,
    NodeReturned,
    Ready,
    Refused,
    RestoreOrder,
    RestoreRequested,
    Running,
    Start,
    StateLoaded,
    Superseded,
)
from strobe.protocol.transitions import Transitions
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator
from strobe.protocol.two_phase_commit import coordinator as commits
from strobe.protocol.two_phase_commit.messages import (
    Abandon,
    Begin,
    Committed,
    DecisionFailed,
    DecisionLogged,
    Finding,
    Handle,
    InDoubt,
    Judged,
    Opened,
    Prepared,
    Resolved,
    Session,
)
from tests.support.documents import ROOT, blocks_of

TABLES: dict[str, Transitions[Any]] = {
    "a snapshot": machine.TRANSITIONS,
    "a restore": restores.TRANSITIONS,
    "a node in a restore": nodes.TRANSITIONS,
    "a transaction": commits.TRANSITIONS,
}
A = NodeId("a")
ONE, TWO, THREE = Incarnation(1), Incarnation(2), Incarnation(3)


@contextmanager
def taken(table: Transitions[Any]) -> Iterator[set[tuple[Any, str]]]:
    """The moves that are made by this table meanwhile."""
    moves: set[tuple[Any, str]] = set()
    after = table.after

    def noting(phase: Any, event: str) -> Any:
        following = after(phase, event)
        moves.add((phase, event))
        return following

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "after", noting)
        yield moves


def snapshots() -> None:
    coordinator = Coordinator({A: ()}, CoordinatorSettings(tolerable_failures=9))
    ack = [Acknowledged(SnapshotId(n), A, ONE) for n in range(4)]
    for each in (
        Tick(0), NodeReady(A, ONE),
        TriggerRequested("1"), ack[1], ManifestWritten(SnapshotId(1)),
        TriggerRequested("2"), ack[2], ManifestFailed(SnapshotId(2), "no place"),
        TriggerRequested("3"), AbortRequested(SnapshotId(3), "asked"),
    ):  # fmt: skip
        coordinator.step(each)


def a_restore(*inputs: Any) -> None:
    coordinator = RestoreCoordinator([A], incarnation=ONE, timeline=Timeline(1), attempts=2)
    for each in (Tick(0), *inputs):
        coordinator.step(each)


def restored() -> None:
    begin, lost, over = RestoreRequested(SnapshotId(7)), NodeLost(A, "gone"), CancelRestore("asked")
    a_restore(begin, Ready(A, TWO), Running(A, TWO), Superseded(THREE))
    a_restore(begin, Ready(A, TWO), lost, over)
    a_restore(begin, Refused(A, TWO, "no"), Refused(A, THREE, "no"))
    a_restore(begin, Ready(A, TWO), over)
    a_restore(begin, lost, NodeReturned(A), Superseded(Incarnation(9)))
    a_restore(begin, lost, Superseded(THREE))
    a_restore(begin, Ready(A, TWO), Superseded(THREE))


def a_node() -> None:
    node = RestoreParticipant(A)
    for each in (
        Start(ONE),
        RestoreOrder(TWO, Timeline(1), SnapshotId(7)), LoadFailed(TWO, "no such file"),
        RestoreOrder(THREE, Timeline(1), SnapshotId(7)),
        RestoreOrder(Incarnation(4), Timeline(1), SnapshotId(7)), StateLoaded(Incarnation(4)),
        RestoreOrder(Incarnation(5), Timeline(1), SnapshotId(7)), StateLoaded(Incarnation(5)), Start(Incarnation(5)),
        Start(Incarnation(6)),
    ):  # fmt: skip
        node.step(each)


def transactions() -> None:
    session = Session(ONE, ONE)
    for judges, votes in ((True, 1), (False, 3)):
        coordinator = TwoPhaseCoordinator([A], ONE, judges=judges)
        for each in (Opened(), InDoubt(A, session, handles=(), keeps=True), Resolved(A, session)):
            coordinator.step(each)
        for n in range(1, votes + 1):
            coordinator.step(Begin(SnapshotId(n)))
            if n == 2:
                coordinator.step(Abandon(SnapshotId(n), "asked"))
                continue
            coordinator.step(Prepared(A, session, SnapshotId(n), (Handle(f"a/{n}"),)))
            if n == 3:
                coordinator.step(DecisionFailed(SnapshotId(n), "no place"))
                continue
            coordinator.step(DecisionLogged(SnapshotId(n)))
            if judges:
                coordinator.step(Judged(SnapshotId(n), Finding.HOLDS))
            coordinator.step(Committed(A, session, SnapshotId(n)))


PLAYS: dict[str, Callable[[], None]] = {
    "a snapshot": snapshots,
    "a restore": restored,
    "a node in a restore": a_node,
    "a transaction": transactions,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_move_of_a_table_is_made(name: str) -> None:
    with taken(TABLES[name]) as moves:
        PLAYS[name]()
    assert moves == TABLES[name].moves.keys()


def test_the_docs_draw_the_tables_as_they_are() -> None:
    page = (ROOT / "docs" / "reference" / "phases.md").read_text(encoding="utf-8")
    drawn = [block.text.strip() for block in blocks_of(page) if block.language == "mermaid"]
    assert drawn == [table.drawing() for table in TABLES.values()]


@pytest.mark.parametrize("name", TABLES)
def test_a_move_that_is_not_in_the_table_is_refused(name: str) -> None:
    table = TABLES[name]
    with pytest.raises(HostFault, match="Nothing leads on from"):
        table.after(table.first, "a miracle")
