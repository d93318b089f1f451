"""One incarnation of a node: its process, its snapshot machine and its channels, from a loaded state until the end.

Theory of operation
-------------------
Inputs are taken one after the other: a run of messages from a channel, a marker, a timer, an order to record. Each goes
to the machine of `strobe.protocol`, whose effects are performed in order and completely before the next input. To the
machine a run of messages is one message: it may be recorded, it is delivered as a whole, and no marker can stand in
its middle. With coroutine handlers a run is a single message.

Sends go into the channel's session in the order of the calls, and so do markers: that is the marker-sending rule.

*Back-pressure.* While an output is congested its node takes nothing from those inputs that could make it worse, except
where input and output are both parts of one cycle: there everyone would wait for everyone. Timers wait in any case.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from strobe.hosts.live.api.codec import decode_message, encode_message, is_marker, item_to_json, marker_id, marker_item
from strobe.hosts.live.api.process import Process, has_coroutines
from strobe.hosts.live.journal.parts import PartWriter
from strobe.hosts.live.node.ends import Input, Output
from strobe.hosts.live.node.receiving import hand_over
from strobe.hosts.live.node.recording import PartOwner, Position, Recordings
from strobe.hosts.live.node.sending import send_quickly
from strobe.hosts.live.node.timers import Timers
from strobe.hosts.live.wire.control import Order
from strobe.model.cut import Json
from strobe.model.errors import HostFault, Misuse
from strobe.model.events import Internal, MarkerReceived, MarkerSent, Received, Recorded, Sent
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.protocol.events import (
    Abort,
    ChannelRecorded,
    Declined,
    Deliver,
    Effect,
    Initiate,
    Machine,
    MarkerArrived,
    MessageArrived,
    NodeRecorded,
    RecordState,
    SendMarker,
)

__all__ = ["Life", "Owner"]

_MARKER: Final = len(marker_item(SnapshotId(1)))
_INBOX: Final = 20_000  # messages that wait for coroutine handlers before their channels are paused


class Owner(PartOwner, Protocol):
    """What a life tells its node."""

    def wants_snapshot(self) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Life:
    def __init__(
        self,
        name: NodeId,
        graph: Graph,
        order: Order,
        machine: Machine,
        owner: Owner,
        *,
        fork_above: int,
        journal: PartWriter | None,
    ) -> None:
        self.name = name
        self.graph = graph
        self.order = order
        self.machine = machine
        self.journal = journal
        self.process: Process = Process()
        self.inputs: dict[ChannelId, Input] = {}
        self.outputs: dict[ChannelId, Output] = {}
        self.contents: dict[ChannelId, list[bytes]] = {}  # what was in flight when the state was recorded
        self.channel: ChannelId | None = None
        self.step = 0
        self.after_step: Callable[[Process], None] | None = None  # called after each run of messages and each own step
        self.recordings = Recordings(name, order.incarnation, owner, fork_above)
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._by_name: dict[str, Output] = {}
        self._timers = Timers(name, self._ring, self._timers_wait)
        self._congested: set[ChannelId] = set()
        self._inbox: deque[tuple[ChannelId, list[bytes]] | Callable[[], Any]] = deque()
        self._waiting = 0  # messages in it
        self._choked = False
        self._holding = False
        self._held: deque[Callable[[], None]] = deque()  # what came meanwhile, where no task takes it
        self._is_async = False
        self._wake = asyncio.Event()
        self._pump_task: asyncio.Task[None] | None = None

    def join(self, process: Process, inputs: dict[ChannelId, Input], outputs: dict[ChannelId, Output]) -> None:
        """Everything that the life consists of."""
        self.process, self.inputs, self.outputs = process, inputs, outputs
        targets = [out.target for out in outputs.values()]
        self._by_name = {str(channel): out for channel, out in outputs.items()}
        self._by_name |= {str(out.target): out for out in outputs.values() if targets.count(out.target) == 1}
        mine = self.graph.reachable([self.name])
        for out in outputs.values():
            in_cycle = self.name in self.graph.reachable([out.target])
            out.pauses = tuple(c for c, end in inputs.items() if not (in_cycle and end.sender in mine))
        self._is_async = has_coroutines(type(process))
        if self.journal is None and not self.machine.stamps_messages:
            send_quickly(process, self._by_name, self.send)

    @property
    def peers(self) -> tuple[NodeId, ...]:
        return tuple(dict.fromkeys(out.target for out in self.outputs.values()))

    @property
    def congested(self) -> bool:
        return bool(self._congested)

    @property
    def has_timers(self) -> bool:
        return bool(self._timers)

    @property
    def queued(self) -> int:
        return self._waiting

    # ── start and end ───────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        if self._is_async:
            self._pump_task = self._loop.create_task(self._pump())
        if self.order.snapshot == 0:
            self.act({"start": True}, self.process.on_start)
        else:
            for timer in self.order.timers:
                self._timers.set(timer.name, timer.remaining, timer.period)
            if type(self.process).on_restore is not Process.on_restore:
                self.act({"restore": self.order.snapshot}, self.process.on_restore)
            contents, self.contents = self.contents, {}
            for channel, content in contents.items():
                self.take(channel, content)

    def stop(self) -> None:
        """Nothing more is delivered or sent."""
        self.process.on_stop()
        if self._pump_task is not None:
            self._pump_task.cancel()
        self._timers.stop()
        self.recordings.stop()
        for out in self.outputs.values():
            out.dialer.close()
        for end in self.inputs.values():
            end.link.close()
        if self.journal is not None:
            self.journal.close()

    # ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, channel: ChannelId, items: list[bytes]) -> None:
        """What came on a channel, in order."""
        if self._is_async:
            self._enqueue((channel, items), len(items))
            return
        if self._holding:
            self._held.append(partial(self.take, channel, items))
            return
        try:
            if self.after_step is not None and len(items) > 1:
                self._take_singly(channel, items)
                return
            start = 0
            if _MARKER in map(len, items):  # as a rule no item has a marker's length: then there is none among them
                for index, item in enumerate(items):
                    if is_marker(item):
                        if start < index:
                            self._step(MessageArrived(channel, items[start:index]))
                        self._marker(channel, marker_id(item))
                        start = index + 1
            if start < len(items):
                self._step(MessageArrived(channel, items[start:] if start else items))
        except Exception as error:
            self._owner.failed(error)

    def _take_singly(self, channel: ChannelId, items: list[bytes]) -> None:
        """One message at a time: a breakpoint is judged after each, and may hold the process there."""
        for index, item in enumerate(items):
            if self._holding:
                self._held.append(partial(self.take, channel, items[index:]))
                return
            if is_marker(item):
                self._marker(channel, marker_id(item))
            else:
                self._step(MessageArrived(channel, [item]))

    def hold(self) -> None:
        """Take no step until `release`: nothing is delivered, no timer rings. Snapshots are still recorded."""
        if not self._holding:
            self._holding = True
            for end in self.inputs.values():
                self._pause(end)

    def release(self) -> None:
        if not self._holding:
            return
        self._holding = False
        self.look()
        while self._held and not self._holding:
            self._held.popleft()()
        self._wake.set()
        for end in self.inputs.values():
            self._unpause(end)

    def look_soon(self) -> None:
        """Call `look` between two steps."""
        self._call(self.look)

    def look(self) -> None:
        if self.after_step is not None:
            self.after_step(self.process)

    def act(self, action: Json, handler: Callable[..., Any], *args: Any) -> None:
        """A step of the node's own: `handler` is called, and `action` stands for it in the journal."""
        self._call(partial(self._act, action, handler, *args))

    def initiate(self, snapshot: SnapshotId) -> None:
        if self._holding:
            self._step(Initiate(snapshot))  # no handler is running, and none starts before this is done
        else:
            self._call(partial(self._step, Initiate(snapshot)))

    def abort(self, snapshot: SnapshotId) -> None:
        self._call(partial(self._abort, snapshot))

    def _call(self, do: Callable[[], Any]) -> None:
        if self._is_async:
            self._enqueue(do, 0)
            return
        if self._holding:
            self._held.append(partial(self._call, do))
            return
        try:
            do()
        except Exception as error:
            self._owner.failed(error)

    def _act(self, action: Json, handler: Callable[..., Any], *args: Any) -> Any:
        self.step += 1
        if self.journal is not None:
            self.journal.write(Internal(self.name, self.step, action))
        result = handler(*args)
        if not self._is_async:
            self.look()
        return result

    def _marker(self, channel: ChannelId, snapshot: SnapshotId) -> None:
        if self.journal is not None:
            self.journal.write(MarkerReceived(self.name, self.step, channel, snapshot))
        self._step(MarkerArrived(channel, snapshot))

    def _abort(self, snapshot: SnapshotId) -> None:
        self._step(Abort(snapshot))
        self.recordings.abort(snapshot)

    # ── coroutine handlers: one task takes everything, in order ─────────────────────────────────────────────────────

    def _enqueue(self, entry: tuple[ChannelId, list[bytes]] | Callable[[], Any], messages: int) -> None:
        self._inbox.append(entry)
        self._waiting += messages
        if self._waiting > _INBOX and not self._choked:
            self._choked = True
            for end in self.inputs.values():
                self._pause(end)
        self._wake.set()

    async def _pump(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._inbox and not self._holding:
                    entry = self._inbox.popleft()
                    if isinstance(entry, tuple):
                        await self._take_one_by_one(*entry)
                    else:
                        result = entry()
                        if inspect.isawaitable(result):
                            await result
                        self.look()
        except Exception as error:
            self._owner.failed(error)

    async def _take_one_by_one(self, channel: ChannelId, items: list[bytes]) -> None:
        for index, item in enumerate(items):
            if self._holding:
                self._inbox.appendleft((channel, items[index:]))
                break
            self._waiting -= 1
            await self._take_one(channel, item)
        if self._choked and self._waiting < _INBOX // 2:
            self._choked = False
            for end in self.inputs.values():
                self._unpause(end)

    async def _take_one(self, channel: ChannelId, item: bytes) -> None:
        if is_marker(item):
            self._marker(channel, marker_id(item))
            return
        for effect in self.machine.step(MessageArrived(channel, (item,))):
            if isinstance(effect, Deliver):
                result = self._deliver(channel, effect.message)
                if result is not None:
                    await result
                self.channel = None
                self.look()
            else:
                self._perform(effect)

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, input: Any) -> None:
        for effect in self.machine.step(input):
            if effect.__class__ is Deliver:
                self._deliver(effect.channel, effect.message)
                self.channel = None
            else:
                self._perform(effect)

    def _deliver(self, channel: ChannelId, batch: list[bytes]) -> Any:
        """Calls the handler with each message of the run; the result of the last call is returned, to be awaited."""
        end, handler = self.inputs[channel], self.process.on_message
        sender, result = end.sender, None
        self.channel = channel
        if self.journal is None:
            end.received += len(batch)
            self.step += len(batch)
            result = hand_over(handler, sender, batch)
        else:
            for item in batch:
                end.received += 1
                self.step += 1
                self.journal.write(Received(self.name, self.step, channel, end.received))
                result = handler(sender, decode_message(item))
        if not self._is_async:
            self.look()
        return result

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendMarker):
            if self.journal is not None:
                self.journal.write(MarkerSent(self.name, self.step, effect.channel, effect.snapshot))
            self.outputs[effect.channel].mark(marker_item(effect.snapshot))
        elif isinstance(effect, RecordState):
            self._record(effect.snapshot)
        elif isinstance(effect, ChannelRecorded):
            self.recordings.channel(effect.snapshot, effect.channel, effect.content)
        elif isinstance(effect, NodeRecorded):
            self.recordings.close(effect.snapshot)
        elif isinstance(effect, Declined):
            self._owner.declined(effect.snapshot, effect.reason)
        else:
            raise HostFault(f"A live node cannot perform {type(effect).__name__}.")

    def _record(self, snapshot: SnapshotId) -> None:
        if self.journal is not None:
            self.journal.write(Recorded(self.name, self.step, snapshot))
        position = Position(
            {channel: out.sent for channel, out in self.outputs.items()},
            {channel: end.received for channel, end in self.inputs.items()},
            self._timers.states(),
            self.step,
        )
        self.recordings.record(snapshot, position, self.process.snapshot)

    # ── what the process asks for ───────────────────────────────────────────────────────────────────────────────────

    def send(self, to: str, message: Any) -> None:
        try:
            out = self._by_name[to]
        except KeyError:
            raise self._no_channel(to) from None
        item = encode_message(message)
        if len(item) > out.max_item:
            raise Misuse(
                f"{self.name}: a {type(message).__name__} of {len(item):,} bytes is too large for one message.",
                untouched="It was not sent.",
                next=f"Send it in parts of at most {out.max_item:,} bytes.",
            )
        if self.journal is not None:
            channel = ChannelId(out.link.name)
            self.journal.write(Sent(self.name, self.step, channel, out.sent + 1, item_to_json(item)))
        out.add(item)
        link = out.link
        if not link.scheduled:
            link.schedule()

    def request_snapshot(self) -> None:
        self._owner.wants_snapshot()

    def _no_channel(self, to: str) -> Misuse:
        several = [c for c, out in self.outputs.items() if out.target == to]
        if several:
            return Misuse(f"{self.name} has several channels to {to}.", next=f"Name one of them: {', '.join(several)}.")
        return Misuse(f"{self.name} has no channel to {to!r}.", next=f"It can send to: {', '.join(self._by_name)}.")

    def set_timer(self, name: str, seconds: float, period: float | None) -> None:
        self._timers.set(name, seconds, period)

    def cancel_timer(self, name: str) -> None:
        self._timers.cancel(name)

    def _timers_wait(self) -> bool:
        return bool(self._congested or self._waiting or self._holding)

    def _ring(self, name: str) -> None:
        self._call(partial(self._ring_now, name))

    def _ring_now(self, name: str) -> Any:
        return self._act({"timer": name}, self.process.on_timer, name) if self._timers.take(name) else None

    # ── back-pressure ───────────────────────────────────────────────────────────────────────────────────────────────

    def congestion(self, channel: ChannelId, begins: bool) -> None:
        out = self.outputs.get(channel)
        if out is None or begins == (channel in self._congested):
            return
        (self._congested.add if begins else self._congested.remove)(channel)
        for paused in out.pauses:
            (self._pause if begins else self._unpause)(self.inputs[paused])

    def _pause(self, end: Input) -> None:
        end.paused += 1
        if end.paused == 1:
            end.link.pause()

    def _unpause(self, end: Input) -> None:
        end.paused -= 1
        if end.paused == 0:
            end.link.resume()
