"""Which rule a message broke, and a sentence that says so.

The balance of `strobe.verify.consistency` says *that* a message does not fit. Here is found out how, by where it was
sent, where it was received, and how often the cut counts it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from strobe.model.cut import Cut, Json, Message, canonical
from strobe.model.events import Received, Recorded, Sent
from strobe.model.graph import Channel
from strobe.model.text import shortened
from strobe.verify.history import Epoch, History
from strobe.verify.violation import Place, Rule, Violation

__all__ = ["Teller", "name_of", "same", "step_of", "text_of"]


@dataclass(frozen=True)
class Teller:
    """Finds out which rule a message broke, and says so. Only asked where the balance is wrong."""

    history: History
    epoch: Epoch
    channel: Channel
    cut: Cut
    sender: Place
    receiver: Place
    held: Counter[int]

    def explain(self, seq: int) -> Violation:
        channel, epoch = self.channel, self.epoch
        source, target, name = channel.source, channel.target, name_of(channel)
        sent_at = self.history.sender(epoch, channel.id).get(seq)
        receipts = self.history.receipts(epoch, channel.id).get(seq, ())
        p_step, q_step = step_of(self.sender), step_of(self.receiver)
        early = [self._place(p) for p in receipts if step_of(self._place(p)) <= q_step]
        late = [self._place(p) for p in receipts if step_of(self._place(p)) > q_step]
        held = self.held[seq]
        sent = self._place(sent_at) if sent_at is not None and sent_at >= 0 else None
        p_recorded, q_recorded = f"recorded (after step {p_step})", f"recorded (after step {q_step})"

        if sent_at is None:
            if held:
                return self._violation(
                    Rule.INVENTED_MESSAGE,
                    seq,
                    f"the recorded content of {name} holds message {seq}, which {source} never sent in this "
                    "incarnation",
                    *early,
                )
            return self._violation(
                Rule.RECEIVE_WITHOUT_SEND,
                seq,
                f"{target} had received message {seq} on {name} (step {step_of(early[0])}) before it {q_recorded}, but "
                f"{source} never sent it in this incarnation",
                *early,
            )
        was_sent = (
            f"message {seq} was in flight on {name} when this incarnation began"
            if sent is None
            else f"{source} sent message {seq} on {name} (step {step_of(sent)}) before it {p_recorded}"
        )
        if sent is not None and step_of(sent) > p_step:
            if early:
                return self._violation(
                    Rule.EFFECT_WITHOUT_CAUSE,
                    seq,
                    f"{target} had received message {seq} on {name} (step {step_of(early[0])}) before it {q_recorded}, "
                    f"but {source} sent it (step {step_of(sent)}) only after it {p_recorded}: the cut shows an effect "
                    "without its cause",
                    sent,
                    early[0],
                )
            return self._violation(
                Rule.LATE_MESSAGE,
                seq,
                f"the recorded content of {name} holds message {seq}, but {source} sent it (step {step_of(sent)}) only "
                f"after it {p_recorded}: the cut shows a message that was not sent yet",
                sent,
                self.sender,
            )
        if not early and not held:
            dropped_at = self.history.losses(epoch, channel.id).get(seq)
            if dropped_at and not late:
                return self._violation(
                    Rule.LOST_MESSAGE,
                    seq,
                    f"{was_sent}, and the channel dropped it: neither {target}'s state nor the recorded content "
                    "holds it, so the cut has lost it",
                    sent,
                    self._place(dropped_at[0]),
                )
            fate = f"received it (step {step_of(late[0])}) only after it" if late else "had not received it when it"
            return self._violation(
                Rule.MISSING_MESSAGE,
                seq,
                f"{was_sent} and {target} {fate} {q_recorded}, but the recorded content of {name} does not hold it: "
                "the message vanishes from the cut",
                sent,
                late[0] if late else self.receiver,
            )
        if len(early) > 1:
            return self._violation(
                Rule.DUPLICATE_MESSAGE,
                seq,
                f"{target} had received message {seq} on {name} {len(early)} times (steps "
                f"{', '.join(str(step_of(p)) for p in early)}) before it {q_recorded}: its state holds the effect of "
                "one message more than once",
                *early[:2],
            )
        if held > 1:
            return self._violation(
                Rule.DUPLICATE_MESSAGE,
                seq,
                f"the recorded content of {name} holds message {seq} {held} times, but {source} sent it once",
                sent,
                *late[:1],
            )
        if not early:  # the balance asks for more of them
            return self._violation(
                Rule.MISSING_MESSAGE,
                seq,
                f"{source} sent more than one message {seq} on {name} before it {p_recorded}, but the recorded content "
                "holds one: the other vanishes from the cut",
                sent,
                *(late[:1] or [self.receiver]),
            )
        again = bool(late) or seq in self.history.duplicates(epoch, channel.id)
        reason = "the channel delivered it again, and the cut counts it twice" if again else "the cut counts it twice"
        return self._violation(
            Rule.DUPLICATE_MESSAGE if again else Rule.EXTRA_MESSAGE,
            seq,
            f"the recorded content of {name} holds message {seq}, but {target} had received it already (step "
            f"{step_of(early[0])}) before it {q_recorded}: {reason}",
            early[0],
            *(late[:1] or [self.receiver]),
        )

    def _violation(self, rule: Rule, seq: int, what: str, *places: Place | None) -> Violation:
        payload = self.history.payload(self.epoch, self.channel.id, seq)
        if rule is Rule.INVENTED_MESSAGE:
            payload = next(m.payload for m in self.cut.channels[self.channel.id] if m.seq == seq)
        known = [place for place in places if place is not None]
        return Violation(
            rule,
            f"Snapshot {self.cut.snapshot}: {what}.",
            snapshot=self.cut.snapshot,
            channel=self.channel.id,
            message=Message(seq, payload),
            first=known[0] if known else None,
            second=known[1] if len(known) > 1 else None,
        )

    def _place(self, position: int) -> Place:
        return Place(position, self.history.events[position])


def step_of(place: Place) -> int:
    assert isinstance(place.event, Sent | Received | Recorded)
    return place.event.step


def same(a: Json, b: Json) -> bool:
    return (a.__class__ is int and b.__class__ is int and a == b) or canonical(a) == canonical(b)


def text_of(payload: Json) -> str:
    return shortened(canonical(payload).decode(), 60)


def name_of(channel: Channel) -> str:
    arrow = f"{channel.source}→{channel.target}"
    return arrow if channel.id == arrow else f"{channel.id} ({arrow})"
