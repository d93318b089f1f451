"""TLS between nodes: it works, and whoever does not belong there is told so, at both ends, in words."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.live.node.options import NodeOptions
from strobe.hosts.live.wire.auth import Claim, Refusal
from strobe.hosts.live.wire.link import Dialer, Link, listen
from strobe.hosts.live.wire.tls import Tls
from strobe.model.errors import Misuse
from tests.support.live.certificates import certificates
from tests.support.live.systems import bank, money, run, system, verified
from tests.support.waiting import until

KEY = b"the key of these tests, 32 bytes"


def test_a_system_runs_over_tls(tmp_path: Path) -> None:
    options = NodeOptions(KEY, tls=certificates(tmp_path))

    async def work() -> None:
        async with system(bank("ab"), tmp_path / "home", options=options) as live:
            assert money(verified(live, await live.snapshot())) == 2000

    run(work)


def test_tls_files_that_are_not_there_are_named() -> None:
    with pytest.raises(Misuse, match=r"nowhere\.pem"):
        Tls("nowhere.pem", "nowhere.key", "nowhere.pem").accepting()


def stranger(right: Tls, other: Tls) -> Tls:
    """Trusts everybody here, and is trusted by nobody."""
    return replace(other, authority=right.authority)


@pytest.mark.parametrize(
    ("accepting", "dialling", "dialler_hears", "logged"),
    [
        (0, 1, "the authority in [tls] has not signed its certificate", "perhaps [tls] is not the same at both ends"),
        (0, 2, "perhaps [tls] is not the same at both ends", "the authority in [tls] has not signed its certificate"),
        (0, None, "perhaps it uses TLS, and this side does not", "[tls] has to be the same at both ends"),
        (None, 0, "perhaps [tls] is not the same at both ends", "at most"),
    ],
    ids=["another authority", "a certificate of another authority", "no TLS at the dialler", "no TLS where it dials"],
)
def test_tls_that_does_not_fit_is_explained_at_both_ends(
    accepting: int | None,
    dialling: int | None,
    dialler_hears: str,
    logged: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right, other = certificates(tmp_path / "right"), certificates(tmp_path / "other", "somebody else")
    kinds = (right, other, stranger(right, other))

    async def work() -> None:
        claims: list[Claim] = []

        def accept(claim: Claim) -> Link | Refusal:
            claims.append(claim)
            return Refusal("nobody should come this far")

        theirs = None if accepting is None else kinds[accepting].accepting()
        ours = None if dialling is None else kinds[dialling].dialling()
        server = await listen(("127.0.0.1", 0), KEY, "life", accept, tls=theirs)
        address = server.sockets[0].getsockname()[:2]
        dialer = Dialer(Link("a", lambda items: None), address, KEY, node="a", tls=ours)
        await until(lambda: dialler_hears in dialer.last_error and logged in caplog.text)
        dialer.close()
        server.close()
        assert claims == []

    with caplog.at_level(logging.WARNING, "strobe.live"):
        run(work, seconds=20)
    assert KEY.decode() not in caplog.text


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b""], ids=["http", "zeros", "nothing"])
def test_nonsense_at_a_port_with_tls_is_dropped_with_one_line_and_the_port_serves_on(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = certificates(tmp_path)

    async def work() -> None:
        end = Link("end", lambda items: None)
        server = await listen(("127.0.0.1", 0), KEY, "life", lambda claim: end, tls=tls.accepting())
        address = server.sockets[0].getsockname()[:2]
        _, writer = await asyncio.open_connection(*address)
        writer.write(data)
        writer.write_eof()
        await until(lambda: len(caplog.records) > 0)
        writer.close()
        dialer = Dialer(Link("a", lambda items: None), address, KEY, node="a", tls=tls.dialling())
        await until(lambda: end.connected)
        dialer.close()
        server.close()

    with caplog.at_level(logging.WARNING, "strobe.live"):
        run(work, seconds=20)
    assert len([record for record in caplog.records if "dropped" in record.getMessage()]) == 1
