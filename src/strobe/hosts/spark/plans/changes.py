"""Two meanings of a stage's state, compared: what has changed, and how serious that is.

*Unfit*: the state cannot be read by the new code. *Mixed*: it can be read, and would give results that belong neither
to the old code nor to the new one. *Harmless*: it goes on, and whoever runs the job should know.

A value that has more origins than before, or fewer, because a union has another branch, means what it did: harmless.
So does a column that now comes out of Python code, or did, under the name that it had: as far as one can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strobe.hosts.spark.plans.meaning import VERSION
from strobe.model.cut import Json
from strobe.model.text import shortened

__all__ = ["Difference", "Weight", "compare_meanings", "meaning_of", "uncompared"]

_QUALIFIER = re.compile(r"[A-Za-z0-9_.#\-]+::")
_PYTHON = re.compile("python⟦|⟧")
_BY_PLACE = frozenset({"keys", "functions", "left", "right"})  # Spark knows these by their order only
_WORDS = {
    ("aggregate", "keys"): "it grouped by {0}, and now groups by {1}",
    ("aggregate", "functions"): "it aggregated {0}, and now aggregates {1}",
    ("distinct", "keys"): "it dropped duplicates by {0}, and now does by {1}",
    ("distinct within watermark", "keys"): "it dropped duplicates by {0}, and now does by {1}",
    ("join", "type"): "its join was {0}, and is now {1}",
    ("join", "keys"): "its join was on {0}, and is now on {1}",
    ("join", "condition"): "its join had the condition {0}, and now has {1}",
    ("join", "left"): "its join kept {0} of the rows on its left, and now keeps {1}",
    ("join", "right"): "its join kept {0} of the rows on its right, and now keeps {1}",
    ("limit", "rows"): "its limit was {0}, and is now {1}",
    ("watermark", "column"): "its watermark was on {0}, and is now on {1}",
    ("watermark", "delay"): "its watermark's delay was {0}, and is now {1}",
}


class Weight(Enum):
    UNFIT = "unfit"
    MIXED = "mixed"
    HARMLESS = "harmless"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was."""

    sentence: str
    weight: Weight

    @property
    def harmful(self) -> bool:
        return self.weight is not Weight.HARMLESS


def meaning_of(description: Json) -> Mapping[str, Any] | None:
    """None if it was not noted, or by a Strobe that wrote it in another way."""
    meaning = description.get("meaning") if isinstance(description, Mapping) else None
    if not isinstance(meaning, Mapping) or meaning.get("version") != VERSION:
        return None
    lists = [meaning.get(name) for name in ("operators", "watermarks", "functions")]
    whole = all(isinstance(found, list) for found in lists) and isinstance(meaning.get("output_mode"), str)
    return meaning if whole and all(isinstance(f, str) for f in meaning["functions"]) else None


def uncompared(before: Json, after: Json) -> list[str]:
    """What could not be compared of a stage's state, in sentences."""
    then, now = meaning_of(before), meaning_of(after)
    if now is None or then is None:
        known = now if then is None else then
        if known is not None and not known["operators"]:
            return []
        when = "when it was written" if then is None else "now"
        return [f"what its state means is not known as of {when}: only operators and types were compared"]
    code = sorted({*then["functions"], *now["functions"]}) if now["operators"] else []
    named = ", ".join("its processor" if f.startswith("transformWithState") else f for f in code)
    return [f"what its Python code does was not compared ({named})"] if code else []


def compare_meanings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Compare two descriptions of a stage; no differences if one of them has no meaning noted."""
    then, now = meaning_of(before), meaning_of(after)
    if then is None or now is None or not (then["operators"] and now["operators"]):
        return []
    return list(_Comparison(before, after).differences(then, now))


class _Comparison:
    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        old, new = ([str(s).removeprefix("channel ") for s in d.get("sources") or ()] for d in (before, after))
        gone, come = [s for s in old if s not in new], [s for s in new if s not in old]
        # A channel that is read instead of another one has the columns that the other one had.
        self._renamed = dict(zip(gone, come, strict=True)) if len(gone) == len(come) else {}
        self._single = len(set(new)) == 1

    def differences(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
        old, new = then["operators"], now["operators"]
        kinds = [[o["kind"] for o in operators] for operators in (old, new)]
        if kinds[0] != kinds[1]:
            was, is_ = (", ".join(k) for k in kinds)
            yield Difference(f"its operators with state were: {was}; they are now: {is_}", Weight.UNFIT)
            return
        for was, is_ in zip(old, new, strict=True):
            for fact in (f for f in was if f != "kind" and f in is_):
                yield from self._fact(was["kind"], fact, was[fact], is_[fact])
        yield from self._watermarks(then["watermarks"], now["watermarks"])
        if "aggregate" in kinds[1] and then["output_mode"] != now["output_mode"]:
            sentence = f"its output mode was {then['output_mode']}, and is now {now['output_mode']}"
            yield Difference(sentence, Weight.MIXED)

    def _watermarks(self, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Difference]:
        if len(old) != len(new):
            was, is_ = (
                ", ".join(f"on {self._listed(w['column'])} by {w['delay']}" for w in marks) or "none"
                for marks in (old, new)
            )
            yield Difference(f"its watermark was {was}, and is now {is_}", Weight.HARMLESS)
            return
        for was, is_ in zip(old, new, strict=True):
            for fact in ("column", "delay"):
                yield from self._fact("watermark", fact, was[fact], is_[fact])

    def _fact(self, kind: str, fact: str, was: Any, is_: Any) -> Iterator[Difference]:
        was = self._rename(was)
        if was == is_:
            return
        if isinstance(was, list) and isinstance(is_, list):
            weight, why = self._weigh_columns(kind, fact, was, is_)
            texts = [self._listed(was), self._listed(is_)]
        else:
            weight, why = _weigh(kind, fact, was, is_), ""
            texts = [str(was), str(is_)]
        words = _WORDS.get((kind, fact), f"the {fact} of its {kind} was {{0}}, and is now {{1}}")
        yield Difference(words.format(*texts) + why, weight)

    def _weigh_columns(self, kind: str, fact: str, was: list[Any], is_: list[Any]) -> tuple[Weight, str]:
        if kind == "limit":
            return Weight.HARMLESS, ""
        if len(was) != len(is_):
            return (Weight.UNFIT if fact in _BY_PLACE else Weight.MIXED), ""
        weights = [_weigh_column(set(a), set(b)) for a, b in zip(was, is_, strict=True)]
        if any(w is Weight.MIXED for w in weights):
            turned = fact in _BY_PLACE and sorted(map(str, was)) == sorted(map(str, is_))
            return Weight.MIXED, " (Spark knows them by their order)" if turned else ""
        return Weight.HARMLESS, ""

    def _rename(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._rename(v) for v in value]
        if not isinstance(value, str) or not self._renamed:
            return value
        return _QUALIFIER.sub(lambda m: f"{self._renamed.get(m[0][:-2], m[0][:-2])}::", value)

    def _listed(self, columns: Sequence[Any]) -> str:
        shown = [" or ".join(map(self._shown, origins)) for origins in columns]
        return ", ".join(shown) or "nothing"

    def _shown(self, text: str) -> str:
        if self._single:
            text = _QUALIFIER.sub(lambda m: m[0] if m[0] == "static::" else "", text)
        text = text.replace("::", ".").replace("⟦", "(").replace("⟧", ")")
        return shortened(text, 200)


def _weigh_column(was: set[str], is_: set[str]) -> Weight:
    if was <= is_ or is_ <= was:
        return Weight.HARMLESS
    then, now = ({_PYTHON.sub("", text) for text in texts} for texts in (was, is_))
    return Weight.HARMLESS if then == now else Weight.MIXED


def _weigh(kind: str, fact: str, was: str, is_: str) -> Weight:
    if fact == "delay":
        return Weight.HARMLESS
    if kind == "transformWithState" or (fact == "timeout" and "NoTimeout" in (was, is_)):
        return Weight.UNFIT  # Spark keeps other columns then, and refuses the state itself
    return Weight.MIXED
