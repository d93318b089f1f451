"""Messages between processes that keep no order: what was sent waits, and any of it may arrive next."""

from __future__ import annotations

from tests.scenarios.harness import BadScenario

__all__ = ["Post", "crash_after"]


class Post:
    def __init__(self) -> None:
        self.waiting: dict[tuple[str, str], list[object]] = {}

    def put(self, sender: str, receiver: str, message: object) -> None:
        self.waiting.setdefault((sender, receiver), []).append(message)

    def take(self, way: str, which: str = "#1") -> tuple[str, object]:
        """The receiver and its message: the first that waits on `a->b`, or the one that `#2` says."""
        sender, _, receiver = way.partition("->")
        waiting = self.waiting.get((sender, receiver), [])
        index = int(which.removeprefix("#")) - 1
        if not 0 <= index < len(waiting):
            raise BadScenario(f"{len(waiting)} messages wait on {way}")
        return receiver, waiting.pop(index)


def crash_after(words: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """`… crash 2`: the process crashes when it has performed two effects of this step. Otherwise None."""
    if len(words) >= 2 and words[-2] == "crash":
        return words[:-2], int(words[-1])
    return words, None
