"""What a snapshot of a live system says of deadlock, termination and garbage, by the user's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.live import NodeSpec, Process, Topology, Wait, all_of, any_of, at_least, complete, message
from strobe.hosts.live.api.attach import Service
from strobe.hosts.live.api.codec import encode_message, encode_state, stamped_item
from strobe.hosts.live.api.diffusing import TerminationSignal
from strobe.hosts.live.snapshot import checks as live_checks
from strobe.hosts.live.snapshot.bulk import packed
from strobe.hosts.live.snapshot.checks import Check
from strobe.hosts.live.snapshot.snapshots import Loaded, stored_contents, stored_states
from strobe.hosts.live.wire.control import TimerState
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.predicates.stable import Finding


@message
@dataclass(frozen=True, slots=True)
class PartyRequest:
    pass


@message
@dataclass(frozen=True, slots=True)
class PartyGrant:
    pass


@message
@dataclass(frozen=True, slots=True)
class PartyCarry:
    """References that travel, and an object that travels itself."""

    to: list[str]
    moving: dict[str, list[str]] = field(default_factory=dict)

    def refs(self) -> list[str]:
        return self.to

    def objects(self) -> dict[str, list[str]]:
        return self.moving


@dataclass
class Party(Process):
    """Waits for whomever its state says."""

    waits: list[str] = field(default_factory=list)
    need: int = 0
    free: bool = False
    holds: str = ""  # a field, and no method: nothing is asked

    def waits_for(self) -> Wait | None:
        return at_least(self.need, *self.waits, what="a lock") if self.waits else None

    def would_give(self, to: str) -> bool:
        return self.free

    def is_grant(self, sender: str, message: Any) -> bool:
        return isinstance(message, PartyGrant)


@dataclass
class Keeper(Process):
    kept: dict[str, list[str]] = field(default_factory=dict)
    roots: list[str] = field(default_factory=list)

    def objects(self) -> dict[str, list[str]]:
        return self.kept

    def refs(self) -> list[str]:
        return self.roots


@dataclass
class Plain(Process):
    x: int = 0


def shown(
    check: str,
    kind: type[Process] | Mapping[str, type[Process]],
    states: Mapping[str, Any],
    in_flight: Mapping[str, list[Any]] | None = None,
    timers: Mapping[str, list[str]] | None = None,
) -> Finding:
    """What the check says of a snapshot with these states, channels and timers."""
    kinds = kind if isinstance(kind, Mapping) else dict.fromkeys(states, kind)
    topology = Topology("t", tuple(NodeSpec(NodeId(n), kinds[n]) for n in states), complete(states))
    loaded = Loaded(
        SnapshotId(1),
        stored_states({NodeId(node): encode_state(state, node) for node, state in states.items()}),
        stored_contents({
            ChannelId(c): b"".join(packed([m if isinstance(m, bytes) else encode_message(m) for m in ms], len(ms)))
            for c, ms in (in_flight or {}).items()
        }),
        timers={NodeId(node): [TimerState(name, 1.0, None) for name in names]
                for node, names in (timers or {}).items()},
    )  # fmt: skip
    return Check(check)(loaded, topology.graph, topology)


def waiting(*of: str, need: int | None = None, **more: Any) -> dict[str, Any]:
    return {"waits": list(of), "need": len(of) if need is None else need, **more}


# ── deadlock ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cycle_is_named_process_by_process_with_those_behind_it() -> None:
    found = shown("deadlock", Party, {"a": waiting("b"), "b": waiting("a"), "c": waiting("a", "d"), "d": {}})
    assert found.found
    assert found.sentence == "deadlock: a, b wait for each other for ever"
    assert found.details == ("a waits for b (a lock)", "b waits for a (a lock)", "stuck behind them: c")
    assert found.facts["core"] == ["a", "b"]
    assert [p["process"] for p in found.facts["processes"]] == ["a", "b", "c"]
    assert found.facts["processes"][2] == {
        "process": "c", "core": False, "holds": [], "need": 2, "of": ["a", "d"], "what": "a lock",
    }  # fmt: skip


def test_one_of_several_and_k_of_n_are_met_by_whoever_can_act() -> None:
    assert not shown("deadlock", Party, {"a": waiting("b", "c", need=1), "b": waiting("a"), "c": {}}).found
    assert shown("deadlock", Party, {"a": waiting("b", "c", need=1), "b": waiting("a"), "c": waiting("b")}).found
    states = {"a": waiting("b", "c", "d", need=2), "b": waiting("a"), "c": {}, "d": {}}
    assert not shown("deadlock", Party, states).found
    assert shown("deadlock", Party, {**states, "d": waiting("a")}).found


def test_a_grant_in_flight_counts_as_given_and_a_request_does_not() -> None:
    states = {"a": waiting("b"), "b": waiting("a")}
    assert shown("deadlock", Party, states, {"b-a": [PartyRequest()]}).found
    assert not shown("deadlock", Party, states, {"b-a": [PartyRequest(), PartyGrant()]}).found
    assert shown("deadlock", Party, {**states, "c": {}}, {"c-a": [PartyGrant()]}).found, "c was not asked for anything"


def test_a_grant_is_seen_on_channels_that_reorder_too() -> None:
    item = stamped_item(encode_message(PartyGrant()), 4, 1)
    assert not shown("deadlock", Party, {"a": waiting("b"), "b": waiting("a")}, {"b-a": [item]}).found


def test_unless_a_class_says_otherwise_any_message_from_whom_it_waits_for_is_a_grant() -> None:
    class Trusting(Party):
        is_grant = Process.is_grant

    states = {"a": waiting("b"), "b": waiting("a")}
    assert not shown("deadlock", Trusting, states, {"b-a": [PartyRequest()]}).found


def test_who_waits_and_would_still_give_helps_whoever_waits_for_it() -> None:
    """The request is in flight, and will be met although its receiver waits itself."""
    states = {"a": waiting("b"), "b": waiting("a", free=True)}
    assert not shown("deadlock", Party, states, {"a-b": [PartyRequest()]}).found


def test_a_class_that_says_nothing_never_waits() -> None:
    kinds = {"a": Party, "b": Plain}
    assert not shown("deadlock", kinds, {"a": waiting("b"), "b": {"x": 1}}).found


def test_all_words_for_waits_can_be_imported_from_where_processes_are() -> None:
    assert (all_of("a", "b").need, any_of("a", "b").need, at_least(2, "a", "b", "c").need) == (2, 1, 2)


# ── termination ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_computation_has_ended_when_no_timer_is_set_and_nothing_is_in_flight() -> None:
    states = {"a": {"x": 1}, "b": {"x": 2}}
    assert shown("termination", Plain, states).found
    busy = shown("termination", Plain, states, timers={"b": ["tick"]})
    assert (busy.found, busy.facts["active"]) == (False, ["b"])
    flying = shown("termination", Plain, states, {"a-b": [1, 2]})
    assert (flying.found, flying.facts["in_flight"]) == (False, {"a-b": 2})
    assert flying.sentence == "not terminated: 2 messages in flight"


def test_a_class_may_say_itself_whether_it_is_active_and_what_work_is() -> None:
    @dataclass
    class Polling(Process):
        tasks: int = 0

        def is_active(self) -> bool:
            return self.tasks > 0

        def is_work(self, sender: str, message: Any) -> bool:
            return bool(message == "task")

    timers = {"a": ["poll"], "b": ["poll"]}
    assert shown("termination", Polling, {"a": {}, "b": {}}, {"a-b": ["any?"]}, timers).found
    assert not shown("termination", Polling, {"a": {}, "b": {}}, {"a-b": ["task"]}, timers).found
    assert not shown("termination", Polling, {"a": {}, "b": {"tasks": 1}}).found


def test_what_termination_detection_adds_to_states_and_channels_is_left_out() -> None:
    machine: dict[str, Any] = {"@termination": {"timers": []}}
    states = {"a": {"x": 1, **machine}, "b": {"x": 2, **machine}}
    assert shown("termination", Plain, states, {"a-b": [TerminationSignal("b-a")]}).found


def test_an_attached_service_is_active_as_long_as_it_runs() -> None:
    assert Service.is_active(Service())


def test_an_end_at_which_somebody_waits_is_told_as_such() -> None:
    found = shown("termination", Party, {"a": waiting("b"), "b": waiting("a")})
    assert found.found
    assert found.details == ("but a waits for b (a lock); b waits for a (a lock): see the check deadlock",)


# ── garbage ─────────────────────────────────────────────────────────────────────────────────────────────────────────

HEAP: dict[str, dict[str, Any]] = {
    "a": {"kept": {"x": ["y"], "z": []}, "roots": ["z"]},
    "b": {"kept": {"y": ["x"], "w": []}},
}


def test_a_cycle_across_processes_that_no_root_leads_to_is_garbage() -> None:
    found = shown("garbage", Keeper, HEAP, {"a-b": [PartyCarry(["w"])]})
    assert found.found
    assert found.facts["garbage"] == {"a": ["x"], "b": ["y"]}
    assert found.details == ("a keeps x, to which nothing leads", "b keeps y, to which nothing leads")


def test_a_reference_in_flight_keeps_its_object_and_what_that_leads_to() -> None:
    found = shown("garbage", Keeper, HEAP, {"a-b": [PartyCarry(["w"])], "b-a": [PartyCarry(["y"])]})
    assert not found.found
    assert found.sentence == "no garbage: 4 objects, all of them in use"


def test_an_object_in_flight_is_kept_by_its_channel_and_keeps_nothing_by_itself() -> None:
    states = {"a": {"roots": ["m"]}, "b": {"kept": {"n": []}}}
    assert not shown("garbage", Keeper, states, {"a-b": [PartyCarry([], {"m": ["n"]})]}).found
    unused = shown("garbage", Keeper, {**states, "a": {}}, {"a-b": [PartyCarry([], {"m": ["n"]})]})
    assert unused.facts["garbage"] == {"channel a-b": ["m"], "b": ["n"]}


def test_what_is_in_use_and_kept_by_nobody_is_told() -> None:
    found = shown("garbage", Keeper, {"a": {"roots": ["gone"]}})
    assert found.found
    assert found.facts["dangling"] == ["gone"]
    assert found.sentence == "garbage: 1 in use is gone"


def test_a_collector_that_forgets_references_in_flight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would let go an object that somebody is about to hold: afterwards that one is in use, and gone."""
    flying = {"b-a": [PartyCarry(["y"])], "a-b": [PartyCarry(["w"])]}
    monkeypatch.setattr(live_checks._Parties, "refs_in", lambda self, channel, message: ())
    wrong = shown("garbage", Keeper, HEAP, flying)
    monkeypatch.undo()
    collected = {name for names in wrong.facts["garbage"].values() for name in names}
    assert collected == {"x", "y", "w"}
    left = {n: {**s, "kept": {k: v for k, v in s["kept"].items() if k not in collected}} for n, s in HEAP.items()}
    assert shown("garbage", Keeper, left, flying).facts["dangling"] == ["w", "y"]


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_system_without_the_methods_is_refused_in_one_sentence() -> None:
    with pytest.raises(Misuse, match=r"No class in this system has waits_for\(\).*: Plain\."):
        shown("deadlock", Plain, {"a": {}})
    with pytest.raises(Misuse, match=r"No class in this system has objects\(\)"):
        shown("garbage", Plain, {"a": {}})


def test_a_wait_for_a_node_that_there_is_not_names_the_nearest() -> None:
    with pytest.raises(Misuse, match="a says that it waits for 'bb', and there is no such node") as refused:
        shown("deadlock", Party, {"a": waiting("bb"), "b": {}})
    assert "Did you mean 'b'?" in refused.value.next


class _Raising(Party):
    def waits_for(self) -> Wait | None:
        raise KeyError("lock")


class _Sending(Party):
    def waits_for(self) -> Wait | None:
        self.send("b", PartyRequest())
        return None


class _Wrong(Party):
    def waits_for(self) -> Any:
        return "b"


class _Leaky(Keeper):
    def refs(self) -> Any:
        return "x"


class _Listed(Keeper):
    def objects(self) -> Any:
        return ["x"]


@pytest.mark.parametrize(
    ("check", "kind", "words"),
    [
        ("deadlock", _Raising, r"waits_for\(\) of node a failed: KeyError: 'lock'"),
        ("deadlock", _Sending, "a tries to send to b while it is only looked at"),
        ("deadlock", _Wrong, r"waits_for\(\) of a returned 'b', which is not a wait"),
        ("garbage", _Leaky, r"refs\(\) of node a gives 'x', which is not a list of references"),
        ("garbage", _Listed, r"objects\(\) of node a returned list, not a dict"),
    ],
)
def test_a_method_that_does_not_do_what_it_should_is_named(check: str, kind: type[Process], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        shown(check, kind, {"a": {}, "b": {}})


def test_a_state_that_does_not_fit_its_class_is_named() -> None:
    with pytest.raises(StrobeError, match=r"The stored state of Plain.x does not fit"):
        shown("termination", Plain, {"a": {"x": "one"}})


def test_a_function_of_ones_own_is_given_plain_values(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from helper import LIMIT\n"
        "def low(cut):\n"
        "    total = sum(s['x'] for s in cut.states.values())\n"
        "    total += sum(m.payload for content in cut.channels.values() for m in content)\n"
        "    return f'only {total}' if total < LIMIT else None\n"
        "async def later(cut): return True\n"
        "def broken(cut): return cut.states['nobody']\n"
    )
    (tmp_path / "helper.py").write_text("LIMIT = 10\n")
    topology = Topology("t", (NodeSpec(NodeId("a"), Plain), NodeSpec(NodeId("b"), Plain)), complete("ab"))

    def ask(name: str, x: int) -> Finding:
        states = stored_states({NodeId(n): encode_state({"x": x}, n) for n in "ab"})
        contents = stored_contents({ChannelId("a-b"): b"".join(packed([encode_message(1)], 1))})
        loaded = Loaded(SnapshotId(1), states, contents)
        return Check.named(f"{tmp_path}/own.py:{name}")(loaded, topology.graph, None)

    assert (ask("low", 3).found, ask("low", 3).sentence) == (True, "only 7")
    assert not ask("low", 5).found
    for name, words in (("broken", "KeyError: 'nobody'"), ("later", "is a coroutine"), ("none", "has no function")):
        with pytest.raises(Misuse, match=words):
            ask(name, 1)
    with pytest.raises(Misuse, match="There is no file"):
        Check.named(f"{tmp_path}/nowhere.py:low")
