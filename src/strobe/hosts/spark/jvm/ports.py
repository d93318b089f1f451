"""The ports of a Spark session, and who may speak to them.

A driver listens on several ports, and whoever speaks to one of them without being asked who they are runs code as the
driver's user: Spark's RPC deserialises Java objects. On loopback that is every user of the machine. On a local master:

- RPC and block transfer ask for Spark's own authentication. Spark makes the secret itself, keeps it in the memory of
  its JVM, and makes another one for every session.
- What the JVM and its Python processes say to each other goes through Unix sockets in the session's directory, which
  only its owner may enter. Over TCP, the server that holds a stage's state (`transformWithState`) asks nobody.
- py4j's gateway asks for a token. Its callbacks, by which the JVM calls `foreachBatch`, ask for none, so their
  connections are accepted only from processes of the same user, as the kernel tells.
- Everything is bound to loopback.

On a cluster, authentication is the cluster's: both ends need the same setting. What it says is taken, and if it is off
a warning says so.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["guard_callbacks", "is_local", "port_settings", "warn_if_open"]

_log = logging.getLogger("strobe.session")
_LOOPBACK: Final = "127.0.0.1"
# For these Spark makes a secret itself. What it does not take for one of them it refuses, or wants a secret for.
_LOCAL: Final = re.compile(r"local(\[([0-9]+|\*)(\s*,\s*[0-9]+)?\])?$")
_ON_THIS_MACHINE: Final = re.compile(r"local(\[.*)?$|spark://(127\.[\d.]+|localhost)(:\d+)?$")
_AUTHENTICATE: Final = "spark.authenticate"
_LONGEST_SOCKET: Final = 100  # bytes of a path; the least that a system takes is 104
_SOCKET_NAME: Final = len("/.12345678-1234-1234-1234-123456789012.sock")
_TCP_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def is_local(master: str) -> bool:
    """Whether driver and executors are one process."""
    return _LOCAL.match(master) is not None


def port_settings(master: str, directory: Path | None) -> Mapping[str, str]:
    """What a session with this master is set to. `directory` is the session's own."""
    settings = {}
    if _ON_THIS_MACHINE.match(master):  # executors elsewhere must find the driver by its name, which Spark looks up
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = _LOOPBACK
    if is_local(master):
        settings[_AUTHENTICATE] = "true"
        settings["spark.connect.grpc.binding.address"] = _LOOPBACK
        if directory is not None and len(os.fsencode(directory)) + _SOCKET_NAME <= _LONGEST_SOCKET:
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = str(directory)
    return settings


def warn_if_open(session: SparkSession) -> None:
    """Say, once for each master, that Spark's ports are open."""
    conf = session.sparkContext.getConf()
    if str(conf.get(_AUTHENTICATE, "false")).strip().lower() != "true":
        address = f"{conf.get('spark.driver.host', '?')}:{conf.get('spark.driver.port', '?')}"
        _warn(session.sparkContext.master, address)


@functools.cache
def _warn(master: str, address: str) -> None:
    _log.warning(
        "Spark's ports are open: spark.authenticate is off on %s. Whoever can reach %s can run code as this user. "
        "Turn it on: see the page on security.",
        master,
        address,
    )


def guard_callbacks(gateway: Any) -> None:
    """Let the JVM's calls into this process come from processes of this user only."""
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    server = gateway._callback_server
    make = server._create_connection

    def checked(connection: socket.socket, stream: Any) -> Any:
        if is_own(connection):
            return make(connection, stream)
        _log.warning("A connection of another user to the driver's port for callbacks was refused.")
        return _Refused(connection, stream)

    server._create_connection = checked


class _Refused:
    """A connection of which py4j gets to know nothing but that it has ended."""

    def __init__(self, connection: socket.socket, stream: Any) -> None:
        self.socket = connection
        self._stream = stream

    def start(self) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self.socket.close()


def is_own(connection: socket.socket) -> bool:
    """Whether the other end of a connection over loopback is a process of this user. True where the kernel does not
    tell (elsewhere than on Linux)."""
    try:
        theirs, ours = _in_table(connection.getpeername()), _in_table(connection.getsockname())
    except OSError:
        return False  # it has hung up
    known = False
    for table in _TCP_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        known = True
        for words in map(str.split, lines):
            # Local address, remote address, state, …, uid: the line of the other end has its own address first.
            if words[1].endswith(theirs) and words[2].endswith(ours) and words[3] == "01":
                return int(words[7]) == os.geteuid()
    return not known


def _in_table(address: tuple[Any, ...]) -> str:
    """An IPv4 address as the kernel's tables write it; entries of IPv6 sockets end in the same way."""
    number = socket.inet_aton(address[0])
    return f"{(number[::-1] if sys.byteorder == 'little' else number).hex().upper()}:{address[1]:04X}"
