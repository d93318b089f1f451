"""Walking through a run: always consistent, back where it came from, and jumps land where they should."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strobe.hosts.sim.runner import SimConfig, run, workload_of
from strobe.predicates.computation import Computation, Positions
from strobe.predicates.replay import Run, run_of
from strobe.predicates.walk import Stop, Trail, Walk, walk_through
from tests.predicates.computations import all_cuts, computations


def walk_of(computation: Computation) -> Walk:
    counts = [0] * len(computation.nodes)
    order = []
    for node in computation.order():
        counts[node] += 1
        order.append((node, counts[node]))
    return Walk(computation, tuple(order))


def simulated(workload: str = "bank", **options: object) -> Run:
    journal = run(SimConfig(workload, **options)).journal  # type: ignore[arg-type]
    assert journal is not None
    return run_of(journal, workload_of(journal.header))


walks = computations().map(walk_of)


def below(a: Positions, b: Positions) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


@st.composite
def walks_at_a_cut(draw: st.DrawFn) -> tuple[Walk, Positions]:
    walk = draw(walks)
    return walk, draw(st.sampled_from(all_cuts(walk.computation)))


@given(walks, st.lists(st.tuples(st.sampled_from(["on", "back", "node on", "node back", "cause", "effect"]),
                                 st.integers(0, 3)), max_size=30))  # fmt: skip
def test_every_cut_that_moves_lead_to_is_consistent(walk: Walk, moves: list[tuple[str, int]]) -> None:
    cut = walk.computation.first
    for move, number in moves:
        node = number % len(walk.computation.nodes)
        match move:
            case "on":
                cut = walk.forwards(cut)
            case "back":
                cut = walk.backwards(cut)
            case "node on":
                cut = walk.forwards_at(cut, node)
            case "node back":
                cut = walk.backwards_at(cut, node)
            case "cause":
                cut = (walk.to_cause(cut, node) or (cut, node))[0]
            case "effect":
                cut = (walk.to_effect(cut, node) or (cut, node))[0]
        assert walk.computation.is_consistent(cut)


@given(walks)
def test_along_the_recorded_order_forwards_and_backwards_are_inverse(walk: Walk) -> None:
    cut = walk.computation.first
    for length in range(walk.computation.events):
        further = walk.forwards(cut)
        assert sum(further) == length + 1
        assert walk.backwards(further) == cut
        assert walk.prefix(length + 1) == further
        assert walk.front(further) == length + 1
        cut = further
    assert cut == walk.computation.last == walk.forwards(cut)
    assert walk.backwards(walk.computation.first) == walk.computation.first


@given(walks_at_a_cut(), st.data())
def test_with_a_step_is_the_smallest_cut_and_without_it_the_largest(
    given_walk: tuple[Walk, Positions], data: st.DataObject
) -> None:
    walk, cut = given_walk
    cuts = all_cuts(walk.computation)
    for node, length in enumerate(walk.computation.lengths):
        if not length:
            continue
        number = data.draw(st.integers(1, length))
        have = [c for c in cuts if below(cut, c) and c[node] >= number]
        lack = [c for c in cuts if below(c, cut) and c[node] < number]
        assert walk.with_step(cut, node, number) == min(have, key=sum)
        assert walk.without_step(cut, node, number) == max(lack, key=sum)
        assert walk.at_step(cut, node, number)[node] == number


@given(walks_at_a_cut())
def test_one_node_on_and_back_gives_the_same_cut_unless_others_were_pulled_along(given: tuple[Walk, Positions]) -> None:
    walk, cut = given
    for node, count in enumerate(cut):
        on = walk.forwards_at(cut, node)
        if count < walk.computation.lengths[node]:
            back = walk.backwards_at(on, node)
            assert below(cut, back)
            assert (back == cut) == (sum(on) == sum(cut) + 1)
        back = walk.backwards_at(cut, node)
        if count:
            on = walk.forwards_at(back, node)
            assert below(on, cut)
            assert on == cut or sum(back) < sum(cut) - 1


@given(walks_at_a_cut())
def test_at_the_cause_the_message_is_in_flight_and_its_effect_leads_to_the_receipt(
    given: tuple[Walk, Positions],
) -> None:
    walk, cut = given
    for node, count in enumerate(cut):
        need = walk.computation.needs[node][count - 1] if count else None
        found = walk.to_cause(cut, node)
        assert (found is None) == (need is None)
        if found is None or need is None:
            continue
        at, sender = found
        assert (sender, at[sender]) == need
        assert at[node] < count
        assert below(at, cut)
        forth = walk.to_effect(at, sender)
        assert forth is not None, "what is in flight has an effect"
        assert walk.computation.needs[forth[1]][forth[0][forth[1]] - 1] == need


@given(walks_at_a_cut(), st.sets(st.integers(0, 400)))
def test_jumps_land_where_the_condition_starts_or_stops(given: tuple[Walk, Positions], marked: set[int]) -> None:
    walk, cut = given
    numbers = {c: i for i, c in enumerate(all_cuts(walk.computation))}

    def holds(at: Positions) -> bool:
        return numbers[at] in marked

    def path(step: Callable[[Positions], Positions]) -> list[Positions]:
        cuts = [cut]
        while (further := step(cuts[-1])) != cuts[-1]:
            cuts.append(further)
        return cuts

    later = path(walk.forwards)
    expected = [c for c in later if holds(c) != holds(cut)]
    assert walk.next_change(cut, holds) == (expected[0] if expected else None)
    earlier = path(walk.backwards)[1:]
    changes = [c for c, before in pairwise(earlier) if holds(c) != holds(before)]
    assert walk.previous_change(cut, holds) == (changes[0] if changes else None)


def test_changes_are_the_same_cuts_on_the_way_on_and_on_the_way_back() -> None:
    walk = walk_through(simulated(seed=7))

    def holds(at: Positions) -> bool:
        return sum(at) % 7 in (2, 3)

    cut, found = walk.computation.first, []
    while (further := walk.next_change(cut, holds)) is not None:
        found.append(cut := further)
    back = []
    cut = walk.computation.last
    while (earlier := walk.previous_change(cut, holds)) is not None:
        back.append(cut := earlier)
    assert back[::-1] == found[: len(back)]
    assert len(found) - len(back) <= 1, "only the one at the very end is not before it"


def test_snapshots_of_the_journal_are_stops_one_after_the_other() -> None:
    made = simulated(seed=3, snapshots=4)
    walk = walk_through(made)
    cut, met = walk.computation.first, []
    while (stop := walk.next_stop(cut)) is not None:
        assert stop.exact
        assert walk.computation.is_consistent(stop.at)
        met.append(stop)
        cut = stop.at
    assert sorted(s for stop in met for s in stop.snapshots) == sorted(made.snapshots)
    assert walk.previous_stop(walk.computation.last) == met[-1] or met[-1].at == walk.computation.last
    back = [met[-1]]
    while (stop := walk.previous_stop(back[-1].at)) is not None:
        back.append(stop)
    assert back == met[::-1]


def test_a_snapshot_that_is_no_consistent_cut_is_met_at_the_smallest_one_around_it() -> None:
    found: list[Stop] = []
    for seed in range(20):
        made = simulated(seed=seed, protocol="agreed-clock")
        for stop in walk_through(made).stops:
            assert made.computation.is_consistent(stop.at)
            (snapshot,) = stop.snapshots
            assert stop.exact == made.computation.is_consistent(made.snapshots[snapshot])
            assert below(made.snapshots[snapshot], stop.at)
            found.append(stop)
    assert {stop.exact for stop in found} == {True, False}


@given(st.lists(st.integers(0, 3), max_size=20))
def test_a_trail_leads_back_all_the_way_and_on_again(cuts: list[int]) -> None:
    trail = Trail((0,))
    been = [trail.here]
    for each in cuts:
        trail = trail.to((each,))
        if trail.here != been[-1]:
            been.append(trail.here)
    back = [trail.here]
    while trail.behind:
        trail = trail.undo()
        back.append(trail.here)
    assert back == been[::-1]
    for each_cut in been[1:]:
        trail = trail.redo()
        assert trail.here == each_cut
    assert trail.redo() == trail
