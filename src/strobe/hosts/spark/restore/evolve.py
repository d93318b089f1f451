"""What a stage keeps as state, described so that two versions of a file can be compared before anything is touched.

Spark finds state again by the order of its operators in the plan, and their rows by position, not by name. A changed
key or aggregate is noticed late, in the first batch, or not at all. So a description of each stage's operators is kept
with every snapshot, and compared with the plan of the file that is to run.

What changes the *shape* of the state (operators, keys, types) is found here: such a state cannot be read. What its
content *means* is derived in `plans.meaning` and compared in `plans.changes`. Where that was not noted, only names can
be compared: the state is kept, and the author has to judge whether that is right.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from strobe.hosts.spark.jvm.python_source import without_numbers
from strobe.hosts.spark.plans.changes import Difference, Weight, compare_meanings, meaning_of
from strobe.hosts.spark.plans.description import CHANNEL, entries_of
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import NodeId

__all__ = ["changed_state", "compare_stages", "rearranged", "said"]

_log = logging.getLogger("strobe.evolve")
_SOURCES = ("StreamingRelation", "StreamingRelationV2")
_AVRO_PROMOTES = {("integer", "long"), ("integer", "double"), ("float", "double")}
_DEDUPLICATE = {"Deduplicate": "distinct", "DeduplicateWithinWatermark": "distinct within watermark"}


def compare_stages(before: Json, after: Json) -> list[Difference]:
    """What has changed since the state was written. Empty if the snapshot has no description of it."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or "operators" not in before:
        return []
    before = json.loads(without_numbers(json.dumps(before)))  # older descriptions have them
    known = meaning_of(before) is not None and meaning_of(after) is not None
    try:
        found = [
            *_compare_sources(entries_of(before, "sources"), entries_of(after, "sources")),
            *_compare_operators(
                entries_of(before, "operators"),
                entries_of(after, "operators"),
                names=not known,
                avro=before.get("encoding") == after.get("encoding") == "avro",
            ),
        ]
        if any(d.weight is Weight.UNFIT for d in found):
            return found
        return [*found, *compare_meanings(before, after)]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Damaged(
            f"The snapshot does not say what the stage kept: {type(error).__name__}: {error!s:.200}.",
            untouched="Nothing was changed.",
            next="Restore another snapshot.",
        ) from error


def changed_state(uid: NodeId, differences: Sequence[Difference], *, allowed: bool = False) -> Misuse | None:
    """Why the stage cannot go on with its state, and the ways out. `allowed`: results may mix."""
    unfit = [d.sentence for d in differences if d.weight is Weight.UNFIT]
    mixed = [d.sentence for d in differences if d.weight is Weight.MIXED]
    instead = (
        "Keep the operator as it was (if only the type of a column has changed, cast it to what it was in front of the "
        f"operator); or give the stage a new uid and replaces={str(uid)!r}: it goes on where {uid!r} "
        "was, without its state; or stop the job with --drain first and start a new one"
    )
    if unfit:
        return Misuse(
            f"The state of stage {uid!r} no longer fits its code: {'; '.join((*unfit, *mixed))}.",
            untouched="Nothing was changed.",
            next=f"{instead}.",
        )
    if mixed and not allowed:
        return Misuse(
            f"The state of stage {uid!r} does not mean what its code means now: {'; '.join(mixed)}. Results from "
            "before and after the change would mix.",
            untouched="Nothing was changed.",
            next=f"{instead}; or, if they may mix, go on with the state as it is: --allow-changed-state {uid}.",
        )
    return None


def said(differences: Sequence[Difference]) -> list[str]:
    """What to tell the user about differences with which a stage may go on."""
    mixing = {Weight.MIXED: ", and results from before and after the change mix"}
    return [f"{d.sentence}; its state goes on as it is{mixing.get(d.weight, '')}" for d in differences]


def rearranged(before: Json, after: Json) -> tuple[NodeId, ...] | None:
    """The channels that the new plan reads, in its order, if the order has changed and the stage reads only channels,
    before and now. Their positions are known by name, so they can be found again in any order."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return None
    old, new = entries_of(before, "sources"), entries_of(after, "sources")
    if not old or old == new or not _are_channels(old) or not _are_channels(new):
        return None
    return tuple(NodeId(str(source).removeprefix(CHANNEL)) for source in new)


def _are_channels(sources: list[Any]) -> bool:
    return bool(sources) and all(str(source).startswith(CHANNEL) for source in sources)


def _compare_sources(before: list[Any], after: list[Any]) -> list[Difference]:
    if before == after or not before:
        return []
    if _are_channels(before) and _are_channels(after):
        if set(before) == set(after):
            return []
        return [Difference(f"it read {_listed(before)}, and now reads {_listed(after)}", Weight.HARMLESS)]
    return [Difference(f"it read {_listed(before)}, and now reads {_listed(after)}, in this order", Weight.UNFIT)]


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _compare_operators(before: list[Any], after: list[Any], *, names: bool, avro: bool) -> list[Difference]:
    """`names`: compare names too, since nothing better was noted. `avro`: Spark can read values of another schema."""
    old, new = ([o for o in operators if o["kind"] != "watermark"] for operators in (before, after))
    if [o["kind"] for o in old] != [o["kind"] for o in new]:
        was, is_ = (", ".join(o["kind"] for o in operators) or "none" for operators in (old, new))
        return [Difference(f"its operators with state were: {was}; they are now: {is_}", Weight.UNFIT)]
    found = [d for was, is_ in zip(old, new, strict=True) for d in _compare_operator(was, is_, names=names, avro=avro)]
    marks = [
        [(o["column"], o["delay"]) for o in operators if o["kind"] == "watermark"] for operators in (before, after)
    ]
    if names and marks[0] != marks[1]:
        was, is_ = (", ".join(f"{c} by {d}" for c, d in mark) or "none" for mark in marks)
        found.append(Difference(f"its watermark was {was}, and is now {is_}", Weight.HARMLESS))
    return found


def _compare_operator(
    before: Mapping[str, Any], after: Mapping[str, Any], *, names: bool, avro: bool
) -> list[Difference]:
    kind = before["kind"]
    found: list[Difference] = []
    if "keys" in before and "keys" in after:
        found += _compare_columns(f"keys of its {kind}", before["keys"], after["keys"], names=names)
    if "values" in before and "values" in after:
        what = f"values of its {kind}"
        if kind == "transformWithState":
            found += _compare_variables(what, before["values"], after["values"], avro=avro)
        else:
            found += _compare_columns(what, before["values"], after["values"], names=names)
    if kind == "join":
        for fact in ("type", "condition") if names else ():
            if before[fact] != after[fact]:
                words = f"its join had the {fact} {before[fact]}, and now has {after[fact]}"
                found.append(Difference(words, Weight.UNFIT))
        for side, was, is_ in zip(("left", "right"), before["sides"] or (), after["sides"] or (), strict=False):
            found += _compare_columns(f"rows on the {side} of its join", was, is_, names=names)
    return found


def _compare_variables(what: str, before: list[Any], after: list[Any], *, avro: bool) -> list[Difference]:
    """State of a processor is found by name: a new variable starts empty, one that is no longer used is ignored."""
    old, new = ({v["name"]: v["type"] for v in variables} for variables in (before, after))
    was, is_ = ({v["name"]: v for v in variables} for variables in (before, after))
    found = [
        Difference(
            f"the state {name!r} was a {old[name]}, and is now a {new[name]}",
            Weight.HARMLESS if avro and _evolves(was[name], is_[name]) else Weight.UNFIT,
        )
        for name in old
        if name in new and old[name] != new[name]
    ]
    ttl = [{v["name"]: v["ttl_ms"] for v in variables if v.get("ttl_ms")} for variables in (before, after)]
    for name in ttl[0].keys() & ttl[1].keys():
        if ttl[0][name] != ttl[1][name]:
            words = f"the state {name!r} lived for {ttl[0][name]} ms, and what is new lives for {ttl[1][name]} ms"
            found.append(Difference(words, Weight.HARMLESS))
    gone = sorted(old.keys() - new.keys())
    return [
        *found,
        *(Difference(f"the {what} had {name!r}, which is no longer asked for", Weight.HARMLESS) for name in gone),
    ]


def _evolves(was: Mapping[str, Any], is_: Mapping[str, Any]) -> bool:
    """Whether Spark can read Avro values that were written as `was`: with fields added, or fields removed, or wider
    numbers. Fields added and removed at once are refused: that may be a rename, and the renamed field would begin with
    null."""
    if was.get("kind") != is_.get("kind") or "schema" not in was or "schema" not in is_:
        return False
    old, new = ({f["name"]: f["type"] for f in v["schema"]["fields"]} for v in (was, is_))
    if old.keys() - new.keys() and new.keys() - old.keys():
        return False
    return all(old[n] == new[n] or (old[n], new[n]) in _AVRO_PROMOTES for n in old.keys() & new.keys())


def _kept(functions: list[Any]) -> list[Any]:
    """What aggregate functions keep: a sum of INT and one of BIGINT keep the same."""
    return [f.get("keeps", f["type"]) for f in functions]


def _compare_columns(what: str, before: list[Any], after: list[Any], *, names: bool) -> list[Difference]:
    before, after = (list({str(c): c for c in columns}.values()) for columns in (before, after))
    if before == after:
        return []
    was, is_ = (", ".join(f"{c['name']} {c['type']}" for c in columns) or "none" for columns in (before, after))
    sentence = f"the {what} were {was}, and are now {is_}"
    if [c["type"] for c in before] != [c["type"] for c in after] and _kept(before) != _kept(after):
        return [Difference(sentence, Weight.UNFIT)]
    return [Difference(sentence, Weight.HARMLESS)] if names else []
