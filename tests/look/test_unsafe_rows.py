"""Spark's rows, decoded: by hand-made bytes, and whatever bytes come."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.look.gather import Rows
from strobe.look.state_files import Chunk
from strobe.look.state_schema import Family, Operator, Store
from strobe.look.state_tables import batch_of, tables_of
from strobe.look.types import Field, Unsupported, schema_from
from strobe.look.unsafe_rows import decode_rows


def fields(*pairs: tuple[str, Any]) -> tuple[Field, ...]:

    columns = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in pairs]
    return schema_from(json.dumps({"type": "struct", "fields": columns}))


def row(*slots: bytes, nulls: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack("<Q", nulls) + b"".join(slot.ljust(8, b"\0") for slot in slots) + rest


def at(offset: int, size: int) -> bytes:
    return struct.pack("<q", offset << 32 | size)


def decoded(columns: tuple[Field, ...], *rows: bytes) -> list[dict[str, Any]]:
    arrays = decode_rows(Rows.join(list(rows)), columns)
    for array in arrays:
        array.validate(full=True)
    return [{c.name: a[i].as_py() for c, a in zip(columns, arrays, strict=True)} for i in range(len(rows))]


def test_fixed_and_variable_fields_with_nulls() -> None:
    columns = fields(("n", "long"), ("t", "string"), ("b", "boolean"), ("d", "decimal(38,2)"), ("s", "decimal(4,1)"))
    one = row(
        struct.pack("<q", -5), at(48, 3), b"\1", at(56, 2), struct.pack("<q", -15),
        rest="äx".encode().ljust(8, b"\0") + b"\xff\x38".ljust(16, b"\0"),
    )  # fmt: skip
    none = row(b"", at(0, 0), b"", at(0, 0), b"", nulls=0b11111)
    assert decoded(columns, one, none, one) == [
        known := {"n": -5, "t": "äx", "b": True, "d": Decimal("-2.00"), "s": Decimal("-1.5")},
        dict.fromkeys(known),
        known,
    ]


def test_arrays_of_structs_in_a_map() -> None:
    struct_type = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]}
    array_type = {"type": "array", "elementType": struct_type, "containsNull": True}
    columns = fields(("m", {"type": "map", "keyType": "integer", "valueType": array_type, "valueContainsNull": True}))
    inner = struct.pack("<QQ", 0, 7)  # a struct of one int
    array = struct.pack("<QQ", 2, 0b10) + at(32, 16) + at(0, 0) + inner
    keys = struct.pack("<QQ", 1, 0) + struct.pack("<ii", 3, 0)
    values = struct.pack("<QQ", 1, 0) + at(24, len(array)) + array
    content = struct.pack("<q", len(keys)) + keys + values
    assert decoded(columns, row(at(16, len(content)), rest=content)) == [{"m": [(3, [{"x": 7}, None])]}]


def test_a_text_that_is_no_text_is_shown_with_marks() -> None:
    ((text,),) = (each.values() for each in decoded(fields(("t", "string")), row(at(16, 2), rest=b"\xffa".ljust(8))))
    assert text == "�a"


@pytest.mark.parametrize(
    "bytes_",
    [
        row(at(16, 1 << 30)),
        row(at(1 << 30, 8)),
        row(at(-8, 8)),
        b"\0" * 8,
        b"",
    ],
)
def test_what_leads_out_of_a_row_is_refused(bytes_: bytes) -> None:
    for kind in ("string", "binary", {"type": "array", "elementType": "long", "containsNull": True}):
        with pytest.raises(ValueError):
            decode_rows(Rows.join([bytes_]), fields(("a", kind)))


def test_an_array_that_says_it_is_huge_is_refused() -> None:
    kind = {"type": "array", "elementType": "void", "containsNull": True}
    for count in (1 << 40, 1 << 62, -1):
        content = struct.pack("<q", count) + b"\0" * 8
        with pytest.raises(ValueError):
            decode_rows(Rows.join([row(at(16, 16), rest=content)]), fields(("a", kind)))


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_any_bytes_are_rows_or_refused(rows: list[bytes]) -> None:
    array = {"type": "array", "elementType": "string", "containsNull": True}
    kind = {"type": "map", "keyType": "integer", "valueType": array, "valueContainsNull": True}
    try:
        for column in decode_rows(Rows.join(rows), fields(("a", kind), ("d", "decimal(30,2)"))):
            column.validate(full=True)
    except ValueError:
        pass


def test_a_type_that_is_not_known_is_named() -> None:
    with pytest.raises(Unsupported, match="variant"):
        fields(("v", "variant"))


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    kind: Any = "long"
    for _ in range(200):
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    with pytest.raises(ValueError):
        fields(("a", kind))


def test_a_sum_of_nothing_is_no_number() -> None:
    """Of decimals Spark keeps 0 and a flag: a result that is null must not be shown as 0.00."""
    value = fields(("sum", "decimal(12,2)"), ("isEmpty", "boolean"))
    family = Family("default", fields(("account", "long")), value)
    note = {"kind": "aggregate", "values": [{"name": "sum(x)", "type": "sum"}], "names": {"sum(x)": "balance"}}
    (table,) = tables_of("s", (Operator(0, "stateStoreSave", (Store("default", (family,)),)),), [note])
    keys = [row(struct.pack("<q", n)) for n in (1, 2, 3)]
    values = [
        row(struct.pack("<q", 1050), b"\0"),  # some rows
        row(struct.pack("<q", 0), b"\1"),  # rows without a number
        row(b"", b"\0", nulls=0b01),  # more than it can hold
    ]
    shown = batch_of(table, Chunk(Rows.join(keys), Rows.join(values)), plain=True).to_pylist()
    assert shown == [
        {"account": 1, "balance": Decimal("10.50")},
        {"account": 2, "balance": None},
        {"account": 3, "balance": None},
    ]


def test_a_schema_with_more_columns_than_any_table_has_is_refused() -> None:
    """It may come with a log that somebody else wrote, and each column takes time to show."""
    columns = [{"name": f"c{i}", "type": "long", "nullable": True, "metadata": {}} for i in range(20_001)]
    assert len(schema_from(json.dumps({"type": "struct", "fields": columns[:-1]}))) == 20_000
    with pytest.raises(Unsupported, match="20,001 columns"):
        schema_from(json.dumps({"type": "struct", "fields": columns}))
