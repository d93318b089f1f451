"""What `strobe debug` says about a cut and about two runs: lines of plain text, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from strobe.cli.debug_diagram import step_words
from strobe.cli.figures import plural
from strobe.cli.predicate import cut_json, in_words
from strobe.model.cut import Json
from strobe.model.ids import NodeId
from strobe.predicates.compare import Difference
from strobe.predicates.computation import Positions
from strobe.predicates.replay import Run
from strobe.predicates.walk import Stop, Walk

__all__ = ["Truth", "cut_lines", "debug_json", "difference_lines", "snapshot_lines", "step_lines", "stop_words"]

Truth = tuple[str, bool]  # a condition, and whether it holds here


def cut_lines(run: Run, walk: Walk, cut: Positions) -> Iterator[str]:
    """States, then messages in flight, then the snapshots that were recorded exactly here."""
    yield f"{sum(cut):,} of {plural(run.computation.events, 'step')}"
    steps = [
        f"  (after step {run.step(node, count)})" if count else "  (at the start)"
        for node, count in zip(run.computation.nodes, cut, strict=True)
    ]
    yield from snapshot_lines(run, cut, steps)
    for stop in walk.stops:
        if stop.at == cut:
            yield ""
            yield stop_words(stop)


def snapshot_lines(run: Run, cut: Positions, notes: Sequence[str] = ()) -> Iterator[str]:
    """States, each with its notes, and messages in flight."""
    at = run.cut(cut)
    yield ""
    yield "States"
    width = max(map(len, run.computation.nodes))
    for node, note in zip_longest(run.computation.nodes, notes, fillvalue=""):
        yield f"  {node:<{width}}  {in_words(at.states[NodeId(node)])}{note}"
    flying = [(channel, message) for channel, messages in at.channels.items() for message in messages]
    yield ""
    yield f"In flight: {plural(len(flying), 'message')}"
    for channel, message in flying:
        ends = run.graph.by_id[channel]
        yield f"  {ends.source} → {ends.target}  {in_words(message.payload)}  (message {message.seq})"


def stop_words(stop: Stop) -> str:
    many = len(stop.snapshots) > 1
    name = f"{'Snapshots' if many else 'Snapshot'} {', '.join(map(str, stop.snapshots))}"
    if stop.exact:
        return f"{name} {'were' if many else 'was'} recorded here."
    return f"{name}: what was recorded is not a consistent cut. This is the smallest one that has all of it."


def step_lines(run: Run, cut: Positions, chosen: int) -> Iterator[str]:
    """The last step of the chosen node, what caused it, and what comes next there."""
    node, count = run.computation.nodes[chosen], cut[chosen]
    if not count:
        yield f"{node} has done nothing yet"
    else:
        yield step_words(run, node, count)
        cause = run.cause(node, count)
        if cause is not None:
            yield f"  sent in step {run.step(*cause)} of {cause[0]}"
    if count < run.computation.lengths[chosen]:
        yield f"  next: {step_words(run, node, count + 1)}"
    else:
        yield "  it takes no further step"


def difference_lines(ours: Run, theirs: Run, names: tuple[str, str], found: Difference) -> Iterator[str]:
    """Compare two runs: how long they are the same, what each does then, how each ends."""
    if found.none:
        yield f"{names[0]} and {names[1]} are the same run: {plural(ours.computation.events, 'step')}."
        return
    yield f"The runs are the same for {plural(sum(found.at), 'step')}. Then they part."
    header = ("node", "same", f"then in {names[0]}", f"then in {names[1]}")
    rows = [header]
    for index, node in enumerate(ours.computation.nodes):
        same = found.at[index]
        mine, other = _then(ours, index, same), _then(theirs, index, same)
        rows.append((node, str(same), mine, "the same" if mine == other else other))
    yield ""
    yield from _columns(rows)
    yield ""
    rows = [("node", "steps", f"ends in {names[0]}", f"ends in {names[1]}")]
    for node, (count, others), same_state in zip(ours.computation.nodes, found.steps, found.same_states, strict=True):
        end = "the same" if same_state else in_words(theirs.states(node)[-1])
        steps = str(count) if count == others else f"{count} | {others}"
        rows.append((node, steps, in_words(ours.states(node)[-1]), end))
    yield from _columns(rows)
    snapshots = (len(ours.snapshots), len(theirs.snapshots))
    yield ""
    yield f"Snapshots: {snapshots[0]} in {names[0]}, {snapshots[1]} in {names[1]}."


def debug_json(run: Run, walk: Walk, cut: Positions, truth: Truth | None, found: Difference | None) -> dict[str, Json]:
    nodes = run.computation.nodes
    answer: dict[str, Json] = {
        "steps": run.computation.events,
        "cut": cut_json(run, cut),
        "snapshots": {
            str(snapshot): {
                "consistent": stop.exact,
                "steps": {node: run.step(node, count) for node, count in zip(nodes, stop.at, strict=True)},
            }
            for stop in walk.stops
            for snapshot in stop.snapshots
        },
    }
    if truth is not None:
        answer |= {"condition": truth[0], "holds": truth[1]}
    if found is not None:
        answer["difference"] = {
            "same": found.none,
            "at": {node: run.step(node, count) for node, count in zip(nodes, found.at, strict=True)},
            "steps": {node: list(steps) for node, steps in zip(nodes, found.steps, strict=True)},
            "same_end": dict(zip(nodes, found.same_states, strict=True)),
        }
    return answer


def _then(run: Run, node: int, same: int) -> str:
    if same == run.computation.lengths[node]:
        return "nothing more"
    words = step_words(run, run.computation.nodes[node], same + 1)
    return words.removeprefix(f"{run.computation.nodes[node]} ")


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
