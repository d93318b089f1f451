"""A life over channels that reorder: Lai–Yang instead of markers.

Every message has its number on the channel, by which a journal knows it, and its sender's stamp, by which the machine
tells what was sent before a recording. There are no markers; a count, which says how much was sent before a recording,
travels among the messages in whatever order. A recorded channel holds its messages as they came, numbers included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strobe.hosts.live.api.codec import (
    count_item,
    count_of,
    decode_message,
    is_stamped,
    number_of,
    stamp_of,
    stamped_item,
    unstamped,
)
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.node.ends import Input, Output
from strobe.hosts.live.node.life import Life
from strobe.hosts.live.wire.udp import DatagramInput, DatagramOutput, Endpoint
from strobe.model.errors import PeerFault
from strobe.model.events import Received
from strobe.model.ids import ChannelId
from strobe.protocol.events import CountArrived, Deliver, Effect, MessageArrived, SendCount, Sending, SendStamped

__all__ = ["StampedLife", "datagram_ends"]


class StampedLife(Life):
    def take(self, channel: ChannelId, items: list[bytes]) -> None:
        """What came on a channel, in any order."""
        if self._is_async:
            self._enqueue((channel, items), len(items))
            return
        try:
            for index, item in enumerate(items):
                if self._holding:
                    self._held.append(partial(self.take, channel, items[index:]))
                    return
                self._step(_input(channel, item))
        except Exception as error:
            self._owner.failed(error)

    async def _take_one(self, channel: ChannelId, item: bytes) -> None:
        for effect in self.machine.step(_input(channel, item)):
            if isinstance(effect, Deliver):
                result = self._deliver(channel, effect.message)
                if result is not None:
                    await result
                self.channel = None
                self.look()
            else:
                self._perform(effect)

    def _deliver(self, channel: ChannelId, batch: list[bytes]) -> Any:
        (item,) = batch
        end = self.inputs[channel]
        self.channel = channel
        end.received += 1
        self.step += 1
        if self.journal is not None:
            self.journal.write(Received(self.name, self.step, channel, number_of(item)))
        result = self.process.on_message(end.sender, decode_message(unstamped(item)))
        if not self._is_async:
            self.look()
        return result

    def join(self, process: Process, inputs: dict[ChannelId, Input], outputs: dict[ChannelId, Output]) -> None:
        super().join(process, inputs, outputs)
        for out in outputs.values():
            out.add = partial(self._stamp, out)

    def _stamp(self, out: Output, item: bytes) -> None:
        channel = ChannelId(out.link.name)
        for effect in self.machine.step(Sending(channel, item)):
            assert isinstance(effect, SendStamped)
            out.link.session.add(stamped_item(item, out.sent + 1, effect.stamp))

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendCount):
            self.outputs[effect.channel].mark(count_item(effect.snapshot, effect.sent))
        else:
            super()._perform(effect)


def datagram_ends(
    life: Life, endpoint: Endpoint, arrived: Callable[[ChannelId, list[bytes]], None], window: int
) -> tuple[dict[ChannelId, Input], dict[ChannelId, Output]]:
    """The ends of all channels of this node, over its socket."""
    graph, order, journal = life.graph, life.order, life.journal
    inputs, outputs = {}, {}
    for channel in graph.inputs(life.name):
        source = graph.by_id[channel].source
        into = DatagramInput(channel, endpoint, order.addresses[source], partial(arrived, channel))
        inputs[channel] = Input(source, into, order.received.get(channel, 0))
    for channel in graph.outputs(life.name):
        target = graph.by_id[channel].target
        out = DatagramOutput(
            channel,
            endpoint,
            order.addresses[target],
            window=window,
            congestion=partial(life.congestion, channel),
            before_write=None if journal is None else journal.flush,
        )
        outputs[channel] = Output(target, out, out, order.sent.get(channel, 0))
    return inputs, outputs


def _input(channel: ChannelId, item: bytes) -> MessageArrived | CountArrived:
    if is_stamped(item):
        return MessageArrived(channel, [item], stamp_of(item))
    count = count_of(item)
    if count is None:
        raise PeerFault(f"{len(item)} bytes came on {channel!r} that are neither a message nor a count.")
    return CountArrived(channel, *count)
