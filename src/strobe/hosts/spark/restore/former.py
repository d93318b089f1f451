"""What stages keep as state, described so that it can be compared with what was noted when channels had other columns.

State is described by the columns of the channels that it comes from. A column that has another name now, or a wider
type, still is the same column: the new description is written with the former names, and a cast to the wider type,
which the old code may have and the new one no longer needs, is left out on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strobe.hosts.spark.channel.columns import Columns, evolve
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.plans.text import quoted
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.hosts.spark.stage.chaining import describe_draft
from strobe.model.cut import Json
from strobe.model.ids import NodeId

__all__ = ["Former"]


@dataclass(frozen=True)
class Former:
    """`names`: the former name, by channel and present name. `casts`: texts of casts, by the text of what is cast."""

    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    casts: Mapping[str, str] = field(default_factory=dict)
    changed: frozenset[NodeId] = frozenset()  # the channels

    @classmethod
    def of(
        cls, drafts: Sequence[DraftStage], held: Mapping[NodeId, Columns], before: Mapping[NodeId, Columns]
    ) -> Former:
        """`held` are the columns of rows in the channels, `before` those at the time of the description, which may be
        earlier. Misuse if the columns cannot change so."""
        names: dict[str, dict[str, str]] = {}
        casts: dict[str, str] = {}
        for draft in drafts:
            uid = draft.spec.uid
            if uid not in held:
                continue
            now = evolve(held[uid], channel_schema(draft.schema, uid), draft.spec.renamed, uid).columns
            names[uid] = {new: old for old, new in before[uid].renamed_in(now).items()}
            types = {c.number: c.type for c in now.columns}
            for column in before[uid].columns:
                wider = types.get(column.number, column.type)
                if wider != column.type:
                    text = f"{uid}::{quoted(column.name)}"
                    casts[f"cast({text} as {_type_name(wider.jsonValue())})"] = text
        changed = {NodeId(uid) for uid, found in names.items() if found} | {
            NodeId(text.partition("::")[0]) for text in casts.values()
        }
        return cls(names, casts, frozenset(changed))

    def concerns(self, draft: DraftStage) -> bool:
        return any(read in self.changed for read in draft.spec.inputs)

    def now(self, draft: DraftStage) -> dict[str, Json]:
        """The stage's description, with the former names."""
        return describe_draft(draft, self.names)

    def without_casts(self, description: Json) -> Json:
        if not self.casts or not isinstance(description, Mapping) or "meaning" not in description:
            return description
        text = json.dumps(description["meaning"], ensure_ascii=False)
        for cast, column in self.casts.items():
            text = text.replace(
                json.dumps(cast, ensure_ascii=False)[1:-1], json.dumps(column, ensure_ascii=False)[1:-1]
            )
        return {**description, "meaning": json.loads(text)}


def _type_name(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
