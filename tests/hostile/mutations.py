"""Ways to make a snapshot hostile, each decided by a seeded random source.

A careful forger recomputes what he can: after a change of the manifest, blobs get their new hashes and the manifest its
new root, so `verify` finds nothing. Now and then he does not, which must be noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from strobe.store.merkle import merkle_root
from tests.hostile.world import full_copy

__all__ = ["hostile", "mutate", "places", "strange"]

Mutation = Callable[[random.Random, Path, Path], str]
_HEX: Final = "0123456789abcdef"
_ROW: Final = bytes(10) + b"\1" + bytes(6)  # as Spark encodes one with a number


def mutate(dice: random.Random, snapshot: Path, canary: Path) -> str:
    """Do one to three things to the snapshot whose manifest is in `snapshot`; says what."""
    ways, weights = zip(*_MUTATIONS, strict=True)
    said = []
    for way in dice.choices(ways, weights, k=dice.choice((1, 1, 1, 2, 3))):
        try:
            said.append(way(dice, snapshot, canary))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            said.append(f"{way.__name__}: an earlier one has left nothing to work on")
    return "; ".join(said)


# ── the manifest ────────────────────────────────────────────────────────────────────────────────────────────────────


def _change_value(dice: random.Random, snapshot: Path, canary: Path) -> str:
    value = _load(snapshot)
    every = list(places(value))
    where, parent, key = dice.choice(every)
    what = dice.randrange(6)
    if what == 0 and isinstance(parent, dict):
        del parent[key]
        said = f"{where} removed"
    elif what == 1 and isinstance(parent, dict):
        name = str(hostile(dice, canary, text=True))
        parent[name] = parent.pop(key)
        said = f"{where} renamed {name!r:.60}"
    elif what == 2:
        other, from_parent, from_key = dice.choice(every)
        parent[key] = json.loads(json.dumps(from_parent[from_key]))
        said = f"{where} becomes {other}"
    else:
        parent[key] = hostile(dice, canary, text=isinstance(parent[key], str) and dice.random() < 0.8)
        said = f"{where} = {parent[key]!r:.60}"
    _save(dice, snapshot, value)
    return said


def _aimed(dice: random.Random, snapshot: Path, canary: Path) -> str:
    """At what is known to decide a path, a size or a class."""
    value = _load(snapshot)
    text = hostile(dice, canary, text=True)
    nodes, channels = list(value["nodes"].values()), list(value["channels"].values())
    target = dice.randrange(10)
    if target == 0:
        files = dice.choice([n["files"] for n in nodes if n["files"]])
        files[text] = files.pop(dice.choice(list(files)))
    elif target == 1:
        ref = dice.choice([r for n in nodes for r in n["files"].values()])
        ref["size"] = dice.choice([-1, 2**63, 2**64, 2**200, 1 << 45, 0, "3", 1.5, True])
    elif target == 2 and channels[0].get("commits"):
        channels[0]["commits"][0]["files"][0]["path"] = text
    elif target == 3 and value["sinks"]:
        _position(dice, value)["path"] = dice.choice([text, str(canary / "table")])
    elif target == 4:
        channels[0]["location"] = text
    elif target == 5:
        udt = {"type": "udt", "pyClass": "antigravity.X", "class": "x", "sqlType": "long"}
        channels[0]["schema"] = {
            "type": "struct",
            "fields": [{"name": "a", "type": udt, "nullable": True, "metadata": {}}],
        }
    elif target == 6:
        data = _position(dice, value)
        data["version"] = dice.choice([-1, 10**6, 2**53, 2**64, "1", None])
        data["app"], data["through"] = text, dice.choice([-1, 5, 2**70, "x"])
    elif target == 7:
        value["format"] = 3 - value["format"]  # the fields of one format under the number of the other
    elif target == 8:
        parts = _parts(dice, value)
        parts.append({"handle": dice.choice(["position", text]), "data": dice.choice([None, text, {"after": text}])})
        dice.shuffle(parts)
    else:
        value[dice.choice(["mode", "writer", "host", "job"])] = text
    _save(dice, snapshot, value)
    return f"aimed {target} with {text!r:.60}"


def _position(dice: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    """Where some sink stood, in either format."""
    sink = dice.choice(list(value["sinks"].values()))
    position: dict[str, Any] = sink[0]["data"] if value["format"] == 1 else sink["position"]
    return position


def _parts(dice: random.Random, value: dict[str, Any]) -> list[Any]:
    sink = dice.choice(list(value["sinks"].values()))
    parts: list[Any] = sink if value["format"] == 1 else sink["prepared"]
    return parts


def _raw(dice: random.Random, snapshot: Path, canary: Path) -> str:
    path = _plain(snapshot / "manifest.json")
    data = bytearray(path.read_bytes()) or bytearray(b"x")
    at = dice.randrange(len(data))
    what = dice.randrange(5)
    if what == 0:
        data[at] ^= 1 << dice.randrange(8)
    elif what == 1:
        del data[at:]
    elif what == 2:
        data[at:at] = dice.choice(
            [b"\x1b[2J", b"\xff", b'"a":1,"a":2,', b"NaN", b"1e999", b"[" * 5000, b"9" * 5000, b"\0"]
        )
    elif what == 3:
        data = bytearray(b"[" * 100_000)
    else:
        number = dice.choice([b"1", b"2", b"3", b"1e999", b"null", b"99999999999999999999999999"])
        data = bytearray(b'{"format":' + number + b"}")
    path.write_bytes(bytes(data))
    return f"bytes of the manifest, way {what}"


# ── blobs and other files ───────────────────────────────────────────────────────────────────────────────────────────


def _blob(dice: random.Random, snapshot: Path, canary: Path) -> str:
    """The content of a file is another one, with its hash in the manifest, or without."""
    value = _load(snapshot)
    owners = [(f"{k}/{u}/{p}", r) for k, part in (("nodes", "files"), ("channels", "content"))
              for u, record in value[k].items() for p, r in record[part].items()]  # fmt: skip
    if not owners:
        return "nothing"
    name, ref = dice.choice(owners)
    path = _plain(_blobs(snapshot) / ref["sha256"][:2] / ref["sha256"])
    data = bytearray(path.read_bytes())
    what = dice.randrange(4)
    if what == 0 and data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif what == 1:
        del data[dice.randrange(len(data) + 1) :]
    elif what == 2:
        for word in (b"1-ab.sst", b"file:/old/state/0/_stateSchema/default/0_1", b"postings", b"x"):
            data = data.replace(word, str(hostile(dice, canary, text=True)).encode(errors="replace"))
    else:
        data = bytearray(dice.choice([b"", b"\0" * 999, b"v1\n" + b"[" * 9999, b"v1\n{}", b"\xff\xfe", b"PK\x03\x04"]))
    if dice.random() < 0.7:
        sha256 = hashlib.sha256(data).hexdigest()
        ref["sha256"], ref["size"] = sha256, len(data)
        path = _blobs(snapshot) / sha256[:2] / sha256
        path.parent.mkdir(exist_ok=True)
        _save(dice, snapshot, value)
    path.write_bytes(bytes(data))
    return f"content of {name}, way {what}"


class _Touch:
    """Whoever unpickles it writes to a canary."""

    def __init__(self, canary: Path) -> None:
        self._path = canary / "key"

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self._path, "owned")


def _archive(dice: random.Random, snapshot: Path, canary: Path) -> str:
    """The full copy of a state is one of its maker's choice."""
    value = _load(snapshot)
    files = value["nodes"]["balances"]["files"]
    families = dice.choice([{}, {"default": 0}, {"default": 0, hostile(dice, canary, text=True): 1}])
    what = dice.randrange(3)
    if what == 0:
        made = full_copy({b"k": _Touch(canary)}, raw=False, columnFamilyMapping=families)
    elif what == 1:
        option = dice.choice(["table_cache_numshardbits=30", "max_file_opening_threads=1000000", f"wal_dir={canary}"])
        lines = ("[Version]", "rocksdb_version=9.8.4", "options_file_version=1.1", "[DBOptions]", option,
                 '[CFOptions "default"]', '[TableOptions/BlockBasedTable "default"]', "")  # fmt: skip
        also = {"OPTIONS-999999": "\n".join(lines).encode()}
        made = full_copy({_ROW: _ROW}, also=also, columnFamilyMapping=families)
    else:
        name = dice.choice([hostile(dice, canary, text=True), "rocksdict-config.json", "CURRENT", "LOCK"])
        stored = dice.choice(["x-000009.sst", name])
        listed = [{"localFileName": name, "dfsSstFileName": stored}]
        also = {name.replace("\0", "").encode(errors="replace").decode() or "x": b'{"raw_mode":false}'}
        made = full_copy({_ROW: _ROW}, also=also, sstFiles=listed, columnFamilyMapping=families)
    for path, data in made.items():
        assert isinstance(data, bytes)
        sha256 = hashlib.sha256(data).hexdigest()
        files[path] = {"sha256": sha256, "size": len(data)}
        place = _blobs(snapshot) / sha256[:2] / sha256
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    _save(dice, snapshot, value)
    return f"full copy of a state, way {what}, families {families!r:.60}"


def _strange_file(dice: random.Random, snapshot: Path, canary: Path) -> str:
    """Something is in the tree that no snapshot has."""
    path = dice.choice(
        [*_tree(snapshot), *(snapshot / n for n in (".tmp", ".savepoint-under-way", "disposing.json", "x"))]
    )
    if os.path.realpath(path.parent) != str(path.parent):
        raise LookupError
    return strange(dice, path, canary)


def strange(dice: random.Random, path: Path, canary: Path) -> str:
    """What stands there becomes something that no snapshot has."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    what = dice.choice(["link", "link", "link", "pipe", "socket", "sparse", "directory", "stale", "mark", "nothing"])
    if os.path.lexists(path):
        return "nothing"
    if what == "link":
        path.symlink_to(
            dice.choice([canary / n for n in ("key", "work", "empty", "savepoint/blobs", "savepoint", "no")])
        )
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        _socket(path)
    elif what == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif what == "directory":
        path.mkdir()
    elif what == "stale":
        (path / "0a").mkdir(parents=True)
        (path / "0a" / dice.choice(["lock", "1"])).symlink_to(
            dice.choice([canary / "key", canary / "new", canary / "work"])
        )
    elif what == "mark":
        path.write_text(json.dumps({"job": hostile(dice, canary, text=True), "snapshot": hostile(dice, canary)}))
    return f"{path.name}: {what}"


def _log(dice: random.Random, snapshot: Path, canary: Path) -> str:
    """The log of a channel or of a sink's table names something else."""
    root = next(p for p in (snapshot, *snapshot.parents) if (p / "theirs").is_dir() or p == p.parent)
    entries = sorted(root.glob("**/_delta_log/*.json")) if root != root.parent else []
    if not entries:
        return "nothing"
    entry = dice.choice(entries)
    lines = [json.loads(line) for line in _plain(entry).read_text().splitlines()]
    every = list(places(lines))
    where, parent, key = dice.choice(every)
    adds = [line["add"] for line in lines if "add" in line]
    if adds and dice.random() < 0.6:
        adds[0]["path"] = dice.choice([hostile(dice, canary, text=True), "../escaped", "data/%2e%2e/../../escaped"])
        where = "add.path"
    else:
        parent[key] = hostile(dice, canary)
    entry.write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode(errors="replace"))
    return f"{entry.parent.parent.name}/{entry.name}: {where}"


_MUTATIONS: Final[list[tuple[Mutation, int]]] = [
    (_change_value, 6), (_aimed, 5), (_raw, 2), (_blob, 3), (_archive, 1), (_strange_file, 4), (_log, 2),
]  # fmt: skip


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hostile(dice: random.Random, canary: Path, *, text: bool = False) -> Any:
    up = "../" * dice.randrange(1, 12)
    texts = [
        f"{up}canary/key", f"{up}{str(canary)[1:]}/key", str(canary / "key"), f"file://{canary}/key",
        str(canary / "empty"), f"%2e%2e/%2E%2E/{up}key", f"..%2f..%2f{canary.name}%2fkey", "s3://bucket/x", "", ".",
        "..", "a//b", "a/./b", "/",
        "a\\..\\b", "a\0b", "\x1b[2J\x1b]0;x\x07", "\u202etxt.exe", "a\u200bb", "\ud800", "x" * 300, "y/" * 700 + "z",
        "CON", "größe", "-rf", "~", "$HOME", "`id`", "a\nb", "postings", "balances/0", "0", "nan",
        "[/red]", "[bold]x", 'a"b', "a'; drop table x; --", "{0}", "%s%n", ":smile:", "a,b\"c", "=1+1",
    ]  # fmt: skip
    if text:
        return dice.choice(texts)
    deep: Any = 1
    for _ in range(dice.choice((50, 150, 400))):
        deep = [deep] if dice.random() < 0.5 else {"a": deep}
    values = [None, True, False, -1, -2, 0, 1, 2**31, 2**53, 2**63, 2**64, 2**200, -(2**70), 1.5, 1e308, -0.0, [], {},
              [[]], {"a": 1}, [1, "x"], deep, dice.choice(texts), dice.choice(texts)]  # fmt: skip
    return dice.choice(values)


def places(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(items):
        yield f"{path}.{key}", value, key
        yield from places(each, f"{path}.{key}")


def _plain(path: Path) -> Path:
    """A file that the forger can work on without doing himself what he wants others to do."""
    if os.path.realpath(path) != str(path) or not path.is_file() or path.stat().st_size > 1 << 20:
        raise LookupError
    return path


def _load(snapshot: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(_plain(snapshot / "manifest.json").read_bytes())
    if not isinstance(value, dict) or not {"nodes", "channels", "sinks"} <= value.keys():
        raise LookupError  # an earlier mutation has left nothing to work on
    value.pop("root", None)
    return value


def _save(dice: random.Random, snapshot: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=dice.random() < 0.5)
    body = text.encode(errors="surrogatepass" if dice.random() < 0.5 else "replace")
    root = "".join(dice.choices(_HEX, k=64))
    if dice.random() < 0.9:
        try:
            leaves = [("manifest.json", hashlib.sha256(body).hexdigest(), len(body))]
            for kind, part in (("nodes", "files"), ("channels", "content")):
                for uid, record in value[kind].items():
                    leaves += [(f"{kind}/{uid}/{part}/{p}", b["sha256"], b["size"]) for p, b in record[part].items()]
            root = merkle_root(leaves)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            pass  # no root can be made of it
    (snapshot / "manifest.json").write_bytes(body[:-1] + f',"root":"{root}"}}\n'.encode())


def _blobs(snapshot: Path) -> Path:
    return snapshot / "blobs" if (snapshot / "blobs").is_dir() else snapshot.parent.parent / "blobs"


def _tree(snapshot: Path) -> list[Path]:
    places = [snapshot / "manifest.json", _blobs(snapshot)]
    return [
        p
        for p in (*places, *sorted(_blobs(snapshot).glob("*")), *sorted(_blobs(snapshot).glob("*/*")))
        if os.path.lexists(p)
    ]


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)
