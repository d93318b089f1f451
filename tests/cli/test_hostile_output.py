"""What somebody else wrote does not command the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.table import Table

from strobe.cli.output import Session, print_error, printable
from strobe.model.errors import Failed
from tests.cli.conftest import Strobe

HOSTILE = "a\x1b[2Jb\x9bc\x07d\u202ee\u2066f\u200bg\x7fh\ud800i\rj"
SHOWN = r"a\x1b[2Jb\x9bc\x07d\u202ee\u2066f\u200bg\x7fh\ud800i\rj"


def has_hidden(text: str) -> bool:
    return any(c in text for c in "\x1b\x9b\x07\u202e\u2066\u200b\x7f\ud800\r")


def test_what_does_not_show_is_written_out() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("größe\t✓\nnext 👩‍👩‍👧") == "größe\t✓\nnext 👩‍👩‍👧"


def test_lines_tables_and_errors_are_made_safe_in_one_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    session = Session(json=False, place=str(tmp_path))
    session.say(("✗ ", "red"), HOSTILE)
    table = Table("name", "value")
    table.add_row(HOSTILE, "1")
    session.console.print(table, soft_wrap=True)
    print_error(Failed(HOSTILE, untouched=HOSTILE, next=HOSTILE), 1, as_json=False)
    said = capsys.readouterr()
    assert not has_hidden(said.out + said.err)
    assert r"\x1b[2J" in said.out
    assert said.err.count(r"\x1b[2J") == 3


def test_styles_of_our_own_still_reach_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Session(json=False, place=str(tmp_path)).console
    console.file = io.StringIO()
    console.print("[x]\x1b]0;owned\x07", style="red")
    written = console.file.getvalue()
    assert written.startswith("\x1b[31m")
    assert r"\x1b]0;owned" in written


def test_json_says_the_same_with_escapes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Session(json=True, place=str(tmp_path)).answer({"text": HOSTILE})
    print_error(Failed(HOSTILE), 1, as_json=True)
    text = capsys.readouterr().out
    assert not has_hidden(text)
    first, end = json.JSONDecoder().raw_decode(text)
    assert first == {"text": HOSTILE}
    assert json.loads(text[end:])["error"]["what"] == HOSTILE


def test_a_name_on_the_command_line_is_shown_safely(strobe: Strobe) -> None:
    done = strobe("inspect", "no\x1b[2Jsuch")
    assert done.code == 2
    assert "\x1b" not in done.err
