"""The journal file: what was written comes back, and anything else is refused with file, line and fault."""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.model.cut import Json, canonical
from strobe.model.errors import Damaged, Misuse
from strobe.model.events import (
    Completed,
    Crashed,
    Duplicated,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Restarted,
    Sent,
)
from strobe.model.ids import Incarnation, SnapshotId
from strobe.verify.journal import Header, JournalWriter, read_journal
from tests.verify.bank import AB, BA, TWO, A, B, cut, header, record

ALL: list[Event] = [
    Internal(A, 1, {"amount": 5, "to": "b", "note": "für dich\n→ 🎁"}),
    Sent(A, 1, AB, 1, [5, None, True, {"x": []}]),
    record(A, 1),
    MarkerSent(A, 1, AB, SnapshotId(1)),
    Received(B, 1, AB, 1),
    MarkerReceived(B, 1, AB, SnapshotId(1)),
    Lost(BA, 1),
    Duplicated(BA, 2),
    Crashed(B),
    Completed(cut({A: 1, B: {"k": [1]}}, {AB: [(1, 5), (2, {"a": None})]})),
    Restarted(Incarnation(2), cut({A: 1, B: {"k": [1]}}, {AB: [(1, 5), (2, {"a": None})]})),
]


def written(events: list[Event], head: Header | None = None) -> bytes:
    buffer = io.BytesIO()
    with JournalWriter(buffer, head or header()) as writer:
        for event in events:
            writer.write(event)
    return buffer.getvalue()


def sealed(*lines: Json) -> bytes:
    """A journal whose end line fits, whatever stands in the other lines."""
    body = b"".join((line if isinstance(line, bytes) else canonical(line)) + b"\n" for line in lines)
    return body + canonical(["end", len(lines) - 1, hashlib.sha256(body).hexdigest()]) + b"\n"


HEADER = json.loads(written([]).splitlines()[0])


# ── what was written comes back ─────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_event_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with JournalWriter(path, header()) as writer:
        for event in ALL:
            writer.write(event)
    assert read_journal(path) == (header(), ALL)


def test_a_header_comes_back_as_it_was() -> None:
    head = Header("live", "bank", {"nodes": 2, "rate": [1, 2]}, "lai-yang", "reorder", 7, TWO, {A: {"x": 1}, B: None})
    assert read_journal(io.BytesIO(written([], head))) == (head, [])


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_payload_comes_back_as_it_was(payload: Json) -> None:
    try:
        canonical(payload)
    except UnicodeEncodeError:
        return  # half a surrogate pair is not text, and the writer refuses it
    events: list[Event] = [Sent(A, 1, AB, 1, payload)]
    assert canonical(read_journal(io.BytesIO(written(events)))[1][0].payload) == canonical(payload)  # type: ignore[union-attr]


def test_the_same_run_gives_the_same_bytes_whatever_the_order_of_keys() -> None:
    one: list[Event] = [Internal(A, 1, {"x": 1, "y": 2}), Completed(cut({A: 1, B: 2}))]
    other: list[Event] = [Internal(A, 1, {"y": 2, "x": 1}), Completed(cut({B: 2, A: 1}))]
    assert written(one) == written(other)


def test_the_lines_are_those_that_the_format_promises() -> None:
    lines = written([Internal(A, 1, {"b": 1, "a": 2}), Sent(A, 1, AB, 1, 5), record(A, 1)]).decode().splitlines()
    assert lines[1:4] == ['["internal","a",1,{"a":2,"b":1}]', '["send","a",1,"a→b",1,5]', '["record","a",1,1]']
    assert json.loads(lines[4])[:2] == ["end", 3]
    assert json.loads(lines[0])["strobe-journal"] == 1


def test_a_stream_that_was_handed_in_stays_open() -> None:
    buffer = io.BytesIO()
    JournalWriter(buffer, header()).close()
    assert not buffer.closed


# ── writing what cannot be meant ────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_broke_off_does_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with suppress(ZeroDivisionError), JournalWriter(path, header()) as writer:
        writer.write(ALL[0])
        raise ZeroDivisionError
    with pytest.raises(Damaged, match="breaks off after this line"):
        read_journal(path)


@pytest.mark.parametrize("payload", [float("nan"), {1, 2}, object(), "\ud800"])
def test_a_payload_that_is_no_json_is_refused_and_the_journal_stays_whole(payload: object) -> None:
    buffer = io.BytesIO()
    with JournalWriter(buffer, header()) as writer:
        writer.write(ALL[0])
        with pytest.raises(Misuse, match="does not fit into a journal"):
            writer.write(Sent(A, 1, AB, 1, payload))
    assert read_journal(io.BytesIO(buffer.getvalue()))[1] == [ALL[0]]


def test_a_journal_in_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"nowhere/run\.journal"):
        JournalWriter(tmp_path / "nowhere" / "run.journal", header())


def test_a_header_without_a_nodes_initial_state_is_refused() -> None:
    with pytest.raises(Misuse, match="none for 'b'"):
        header(initial={A: 1})


def test_a_header_with_an_unknown_order_is_refused() -> None:
    with pytest.raises(Misuse, match="'lifo'"):
        header(order="lifo")


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_cut_off_journal_is_damaged() -> None:
    data = written(ALL)
    for length in range(len(data)):
        with pytest.raises(Damaged):
            read_journal(io.BytesIO(data[:length]))


def test_every_flipped_bit_is_damage() -> None:
    data = written(ALL)
    for at in range(len(data)):
        for bit in (1, 16, 128):
            changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises(Damaged):
                read_journal(io.BytesIO(changed))


@pytest.mark.parametrize("extra", [b"\n", b" ", b"x", b"[]\n", b'["crash","a"]\n'])
def test_bytes_after_the_end_are_damage(extra: bytes) -> None:
    with pytest.raises(Damaged):
        read_journal(io.BytesIO(written(ALL) + extra))


def damage(data: bytes) -> str:
    with pytest.raises(Damaged) as caught:
        read_journal(io.BytesIO(data))
    return caught.value.what


def test_damage_names_the_file_the_line_and_the_fault(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.write_bytes(sealed(HEADER, ["crash", "a"], ["crash", "nobody"]))
    with pytest.raises(Damaged) as caught:
        read_journal(path)
    assert caught.value.what == f"Journal {path}, line 3: there is no node 'nobody' in the graph."
    assert caught.value.untouched
    assert caught.value.next


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{", "this is not JSON"),
        (b"", "this is not JSON"),
        (b"[" * 100_000, "this is not JSON"),
        (b'["crash","a"] ', "there is more after the end of the event"),
        (b'["crash","a"]["crash","b"]', "there is more after the end of the event"),
        (b'["internal","a",1,NaN]', "NaN is not a JSON value"),
        (b'["internal","a",1,' + b"9" * 5000 + b"]", "this is not JSON"),
        ([], "an event is an array that starts with its kind"),
        ({}, "an event is an array that starts with its kind"),
        (7, "an event is an array that starts with its kind"),
        (["explode", "a"], "there is no kind of event 'explode'"),
        ([["crash"], "a"], "there is no kind of event"),
        (["end", 0, ""], "the end line is not the last line"),
        (["crash"], "'crash' does not have these fields"),
        (["internal", "a", 1, 2, 3], "'internal' does not have these fields"),
        (["crash", "nobody"], "there is no node 'nobody' in the graph"),
        (["crash", ["a"]], "'crash' does not have these fields"),
        (["send", "a", 1, "a→z", 1, 5], "there is no channel 'a→z' in the graph"),
        (["receive", "nobody", 1, "a→b", 1], "there is no node 'nobody' in the graph"),
        (["lost", "a→z", 1], "there is no channel 'a→z' in the graph"),
        (["duplicated", "a", 1], "there is no channel 'a' in the graph"),
        (["send", "a", "1", "a→b", 1, 5], "'1' is not a number"),
        (["receive", "a", 1, "b→a", 1.5], "1.5 is not a number"),
        (["record", "a", 1, None], "None is not a number"),
        (["internal", "a", True, None], "True is not a number"),
        (["snapshot", []], "a cut is a snapshot, states and channels"),
        (["snapshot", {"snapshot": "x", "states": {}, "channels": {}}], "a cut is the number of a snapshot"),
        (["snapshot", {"snapshot": 1, "states": {"z": 1}, "channels": {}}], "there is no node 'z' in the graph"),
        (["snapshot", {"snapshot": 1, "states": {}, "channels": {"z": []}}], "there is no channel 'z' in the graph"),
        (["restart", 2, {"snapshot": 1, "states": {}, "channels": {"a→b": [[1]]}}], "a list of [seq, payload]"),
        (["restart", "two", {"snapshot": 1, "states": {}, "channels": {}}], "'two' is not a number"),
    ],
)
def test_a_bad_line_is_named(line: Json, fault: str) -> None:
    what = damage(sealed(HEADER, ["crash", "a"], line, ["crash", "b"]))
    assert what.startswith("Journal the stream, line 3: ")
    assert fault in what


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (b"not json", "this is not JSON"),
        ([1], "this is not the header of a journal"),
        ({"host": "sim"}, "this is not the header of a journal"),
        (HEADER | {"strobe-journal": 2}, "the journal has format 2, and this Strobe reads format 1"),
        ({k: v for k, v in HEADER.items() if k != "graph"}, "the header has no 'graph'"),
        (HEADER | {"graph": {"nodes": [], "channels": []}}, "A system needs at least one node"),
        (HEADER | {"graph": {"nodes": ["a"], "channels": [["c", "a", "z"]]}}, "there is no node 'z'"),
        (HEADER | {"graph": 7}, "do not have the shape they should"),
        (HEADER | {"initial": {"a": 1}}, "none for 'b'"),
        (HEADER | {"initial": ["a", "b"]}, "not given by node"),
        (HEADER | {"order": "lifo"}, "'lifo'"),
        (HEADER | {"seed": "x"}, "seed is 'x'"),
        (HEADER | {"host": 1}, "is not a name"),
    ],
)
def test_a_bad_header_is_named(head: Json, fault: str) -> None:
    what = damage(sealed(head, ["crash", "a"]))
    assert what.startswith("Journal the stream, line 1: ")
    assert fault in what


def test_an_empty_file_is_damaged() -> None:
    assert "line 1: the file is empty" in damage(b"")


def test_binary_bytes_are_damage_at_their_line() -> None:
    assert "line 1: these bytes are not UTF-8 text" in damage(b"\x89PNG\xff\xfe")
    lines = written(ALL).splitlines(keepends=True)
    assert "line 3: these bytes are not UTF-8 text" in damage(b"".join([*lines[:2], b"\xff\n", *lines[2:]]))


def test_a_journal_cut_between_two_lines_is_told_from_one_cut_inside_a_line() -> None:
    lines = written(ALL).splitlines(keepends=True)
    assert "line 5: the file breaks off after this line" in damage(b"".join(lines[:5]))
    assert "line 5: the file breaks off in the middle of this line" in damage(b"".join(lines[:4]) + lines[4][:-5])
    assert "line 2: the file breaks off after its header" in damage(lines[0])


def test_a_wrong_count_is_damage() -> None:
    *lines, end = written(ALL).splitlines(keepends=True)
    wrong = end.replace(b'["end",11,', b'["end",12,')
    assert "the end line counts 12 events, but there are 11" in damage(b"".join(lines) + wrong)


def test_a_line_taken_out_is_damage() -> None:
    lines = written(ALL).splitlines(keepends=True)
    assert "the end line counts 11 events, but there are 10" in damage(b"".join(lines[:2] + lines[3:]))


def test_a_changed_line_that_still_makes_sense_is_damage() -> None:
    data = written([Sent(A, 1, AB, 1, 5)])
    assert "the hash does not fit" in damage(data.replace(b'"a\xe2\x86\x92b",1,5]', b'"a\xe2\x86\x92b",1,6]'))


def test_two_lines_that_changed_places_are_damage() -> None:
    lines = written(ALL).splitlines(keepends=True)
    assert "the hash does not fit" in damage(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))


def test_a_file_that_is_not_there_or_is_a_directory_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No such file"):
        read_journal(tmp_path / "none")
    with pytest.raises(Misuse, match="directory"):
        read_journal(tmp_path)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for_and_devices_and_giants_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Damaged, match="the file is empty"):
        read_journal(tmp_path / "pipe")
    with pytest.raises(Misuse, match="it is no file"):
        read_journal("/dev/zero")
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Misuse, match="it has more than 2 GiB"):
        read_journal(tmp_path / "giant")


def test_a_pipe_with_a_journal_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, written(ALL))
    os.close(writing)
    assert read_journal(f"/dev/fd/{reading}")[1] == ALL
    os.close(reading)
