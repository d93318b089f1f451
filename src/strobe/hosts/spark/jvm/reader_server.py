"""A process that has the modules of Spark's readers loaded, and forks a reader when Spark wants one.

For every stream of a Python source Spark starts a Python process that plans its batches, and keeps it for as long as
the query runs. Each of them would load pyspark, numpy and Arrow for itself: half a second of processor time and 50 MB.
Forked from one process that has them already, a reader is there in milliseconds, and shares their memory.

What Spark starts is a stub (`reader_stub`). It hands this server its environment, its directory and its standard
streams over a socket in the session's directory, which only its owner can enter. The reader that is forked lives as
long as the stub: it ends when the stub is killed, and the stub ends when it does. Its modules are looked for where the
stub's would have been.

The server ends when its standard input does, with the process that started it. Readers end with their query: Spark
closes their connection.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, Final, NoReturn

__all__ = ["READY", "main", "module_path"]

READY: Final = b"ready\n"
_LENGTH: Final = struct.Struct(">I")
_MOST: Final = 4 * 1024 * 1024  # bytes of an environment
_STREAMS: Final = 3
_HELLO_SECONDS: Final = 10.0


def main(place: str, modules: Sequence[str], others: Sequence[str] = ()) -> None:
    """Serve at the socket `place` until standard input ends. `others` are loaded in passing, and not kept."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(128)
        _load(modules)
        if others and os.fork() == 0:
            _load(others)
            os._exit(0)
        gc.collect()
        gc.freeze()  # a collection would write to every object, and end the sharing
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the readers
        os.write(1, READY)
        base = module_path(sys.path, os.environ.get("PYTHONPATH", ""), os.getcwd())
        while True:
            ready, _, _ = select.select([listener.fileno(), 0], [], [])
            if 0 in ready and not os.read(0, 1):
                return
            if listener.fileno() in ready:
                stub, _ = listener.accept()
                with stub:
                    _serve(stub, listener, base)


def _load(modules: Sequence[str]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):  # the process that needs it says so
            importlib.import_module(module)


def module_path(path: Sequence[str], python_path: str, directory: str) -> list[str]:
    """Where Python looks for modules, whatever the directory and PYTHONPATH are."""
    own = {"", directory, *python_path.split(os.pathsep)}
    return [entry for entry in path if entry not in own]


def _serve(stub: socket.socket, listener: socket.socket, base: Sequence[str]) -> None:
    try:
        stub.settimeout(_HELLO_SECONDS)
        request, streams = _receive(stub)
        stub.settimeout(None)
    except (OSError, ValueError) as error:
        print(f"a reader could not be started: {error}", file=sys.stderr)
        return
    try:
        if os.fork() == 0:
            listener.close()
            _become_reader(stub, request, streams, base)
    except OSError as error:  # Spark gives the query up, and its stage starts again
        print(f"a reader could not be started: {error}", file=sys.stderr)
    finally:
        for stream in streams:
            os.close(stream)


def _receive(stub: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(stub, _LENGTH.size, _STREAMS)
    (length,) = _LENGTH.unpack(head)
    body = bytearray()
    while len(body) < length <= _MOST:
        chunk = stub.recv(length - len(body))
        if not chunk:
            break
        body += chunk
    if len(body) != length or len(streams) != _STREAMS:
        for stream in streams:
            os.close(stream)
        raise ValueError("its stub has not said what it needs")
    request: dict[str, Any] = json.loads(body)
    return request, streams


def _become_reader(
    stub: socket.socket, request: dict[str, Any], streams: Sequence[int], base: Sequence[str]
) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        sys.path[:] = [request["directory"], *given, *base]
        threading.Thread(target=_end_with, args=(stub,), name="stub", daemon=True).start()
        sys.argv[:] = [request["module"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _end_with(stub: socket.socket) -> None:
    with contextlib.suppress(OSError):
        stub.recv(1)
    os._exit(0)


if __name__ == "__main__":
    kept, _, passing = " ".join(sys.argv[2:]).partition(" -- ")
    main(sys.argv[1], kept.split(), passing.split())
