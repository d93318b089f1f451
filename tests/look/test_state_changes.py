"""Changes read all at once are what reading them one by one gives, whatever bytes they have."""

from __future__ import annotations

import random
import struct

import lz4.block
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.look import key_hashes, records
from strobe.look.gather import Rows, pieces
from strobe.look.key_hashes import hashes_of, last_of_each, rows_with
from strobe.look.records import record_starts
from strobe.look.state_changes import Changes, StepByStep, last_changes
from strobe.look.state_files import overlaid
from tests.hostile.cases import alarm

PUT, DELETE, MERGE, RANGE = 1, 0x10, 0x11, 0x20
Record = tuple[int, bytes, bytes | None]


def run(changes: list[Record], *, typed: bool) -> tuple[bytes, list[int]]:
    """The bytes of some records, and where each begins."""
    out, starts = b"\0\2v2" if typed else b"", []
    parts = [out]
    at = len(out)
    for kind, key, value in changes:
        starts.append(at)
        body = bytes([kind]) if typed else b""
        body += struct.pack(">i", len(key)) + key
        body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
        parts.append(body)
        at += len(body)
    return b"".join(parts) + (b"\0" if typed else b"\xff" * 4), starts


def packed(data: bytes) -> bytes:
    content: bytes = lz4.block.compress(data, store_size=False)
    return struct.pack("<8sBiii", b"LZ4Block", 0x25, len(content), len(data), 0) + content


def left(files: list[list[Record]], *, typed: bool = True) -> Changes | StepByStep:
    found = {f"{n}.changelog": packed(run(each, typed=typed)[0]) for n, each in enumerate(files, 1)}
    return last_changes(tuple(found), found.__getitem__)


def many(seed: int, *, lengths: tuple[int, ...], longest: int, count: int = 20_000) -> list[Record]:
    source = random.Random(seed)
    kinds = [(PUT, True)] * 9 + [(DELETE, False)]
    found: list[Record] = []
    for _ in range(count):
        kind, there = source.choice(kinds)
        key = source.randbytes(source.choice(lengths))
        found.append((kind, key, bytes(source.randrange(longest)) + b"\1" if there else None))
    return found


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    ("lengths", "longest"),
    [((17,), 60), ((25, 33, 41), 300), (tuple(range(1, 40)), 30), ((17,), 5000), ((0,), 1)],
)
def test_records_are_found_wherever_they_begin(typed: bool, lengths: tuple[int, ...], longest: int) -> None:
    changes = many(1, lengths=lengths, longest=longest, count=4000 if longest > 1000 else 20_000)
    data, starts = run(changes, typed=typed)
    found = record_starts(np.frombuffer(data, np.uint8), 4 if typed else 0, typed=typed)
    assert found.tolist() == starts


def test_what_only_looks_like_a_record_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are runs of records themselves, so that every guess inside one of them is wrong."""
    inner, _ = run([(PUT, b"k" * 17, b"v" * 20)] * 40, typed=False)
    short: list[Record] = [(PUT, b"k" * 17, b"v" * 20)]
    long: list[Record] = [(PUT, b"k" * 17, inner + b"?")]
    changes = short * 300 + long * 2000
    data, starts = run(changes, typed=False)
    found = record_starts(np.frombuffer(data, np.uint8), 0, typed=False)
    assert found.tolist() == starts
    monkeypatch.setattr(records, "_ROUNDS", 1)  # then the rest is followed one by one
    assert record_starts(np.frombuffer(data, np.uint8), 0, typed=False).tolist() == starts


@pytest.mark.parametrize("typed", [True, False])
def test_records_that_are_cut_off_are_no_records(typed: bool) -> None:
    data, starts = run(many(2, lengths=(17,), longest=60), typed=typed)
    for end in (
        len(data) - 1,
        len(data) - 5,
        starts[-1] + 3,
        starts[5000],
        starts[300] + 10,
        starts[3] + 2,
        5,
        4,
        2,
        0,
    ):
        with pytest.raises(ValueError, match="leads out"):
            record_starts(np.frombuffer(data[:end], np.uint8), 4 if typed else 0, typed=typed)


def test_what_follows_the_mark_at_the_end_does_not_count() -> None:
    data, starts = run(many(3, lengths=(17,), longest=60, count=5000), typed=False)
    assert record_starts(np.frombuffer(data * 3, np.uint8), 0, typed=False).tolist() == starts


@pytest.mark.parametrize("seed", range(20))
def test_damaged_records_are_read_as_one_by_one_or_not_at_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(seed)
    typed = bool(seed % 2)
    lengths = source.choice([(17,), (1, 2, 3), (25, 33)])
    data = bytearray(run(many(seed, lengths=lengths, longest=60, count=3000), typed=typed)[0])
    for _ in range(source.choice((1, 5, 50))):
        at = source.randrange(4, len(data) - 4)
        data[at : at + 4] = struct.pack(">i", source.choice((-1, -2, 2**31 - 1, 0, source.randrange(300), 10**6)))

    def found() -> list[int] | str:
        try:
            starts: list[int] = record_starts(np.frombuffer(data, np.uint8), 4 if typed else 0, typed=typed).tolist()
        except ValueError as error:
            return str(error)
        return starts

    together = found()
    monkeypatch.setattr(records, "_SAMPLE", len(data))  # then all are followed one by one
    assert together == found()


@given(st.lists(st.lists(st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=3)), max_size=40), max_size=4))
def test_the_last_change_of_each_key_counts(files: list[list[tuple[bytes, bytes | None]]]) -> None:
    expected: dict[bytes, bytes | None] = {}
    for key, value in (change for file in files for change in file):
        expected[key] = value
    found = left([[(DELETE if v is None else PUT, k, v) for k, v in file] for file in files])
    assert isinstance(found, Changes)
    values = [None if gone else v for gone, v in zip(found.gone.tolist(), found.values.to_list(), strict=True)]
    assert dict(zip(found.keys.to_list(), values, strict=True)) == expected
    assert len(found.keys) == len(expected)


def test_changes_that_append_and_remove_ranges_are_taken_in_their_order() -> None:
    found = left(
        [[(PUT, b"a", b"1"), (PUT, b"b", b"1"), (MERGE, b"a", b"2"), (MERGE, b"c", b"3")], [(RANGE, b"b", b"c")]]
    )
    assert isinstance(found, StepByStep)
    assert found.changed == {b"a": (False, b"12"), b"b": (False, None), b"c": (True, b"3")}
    assert found.ranges == [(b"b", b"c")]


def over(base: dict[bytes, bytes], changes: Changes | StepByStep) -> dict[bytes, bytes]:
    """What the changes make of a full copy."""
    assert isinstance(changes, StepByStep)
    return dict(overlaid(iter(sorted(base.items())), changes))


def one_by_one(base: dict[bytes, bytes], changes: list[Record]) -> dict[bytes, bytes]:
    found = dict(base)
    for kind, key, value in changes:
        if kind == RANGE:
            found = {k: v for k, v in found.items() if not key <= k < (value or b"")}
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = found.get(key, b"") + value if kind == MERGE else value
    return found


def test_what_a_range_removed_from_the_copy_is_not_appended_to() -> None:
    changes: list[Record] = [(RANGE, b"a", b"m"), (MERGE, b"k", b"new")]
    assert over({b"k": b"old", b"z": b"kept"}, left([changes])) == {b"k": b"new", b"z": b"kept"}


_KEYS = st.binary(min_size=1, max_size=2).map(lambda data: bytes(b % 4 for b in data))
_RECORDS = st.one_of(
    st.tuples(st.sampled_from([PUT, MERGE]), _KEYS, st.binary(max_size=3)),
    st.tuples(st.just(DELETE), _KEYS, st.none()),
    st.tuples(st.just(RANGE), _KEYS, _KEYS),
)


@given(st.dictionaries(_KEYS, st.binary(max_size=3)), st.lists(st.lists(_RECORDS, max_size=12), min_size=1, max_size=3))
def test_changes_of_all_kinds_are_what_doing_them_one_by_one_gives(
    base: dict[bytes, bytes], files: list[list[Record]]
) -> None:
    changes: list[Record] = [*(each for file in files for each in file), (MERGE, b"x", b"y")]
    assert over(base, left([*files, changes[-1:]])) == one_by_one(base, changes)


@pytest.mark.parametrize(
    "files",
    [
        [[(PUT, b"%8d" % n, b"") for n in range(30_000)], [(RANGE, b"%8d" % n, b"9") for n in range(30_000)]],
        [[(MERGE, b"k", bytes(1000))] * 25_000] * 2,
    ],
    ids=["ranges", "appends"],
)
def test_no_changes_take_more_time_than_their_number_explains(files: list[list[Record]]) -> None:
    """They may come from somebody who wants to see how long a command can take."""
    with alarm():
        over({b"%8d" % n: b"" for n in range(30_000)}, left(files))


@pytest.mark.parametrize("agree", [False, True])
def test_keys_are_told_apart_also_where_their_hashes_agree(agree: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if agree:
        monkeypatch.setattr(key_hashes, "hashes_of", lambda keys: np.zeros(len(keys), np.uint64))
    source = random.Random(4)
    keys = [source.randbytes(source.choice((0, 3, 8, 9, 17))) for _ in range(600)]
    rows = keys + source.choices(keys, k=600)
    last = {key: place for place, key in enumerate(rows)}
    assert last_of_each(Rows.join(rows)).tolist() == sorted(last.values())
    wanted, known = [*keys[:50], b"none such"], Rows.join(rows)
    found, others = rows_with(known.take, key_hashes.hashes_of(known), Rows.join(wanted))
    assert bool(others) == agree
    assert found.tolist() == [place for place, key in enumerate(rows) if key in wanted]


def test_keys_that_differ_in_one_byte_have_different_hashes() -> None:
    keys = [bytes(at) + b"\1" + bytes(40 - at) for at in range(41)] + [bytes(size) for size in range(42)]
    assert len(set(hashes_of(Rows.join(keys)).tolist())) == len(keys)


@given(st.lists(st.binary(max_size=9)), st.randoms(use_true_random=False))
def test_runs_of_bytes_are_laid_together(parts: list[bytes], source: random.Random) -> None:
    rows = Rows.join(parts)
    order = list(range(len(parts)))
    for _ in range(2):
        offsets, content = pieces(rows.take(np.array(order, np.int64)))
        assert content.to_pybytes()[: offsets[-1]] == b"".join(parts[place] for place in order)
        assert offsets.tolist() == [sum(len(parts[p]) for p in order[:n]) for n in range(len(order) + 1)]
        order = source.sample(order, len(order) // 2)


def test_a_few_bytes_do_not_become_all_of_the_memory() -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(300):
            stream.write(bytes(1 << 20))
    bomb = sink.getvalue().to_pybytes()
    assert len(bomb) < 1 << 20
    with pytest.raises(ValueError, match="too large"):
        last_changes(("1.changelog",), lambda _: bomb)
