"""Every error that Strobe raises on purpose.

One root, few branches. An error says what happened, to which node, stage or channel; what was left
untouched; and what to do next. The command line prints exactly these three parts and exits with
`exit_code`: 2 for misuse (the call was wrong, nothing was tried), 1 for a failure (it was tried and did not work).
"""

from __future__ import annotations

from strobe.model.redaction import redact

__all__ = ["Damaged", "Failed", "Fenced", "HostFault", "Misuse", "PeerFault", "ProtocolError", "StrobeError"]


class StrobeError(Exception):
    """The root. `what` happened, what is `untouched`, what to do `next`."""

    exit_code = 1

    def __init__(self, what: str, *, untouched: str = "", next: str = "") -> None:
        self.what = redact(what)  # it may quote what a database or Spark said, a password included
        self.untouched = untouched
        self.next = redact(next)
        super().__init__(self.what)

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.untouched, self.next) if part)


class Misuse(StrobeError):
    """The caller asked for something that cannot be meant: nothing was started."""

    exit_code = 2


class Failed(StrobeError):
    """Something was tried and did not work."""


class Fenced(Failed):
    """A newer incarnation has taken over: this one must not write any more."""


class Damaged(StrobeError):
    """Stored bytes are not what was written: a journal, a manifest, a blob."""


class ProtocolError(StrobeError):
    """An input that makes no sense in the machine's present state. The machine is unchanged."""


class HostFault(ProtocolError):
    """Our side broke the machine's contract: the host that drives it has a bug."""


class PeerFault(ProtocolError):
    """The other side broke the protocol: a peer, or the channel that carries its messages, is at fault."""
