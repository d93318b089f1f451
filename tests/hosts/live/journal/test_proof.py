"""Ten processes under load: every snapshot verified, every one with all the money; also with kills and partitions.

`bench/live_bank.py` does the same a thousand times.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

from strobe.model.errors import Failed
from tests.support.live.proxies import network
from tests.support.live.systems import bank, money, run, settings, system, verified


def test_ten_processes_under_load_keep_their_money_in_thirty_snapshots(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank("abcdefghij", burst=4, seconds=0.01), tmp_path) as live:
            in_flight = 0
            for _ in range(30):
                loaded = verified(live, await live.snapshot())
                assert money(loaded) == 10_000
                in_flight += sum(map(len, loaded.contents.values()))
            assert in_flight > 0
            assert live.incarnation == 1

    run(work, 240)


def test_the_same_with_random_kills_and_partitions(tmp_path: Path) -> None:
    seed = 31
    dice = random.Random(seed)

    async def work() -> None:
        options: dict[str, Any] = {"max_restarts": 100, "settings": settings(timeout=5000)}
        async with (
            network(bank("abcd", burst=2), seed) as between,
            system(between.topology, tmp_path, **options) as live,
        ):
            await live.snapshot()

            async def trouble() -> None:
                for kind in ("kill", "partition", "kill"):
                    await asyncio.sleep(dice.uniform(0.05, 0.3))
                    if kind == "kill":
                        incarnation = live.incarnation
                        live.kill(dice.choice("abcd"))
                        await live.incarnation_after(incarnation)
                    else:
                        between.partition(dice.sample("abcd", dice.randint(1, 3)))
                        await asyncio.sleep(dice.uniform(0.05, 0.3))
                        between.heal()

            troubling = asyncio.ensure_future(trouble())
            good = 0
            while good < 10 or not troubling.done():
                with contextlib.suppress(Failed):
                    assert money(verified(live, await live.snapshot())) == 4000, f"seed {seed}"
                    good += 1
                await live.running()
            await troubling
            assert live.incarnation >= 3
            assert between.dropped > 0

    run(work, 120)
