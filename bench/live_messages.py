"""Messages a second between two live processes: with snapshots against none, and against a bare asyncio stream.

    python bench/live_messages.py                seven rounds of three sides, alternately, 4 s each
    python bench/live_messages.py --quick        one round of 1 s

The bare side has the same codec and the same frames in the same batches, and nothing else: no numbers that are
acknowledged, no resumption, no snapshots. Ratios are taken within a round; the median over rounds is the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec

from bench._live import Coin, Drain, Pump, pair, running
from strobe.hosts.live.api.codec import decode_message, encode_message
from strobe.hosts.live.wire.framing import MAX_FRAME, FrameKind, FrameReader, frame

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode


async def strobe_side(seconds: float, interval: int | None) -> float:
    async with running(pair(), interval=interval) as system:
        await asyncio.sleep(seconds / 4)
        first, begun = await received(system), time.perf_counter()
        await asyncio.sleep(seconds)
        return (await received(system) - first) / (time.perf_counter() - begun)


async def received(system: object) -> int:
    figures = (await system.status()).nodes["b"]  # type: ignore[attr-defined]
    return int(sum(figures.received.values()))


async def bare_sender(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    number, burst = 1, Pump().burst
    while True:
        items = [encode_message(Coin(1)) for _ in range(burst)]
        writer.write(frame(FrameKind.DATA, _encode((number, items))))
        number += burst
        await writer.drain()


async def bare_receiver(port: int, seconds: float) -> float:
    """In the second process; prints the rate."""
    drain, reader = Drain(), FrameReader(MAX_FRAME)
    outcome: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    class Receiving(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            for _, body in reader.feed(data):
                for item in _decode(body)[1]:
                    drain.on_message("a", decode_message(item))

    server = await asyncio.get_running_loop().create_server(Receiving, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(seconds / 4 + 0.5)
    first, begun = drain.received, time.perf_counter()
    await asyncio.sleep(seconds)
    outcome.set_result((drain.received - first) / (time.perf_counter() - begun))
    return await outcome


def bare_side(seconds: float) -> float:
    me = [sys.executable, __file__]
    receiver = subprocess.Popen([*me, "--receive", str(seconds)], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    sender = subprocess.Popen([*me, "--send", receiver.stdout.readline().strip()], stderr=subprocess.DEVNULL)
    try:
        return float(receiver.stdout.readline())
    finally:
        sender.kill()
        sender.wait()
        receiver.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--send", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--receive", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        asyncio.run(bare_sender(arguments.send))
    if arguments.receive:
        print(asyncio.run(bare_receiver(0, arguments.receive)), flush=True)
        return 0
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 1.0
    none: list[float] = []
    every: list[float] = []
    bare: list[float] = []
    for number in range(arguments.rounds):
        for side in ("none", "every", "bare", "none", "every", "bare")[number % 3 :][:3]:
            if side == "none":
                none.append(asyncio.run(strobe_side(arguments.seconds, None)))
            elif side == "every":
                every.append(asyncio.run(strobe_side(arguments.seconds, 1000)))
            else:
                bare.append(bare_side(arguments.seconds))
        print(f"round {number + 1}: none {none[-1]:,.0f}/s  every second {every[-1]:,.0f}/s  bare {bare[-1]:,.0f}/s")
    snapshots = statistics.median(a / b for a, b in zip(every, none, strict=True))
    against = statistics.median(a / b for a, b in zip(none, bare, strict=True))
    print(f"messages a second: {statistics.median(none):,.0f} (at least 100,000 wanted)")
    print(f"with a snapshot every second against none: {snapshots:.3f}× (at least 0.97 wanted)")
    print(f"against a bare stream with the same frames: {against:.2f}× (at least 0.7 wanted)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
