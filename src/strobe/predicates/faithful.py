"""Does the replay match the run? A user's code may not do the same again from the same state.

A replayed step must send what the journal says that it sent, and where a snapshot recorded a node, the replay must be
in the recorded state. Otherwise a handler depends on something else: a clock, random numbers, a file, the order of a
set. Which one is found by doing steps twice from the same state: the first whose results differ is named. If none does,
the handlers that ran since the last state that was confirmed are.

The last step of a node may have been cut short when its life ended: then the journal has only the first of its sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import NoReturn, Protocol, TypeAlias, runtime_checkable

from strobe.model.app import Application, Reaction, Sends
from strobe.model.cut import Json, canonical
from strobe.model.errors import Failed
from strobe.model.events import Completed, Internal, Received, Recorded, Sent
from strobe.model.ids import NodeId
from strobe.verify.explain import same, text_of
from strobe.verify.history import Epoch, History

__all__ = ["Cause", "Names", "NotDeterministic", "Watched"]

Cause: TypeAlias = Internal | Received


class NotDeterministic(Failed):
    """A replayed handler did something else than it did in the run."""


@runtime_checkable
class Names(Protocol):
    """An application that can say which handler of its author's takes a step; a message has no action."""

    def handler(self, node: NodeId, action: Json | None) -> str: ...


class Watched:
    """Replays the steps of one node, and compares each with the journal."""

    def __init__(self, history: History, epoch: Epoch, app: Application, node: NodeId, causes: Sequence[Cause]) -> None:
        self._history = history
        self._epoch = epoch
        self._app = app
        self._node = node
        self._causes = causes
        self._confirmed = 0  # the last state that is known to be the run's
        self._sends = _sends(history, epoch, node)
        self._recorded = _recorded(history, epoch, node)

    def states(self) -> list[Json]:
        state = deepcopy(self._epoch.states[self._node])
        states = [state]
        self._compare_state(states)
        for number, cause in enumerate(self._causes, 1):
            try:
                state, sends = self._do(cause, state)
            except Exception as error:  # the application is somebody else's code: whatever it raises is its answer
                if number == len(self._causes) and not self._sends.get(cause.step):
                    states.append(state)  # in the run it may have been what ended the node
                    return states
                raised = f"{type(error).__name__}: {error}"
                self._part(states, number, f"replayed, step {cause.step} of {self._node} raises {raised}")
            states.append(state)
            self._compare_sends(states, number, cause, sends)
            self._compare_state(states)
        return states

    def _do(self, cause: Cause, state: Json) -> Reaction:
        if isinstance(cause, Internal):
            return self._app.act(self._node, state, cause.action)
        payload = self._history.payload(self._epoch, cause.channel, cause.seq)
        return self._app.receive(self._node, state, cause.channel, payload)

    def _compare_sends(self, states: list[Json], number: int, cause: Cause, sends: Sends) -> None:
        there = [(sent.channel, sent.payload) for sent in self._sends.get(cause.step, ())]
        if number == len(self._causes):
            sends = sends[: len(there)]
        if canonical([list(pair) for pair in there]) != canonical([list(pair) for pair in sends]):
            self._part(
                states, number, f"in the journal step {cause.step} of {self._node} sends {_told(there)}, "
                f"replayed it sends {_told(sends)}",
            )  # fmt: skip

    def _compare_state(self, states: list[Json]) -> None:
        number = len(states) - 1
        step = self._causes[number - 1].step if number else (self._causes[0].step - 1 if self._causes else 0)
        for snapshot, recorded in self._recorded.get(step, ()):
            if not same(states[-1], recorded):
                self._part(
                    states, number, f"snapshot {snapshot} recorded {self._node} after step {step} in the state "
                    f"{text_of(recorded)}, replayed it is in {text_of(states[-1])}",
                )  # fmt: skip
            self._confirmed = number

    def _part(self, states: list[Json], number: int, difference: str) -> NoReturn:
        raise NotDeterministic(
            f"{self._node} cannot be replayed: {difference}. {self._culprit(states, number)}",
            untouched="Nothing was changed.",
            next="A handler may depend on its state, the message and the timer's name, not on clocks, random numbers, "
            "files or the order of sets. Is this the topology, and the code, that the journal is of?",
        )

    def _culprit(self, states: list[Json], number: int) -> str:
        suspects = range(self._confirmed + 1, number + 1)
        for each in suspects:
            cause, before = self._causes[each - 1], states[each - 1]
            try:
                first, second = (self._do(cause, deepcopy(before)) for _ in range(2))
            except Exception:  # it raises now, and did not in the run
                return f"{self._named(cause)} is not deterministic: it raises in step {cause.step}, and did not then."
            if not _alike(first, second):
                return (
                    f"{self._named(cause)} is not deterministic: done twice from the state before step {cause.step}, "
                    "it had two results."
                )
        names = ", ".join(dict.fromkeys(self._named(self._causes[each - 1]) for each in suspects))
        return f"Of what ran since the replay was last known to be right, one is not deterministic: {names}."

    def _named(self, cause: Cause) -> str:
        action = cause.action if isinstance(cause, Internal) else None
        return self._app.handler(self._node, action) if isinstance(self._app, Names) else f"step {cause.step}"


def _alike(first: Reaction, second: Reaction) -> bool:
    return same(first[0], second[0]) and canonical([list(s) for s in first[1]]) == canonical(
        [list(s) for s in second[1]]
    )


def _told(sends: Sends) -> str:
    if not sends:
        return "nothing"
    shown = ", ".join(f"{text_of(payload)} on {channel}" for channel, payload in sends[:3])
    return shown if len(sends) <= 3 else f"{shown} and {len(sends) - 3} more"


def _sends(history: History, epoch: Epoch, node: NodeId) -> Mapping[int, list[Sent]]:
    """By step, in the order of the journal."""
    mine: list[int] = []
    for channel in history.graph.outputs(node):
        mine += epoch.sends.get(channel, ())
    found: dict[int, list[Sent]] = {}
    for position in sorted(mine):
        sent = history.events[position]
        assert isinstance(sent, Sent)
        found.setdefault(sent.step, []).append(sent)
    return found


def _recorded(history: History, epoch: Epoch, node: NodeId) -> Mapping[int, list[tuple[int, Json]]]:
    """By the last step that it contains: the states of the node that complete snapshots hold."""
    found: dict[int, list[tuple[int, Json]]] = {}
    for position, cut, where in history.cuts():
        assert isinstance(history.events[position], Completed)
        if where is epoch and node in cut.states:
            for at in epoch.records[cut.snapshot].get(node, ()):
                record = history.events[at]
                assert isinstance(record, Recorded)
                found.setdefault(record.step, []).append((cut.snapshot, cut.states[node]))
    return found
