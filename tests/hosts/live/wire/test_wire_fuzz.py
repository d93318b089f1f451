"""Peers that speak nonsense at every stage: a node drops them with a line, and goes on serving who does not."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from strobe.hosts.live.wire.auth import Claim, Dialling
from strobe.hosts.live.wire.framing import FrameKind, FrameReader, frame
from strobe.hosts.live.wire.link import Dialer, Link
from strobe.model.ids import Incarnation
from tests.hosts.live.wire.test_link import KEY, End, closed_by_peer, ends
from tests.support.waiting import until

STAGES = ("before anything", "after the greeting", "after the proof", "in a session")
CLAIM = Claim("a", "a-b", Incarnation(1), "s", True, 0)


def nonsense(dice: random.Random) -> bytes:
    """Bytes, frames of all kinds with wrong bodies, lengths that promise too much or too little."""
    kind = dice.choice(list(FrameKind))
    body = dice.randbytes(dice.choice((0, 1, 7, 32, 500)))
    whole = frame(kind, body)
    return dice.choice(
        (
            dice.randbytes(dice.randrange(1, 300)),
            whole,
            whole[: dice.randrange(1, len(whole) + 1)],
            whole + whole,
            (1 << 31).to_bytes(4, "big") + body,
            bytes(4) + body,
            frame(FrameKind.DATA, b"\x92\xcf" + b"\xff" * 8 + b"\x91\xc4\x01x"),
            frame(FrameKind.ACK, b"\xcf" + b"\xff" * 8),
            frame(FrameKind.DATA, b"\x91" * 1000),
        )
    )


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stage: str) -> None:
    """Behaves, up to the stage."""
    if stage == STAGES[0]:
        return
    side, frames = Dialling(KEY, CLAIM), FrameReader(1 << 20)

    async def next_frame() -> tuple[int, bytes]:
        while True:
            for found in frames.feed(await reader.read(4096)):
                return found

    writer.write(side.begin())
    if stage == STAGES[1]:
        return
    writer.write(side.challenged((await next_frame())[1]))
    if stage == STAGES[3]:
        assert (await next_frame())[0] == FrameKind.WELCOME


@pytest.mark.parametrize("stage", STAGES)
def test_nonsense_at_any_stage_harms_nobody_else(stage: str, caplog: pytest.LogCaptureFixture) -> None:
    async def attack(end: End, address: tuple[str, int], seed: int) -> None:
        dice = random.Random(seed)
        reader, writer = await asyncio.open_connection(*address)
        await greet(reader, writer, stage)
        for _ in range(dice.randrange(1, 4)):
            writer.write(nonsense(dice))
        writer.write_eof()
        await closed_by_peer(reader)
        writer.close()

    async def work() -> None:
        async with ends() as (end, address):
            for seed in range(60):
                await attack(end, address, seed)
            assert all(isinstance(item, bytes) for item in end.got)
            end.link.session.__init__()  # type: ignore[misc]  # what the attackers' session had is theirs
            end.got.clear()
            link = Link("honest", lambda items: None)
            dialer = Dialer(link, address, KEY, node="a", channel="a-b")
            link.send(b"hello")
            await until(lambda: end.got == [b"hello"])
            dialer.close()

    with caplog.at_level(logging.WARNING, "strobe.live"):
        asyncio.run(work())
    assert "Traceback" not in caplog.text
    assert all(record.levelno <= logging.WARNING for record in caplog.records)
    assert "dropped" in caplog.text
