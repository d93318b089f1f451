"""The page on the format says what the code does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from strobe.store.codec import encode
from strobe.store.manifest import FORMAT, Timing
from strobe.store.points import POINTS
from tests.store.snapshot_samples import manifest

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "snapshot-format.md").read_text(encoding="utf-8")


def fields_in_tables() -> list[set[str]]:
    tables = re.findall(r"\| field \|.*?\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    return [set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()))) for table in tables]


def test_every_field_is_described_and_no_other() -> None:
    plain = manifest(1, {})
    timed = {uid: replace(node, timing=Timing(1.0, 2.0, 3.0, 4.0)) for uid, node in plain.nodes.items()}
    written = json.loads(encode(replace(plain, nodes=timed)))
    assert fields_in_tables() == [
        set(written),
        set(written["nodes"]["balances"]),
        set(written["channels"]["postings"]),
        set(written["sinks"]["balances"]),
    ]


def test_the_format_number_is_the_one_that_is_written() -> None:
    assert f"The format described here is number **{FORMAT}**" in PAGE


def test_every_crash_point_is_listed_with_its_meaning() -> None:
    assert dict(re.findall(r"\| `(store\.[\w.]+)` \| (.*) \|", PAGE)) == dict(POINTS)
