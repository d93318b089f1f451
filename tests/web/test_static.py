"""The files of the page: what was taken from elsewhere is what it says, and nothing is loaded from there."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from strobe.web.application import STATIC
from strobe.web.operations import OPERATIONS

OWN = sorted(p for p in STATIC.rglob("*") if p.suffix in (".js", ".css", ".html", ".svg") and "vendor" not in p.parts)
VENDOR = STATIC / "vendor"


def test_what_was_taken_from_elsewhere_is_noted_with_version_licence_and_hash() -> None:
    note = (VENDOR / "README.md").read_text()
    rows = {m[1]: m[2] for m in re.finditer(r"^\| `([\w.-]+)` .*`([0-9a-f]{64})` \|$", note, re.MULTILINE)}
    files = {p.name for p in VENDOR.iterdir() if p.suffix in (".js", ".css")}
    assert rows.keys() == files
    for name, expected in rows.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected
    for licence in re.findall(r"`(LICENSE-\w+)`", note):
        assert (VENDOR / licence).is_file()


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_no_file_loads_anything_from_elsewhere_or_writes_markup(path: object) -> None:
    text = STATIC.joinpath(str(path)).read_text()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"'`)]*", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "dangerouslySet"):
        assert unsafe not in text


def test_every_module_that_is_imported_is_there() -> None:
    for path in OWN:
        for target in re.findall(r"from \"(\.[^\"]+)\"", path.read_text()):
            assert (path.parent / target).resolve().is_file(), (path, target)


def test_the_reference_lists_every_operation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "page.md").read_text()
    rows = set(re.findall(r"^\| `(GET|POST)` \| `(/[^`?]*)[^`]*` \|", page, re.MULTILINE))
    own = {(o.method, o.path.replace(":int", "")) for o in OPERATIONS}
    assert rows == own | {("GET", "/events"), ("GET", "/systems/{job}/diagram.svg")}
