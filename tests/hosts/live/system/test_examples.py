"""Every example does what its first lines promise: run by the command line, judged by its snapshots."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from strobe.hosts.live.api.loading import load_topology
from strobe.hosts.live.snapshot.reading import read_cut
from strobe.model.cut import Cut
from strobe.model.ids import NodeId
from tests.support.live.commandline import EXAMPLES, Terminal
from tests.support.live.systems import run, system


def cuts_of(tmp_path: Path, example: str, seconds: str = "2") -> list[Cut]:
    """The retained snapshots of a run with several a second."""
    strobe = Terminal(tmp_path)
    done = strobe.ask("live", "up", str(EXAMPLES / f"{example}.toml"), "--interval", "0.2", "--for", seconds)
    snapshots = strobe.ask("live", "status", example)["retained"]  # at the end: old ones were still being deleted
    assert done["snapshot"] in snapshots
    for snapshot in snapshots:
        assert strobe("verify", f"{example}/{snapshot}").code == 0
    return [read_cut(f"{example}/{snapshot}", strobe.home) for snapshot in snapshots]


def test_the_bank_neither_makes_nor_loses_money(tmp_path: Path) -> None:
    for cut in cuts_of(tmp_path, "bank"):
        held = sum(state["balance"] for state in cut.states.values())
        flying = sum(m.payload["amount"] for content in cut.channels.values() for m in content)
        assert held + flying == 4000
        assert sum(state["transfers"] for state in cut.states.values()) > 0


def test_every_fork_is_in_one_place_and_neighbours_never_eat_together(tmp_path: Path) -> None:
    graph = load_topology(str(EXAMPLES / "philosophers.toml")).graph
    cuts = cuts_of(tmp_path, "philosophers")
    for cut in cuts:
        states = dict(cut.states)
        forks = Counter(frozenset((node, other)) for node, state in states.items() for other in state["forks"])
        requests = Counter(frozenset((node, other)) for node, state in states.items() for other in state["requests"])
        for channel in graph.channels:
            pair = frozenset((channel.source, channel.target))
            for message in cut.channels[channel.id]:
                (forks if message.payload["type"] == "Fork" else requests)[pair] += 1
            assert "eating" not in {states[channel.source]["mood"]} & {states[channel.target]["mood"]}
        assert set(forks.values()) == {1}
        assert set(requests.values()) == {1}
        assert len(forks) == len(requests) == 5
    assert all(state["meals"] for state in cuts[-1].states.values())


def test_the_ring_has_one_token_and_it_has_counted_every_turn(tmp_path: Path) -> None:
    cuts = cuts_of(tmp_path, "ring")
    for cut in cuts:
        held = [state["token"] for state in cut.states.values() if state["token"] is not None]
        flying = [m.payload["hops"] for content in cut.channels.values() for m in content]
        assert held + flying == [sum(state["turns"] for state in cut.states.values())]
    assert sum(state["turns"] for state in cuts[-1].states.values()) > 0


def crawled(home: Path) -> None:
    cut = read_cut("crawler", home)
    assert not any(cut.channels.values())
    fetched = [page for state in cut.states.values() for page in state["fetched"]]
    assert sorted(fetched) == list(range(600))
    assert cut.states[NodeId("w0")]["done"]


def test_the_crawler_ends_by_itself_with_every_page_fetched_once(tmp_path: Path) -> None:
    strobe = Terminal(tmp_path)
    done = strobe.ask("live", "up", str(EXAMPLES / "crawler.toml"))
    assert done["why"] == "the computation has terminated"
    crawled(strobe.home)


def test_the_crawler_ends_the_same_way_when_a_worker_is_killed_on_the_way(tmp_path: Path) -> None:
    topology = load_topology(str(EXAMPLES / "crawler.toml"))
    nodes = tuple(replace(node, params={"seconds": 0.004}) for node in topology.nodes)

    async def work() -> None:
        async with system(replace(topology, nodes=nodes), tmp_path) as live:
            await live.snapshot()
            live.kill("w1")
            await live.incarnation_after(live.incarnation)
            await live.terminated()
            await live.snapshot()

    run(work)
    crawled(tmp_path)


def test_the_diners_deadlock_after_a_while_and_are_caught_once_without_a_false_alarm(tmp_path: Path) -> None:
    """From the first snapshot that shows it on, nobody ever eats again; before it, some do."""
    seen: list[tuple[bool, int]] = []

    async def work() -> None:
        async with system(load_topology(str(EXAMPLES / "dining.toml")), tmp_path) as live:
            while sum(found for found, _ in seen) < 5:
                finding = await live.check("deadlock")
                meals = sum(state["meals"] for state in read_cut("dining", tmp_path).states.values())
                seen.append((finding.found, meals))
                if finding.found:
                    assert finding.facts["core"] == ["arete", "bion", "crates", "diotima", "euclid"]
                    assert finding.details[0] == "arete holds its own fork and waits for bion (its fork)"

    run(work)
    first = next(number for number, (found, _) in enumerate(seen) if found)
    assert all(found for found, _ in seen[first:])
    assert {meals for _, meals in seen[first:]} == {seen[first][1]}
    assert first > 3
    assert seen[first][1] > 5


def test_those_who_follow_chandy_and_misra_are_never_called_stuck(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(load_topology(str(EXAMPLES / "philosophers.toml")), tmp_path) as live:
            waiting = 0
            for _ in range(30):
                finding = await live.check("deadlock")
                assert not finding.found, finding
                waiting += finding.facts["waiting"]
            assert waiting

    run(work)


def test_the_end_of_the_pool_is_detected_when_every_board_has_been_tried(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(load_topology(str(EXAMPLES / "pool.toml")), tmp_path) as live:
            while not (await live.check("termination")).found:
                pass
            cut = read_cut("pool", tmp_path)
            assert sum(state["solutions"] for state in cut.states.values()) == 40
            assert sum(bool(state["worked"]) for state in cut.states.values()) > 1, "work was stolen"
            assert (await live.check("termination")).found

    run(work)


def test_migrating_objects_are_collected_and_none_that_is_in_use(tmp_path: Path) -> None:
    topology = load_topology(str(EXAMPLES / "objects.toml"))
    dead = tmp_path / "garbage.json"
    nodes = tuple(replace(node, params={"dead": str(dead)}) for node in topology.nodes)
    collected = 0

    async def work() -> None:
        nonlocal collected
        async with system(replace(topology, nodes=nodes), tmp_path) as live:
            while collected < 50:
                finding = await live.check("garbage")
                assert finding.facts["dangling"] == []
                whole = tmp_path / "garbage.part"
                whole.write_text(json.dumps(finding.to_json()))
                whole.rename(dead)
                collected = sum(state["collected"] for state in read_cut("objects", tmp_path).states.values())

    run(work)


def test_two_balances_could_have_been_below_zero_together_though_no_snapshot_shows_it(tmp_path: Path) -> None:
    strobe, topology = Terminal(tmp_path), str(EXAMPLES / "overdraft.toml")
    strobe.ask("live", "up", topology, "--journal", "--for", "1.5")
    strobe.ask("live", "journal", "overdraft", "run.journal")
    for snapshot in strobe.ask("live", "status", "overdraft")["retained"]:
        states = read_cut(f"overdraft/{snapshot}", strobe.home).states
        assert states[NodeId("shop")]["balance"] >= 0 or states[NodeId("depot")]["balance"] >= 0
    both = "shop.balance < 0 and depot.balance < 0"
    answers = {}
    for question in ("possibly", "definitely"):
        answers[question] = strobe.outside("predicate", question, both, "run.journal", "--topology", topology, "--json")
    witness = answers["possibly"].json["witness"]
    assert witness["states"]["shop"]["balance"] < 0
    assert witness["states"]["depot"]["balance"] < 0
    assert answers["definitely"].json["holds"] is False
