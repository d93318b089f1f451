"""`strobe debug`: keys, mouse and pages through Textual's pilot; what is printed; one clear message for nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from strobe.cli.debug_app import HELP, Compared, DebugApp
from strobe.cli.debug_view import DiagramView, Page
from strobe.cli.recorded import open_run
from strobe.hosts.sim.runner import SimConfig, run
from strobe.model.ids import NodeId
from strobe.predicates.compare import compare
from strobe.predicates.walk import walk_through
from tests.cli.conftest import Strobe
from tests.support.journals import journal_bytes

Drive = Callable[[DebugApp, Pilot[None]], Awaitable[None]]


def write(path: Path, **options: object) -> Path:
    journal = run(SimConfig("bank", **options)).journal  # type: ignore[arg-type]
    assert journal is not None
    path.write_bytes(journal_bytes(journal))
    return path


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("debug") / "run.journal", seed=7, snapshots=3)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("debug") / "other.journal", seed=7, snapshots=3, delays="uniform:1:19")


def drive(journal: Path, what: Drive, other: Path | None = None, size: tuple[int, int] = (120, 36)) -> DebugApp:
    _, ours = open_run(str(journal), None)
    walk = walk_through(ours)
    compared = None
    if other is not None:
        _, theirs = open_run(str(other), None)
        compared = Compared(theirs, compare(ours, theirs), (journal.name, other.name))
    app = DebugApp(ours, walk, ours.computation.first, title=journal.name, compared=compared)

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await what(app, pilot)

    asyncio.run(go())
    return app


def test_down_and_up_walk_along_the_recorded_run(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "j", "down")
        assert sum(app.cut) == 3
        await pilot.press("up", "k")
        assert sum(app.cut) == 1
        await pilot.press("pagedown", "pagedown", "pageup")
        assert sum(app.cut) == 11
        await pilot.press("end")
        assert sum(app.cut) == 160
        await pilot.press("down")
        assert "the end" in app.said
        await pilot.press("home", "up")
        assert sum(app.cut) == 0
        assert "the start" in app.said

    drive(journal, keys)


def test_one_node_moves_alone_and_says_who_came_along(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("home", "right", "f")
        assert app.chosen == 1
        assert app.cut[1] == 1
        assert sum(app.cut) > 1, "what n2 received had to be sent"
        assert "came along" in app.said
        cut = app.cut
        await pilot.press("b")
        assert app.cut[1] == 0
        await pilot.press("u")
        assert app.cut == cut
        await pilot.press("u", "r")
        assert app.cut == cut
        await pilot.press("left", "left")
        assert app.chosen == (app._walk.last_node(cut) - 2) % 4

    drive(journal, keys)


def test_cause_and_effect_go_to_the_send_and_to_the_receipt(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("right", "f")
        receipt, receiver = app.cut, app.chosen
        await pilot.press("c")
        assert app.chosen != receiver
        assert app.cut[receiver] == receipt[receiver] - 1
        sender = app.chosen
        await pilot.press("c")
        assert "received nothing" in app.said
        await pilot.press("e")
        assert (app.chosen, app.cut[app.chosen]) == (receiver, receipt[receiver])
        assert app.chosen != sender

    drive(journal, keys)


def test_snapshots_one_after_the_other(journal: Path) -> None:
    _, ours = open_run(str(journal), None)

    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        seen = set()
        for _ in range(3):
            await pilot.press("s")
            assert "recorded here" in app.said
            seen.add(app.cut)
        assert seen == set(ours.snapshots.values())
        await pilot.press("s")
        assert "no snapshot after" in app.said
        await pilot.press("S", "S", "S")
        assert "no snapshot before" in app.said

    drive(journal, keys)


def test_a_condition_is_asked_for_and_its_changes_are_found(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("n")
        assert "Which condition?" in app.said
        await pilot.press("slash")
        await pilot.press(*"n1.balence<900", "enter")
        assert "no 'balence'" in app.said, "a mistake is told, and the program goes on"
        await pilot.press("slash")
        app.query_one("#condition", Input).value = "n1.balance < 900"
        await pilot.press("enter", "n")
        assert app.said == "Here it starts to hold."
        _, ours = open_run(str(journal), None)
        assert ours.cut(app.cut).states[NodeId("n1")]["balance"] < 900
        first = app.cut
        await pilot.press("n")
        assert app.said in ("Here it stops to hold.", "It does not change from here to the end.")
        await pilot.press("end", "N")
        while "does not change" not in app.said:
            await pilot.press("N")
        assert app.cut == first
        assert "does not change before" in app.said
        await pilot.press("home", "p")
        assert app.said == "Here it could have held."
        assert ours.cut(app.cut).states[NodeId("n1")]["balance"] < 900
        app.query_one("#condition", Input).value = "node.balance < -9000"
        await pilot.press("slash")
        app.query_one("#condition", Input).value = "node.balance < -9000"
        await pilot.press("enter", "p")
        assert "no consistent cut" in app.said

    drive(journal, keys)


def test_escape_leaves_the_condition_and_keys_move_again(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "j", "j", "escape", "j")
        assert sum(app.cut) == 1

    drive(journal, keys)


def test_a_click_into_a_lane_cuts_it_there(journal: Path) -> None:
    async def mouse(app: DebugApp, pilot: Pilot[None]) -> None:
        header = "".join(text for text, _ in app.query_one(DiagramView)._diagram.header(0))
        await pilot.click(DiagramView, offset=(header.index("n2"), 12))
        await pilot.pause()
        assert app.chosen == 1
        assert app.cut[1] == app._walk.prefix(12)[1] > 0
        assert app._walk.computation.is_consistent(app.cut)
        before = app.cut
        await pilot.click(DiagramView, offset=(header.index("n4"), 0))
        await pilot.pause()
        assert (app.chosen, app.cut) == (3, before), "a name only chooses"
        await pilot.click(DiagramView, offset=(header.index("n2"), 2))
        await pilot.pause()
        assert app.cut[1] == 0

    drive(journal, mouse)


def test_help_has_every_key_and_closes(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        await pilot.press("escape")
        assert not isinstance(app.screen, Page)

    app = drive(journal, keys)
    named = {"down": "↓", "up": "↑", "left": "←", "right": "→", "slash": "/", "equals_sign": "=", "question_mark": "?",
             "pagedown": "PgDn", "pageup": "PgUp", "home": "Home", "end": "End"}  # fmt: skip
    words = set(HELP.split())
    for binding in app.BINDINGS:
        for key in binding.key.split(","):  # type: ignore[union-attr]
            assert key == "escape" or named.get(key, key) in words, key


def test_two_runs_side_by_side(journal: Path, other: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("equals_sign")
        assert app._compared is not None
        assert app.cut == app._compared.found.at
        await pilot.press("d")
        assert isinstance(app.screen, Page)
        assert any("Then they part" in line for line in app.screen._lines)
        await pilot.press("d")

    drive(journal, keys, other)

    async def alone(app: DebugApp, pilot: Pilot[None]) -> None:
        await pilot.press("d")
        assert "--with" in app.said

    drive(journal, alone)


def test_a_small_window_follows_the_cut(journal: Path) -> None:
    async def keys(app: DebugApp, pilot: Pilot[None]) -> None:
        view = app.query_one(DiagramView)
        await pilot.press("end")
        await pilot.pause()
        assert view.scroll_offset.y + view.size.height >= 160
        await pilot.press("home")
        await pilot.pause()
        assert view.scroll_offset.y == 0

    drive(journal, keys, size=(40, 12))


def test_without_a_terminal_it_says_so_and_print_needs_none(strobe: Strobe, journal: Path) -> None:
    refused = strobe("debug", str(journal))
    assert refused.code == 2
    assert "a program for a terminal" in refused.err
    assert "--print" in refused.err
    printed = strobe("debug", str(journal), "--print", "--when", "n1.balance < 900")
    assert printed.code == 0
    assert "◆" in printed.out
    assert "In flight: " in printed.out


def test_json_has_the_cut_the_snapshots_and_the_difference(strobe: Strobe, journal: Path, other: Path) -> None:
    answer = strobe("debug", str(journal), "--json", "--with", str(other), "--when", "n1.balance < 900").json
    assert answer["holds"] is True
    assert answer["cut"]["states"]["n1"]["balance"] < 900
    assert len(answer["snapshots"]) == 3
    assert answer["difference"]["same"] is False
    assert 0 < sum(answer["difference"]["at"].values()) < 160
    same = strobe("debug", str(journal), "--print", "--with", str(journal))
    assert "are the same run: 160 steps" in same.out


def test_nonsense_is_answered_with_one_sentence(strobe: Strobe, journal: Path, tmp_path: Path) -> None:
    three = write(tmp_path / "three.journal", seed=1, nodes=3)
    for arguments, part in (
        (["nothing.journal"], "There is no 'nothing.journal': neither a journal nor a snapshot"),
        ([str(tmp_path)], "is not a snapshot: it holds no manifest.json"),
        ([str(journal), "--when", "n9.balance < 0"], "n9"),
        ([str(journal), "--when", "n1.balance < -9000"], "never holds"),
        ([str(journal), "--with", str(three)], "different systems"),
        ([str(journal), "--epoch", "3"], "no epoch 3"),
    ):
        done = strobe("debug", *arguments, "--print")
        assert done.code == 2, done
        assert part in done.err
        assert "Traceback" not in done.err
