"""This node's parts of the snapshots that are open: state, positions, and what the input channels carried.

A part is whole when its state is written, every input channel is closed, and what they held is on its way; then it is
handed over, once. Contents are sent as states are: in pieces, and no faster than the coordinator takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from strobe.hosts.live.node.capture import Captured, Capturing, capture
from strobe.hosts.live.snapshot.bulk import packed, packed_size
from strobe.hosts.live.wire.control import PartTaken, TimerState
from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.model.ids import ChannelId, NodeId, SnapshotId

__all__ = ["PartOwner", "Position", "Recordings"]


class PartOwner(Protocol):
    """Where parts go."""

    def piece(self, snapshot: SnapshotId, data: bytes, channel: str = "") -> bool:
        """A piece of a state, or of a channel's content; False: the next one waits until `Recordings.resume`."""
        ...

    def recorded(self, part: PartTaken) -> None: ...

    def declined(self, snapshot: SnapshotId, reason: str) -> None: ...


class Position:
    """Where a node stands at a recording: messages sent and received on each channel, timers, steps."""

    __slots__ = ("received", "sent", "step", "timers")

    def __init__(
        self, sent: Mapping[ChannelId, int], received: Mapping[ChannelId, int], timers: list[TimerState], step: int
    ) -> None:
        self.sent: dict[str, int] = {str(channel): count for channel, count in sent.items()}
        self.received: dict[str, int] = {str(channel): count for channel, count in received.items()}
        self.timers = timers
        self.step = step


class _Recording:
    def __init__(self, snapshot: SnapshotId, position: Position, clock: Clock) -> None:
        self.snapshot = snapshot
        self.position = position
        self._clock, self._begun = clock, clock.monotonic()
        self.gap_ms = 0.0
        self.align_ms = 0.0
        self.contents: dict[str, int] = {}
        self.content_bytes: dict[str, int] = {}
        self.leaving: deque[tuple[ChannelId, Iterator[bytes]]] = deque()
        self.closed = False
        self.captured: Captured | None = None
        self.capturing: Capturing | None = None

    def elapsed(self) -> float:
        return (self._clock.monotonic() - self._begun) * 1000


class Recordings:
    def __init__(
        self, node: NodeId, incarnation: int, owner: PartOwner, fork_above: int, clock: Clock = SYSTEM
    ) -> None:
        self._clock = clock
        self._node = node
        self._incarnation = incarnation
        self._owner = owner
        self._fork_above = fork_above
        self._open: dict[SnapshotId, _Recording] = {}

    def record(self, snapshot: SnapshotId, position: Position, take_state: Any) -> None:
        """Captures what `take_state()` gives. When this returns, the process may go on."""
        recording = self._open[snapshot] = _Recording(snapshot, position, self._clock)

        def done(captured: Captured) -> None:
            recording.captured, recording.capturing = captured, None
            self._hand_over(recording)

        def failed(reason: str) -> None:
            recording.capturing = None
            self._owner.declined(snapshot, reason)

        capturing = recording.capturing = Capturing(partial(self._owner.piece, snapshot), done, failed, self._clock)
        try:
            capture(take_state(), self._node, capturing, fork_above=self._fork_above)
        except Exception as error:  # the user's snapshot(): whatever it raises, only this snapshot is lost
            failed(f"snapshot() raised {type(error).__name__}: {error}")
        recording.gap_ms = recording.elapsed()

    def channel(self, snapshot: SnapshotId, channel: ChannelId, runs: Iterable[Iterable[bytes]]) -> None:
        recording = self._open.get(snapshot)
        if recording is not None:
            items = [item for run in runs for item in run]
            recording.contents[channel] = count = len(items)
            if items:
                recording.content_bytes[channel] = packed_size(items, count)
                recording.leaving.append((channel, packed(items, count)))
                self._send_contents(recording)

    def close(self, snapshot: SnapshotId) -> None:
        """Every input channel is recorded."""
        recording = self._open.get(snapshot)
        if recording is not None:
            recording.closed = True
            recording.align_ms = recording.elapsed()
            self._hand_over(recording)

    def abort(self, snapshot: SnapshotId) -> None:
        recording = self._open.pop(snapshot, None)
        if recording is not None and recording.capturing is not None:
            recording.capturing.cancel()

    def stop(self) -> None:
        for snapshot in list(self._open):
            self.abort(snapshot)

    def resume(self) -> None:
        for recording in list(self._open.values()):
            if recording.capturing is not None:
                recording.capturing.resume()
            self._send_contents(recording)

    def _send_contents(self, recording: _Recording) -> None:
        while recording.leaving:
            channel, pieces = recording.leaving[0]
            for data in pieces:
                if not self._owner.piece(recording.snapshot, data, channel):
                    return  # until `resume`
            recording.leaving.popleft()
        self._hand_over(recording)

    def _hand_over(self, recording: _Recording) -> None:
        captured, position = recording.captured, recording.position
        if captured is None or not recording.closed or recording.leaving:
            return
        if self._open.pop(recording.snapshot, None) is None:
            return
        self._owner.recorded(
            PartTaken(
                incarnation=self._incarnation,
                snapshot=recording.snapshot,
                state_bytes=captured.size,
                sent=position.sent,
                received=position.received,
                contents=recording.contents,
                content_bytes=recording.content_bytes,
                timers=position.timers,
                step=position.step,
                gap_ms=recording.gap_ms,
                write_ms=captured.write_ms,
                align_ms=recording.align_ms,
                forked=captured.forked,
                took_ms=recording.elapsed(),
            )
        )
