"""A node: an operating-system process that listens, is told what to load, and lives one incarnation after the other.

The coordinator's control connection brings orders; peers' connections bring channels. Every connection of a channel
belongs to one incarnation, which its greeting names; `strobe.protocol.restore.RestoreParticipant` judges it, and every
run of messages after it. An error in a handler ends the process: what it would do next depends on a state that may be
wrong. The system then goes back to its last snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from strobe.hosts.live.api.codec import decode_plain, to_json
from strobe.hosts.live.api.diffusing import AsyncDetecting, Detecting
from strobe.hosts.live.api.process import Process, has_coroutines, new_process
from strobe.hosts.live.journal.parts import PartWriter
from strobe.hosts.live.node.capture import LARGE
from strobe.hosts.live.node.ends import Input, Output
from strobe.hosts.live.node.life import Life
from strobe.hosts.live.node.machines import MACHINES
from strobe.hosts.live.node.stamped import StampedLife, datagram_ends
from strobe.hosts.live.node.watching import Watch
from strobe.hosts.live.snapshot.bulk import unpacked
from strobe.hosts.live.wire.auth import Claim, Refusal
from strobe.hosts.live.wire.control import (
    AbortPart,
    ClearBreak,
    Control,
    Decline,
    Fault,
    Figures,
    FiguresAsked,
    Finish,
    Go,
    HasTerminated,
    IsReady,
    IsRefused,
    IsRunning,
    Order,
    PartTaken,
    Piece,
    SetBreak,
    SnapshotAsked,
    SnapshotDone,
    TakePart,
    pack,
    pieces,
    unpack,
)
from strobe.hosts.live.wire.datagrams import new_key
from strobe.hosts.live.wire.framing import MAX_FRAME
from strobe.hosts.live.wire.link import Dialer, Link, listen
from strobe.hosts.live.wire.session import WINDOW, Session
from strobe.hosts.live.wire.udp import Endpoint, open_endpoint
from strobe.hosts.shared.strangers import Strangers
from strobe.model.errors import Failed, HostFault, PeerFault, StrobeError
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.events import Deliver
from strobe.protocol.restore import Phase, RestoreParticipant
from strobe.protocol.restore.messages import (
    Fence,
    Fenced,
    LoadFailed,
    LoadState,
    Ready,
    Refused,
    RestoreOrder,
    RestoreParticipantInput,
    Start,
    StartApplication,
    StateLoaded,
    StopApplication,
    ToCoordinator,
    Verdict,
)

__all__ = ["Node", "NodeConfig"]

_log = logging.getLogger("strobe.live")

_REASON: Final = 2000  # characters

Ends = tuple[dict[ChannelId, Input], dict[ChannelId, Output]]


@dataclass(frozen=True)
class NodeConfig:
    name: NodeId
    cls: type[Process]
    params: dict[str, Any]
    graph: Graph
    key: bytes
    address: tuple[str, int] = ("127.0.0.1", 0)
    protocol: str = "chandy-lamport"
    root: str | None = None
    journal: Path | None = None
    fork_above: int = LARGE
    window: int = WINDOW
    max_frame: int = MAX_FRAME
    listen_tls: ssl.SSLContext | None = None
    dial_tls: ssl.SSLContext | None = None


class Node:
    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.name = config.name
        self.life: Life | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._participant = RestoreParticipant(config.name)
        self._server: asyncio.Server | None = None
        self._endpoint: Endpoint | None = None
        self._process_id = secrets.token_hex(8)
        self._strangers = Strangers(_log)
        self._control: Link | None = None
        self._control_session = ""
        self._order: Order | None = None
        self._pieces: dict[tuple[int, str], bytearray] = {}  # by incarnation and channel; a state has no channel
        self._watch: Watch | None = None

    async def listen(self) -> tuple[str, int]:
        """Starts to listen, and says where."""
        config = self.config
        try:
            self._server = await listen(
                config.address,
                config.key,
                self._process_id,
                self._accept,
                tls=config.listen_tls,
                max_frame=config.max_frame,
                strangers=self._strangers,
            )
        except OSError as error:
            raise Failed(
                f"Node {self.name} cannot listen on {config.address[0]}:{config.address[1]}: {error.strerror}.",
                untouched="Nothing was started.",
                next="Stop what uses the port, or give the node another address.",
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        if config.protocol == "lai-yang":
            try:
                self._endpoint = await open_endpoint((host, port))
            except OSError as error:
                self._server.close()
                raise Failed(
                    f"Node {self.name} cannot receive datagrams on {host}:{port}: {error.strerror}.",
                    untouched="Nothing was started.",
                    next="Stop what uses the UDP port of that number, or give the node another address.",
                ) from error
        return host, port

    def close(self) -> None:
        self._stop_life()
        if self._server is not None:
            self._server.close()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._control is not None:
            self._control.close()
        if not self.ended.done():
            self.ended.set_result(None)

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _accept(self, claim: Claim) -> Link | Refusal:
        if not claim.channel:
            return self._accept_control(claim)
        channel = self.config.graph.by_id.get(ChannelId(claim.channel))
        if channel is None or (channel.source, channel.target) != (claim.node, self.name):
            return Refusal(f"{self.name} is not at the end of channel {claim.channel!r} from {claim.node!r}")
        verdict = Fence(self._participant.incarnation).judge(claim.incarnation)
        # Peers dial as soon as they have loaded. Only one that runs proves that a life is over: everyone was ready.
        if verdict is Verdict.OLDER:
            return Refusal("that life is over", self._participant.incarnation if self._running else Incarnation(0))
        if verdict is Verdict.NEWER and claim.running:
            self._tell(Fenced(channel.id, [], claim.incarnation))
        if self.life is None or verdict is Verdict.NEWER:
            return Refusal(f"{self.name} is not ready")
        link = self.life.inputs[channel.id].link
        return link if isinstance(link, Link) else Refusal(f"{channel.id} goes over datagrams")

    def _accept_control(self, claim: Claim) -> Link:
        if self._control is None or claim.session != self._control_session:
            if self._control is not None:
                self._control.close()
            self._control_session = claim.session
            self._pieces.clear()
            session = Session(max_frame=self.config.max_frame)
            self._control = Link("control", self._told, session=session, congestion=self._control_congestion)
        return self._control

    def _arrived(self, channel: ChannelId, items: list[bytes], *, incarnation: Incarnation) -> None:
        self._tell(Fenced(channel, items, incarnation))

    def _refused(self, channel: ChannelId, refusal: Refusal) -> None:
        if refusal.incarnation > self._participant.incarnation:
            self._tell(Fenced(channel, [], refusal.incarnation))

    # ── the coordinator ─────────────────────────────────────────────────────────────────────────────────────────────

    def _told(self, items: list[bytes]) -> None:
        for item in items:
            message = unpack(item)
            if isinstance(message, Piece):
                self._pieces.setdefault((message.number, message.channel), bytearray()).extend(message.data)
            else:
                self._control_message(message)

    def _control_message(self, message: Control) -> None:
        life = self.life
        if isinstance(message, Order):
            self._order = message
            self._tell(
                RestoreOrder(Incarnation(message.incarnation), Timeline(message.timeline), SnapshotId(message.snapshot))
            )
        elif isinstance(message, Go):
            self._tell(Start(Incarnation(message.incarnation)))
        elif isinstance(message, SetBreak | ClearBreak):
            if life is not None and self._watch is not None:  # else the orders of the next life say so
                if isinstance(message, SetBreak):
                    self._watch.set(message.number, message.condition)
                else:
                    self._watch.clear(message.number)
        elif isinstance(message, FiguresAsked):
            self._say(self.figures())
        elif isinstance(message, Finish):
            self.close()
        elif isinstance(message, TakePart | AbortPart | SnapshotDone):
            if life is None or message.incarnation != life.order.incarnation or not self._running:
                return  # of another life
            if isinstance(message, TakePart):
                life.initiate(SnapshotId(message.snapshot))
                if self._watch is not None:
                    self._watch.go_on(message.breakpoint)
            elif isinstance(message, AbortPart):
                life.abort(SnapshotId(message.snapshot))
        else:
            raise PeerFault(f"A node takes no {type(message).__name__}.")

    def _say(self, message: Control) -> None:
        if self._control is not None:
            self._control.send(pack(message))

    def _control_congestion(self, begins: bool) -> None:
        if not begins and self.life is not None:
            self.life.recordings.resume()

    def figures(self) -> Figures:
        life = self.life
        outputs = {} if life is None else life.outputs
        return Figures(
            incarnation=self._participant.incarnation,
            phase=self._participant.phase.value,
            sent={str(c): out.sent for c, out in outputs.items()},
            received={} if life is None else {str(c): end.received for c, end in life.inputs.items()},
            unacknowledged={str(c): out.link.session.unacknowledged for c, out in outputs.items()},
            queued=0 if life is None else life.queued,
            connected={str(c): out.link.connected for c, out in outputs.items()},
        )

    # ── incarnations ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _running(self) -> bool:
        return self._participant.phase is Phase.RUNNING

    def _tell(self, input: RestoreParticipantInput) -> None:
        for effect in self._participant.step(input):
            if effect.__class__ is Deliver:
                assert self.life is not None
                assert isinstance(effect, Deliver)
                self.life.take(effect.channel, effect.message)
            elif isinstance(effect, StopApplication):
                self._stop_life()
            elif isinstance(effect, LoadState):
                self._stop_life()
                asyncio.get_running_loop().call_soon(self._load, effect)
            elif isinstance(effect, StartApplication):
                assert self.life is not None
                self.life.start()
            elif isinstance(effect, ToCoordinator):
                self._answer(effect.message)
            else:
                raise HostFault(f"A node cannot perform {type(effect).__name__}.")

    def _answer(self, message: Ready | Refused | Any) -> None:
        if isinstance(message, Ready):
            self._say(IsReady(message.incarnation))
        elif isinstance(message, Refused):
            self._say(IsRefused(message.incarnation, message.reason))
        else:
            self._say(IsRunning(message.incarnation))

    def _stop_life(self) -> None:
        if self.life is not None:
            life, self.life, self._watch = self.life, None, None
            life.stop()
            if self._endpoint is not None:
                self._endpoint.end()

    def _load(self, load: LoadState) -> None:
        order = self._order
        if order is None or order.incarnation != load.incarnation:
            return  # a newer order has come
        try:
            self.life = self._new_life(order)
            self._pieces = {key: data for key, data in self._pieces.items() if key[0] > order.incarnation}
        except Exception as error:  # the user's class and its restore(): the coordinator hears why
            reason = str(error) if isinstance(error, StrobeError) else f"{type(error).__name__}: {error}"
            _log.error("Node %s cannot load snapshot %s: %s", self.name, order.snapshot, reason)
            self._tell(LoadFailed(load.incarnation, reason))
        else:
            self._tell(StateLoaded(load.incarnation))

    def _new_life(self, order: Order) -> Life:
        config, graph, incarnation = self.config, self.config.graph, Incarnation(order.incarnation)
        machine = MACHINES[config.protocol](graph, self.name, order)
        journal = None if config.journal is None else PartWriter(config.journal, self.name, incarnation)
        kind = StampedLife if self._endpoint is not None else Life
        life = kind(self.name, graph, order, machine, self, fork_above=config.fork_above, journal=journal)
        process = self._new_process(life)
        if order.snapshot:
            process.restore(decode_plain(self._came(order, "", order.state_bytes)))
            for channel, size in order.content_bytes.items():
                life.contents[ChannelId(channel)] = unpacked(self._came(order, channel, size))
        elif journal is not None:
            journal.initial(to_json(process.snapshot()))
        if isinstance(life, StampedLife):
            assert self._endpoint is not None
            self._endpoint.begin(new_key(config.key, order.token, order.incarnation), incarnation)
            arrived = partial(self._arrived, incarnation=incarnation)
            life.join(process, *datagram_ends(life, self._endpoint, arrived, config.window))
        else:
            life.join(process, *self._connect(life, order, incarnation))
        self._watch = Watch(life, order.breaks, self._say)
        return life

    def _came(self, order: Order, channel: str, size: int) -> bytes:
        """The bytes that came in pieces ahead of the order."""
        data = self._pieces.pop((order.incarnation, channel), bytearray())
        if len(data) != size:
            what = f"the content of {channel}" if channel else "its state"
            raise Failed(f"{what} did not come whole: {len(data):,} of {size:,} bytes")
        return bytes(data)

    def _connect(self, life: Life, order: Order, incarnation: Incarnation) -> Ends:
        config, graph, journal = self.config, self.config.graph, life.journal
        inputs, outputs = {}, {}
        for channel in graph.inputs(self.name):
            link = Link(channel, partial(self._arrived, channel, incarnation=incarnation), session=self._session())
            inputs[channel] = Input(graph.by_id[channel].source, link, order.received.get(channel, 0))
        for channel in graph.outputs(self.name):
            link = Link(
                channel,
                _nothing_comes_back,
                session=self._session(),
                congestion=partial(life.congestion, channel),
                before_write=None if journal is None else journal.flush,
            )
            target = graph.by_id[channel].target
            dialer = Dialer(
                link,
                order.addresses[target],
                config.key,
                node=self.name,
                channel=channel,
                incarnation=incarnation,
                tls=config.dial_tls,
                max_frame=config.max_frame,
                is_running=lambda: self._running,
                on_refused=partial(self._refused, channel),
            )
            outputs[channel] = Output(target, link, dialer, order.sent.get(channel, 0))
        return inputs, outputs

    def _new_process(self, life: Life) -> Process:
        config = self.config
        if config.root is None:
            return new_process(config.cls, dict(config.params), life)
        kind = AsyncDetecting if has_coroutines(config.cls) else Detecting
        detecting = kind(config.graph, life, root=config.root == self.name, announce=self._terminated)
        detecting.inner = new_process(config.cls, dict(config.params), detecting)
        return detecting

    def _session(self) -> Session:
        return Session(window=self.config.window, max_frame=self.config.max_frame)

    # ── what a life says ────────────────────────────────────────────────────────────────────────────────────────────

    def piece(self, snapshot: SnapshotId, data: bytes, channel: str = "") -> bool:
        control = self._control
        if control is None:
            return True
        for item in pieces(snapshot, data, channel=channel, max_item=control.session.max_item):
            control.send(item)
        return not control.is_congested()

    def recorded(self, part: PartTaken) -> None:
        if self.life is not None and self.life.journal is not None:
            self.life.journal.flush()
        if self._control is not None and len(pack(part)) > self._control.session.max_item:
            self.declined(SnapshotId(part.snapshot), "what it has to say of its channels does not fit into a frame")
            return
        self._say(part)

    def declined(self, snapshot: SnapshotId, reason: str) -> None:
        _log.warning("Node %s cannot take part in snapshot %s: %s", self.name, snapshot, reason)
        self._say(Decline(self._participant.incarnation, snapshot, reason[:_REASON]))

    def wants_snapshot(self) -> None:
        self._say(SnapshotAsked(self._participant.incarnation))

    def _terminated(self) -> None:
        self._say(HasTerminated(self._participant.incarnation))

    def trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's handler of errors. Those of accepting a connection touch nobody's state: they never end a
        node. The loop names the listening socket where it has run out of descriptors, else its own function."""
        error = context.get("exception")
        accepting = context.get("socket") is not None or "_accept_connection" in context["message"]
        if accepting and isinstance(error, OSError):
            self._strangers.make_room(error)
        else:
            self.failed(error or RuntimeError(context["message"]))

    def failed(self, error: BaseException) -> None:
        """A handler failed, so the state may be wrong: the node reports why, and ends."""
        if self.ended.done():
            return
        _log.error("Node %s ends: a handler failed.", self.name, exc_info=error)
        self._say(Fault(f"{type(error).__name__}: {error!s:.{_REASON}}"))
        if self._control is not None:
            self._control.flush()
        self._stop_life()
        self.ended.set_exception(Failed(f"Node {self.name} ended: {type(error).__name__}: {error}"))


def _nothing_comes_back(items: list[bytes]) -> None:
    raise PeerFault(f"{len(items)} items came back on a channel that goes the other way.")
