"""The process that asks invariants of snapshots, beside a running job: `python -m strobe.look.evaluator`.

It is a process of its own so that a large state or a slow query takes neither the driver's memory nor its interpreter;
it runs at low priority. It is told what to do by lines on standard input and answers by lines on standard output, all
JSON: first the invariants (functions pickled, as Spark pickles those of a pipeline), then the number of one snapshot
after the other. When standard input ends, the process ends, even in the middle of a query.
"""

from __future__ import annotations

import base64
import os
import pickle
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import msgspec

from strobe.look.asking import Ask, Setup
from strobe.look.cut import open_snapshot
from strobe.look.judging import judge
from strobe.model.errors import StrobeError
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Invariant, Outcome, Verdict

__all__ = ["evaluate"]

_NICE: Final = 10


def evaluate(setup: Setup, ask: Ask, invariants: Mapping[str, Invariant]) -> list[Verdict]:
    wanted = [invariants[name] for name in ask.invariants]
    try:
        name = ask.place or f"{setup.job}/{ask.snapshot}"
        with open_snapshot(name, setup.home, memory=setup.memory, timeout=setup.timeout) as cut:
            return [judge(cut, invariant) for invariant in wanted]
    except StrobeError as error:
        number = SnapshotId(ask.snapshot)
        return [Verdict(invariant.name, number, Outcome.FAILED, why=error.what) for invariant in wanted]


def _invariants(setup: Setup) -> dict[str, Invariant]:
    sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
    found = {name: Invariant(name, sql) for name, sql in setup.queries.items()}
    for name, pickled in setup.functions.items():
        try:
            function = pickle.loads(base64.b64decode(pickled))  # noqa: S301 (the driver's own, over a pipe)
        except Exception as error:  # whatever an import of the user's raises
            function = _cannot_load(f"{type(error).__name__}: {error}")
        found[name] = Invariant(name, function=function)
    return found


def _cannot_load(why: str) -> Any:
    def function(cut: object) -> object:
        raise RuntimeError(f"its function could not be loaded here: {why}")

    return function


def _read(lines: BinaryIO, asked: queue.SimpleQueue[bytes]) -> None:
    for line in lines:
        asked.put(line)
    os._exit(0)  # the driver has ended, and nobody waits for an answer


def main() -> None:
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a user's function prints is not an answer
    lines = sys.stdin.buffer
    setup = msgspec.json.decode(lines.readline(), type=Setup)
    invariants = _invariants(setup)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines, asked), daemon=True).start()
    while True:
        ask = msgspec.json.decode(asked.get(), type=Ask)
        answers.write(msgspec.json.encode(evaluate(setup, ask, invariants)) + b"\n")


if __name__ == "__main__":
    main()
