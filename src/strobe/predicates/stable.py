"""Stable predicates of a cut, whatever host it is of: deadlock, termination, garbage, or a function of the user's own.

Theory
------
A host shows a cut as `Parties`: what each process says of itself in its recorded state, and what is in flight. From
that the detectors of this package decide, and a `Finding` says it in words: which processes, what each holds and waits
for. Three rules prevent false alarms:

- *A grant in flight has been given.* Whoever waits for its sender waits no longer.
- *A process that waits may still give.* Most give nothing before they have got what they wait for. One that would hand
  over at once what it does not use (`would_give`) helps whoever waits for it, though the request is still in flight.
- *A reference in flight is held.* Its object is in use, and so is whatever that leads to.

While a message is in flight each rule may delay a finding. What is found is true, and stays true.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, Final, Protocol

from strobe.model.cut import Cut, Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.graph import Channel, Graph
from strobe.model.ids import NodeId
from strobe.model.suggest import did_you_mean
from strobe.predicates.deadlock import Wait, deadlock
from strobe.predicates.garbage import garbage

__all__ = ["CHECKS", "Finding", "Parties", "answer_of", "examine", "examine_by", "known_check"]

Flight = tuple[Channel, Any]  # a message in flight, as its receiver would get it

_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` says whether the predicate holds in the cut; `details` are lines for people, `facts` is for programs."""

    check: str
    found: bool
    sentence: str
    details: tuple[str, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"check": self.check, "found": self.found, "sentence": self.sentence, **self.facts}


class Parties(Protocol):
    """The processes of a cut, asked one by one. `can` says whether anybody in the system answers such a question."""

    @property
    def graph(self) -> Graph: ...

    @property
    def in_flight(self) -> Iterable[Flight]: ...

    def can(self, check: str) -> str | None:
        """None if the check makes sense here, else what is missing."""
        ...

    def waits_for(self, node: NodeId) -> Wait | None: ...

    def holds(self, node: NodeId) -> Iterable[str]: ...

    def would_give(self, node: NodeId, to: NodeId) -> bool: ...

    def is_grant(self, channel: Channel, message: Any) -> bool: ...

    def is_active(self, node: NodeId) -> bool: ...

    def is_work(self, channel: Channel, message: Any) -> bool: ...

    def objects(self, node: NodeId) -> Mapping[Hashable, Iterable[Hashable]]: ...

    def refs(self, node: NodeId) -> Iterable[Hashable]: ...

    def objects_in(self, channel: Channel, message: Any) -> Mapping[Hashable, Iterable[Hashable]]: ...

    def refs_in(self, channel: Channel, message: Any) -> Iterable[Hashable]: ...


def known_check(name: str) -> str:
    """The name of a built-in check, or Misuse that offers the nearest."""
    if name not in CHECKS:
        raise Misuse(
            f"There is no check called {name!r}.",
            untouched="Nothing was looked at.",
            next=f"{did_you_mean(name, CHECKS)}The checks are: {', '.join(CHECKS)}; or FILE.py:FUNCTION, your own.",
        )
    return name


def examine(check: str, parties: Parties) -> Finding:
    """One of the built-in checks."""
    detector = CHECKS[known_check(check)]
    missing = parties.can(check)
    if missing is not None:
        raise Misuse(missing, untouched="Nothing was decided.", next=_HOW[check])
    return detector(parties)


def examine_by(name: str, predicate: Callable[[Cut], Any], cut: Cut) -> Finding:
    """A function of the user's own. What it returns is the answer: nothing or False, True, or a text that says why."""
    answer = answer_of(f"The predicate {name}", lambda: predicate(cut))
    if isawaitable(answer):
        if hasattr(answer, "close"):
            answer.close()
        raise Misuse(f"The predicate {name} is a coroutine.", next="Write it without async: a cut does not change.")
    if isinstance(answer, str):
        return Finding(name, bool(answer), answer or "does not hold")
    return Finding(name, bool(answer), "holds" if answer else "does not hold")


def answer_of(who: str, ask: Callable[[], Any]) -> Any:
    """What user code answers; what it raises becomes one clear error."""
    try:
        return ask()
    except StrobeError:
        raise
    except (Exception, SystemExit) as error:
        raise Misuse(
            f"{who} failed: {type(error).__name__}: {error}.",
            untouched="Nothing was decided.",
            next="Fix it and ask again; the snapshot can be asked as often as you like.",
        ) from error


# ── deadlock ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _deadlock(parties: Parties) -> Finding:
    waits = _waits(parties)
    grants = _grants(parties, waits)
    found = deadlock(waits, grants)
    waiting = sum(wait is not None for wait in waits.values())
    if found is None:
        return Finding(
            "deadlock",
            False,
            "no deadlock: nobody waits"
            if not waiting
            else f"no deadlock: {waiting} of {len(waits)} {'wait' if waiting > 1 else 'waits'}, and can be helped",
            facts={"processes": [], "core": [], "waiting": waiting},
        )
    holds = {node: tuple(parties.holds(NodeId(node))) for node in found.processes}
    behind = [node for node in found.processes if node not in found.core]
    details = [_told(node, holds[node], found.waits[node]) for node in found.core[:_SHOWN]]
    if len(found.core) > _SHOWN:
        details.append(f"and {len(found.core) - _SHOWN} more")
    if behind:
        more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
        details.append(f"stuck behind them: {', '.join(behind[:_SHOWN])}{more}")
    names = ", ".join(found.core[:_SHOWN]) + (" …" if len(found.core) > _SHOWN else "")
    who = "waits for ever" if len(found.core) == 1 else "wait for each other for ever"
    facts = {
        "processes": [
            {
                "process": node,
                "core": node in found.core,
                "holds": list(holds[node]),
                "need": found.waits[node].need,
                "of": list(found.waits[node].of),
                "what": found.waits[node].what,
            }
            for node in found.processes
        ],
        "core": list(found.core),
        "waiting": waiting,
    }
    return Finding("deadlock", True, f"deadlock: {names} {who}", tuple(details), facts)


def _waits(parties: Parties) -> dict[str, Wait | None]:
    known = frozenset(parties.graph.nodes)
    return {node: _checked(node, parties.waits_for(node), known) for node in parties.graph.nodes}


def _checked(node: NodeId, wait: Wait | None, known: frozenset[NodeId]) -> Wait | None:
    """Check a wait: it comes from user code, and may be anything."""
    if wait is None:
        return None
    if not isinstance(wait, Wait):
        raise Misuse(
            f"waits_for() of {node} returned {wait!r}, which is not a wait.",
            untouched="Nothing was decided.",
            next="Return None, all_of(…), any_of(…) or at_least(K, …), with names of nodes.",
        )
    for other in wait.of:
        if other not in known:
            raise Misuse(
                f"{node} says that it waits for {other!r}, and there is no such node.",
                untouched="Nothing was decided.",
                next=f"{did_you_mean(str(other), known)}The nodes are: {', '.join(sorted(known)[:50])}.",
            )
    return wait


def _grants(parties: Parties, waits: Mapping[str, Wait | None]) -> set[tuple[str, str]]:
    """Who has given whom what that one waits for, or will as soon as it is asked."""
    grants: set[tuple[str, str]] = set()
    for channel, message in parties.in_flight:
        wait = waits[channel.target]
        if wait is not None and channel.source in wait.of and parties.is_grant(channel, message):
            grants.add((channel.source, channel.target))
    for node, wait in waits.items():
        for giver in wait.of if wait is not None else ():
            if waits[giver] is not None and parties.would_give(NodeId(giver), NodeId(node)):
                grants.add((giver, node))
    return grants


def _told(node: str, holds: tuple[str, ...], wait: Wait) -> str:
    held = f"holds {', '.join(holds)} and " if holds else ""
    return f"{node} {held}waits for {wait}"


# ── termination ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _termination(parties: Parties) -> Finding:
    active = [node for node in parties.graph.nodes if parties.is_active(node)]
    work: dict[str, int] = {}
    for channel, message in parties.in_flight:
        if parties.is_work(channel, message):
            work[channel.id] = work.get(channel.id, 0) + 1
    facts = {"active": list(active), "in_flight": work}
    if active or work:
        flying = sum(work.values())
        reasons = [f"{len(active)} of {len(parties.graph.nodes)} processes active"] if active else []
        reasons += [f"{flying} {'message' if flying == 1 else 'messages'} in flight"] if flying else []
        return Finding("termination", False, f"not terminated: {', '.join(reasons)}", facts=facts)
    stuck = [f"{node} waits for {wait}" for node, wait in _waits(parties).items() if wait is not None]
    details = [f"but {'; '.join(stuck[:_SHOWN])}: see the check deadlock"] if stuck else []
    return Finding("termination", True, "terminated: nobody is active, nothing is in flight", tuple(details), facts)


# ── garbage ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _garbage(parties: Parties) -> Finding:
    heap: dict[Hashable, set[Hashable]] = {}
    keepers: dict[Hashable, list[str]] = {}
    roots: set[Hashable] = set()
    for node in parties.graph.nodes:
        _keep(node, parties.objects(node), heap, keepers)
        roots.update(parties.refs(node))
    carried = _references_in_flight(parties, heap, keepers)
    found = garbage(heap, roots, carried)
    by_keeper: dict[str, list[str]] = {}
    for one in sorted(found.objects, key=str):
        by_keeper.setdefault(" and ".join(keepers[one]), []).append(str(one))
    dangling = sorted(map(str, found.dangling))
    details = [f"{keeper} keeps {_list(objects)}, to which nothing leads" for keeper, objects in by_keeper.items()]
    if dangling:
        details.append(f"in use, but kept by nobody: {_list(dangling)}")
    count = len(found.objects)
    parts = [f"{count} of {len(heap)} {'object' if len(heap) == 1 else 'objects'} can go"] if count else []
    parts += [f"{len(dangling)} in use {'is' if len(dangling) == 1 else 'are'} gone"] if dangling else []
    facts = {
        "garbage": dict(by_keeper),
        "dangling": dangling,
        "objects": len(heap),
    }
    sentence = f"garbage: {', '.join(parts)}" if parts else f"no garbage: {len(heap)} objects, all of them in use"
    return Finding("garbage", bool(parts), sentence, tuple(details), facts)


def _references_in_flight(
    parties: Parties, heap: dict[Hashable, set[Hashable]], keepers: dict[Hashable, list[str]]
) -> set[Hashable]:
    """Objects that travel are added to the heap; the references that messages carry are returned."""
    carried: set[Hashable] = set()
    for channel, message in parties.in_flight:
        _keep(f"channel {channel.id}", parties.objects_in(channel, message), heap, keepers)
        carried.update(parties.refs_in(channel, message))
    return carried


def _keep(
    who: str,
    objects: Mapping[Hashable, Iterable[Hashable]],
    heap: dict[Hashable, set[Hashable]],
    keepers: dict[Hashable, list[str]],
) -> None:
    for one, refers in objects.items():
        heap.setdefault(one, set()).update(refers)
        keepers.setdefault(one, []).append(who)


def _list(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


CHECKS: Final[Mapping[str, Callable[[Parties], Finding]]] = {
    "deadlock": _deadlock,
    "termination": _termination,
    "garbage": _garbage,
}

_HOW: Final[Mapping[str, str]] = {
    "deadlock": "Define waits_for(): it returns None, all_of(…), any_of(…) or at_least(K, …).",
    "termination": "Define is_active(): whether it will do something without being sent a message.",
    "garbage": "Define objects(), what it keeps and what each refers to, and refs(), what it refers to itself.",
}
