"""The end of a diffusing computation, detected over real processes: never early, never missed, also after a crash."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.api.topology import NodeSpec, Topology, complete, joined
from strobe.hosts.live.system.system import System
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId
from tests.support.live.systems import run, system, verified

PAGES = 2000


def links(page: int) -> list[int]:
    """A web with a cycle here and there: every page can be reached from page 0."""
    return [p for p in (2 * page + 1, 2 * page + 2, page // 3, (page * 7 + 1) % PAGES) if p < PAGES]


@dataclass
class Crawler(Process):
    """Asks the owner of each page for it; the owner reads a page once and passes its links on."""

    seen: list[int] = field(default_factory=list)
    told: bool = False

    def on_start(self) -> None:
        if self.name == "a":
            self.visit(0)

    def on_message(self, sender: str, message: Any) -> None:
        self.visit(message)

    def visit(self, page: int) -> None:
        todo = [page]
        while todo:
            if (page := todo.pop()) not in self.seen:
                self.seen.append(page)
                for link in links(page):
                    owner = sorted((*self.peers, self.name))[link % (len(self.peers) + 1)]
                    if owner == self.name:
                        todo.append(link)
                    else:
                        self.send(owner, link)

    def on_terminated(self) -> None:
        self.told = True


@dataclass
class SlowCrawler(Process):
    """Reads one page per ring of its timer: between handlers it is idle to the eye, but has work left."""

    seen: list[int] = field(default_factory=list)
    todo: list[int] = field(default_factory=list)
    told: bool = False
    pages: int = 200

    async def on_start(self) -> None:
        if self.name == "a":
            await self.on_message("", 0)

    async def on_message(self, sender: str, message: Any) -> None:
        await asyncio.sleep(0)
        if not self.todo:
            self.after(0.002, "read")
        self.todo.append(message)

    async def on_timer(self, name: str) -> None:
        await asyncio.sleep(0)
        page = self.todo.pop()
        if page not in self.seen:
            self.seen.append(page)
            for link in links(page):
                if link < self.pages:
                    self.send(self.peers[link % len(self.peers)], link)
        if self.todo:
            self.after(0.002, "read")

    async def on_terminated(self) -> None:
        self.told = True


@dataclass
class Restless(Process):
    """Starts by itself where it may not."""

    def on_start(self) -> None:
        if self.name != "a":
            self.send("a", "hello")


def crawl(cls: type[Process] = Crawler, names: str = "abcd", **params: Any) -> Topology:
    nodes = tuple(NodeSpec(NodeId(name), cls, params=params) for name in names)
    return Topology("crawl", nodes, complete(names), root="a")


async def result(live: System) -> list[dict[str, Any]]:
    """The states after the end; what is in flight by then contradicts the end."""
    loaded = verified(live, await live.snapshot())
    assert not any(loaded.contents.values())
    return [decode_plain(loaded.states[node]) for node in live.topology.graph.nodes]


def test_the_end_is_announced_when_every_page_is_read_and_nothing_is_in_flight(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(crawl(), tmp_path) as live:
            await live.terminated()
            states = await result(live)
            assert sorted(page for state in states for page in state["seen"]) == list(range(PAGES))
            assert [state["told"] for state in states] == [True, False, False, False]

    run(work)


def test_a_node_with_a_timer_set_has_not_ended(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(crawl(SlowCrawler, "abc"), tmp_path) as live:
            await live.terminated()
            states = await result(live)
            assert not any(state["todo"] for state in states)
            assert {page for state in states for page in state["seen"]} == set(range(200))

    run(work)


def test_a_crash_in_the_middle_delays_the_end_but_loses_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(crawl(SlowCrawler, "abc"), tmp_path) as live:
            for victim in "ba":
                snapshot = await live.snapshot()
                assert not live._running().terminated.is_set(), "it ended too soon: the test shows nothing"
                incarnation = live.incarnation
                live.kill(victim)
                await live.incarnation_after(incarnation)
            await live.terminated()
            states = await result(live)
            assert {page for state in states for page in state["seen"]} == set(range(200))
            assert states[0]["told"]
            assert snapshot < live.store.list()[-1]

    run(work)


def test_an_end_that_was_reached_is_still_reached_after_a_crash(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(crawl(names="ab"), tmp_path) as live:
            await live.terminated()
            await live.snapshot()
            live.kill("b")
            await live.incarnation_after(1)
            await live.terminated()
            first = live.store.list()[0]
            await live.restore(first)
            await live.terminated()

    run(work)


def test_nobody_but_the_root_may_start_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        with contextlib.suppress(Failed):  # it may fail before everyone runs
            async with system(crawl(Restless, "ab"), tmp_path, max_restarts=0) as live:
                assert live.failed is not None
                assert "node b ended" in await live.failed

    run(work)
    assert "b sends to a, but it is idle: only the root may start work by itself" in caplog.text


def test_a_channel_without_one_that_leads_back_is_refused() -> None:
    nodes = tuple(NodeSpec(NodeId(name), Crawler) for name in "ab")
    with pytest.raises(Misuse, match="a-b leads from a to b, and no channel back"):
        Topology("crawl", nodes, joined(("a", "b")), root="a")
    with pytest.raises(Misuse, match="The root 'x' is not a node"):
        Topology("crawl", nodes, complete("ab"), root="x")


def test_the_end_of_a_system_without_a_root_cannot_be_awaited(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = (NodeSpec(NodeId("a"), Crawler),)
        async with system(Topology("one", nodes), tmp_path) as live:
            with pytest.raises(Misuse, match="has no root"):
                await live.terminated()

    run(work)
