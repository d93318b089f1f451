"""`strobe explain`: where the time of a snapshot went, from histories that are made up."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from strobe.cli.explain import cause, in_one_sentence
from strobe.hosts.spark.home.critical_path import critical_path, missing_parts, stuck_at
from strobe.hosts.spark.home.history import PastSnapshot, PastStage, SnapshotHistory
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.store.layout import JobLayout
from tests.cli.conftest import Strobe
from tests.web.homes import a_manifest, graph_of, put_history, put_manifest, put_runtime

PHASES = ("start_delay", "alignment", "sync", "channels", "async", "prepare", "acknowledge")
JOIN = graph_of({"orders": [], "payments": [], "joined": ["orders", "payments"], "totals": ["joined"]})


def part(*ms: float, new: int = 0) -> PastStage:
    return PastStage(dict(zip(PHASES, ms, strict=False)), bytes_new=new)


def past(slowest: str, manifest: float = 0.0, **stages: PastStage) -> PastSnapshot:
    phases = {**stages[slowest].phases, "manifest": manifest}
    return PastSnapshot(
        12, "checkpoint", "complete", "2031-05-17T09:30:00Z", "2031-05-17T09:30:01Z", 1, 1, sum(phases.values()),
        phases, slowest, stages=stages,
    )  # fmt: skip


def told(snapshot: PastSnapshot, graph: Graph | None = JOIN) -> list[tuple[str, str, float, float, str]]:
    return [(s.stage, s.phase, s.begin, s.end, s.channel) for s in critical_path(snapshot, graph)]


def sentence(snapshot: PastSnapshot, graph: Graph | None = JOIN) -> str:
    return in_one_sentence(snapshot, graph, critical_path(snapshot, graph))


def test_the_time_before_a_barrier_is_that_of_the_stage_which_placed_it() -> None:
    """`payments` was in a long batch. `joined` and `totals` only waited: their own figures look as bad as its."""
    snapshot = past(
        "totals", 5,
        orders=part(10, 0, 2), payments=part(3000, 0, 2), joined=part(12, 2990, 3),
        totals=part(3006, 0, 1, 0, 40, 0, 1),
    )  # fmt: skip
    assert told(snapshot) == [
        ("payments", "start_delay", 0, 3000, ""), ("payments", "sync", 3000, 3002, ""),
        ("joined", "sync", 3002, 3005, "payments"), ("totals", "start_delay", 3005, 3006, "joined"),
        ("totals", "sync", 3006, 3007, "joined"), ("totals", "async", 3007, 3047, "joined"),
        ("totals", "acknowledge", 3047, 3048, "joined"), ("", "manifest", 3048, 3053, ""),
    ]  # fmt: skip
    assert sentence(snapshot) == (
        "checkpoint 12 took 3053 ms, 3000 ms (98%) of it because stage 'payments' had yet to end its batch, or to look "
        "for the next one."
    )


def test_a_backlog_before_the_barrier_is_told_apart_from_a_barrier_that_comes_late() -> None:
    snapshot = past("joined", orders=part(1, 0, 1), payments=part(4, 0, 1), joined=part(2, 898, 1, 0, 9))
    longest = max(critical_path(snapshot, JOIN), key=lambda span: span.took)
    assert (longest.stage, longest.phase, longest.channel, longest.begin) == ("joined", "alignment", "payments", 5)
    assert "stage 'joined' had yet to read what lay before the barrier in channel 'payments'" in sentence(snapshot)


def test_the_path_is_as_long_as_the_snapshot_whatever_the_figures_say() -> None:
    """A barrier that seems to have been placed after its reader was done: nothing is counted twice, nothing is left."""
    for late in (0.0, 50.0, 90.0, 5000.0):
        snapshot = past(
            "joined", 7, orders=part(1, 0, 1), payments=part(late, 0, 1), joined=part(40, 40, 5, 20, 9, 1, 1)
        )
        path = critical_path(snapshot, JOIN)
        assert path[0].begin == 0
        assert all(one.end == after.begin for one, after in pairwise(path))
        assert path[-1].end == snapshot.duration_ms


def test_an_unaligned_stage_waits_for_the_last_barrier_after_it_was_recorded() -> None:
    snapshot = past("joined", orders=part(1, 0, 1), payments=part(400, 0, 1), joined=part(2, 0, 1, 498, 9))
    assert ("joined", "channels", 401, 501, "payments") in told(snapshot)
    assert ("payments", "start_delay", 0, 400, "") in told(snapshot)


def test_a_stage_that_was_told_to_start_blames_nobody_for_what_it_did_before_it_was_recorded() -> None:
    busy = past("joined", orders=part(300, 0, 1), payments=part(400, 0, 1), joined=part(900, 0, 1, 0, 9))
    everywhere = msgspec.structs.replace(busy, everywhere=True)
    assert ("payments", "start_delay", 0, 400, "") in told(busy)
    assert told(everywhere)[0] == ("joined", "start_delay", 0, 900, "")
    waits = past("joined", orders=part(1, 0, 1), payments=part(400, 0, 1), joined=part(2, 0, 1, 498, 9))
    path = told(msgspec.structs.replace(waits, everywhere=True))
    assert path[:3] == [
        ("payments", "start_delay", 0, 400, ""), ("payments", "sync", 400, 401, ""),
        ("joined", "channels", 401, 501, "payments"),
    ]  # fmt: skip


def test_files_sinks_and_the_manifest_are_named() -> None:
    slow_store = past("orders", orders=part(1, 0, 1, 0, 900, 5, 1, new=5_000_000))
    assert sentence(slow_store).endswith("because the files of stage 'orders' went to the store, 5.0 MB of them new.")
    slow_sink = past("orders", orders=part(1, 0, 1, 0, 9, 500, 1))
    assert sentence(slow_sink).endswith("because the sinks of stage 'orders' prepared their transactions.")
    slow_manifest = past("orders", 700, orders=part(1, 0, 1, 0, 9, 5, 1))
    assert sentence(slow_manifest).endswith("because the manifest was written, after all parts had come.")


def test_without_a_graph_nobody_is_blamed() -> None:
    snapshot = past("totals", totals=part(3000, 0, 1))
    assert "the barrier was on its way to stage 'totals', or a batch of that stage was running" in sentence(
        snapshot, None
    )


def test_a_loop_ends() -> None:
    channels = [("a", "b", False), ("b", "a", True), ("b", "c", False)]
    loop = Graph(
        (NodeId("a"), NodeId("b"), NodeId("c")),
        tuple(Channel(ChannelId(f"{s}.{t}"), NodeId(s), NodeId(t), back) for s, t, back in channels),
    )
    snapshot = past("c", a=part(5, 1, 1), b=part(7, 1, 1), c=part(9, 1, 1))
    assert critical_path(snapshot, loop)[0].stage == "a"


def test_of_a_failed_one_the_stage_is_named_that_holds_up_the_others() -> None:
    failed = PastSnapshot(
        13, "checkpoint", "failed", "", "", 1, 1, 60_000.0, reason="it took longer than 60 s.",
        stages={"orders": part(1, 0, 1), "payments": part(1, 0, 1)},
    )  # fmt: skip
    assert missing_parts(failed, JOIN) == ("joined", "totals")
    assert stuck_at(failed, JOIN) == ("joined",)
    assert sentence(failed) == (
        "checkpoint 13 failed after 60.0 s: it took longer than 60 s; the part of stage 'joined' (and 1 behind it) had "
        "not come."
    )
    assert sentence(failed, None) == "checkpoint 13 failed after 60.0 s: it took longer than 60 s."


def test_an_older_strobe_noted_no_phases() -> None:
    old = PastSnapshot(3, "savepoint", "complete", "", "", 1, 1, 1500.0)
    assert sentence(old) == "savepoint 3 took 1500 ms; where that time went was not noted."
    failed = PastSnapshot(4, "checkpoint", "failed", "", "", 1, 1, 5.0)
    assert sentence(failed, None) == "checkpoint 4 failed after 5 ms: why was not noted."


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_draws_one_line_for_each_stage(strobe: Strobe, tmp_path: Path) -> None:
    put_runtime(tmp_path, "shop")
    put_manifest(tmp_path, a_manifest("shop", 12, {"orders": [], "totals": ["orders"]}))
    file = tmp_path / JobLayout("shop").history
    SnapshotHistory(file).note(past("totals", 10, orders=part(40, 0, 0, 0, 10), totals=part(40, 0, 10, 0, 40)))
    done = strobe("explain", "shop/12", "--home", str(tmp_path))
    assert done.code == 0
    assert done.out.startswith(
        "checkpoint 12 took 100 ms, 40.0 ms (40%) of it because stage 'orders' had yet to end its batch"
    )
    lines = {line.split(" ")[0]: line for line in done.out.splitlines()}
    assert lines["orders"].rstrip().endswith("·" * 24 + "▓" * 6 + " " * 32 + "50.0 ms")
    assert lines["totals"].count("·") == lines["totals"].count("▓") == 24
    assert lines["totals"].count("█") == lines["(manifest)"].count("#") == 6
    assert "50.0 ms –   90.0 ms  the files of stage 'totals' went to the store" in done.out
    told = strobe("explain", "shop/12", "--home", str(tmp_path), "--json").json
    assert (told["snapshot"], told["path"][0]["stage"], told["path"][-1]["phase"]) == (12, "orders", "manifest")
    assert told["sentence"] == done.out.splitlines()[0]


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_the_drawing_fits_the_terminal(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    put_runtime(tmp_path, "shop")
    put_manifest(tmp_path, a_manifest("shop", 12, {"orders": [], "totals": ["orders"]}))
    file = tmp_path / JobLayout("shop").history
    SnapshotHistory(file).note(past("totals", 10, orders=part(40, 0, 0, 0, 10), totals=part(40, 0, 10, 0, 40)))
    monkeypatch.setenv("COLUMNS", columns)
    drawn = strobe("explain", "shop/12", "--home", str(tmp_path)).out.splitlines()
    bars = [line for line in drawn if line.startswith(("orders", "totals", "(manifest)"))]
    assert [bar.split()[-1] for bar in bars] == ["ms", "ms", "ms"]
    assert max(map(len, bars)) <= int(columns)


def test_without_a_history_the_manifest_tells(strobe: Strobe, tmp_path: Path) -> None:
    put_runtime(tmp_path, "ledger")
    put_manifest(tmp_path, a_manifest("ledger", 4))
    assert strobe("explain", "ledger", "--home", str(tmp_path)).out.startswith("checkpoint 4 took 1000 ms, ")


def test_one_that_is_gone_and_one_that_failed_are_told_of(strobe: Strobe, tmp_path: Path) -> None:
    put_runtime(tmp_path, "ledger")
    put_history(tmp_path, "ledger", 5, fails=2)
    assert "checkpoint 1 took" in strobe("explain", "ledger/1", "--home", str(tmp_path)).out
    failed = strobe("explain", "ledger/2", "--home", str(tmp_path))
    assert failed.out.startswith("checkpoint 2 failed after")
    assert "stage 'balances' was lost: its query failed" in failed.out
    assert strobe("explain", "ledger", "--home", str(tmp_path)).out.startswith("checkpoint 5 took")


def test_what_there_is_not_is_said(strobe: Strobe, tmp_path: Path) -> None:
    put_runtime(tmp_path, "ledger")
    home = ("--home", str(tmp_path))
    nothing = strobe("explain", "ledger", *home)
    assert (nothing.code, "No snapshot of job 'ledger' has been tried yet" in nothing.err) == (2, True)
    put_history(tmp_path, "ledger", 3)
    unknown = strobe("explain", "ledger/99", *home)
    assert unknown.code == 2
    assert "Job 'ledger' has no snapshot 99 in its history, and keeps no checkpoint 99." in unknown.err
    assert "The history goes from 1 to 3." in unknown.err
    assert "under way when its driver was killed" not in unknown.err
    put_history(tmp_path, "ledger", 1)
    file = tmp_path / JobLayout("ledger").history
    file.write_text("".join(line for line in file.read_text().splitlines(True) if '"snapshot":2,' not in line))
    assert "under way when its driver was killed" in strobe("explain", "ledger/2", *home).err
    for wrong, why in (
        ("leger/1", "There is no job 'leger'"),
        ("ledger/x", "names no snapshot"),
        ("ledger/", "names no"),
        ("ledger/" + "9" * 5000, "names no"),
    ):
        done = strobe("explain", wrong, *home)
        assert (done.code, why in done.err) == (2, True)


def test_every_phase_has_a_cause() -> None:
    snapshot = past("orders", 1, orders=part(1, 1, 1, 1, 1, 1, 1))
    causes = [cause(span, snapshot, JOIN) for span in critical_path(snapshot, JOIN)]
    assert len(set(causes)) == 8
    assert not any("in its phase" in each for each in causes)
