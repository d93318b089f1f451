"""Names and paths that came from outside: the one place in which a piece of text becomes a path.

A snapshot, a table's log and the metadata of a state may have been written by anybody. What they call a path is text
until it has passed through here; afterwards it is a `RelativePath`, which cannot leave the directory that it is laid
out in, whatever that is. Every reader takes its paths from the decoders that call this, and checks nothing itself.

Three things are refused beside what climbs out: text that hides from whoever reads it (control characters, characters
that turn the direction of writing, characters without width), text that is no Unicode, and names that no file system
takes. What a path leads to is another question: links are for `strobe.store.tree`.
"""

from __future__ import annotations

import re
from typing import Final, NewType
from urllib.parse import unquote_to_bytes

from strobe.model.errors import Damaged, Misuse

__all__ = [
    "HIDDEN", "AbsolutePath", "FileName", "RelativePath", "check_absolute", "check_file_name", "check_relative",
    "check_text", "from_delta_log", "quoted_name",
]  # fmt: skip

RelativePath = NewType("RelativePath", str)  # below some directory, by plain names, with single slashes
AbsolutePath = NewType("AbsolutePath", str)
FileName = NewType("FileName", str)  # one component of a path

_LONGEST_NAME: Final = 255  # bytes; what Linux and macOS take
_LONGEST_PATH: Final = 1024  # bytes; leaves room for the directory above, out of 4096
_LONGEST_TEXT: Final = 1000  # characters

# What a person does not see, or does not see as it is: C0, DEL and C1; marks, embeddings, overrides and isolates of
# the direction of writing; line and paragraph separators; characters without width; halves of surrogate pairs.
HIDDEN: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2064\\u2066-\\u206f\\ufeff\\ufff9-\\ufffb"
    "\\ud800-\\udfff"
)
_HIDDEN: Final = re.compile(f"[{HIDDEN}]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_$=+,@ ()-][A-Za-z0-9_$=+,@ ().-]*")
# What nearly all paths look like: these are legal, and thousands come with each manifest.
_USUAL: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,99}(?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,99}){0,9}")


def check_file_name(name: object, what: str = "name") -> FileName:
    """`name` as one component of a path, or Misuse."""
    if not isinstance(name, str):
        raise Misuse(f"{what}: {name!r:.80} is not text.")
    why = _why_no_name(name)
    if why is not None:
        raise Misuse(f"{what}: {name!r:.120} cannot be the name of a file: {why}.")
    return FileName(name)


def check_relative(path: object, what: str = "path") -> RelativePath:
    """`path` as a plain relative path, or Misuse."""
    if not isinstance(path, str):
        raise Misuse(f"{what}: {path!r:.80} is not text.")
    if _USUAL.fullmatch(path):
        return RelativePath(path)
    why = None if path else "it is empty"
    if path.startswith("/"):
        why = "it is absolute"
    for name in path.split("/") if why is None else ():
        why = why or _why_no_name(name)
    if why is None and len(path.encode()) > _LONGEST_PATH:
        why = f"it is longer than {_LONGEST_PATH} bytes"
    if why is not None:
        raise Misuse(f"{what}: {path!r:.120} is not a plain relative path: {why}.")
    return RelativePath(path)


def check_absolute(path: object, what: str = "path") -> AbsolutePath:
    """`path` as the absolute path of a local file without `.` and `..`, or Misuse. An address (`s3://…`) is none."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise Misuse(f"{what}: {path!r:.120} is not the absolute path of a local file.")
    if path != "/":
        check_relative(path[1:], what)
    return AbsolutePath(path)


def from_delta_log(path: object) -> RelativePath:
    """The `path` of an add or remove in a Delta log, which is URL-encoded there, as a path below the table. `Damaged`
    if it leads elsewhere: Delta allows absolute paths (of shallow clones), and Strobe never follows one."""
    if not isinstance(path, str):
        raise Damaged(f"{path!r:.80} is not the path of a data file.")
    if _USUAL.fullmatch(path):
        return RelativePath(path)
    if _SCHEME.match(path):
        raise Damaged(f"{path!r:.120} leads out of the table: it is an address.")
    if _ESCAPE.search(path):
        raise Damaged(f"{path!r:.120} is not URL-encoded, as paths in a Delta log are.")
    try:
        return check_relative(unquote_to_bytes(path).decode(), "the path of a data file")
    except (Misuse, UnicodeError) as error:
        why = error.what if isinstance(error, Misuse) else "it is not UTF-8."
        raise Damaged(f"{path!r:.120} leads out of the table, or nowhere: {why}") from None


def check_text(text: str, what: str) -> str:
    """`text` for people, on one line: short, and with nothing in it that hides."""
    if len(text) > _LONGEST_TEXT:
        raise Misuse(f"{what}: {text!r:.80}… is longer than {_LONGEST_TEXT} characters.")
    if _HIDDEN.search(text):
        raise Misuse(f"{what}: {text!r:.120} holds characters that do not show.")
    return text


def quoted_name(name: str) -> FileName:
    """Any text as the name of a file: itself if it is plain, else with what is not percent-encoded; cut if too long."""
    if _PLAIN_NAME.fullmatch(name) and len(name) <= 120:
        return FileName(name)
    quoted = "".join(
        c if c.isascii() and (c.isalnum() or c in "_-$=+,@ ()") else "".join(f"%{b:02X}" for b in _bytes(c))
        for c in name
    )
    return FileName(quoted[:120] or "%")


def _bytes(character: str) -> bytes:
    return character.encode("utf-8", "surrogatepass")


def _why_no_name(name: str) -> str | None:
    if name in ("", ".", ".."):
        return f"{name!r} is not a name" if name else "a name in it is empty"
    if "/" in name or "\\" in name:
        return "a name holds no slash, in either direction"
    if _HIDDEN.search(name):
        return "it holds characters that do not show"
    if len(name.encode()) > _LONGEST_NAME:
        return f"a name in it is longer than {_LONGEST_NAME} bytes"
    return None
