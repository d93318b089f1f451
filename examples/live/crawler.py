"""A crawler that knows when it is done: nobody has anything to fetch, and nothing is on its way.

Pages are divided among the workers by number. A worker that finds a link sends it to the worker whose page it is. No
single worker can see that nothing is left to do; `root` in the topology has Strobe detect it, with the algorithm
of Dijkstra and Scholten (1980). Kill a worker on the way: the crawl goes on from its last snapshot, and still ends
with every page fetched.

    strobe live up crawler.toml
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strobe.hosts.live import Process, message


def links_of(page: int, pages: int) -> list[int]:
    """The web: made up, but everyone sees the same one, and from page 0 every page can be reached."""
    return [(page + 1) % pages, page * 7 % pages, (page * page + 3) % pages]


@message
@dataclass(frozen=True, slots=True)
class Link:
    page: int


@dataclass
class Worker(Process):
    pages: int = 600
    seconds: float = 0.001  # that it takes to fetch a page
    fetched: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)
    done: bool = False

    def on_start(self) -> None:
        if self.name == "w0":
            self.found(0)

    def on_message(self, sender: str, message: Link) -> None:
        self.found(message.page)

    def on_timer(self, name: str) -> None:
        page = self.waiting.pop()
        for link in links_of(page, self.pages):
            self.found(link)
        if self.waiting:
            self.after(self.seconds, "fetch")

    def on_terminated(self) -> None:
        self.done = True

    def found(self, page: int) -> None:
        owner = f"w{page % (len(self.peers) + 1)}"
        if owner != self.name:
            self.send(owner, Link(page))
        elif page not in self.fetched:
            self.fetched.add(page)
            self.waiting.append(page)
            self.after(self.seconds, "fetch")
