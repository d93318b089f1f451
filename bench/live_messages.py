"""Messages a second between two live processes: with snapshots against none, and against a bare asyncio stream.

    python bench/live_messages.py                seven rounds of six sides, alternately, 4 s each
    python bench/live_messages.py --quick        one round of 1 s

The bare sides have the same codec and the same frames, and nothing else: no numbers that are acknowledged, no
resumption, no snapshots. Ratios are taken within a round; the median over rounds is the figure.

Beside the rates it prints the processor time that sender and receiver need for a message: that figure is also valid on
a machine that is busy with other work, where rates are not. The slower of the two decides how fast the channel is.

Strobe's sender hands its messages over one by one (`send`), or in lists (`send_all`). Each is compared with a bare
sender that is given its messages in the same way:

- in lists: a list is encoded, and is one frame;
- one by one: a function is called for each message. What it is given in one turn of the event loop is one frame;
- one by one, the plain way: each message is a frame, and is written at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec

from bench._live import COUNTS, Coin, Drain, ListPump, Pump, pair, running, say_count
from bench._report import figure
from strobe.hosts.live.api.codec import decode_message, encode_message
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.wire.framing import MAX_FRAME, FrameKind, FrameReader, frame
from strobe.model.ids import NodeId

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode


@dataclass(frozen=True)
class Measured:
    """Messages a second, and microseconds of processor time that a message takes at each end."""

    rate: float
    sender: float
    receiver: float

    @property
    def slower(self) -> float:
        return max(self.sender, self.receiver)

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s (sender {self.sender:.2f} µs, receiver {self.receiver:.2f} µs)"


@dataclass(frozen=True)
class Count:
    """Of one end, at one moment."""

    messages: int
    used: float
    time: float


@dataclass(frozen=True)
class Reading:
    """Each end has its own count: up to some 200,000 messages may be under way between the two."""

    sender: Count
    receiver: Count

    def until(self, later: Reading) -> Measured:
        def between(first: Count, last: Count) -> tuple[int, float]:
            messages = max(1, last.messages - first.messages)
            return messages, (last.used - first.used) / messages * 1e6

        received, receiver = between(self.receiver, later.receiver)
        _, sender = between(self.sender, later.sender)
        return Measured(received / (later.receiver.time - self.receiver.time), sender, receiver)


def reading(sender: int, receiver: int) -> Reading:
    """What these two processes report about themselves."""
    return Reading(*(_count(pid) for pid in (sender, receiver)))


def _count(pid: int) -> Count:
    file = Path(os.environ[COUNTS], str(pid))
    known = file.read_text() if file.exists() else ""
    os.kill(pid, signal.SIGUSR1)
    while not (file.exists() and (text := file.read_text()).endswith("\n") and text != known):
        time.sleep(0.001)
    messages, used, now = text.splitlines()[-1].split()
    return Count(int(messages), float(used), float(now))


async def strobe_side(seconds: float, interval: int | None, pump: type[Process] = Pump) -> Measured:
    async with running(pair(pump), interval=interval) as system:
        a, b = NodeId("a"), NodeId("b")
        while b not in (status := await system.status()).nodes or not sum(status.nodes[b].received.values()):
            await asyncio.sleep(0.05)  # until both have begun
        ends = status.processes[a], status.processes[b]
        await asyncio.sleep(seconds / 4)
        first = reading(*ends)
        await asyncio.sleep(seconds)
        return first.until(reading(*ends))


class Collecting:
    """One by one: what is sent in one turn of the event loop leaves as one frame."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._items: list[bytes] = []
        self._number = 1

    def send(self, message: Coin) -> None:
        if not self._items:
            self._loop.call_soon(self._flush)
        self._items.append(encode_message(message))

    def _flush(self) -> None:
        self._writer.write(frame(FrameKind.DATA, _encode((self._number, self._items))))
        self._number += len(self._items)
        self._items = []


async def bare_sender(port: int, how: str) -> None:
    """In a process of its own."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    number, burst, collecting = 1, Pump().burst, Collecting(writer)
    say_count(lambda: number - 1)
    print("ready", flush=True)
    while True:
        if how == "lists":
            items = [encode_message(Coin(1)) for _ in range(burst)]
            writer.write(frame(FrameKind.DATA, _encode((number, items))))
        elif how == "one by one":
            for _ in range(burst):
                collecting.send(Coin(1))
            await asyncio.sleep(0)  # the turn is over
        else:
            for i in range(burst):
                writer.write(frame(FrameKind.DATA, _encode((number + i, [encode_message(Coin(1))]))))
        number += burst
        await writer.drain()


async def bare_receiver() -> None:
    """In the second process; prints where it listens."""
    drain, reader = Drain(), FrameReader(MAX_FRAME)
    drain.on_start()

    class Receiving(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            for _, body in reader.feed(data):
                for item in _decode(body)[1]:
                    drain.on_message("a", decode_message(item))

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiving, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def bare_side(seconds: float, how: str = "lists") -> Measured:
    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    receiver, port = start("--receive")
    sender, _ = start("--send", port, "--how", how)
    try:
        while not reading(sender.pid, receiver.pid).receiver.messages:
            time.sleep(0.05)  # until the first have come
        time.sleep(seconds / 4)
        first = reading(sender.pid, receiver.pid)
        time.sleep(seconds)
        return first.until(reading(sender.pid, receiver.pid))
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--send", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--how", help=argparse.SUPPRESS)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        asyncio.run(bare_sender(arguments.send, arguments.how))
    if arguments.receive:
        asyncio.run(bare_receiver())
        return 0
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 1.0
    sides: dict[str, Callable[[], Measured]] = {
        "one by one": lambda: asyncio.run(strobe_side(arguments.seconds, None)),
        "in lists": lambda: asyncio.run(strobe_side(arguments.seconds, None, ListPump)),
        "with snapshots": lambda: asyncio.run(strobe_side(arguments.seconds, 1000, ListPump)),
        "bare, in lists": lambda: bare_side(arguments.seconds),
        "bare, one by one": lambda: bare_side(arguments.seconds, "one by one"),
        "bare, a write each": lambda: bare_side(arguments.seconds, "a write each"),
    }
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as counts:
        os.environ[COUNTS] = counts
        for number in range(arguments.rounds):
            turn = number % len(sides)
            for name in [*sides][turn:] + [*sides][:turn]:
                found[name].append(sides[name]())
                print(f"round {number + 1}, {name}: {found[name][-1]}", flush=True)

    def ratio(of: str, to: str) -> tuple[float, float]:
        pairs = list(zip(found[of], found[to], strict=True))
        by_time = statistics.median(b.slower / a.slower for a, b in pairs)
        return statistics.median(a.rate / b.rate for a, b in pairs), by_time

    rate = statistics.median(one.rate for one in found["in lists"])
    print(f"messages a second: {rate:,.0f} (at least 100,000 wanted)")
    for what, of, to, wanted in (
        ("with a snapshot every second against none", "with snapshots", "in lists", 0.97),
        ("sent in lists, against a bare stream with the same frames", "in lists", "bare, in lists", 0.9),
        ("sent one by one, against a bare stream with the same frames", "one by one", "bare, one by one", 0.9),
        ("sent one by one, against a bare stream that writes each", "one by one", "bare, a write each", 0.9),
        ("sent one by one, against a bare stream in lists", "one by one", "bare, in lists", None),
    ):
        by_rate, by_time = ratio(of, to)
        target = "" if wanted is None else f" (at least {wanted} wanted)"
        print(f"{what}: {by_rate:.2f}×{target}, by processor time of the slower end {by_time:.2f}×")
        if wanted is not None:
            figure("live_messages.py", what, by_rate, at_least=wanted, unit=" ×")
    return 0


if __name__ == "__main__":
    sys.exit(main())
