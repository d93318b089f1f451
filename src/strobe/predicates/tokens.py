"""A token that is lost or doubled: how many there are in a cut, in states and in flight.

Theory
------
A token moves: it is at a process or in a message, never in both and never in neither. In a system that neither makes
nor destroys tokens their number is the same in every consistent cut, so a cut with another number proves that one was
lost or doubled before, and that stays so. A cut that is not consistent can miss a token between two processes, or count
it at both.

>>> from strobe.model.cut import Cut, Message
>>> cut = Cut(1, {"a": {"token": True}, "b": {"token": False}}, {"a-b": (Message(1, "token"),)})
>>> tokens(cut, held=lambda state: state["token"], carried=lambda message: message == "token")
'There are 2 tokens, not 1: at a; in flight on a-b.'
"""

from __future__ import annotations

from collections.abc import Callable

from strobe.model.cut import Cut, Json

__all__ = ["tokens"]


def tokens(
    cut: Cut, held: Callable[[Json], int], carried: Callable[[Json], int] = lambda message: 1, *, expected: int = 1
) -> str | None:
    """None if there are `expected` tokens, else a sentence that says where they are. `held` says how many a state has,
    `carried` how many a message has: truth counts as one. By default every message in flight is a token."""
    places = [(f"at {node}", int(held(state))) for node, state in cut.states.items()]
    places += [
        (f"in flight on {channel}", int(carried(message.payload)))
        for channel, content in cut.channels.items()
        for message in content
    ]
    count = sum(number for _, number in places)
    if count == expected:
        return None
    where = "; ".join(place if number == 1 else f"{number} {place}" for place, number in places if number)
    if not count:
        return f"The {'token is' if expected == 1 else 'tokens are'} lost: at no process, and not in flight."
    return f"There {'is 1 token' if count == 1 else f'are {count} tokens'}, not {expected}: {where}."
