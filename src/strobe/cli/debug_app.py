"""The terminal program of `strobe debug`. All moves are those of `predicates.walk`; here are keys, mouse and screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Input, Static

from strobe.cli.debug_diagram import Diagram
from strobe.cli.debug_view import DiagramView, Page, as_text
from strobe.cli.debug_words import cut_lines, difference_lines, step_lines, stop_words
from strobe.cli.predicate import read_predicate
from strobe.model.errors import StrobeError
from strobe.predicates.compare import Difference
from strobe.predicates.computation import Positions
from strobe.predicates.decide import Predicate, in_cuts, possibly
from strobe.predicates.lattice import DEFAULT_BOUNDS
from strobe.predicates.replay import Run
from strobe.predicates.walk import Stop, Trail, Walk

__all__ = ["HELP", "Compared", "DebugApp"]

_PAGE: Final = 10  # steps
_BOUNDS: Final = replace(DEFAULT_BOUNDS, cuts=300_000)  # somebody waits for the answer

HELP: Final = """\
The cut: solid lanes are inside it, dotted ones beyond. What is in flight is yellow.
It is always consistent: who receives takes the sender along.

  ↓ j    one step on, as the run was recorded        ↑ k    one step back
  PgDn   ten steps on                                PgUp   ten steps back
  Home   the start of the run                        End    its end
  → l    choose the next node                        ← h    the node before
  f      the chosen node's next step,                b      take its last step back,
         with what caused it                                with what it caused
  c      to the cause: when what the chosen          e      to the effect: when what it sent
         node received was just sent                        is received
  s      the next snapshot of the journal            S      the one before

  /      a condition, as for `strobe predicate`: n1.balance < 900, checks.py:unfair
  n      on to where it starts or stops to hold      N      back to there
  p      to a cut in which it could have held, in whichever order the steps happened

  u      where I was before                          r      and on again
  d      compare with the other run (--with)         =      where the two part
  ?      this page                                   q      quit

With the mouse: click into a lane to cut it there, on a name to choose the node; the wheel scrolls."""


@dataclass(frozen=True)
class Compared:
    """The run of --with, and what it differs in."""

    run: Run
    found: Difference
    names: tuple[str, str]


@dataclass(frozen=True)
class _Asked:
    text: str
    predicate: Predicate
    holds: Callable[[Positions], bool]


class DebugApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #about { height: 1; padding: 0 1; background: $primary; color: $text; text-style: bold; }
    DiagramView { width: 3fr; height: 1fr; }
    #cut { width: 2fr; height: 1fr; border-left: solid $primary; padding: 0 1; }
    #cut Static { width: auto; }
    #condition { height: 1; border: none; padding: 0 1; display: none; }
    #said { height: 1; padding: 0 1; color: $text-warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("down,j", "step(1)", "On", key_display="↓"),
        Binding("up,k", "step(-1)", "Back", key_display="↑"),
        Binding("pagedown", f"step({_PAGE})", show=False),
        Binding("pageup", f"step(-{_PAGE})", show=False),
        Binding("home", "end(False)", show=False),
        Binding("end", "end(True)", show=False),
        Binding("right,l", "choose(1)", "Node", key_display="→"),
        Binding("left,h", "choose(-1)", show=False),
        Binding("f", "node(True)", "Node on"),
        Binding("b", "node(False)", "Node back"),
        Binding("c", "cause", "Cause"),
        Binding("e", "effect", show=False),
        Binding("s", "snapshot(True)", "Snapshot"),
        Binding("S", "snapshot(False)", show=False),
        Binding("slash", "ask", "Condition", key_display="/"),
        Binding("n", "change(True)", "Change"),
        Binding("N", "change(False)", show=False),
        Binding("p", "possibly", show=False),
        Binding("u", "undo", show=False),
        Binding("r", "redo", show=False),
        Binding("d", "compare", show=False),
        Binding("equals_sign", "part", show=False),
        Binding("q", "quit", "Quit"),
        Binding("escape", "leave", show=False),
    ]

    def __init__(
        self,
        run: Run,
        walk: Walk,
        at: Positions,
        *,
        title: str,
        condition: str | None = None,
        compared: Compared | None = None,
    ) -> None:
        super().__init__()
        self.title = title
        self.trail = Trail(at)
        self.chosen = walk.last_node(at)
        self.said = ""
        self._run_, self._walk, self._compared = run, walk, compared
        self._asked = None if condition is None else _asked(run, condition)

    @property
    def cut(self) -> Positions:
        return self.trail.here

    def compose(self) -> ComposeResult:
        yield Static(id="about", markup=False)
        with Horizontal():
            yield DiagramView(Diagram(self._run_, self._walk), self.cut, self.chosen)
            with VerticalScroll(id="cut", can_focus=False):
                yield Static(id="words", markup=False)
        yield Input(id="condition", placeholder="n1.balance < 900, node.balance < 0, checks.py:unfair")
        yield Static(id="said", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DiagramView).focus()
        self.call_after_refresh(self._show)

    # ── moves ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def action_step(self, by: int) -> None:
        cut = self.cut
        for _ in range(abs(by)):
            cut = self._walk.forwards(cut) if by > 0 else self._walk.backwards(cut)
        if cut == self.cut:
            self._say("This is the end of the run." if by > 0 else "This is the start of the run.")
        else:
            self._go(cut, self._walk.last_node(cut))

    def action_end(self, last: bool) -> None:
        cut = self._run_.computation.last if last else self._run_.computation.first
        self._go(cut, self._walk.last_node(cut))

    def action_choose(self, by: int) -> None:
        self._go(self.cut, (self.chosen + by) % len(self.cut))

    def action_node(self, on: bool) -> None:
        move = self._walk.forwards_at if on else self._walk.backwards_at
        cut = move(self.cut, self.chosen)
        if cut == self.cut:
            self._say(f"{self._node} {'takes no further step' if on else 'has done nothing yet'}.")
            return
        along = [
            self._run_.computation.nodes[i]
            for i, (a, b) in enumerate(zip(self.cut, cut, strict=True))
            if a != b and i != self.chosen
        ]
        how = "came along: it depends on them" if on else "went back as well: they depend on it"
        self._go(cut, self.chosen, f"{', '.join(along)} {how}." if along else "")

    def action_cause(self) -> None:
        found = self._walk.to_cause(self.cut, self.chosen)
        if found is None:
            self._say(f"The last step of {self._node} received nothing that was sent in this run.")
        else:
            self._go(*found, "Here it was sent.")

    def action_effect(self) -> None:
        found = self._walk.to_effect(self.cut, self.chosen)
        if found is None:
            self._say(f"Nothing that {self._node} sent in this step is still in flight and received later.")
        else:
            self._go(*found, "Here it is received.")

    def action_snapshot(self, on: bool) -> None:
        stop: Stop | None = (self._walk.next_stop if on else self._walk.previous_stop)(self.cut)
        if stop is None:
            self._say(f"There is no snapshot {'after' if on else 'before'} this cut.")
        else:
            self._go(stop.at, self._walk.last_node(stop.at), stop_words(stop))

    def action_undo(self) -> None:
        self._along(self.trail.undo())

    def action_redo(self) -> None:
        self._along(self.trail.redo())

    def on_diagram_view_picked(self, picked: DiagramView.Picked) -> None:
        self._go(self._walk.at_step(self.cut, picked.node, picked.number), picked.node)

    # ── conditions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def action_ask(self) -> None:
        field = self.query_one("#condition", Input)
        field.display = True
        field.value = self._asked.text if self._asked is not None else ""
        field.focus()

    def action_leave(self) -> None:
        self.query_one("#condition", Input).display = False
        self.query_one(DiagramView).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_leave()
        text = event.value.strip()
        try:
            self._asked = _asked(self._run_, text) if text else None
            self._say("n goes to where it starts or stops to hold." if text else "No condition.")
        except StrobeError as error:
            self._say(_sentence(error))

    def action_change(self, on: bool) -> None:
        asked = self._asked
        if asked is None:
            self._say("Which condition? / asks for one.")
            return
        find = self._walk.next_change if on else self._walk.previous_change
        try:
            cut = find(self.cut, asked.holds)
            if cut is None:
                self._say(f"It does not change {'from here to the end' if on else 'before this cut'}.")
            else:
                starts = asked.holds(cut)
                self._go(cut, self._walk.last_node(cut), f"Here it {'starts' if starts else 'stops'} to hold.")
        except StrobeError as error:
            self._say(_sentence(error))

    def action_possibly(self) -> None:
        if self._asked is None:
            self._say("Which condition? / asks for one.")
            return
        try:
            verdict = possibly(self._run_, self._asked.predicate, _BOUNDS)
        except StrobeError as error:
            self._say(_sentence(error))
            return
        if verdict.witness is not None:
            self._go(verdict.witness, self._walk.last_node(verdict.witness), "Here it could have held.")
        elif verdict.holds is None:
            self._say(f"Not decided: there are more than {_BOUNDS.cuts:,} cuts. Ask `strobe predicate possibly`.")
        else:
            self._say("It holds in no consistent cut of the run.")

    # ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def action_help(self) -> None:
        self.push_screen(Page("Keys", HELP.split("\n")))

    def action_compare(self) -> None:
        other = self._compared
        if other is None:
            self._say("There is no other run. Start with --with JOURNAL to compare two.")
        else:
            lines = difference_lines(self._run_, other.run, other.names, other.found)
            self.push_screen(Page(" and ".join(other.names), lines))

    def action_part(self) -> None:
        if self._compared is None:
            self._say("There is no other run. Start with --with JOURNAL to compare two.")
        else:
            at = self._compared.found.at
            self._go(at, self._walk.last_node(at), "Up to here the two runs are the same.")

    # ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _node(self) -> str:
        return self._run_.computation.nodes[self.chosen]

    def _go(self, cut: Positions, chosen: int, said: str = "") -> None:
        self.chosen = chosen
        self._along(self.trail.to(cut), said, chosen)

    def _along(self, trail: Trail, said: str = "", chosen: int | None = None) -> None:
        self.chosen = self._walk.last_node(trail.here) if chosen is None else chosen
        self.trail = trail
        self.said = said
        self._show()

    def _say(self, words: str) -> None:
        self.said = words
        self._show()

    def _show(self) -> None:
        done = self.cut[self.chosen]
        line = self._walk.place(self.chosen, done) if done else 0
        self.query_one(DiagramView).show(self.cut, self.chosen, line)
        self.query_one("#about", Static).update(as_text([f"{self.title}  {self._condition_words()}"]))
        lines = [*step_lines(self._run_, self.cut, self.chosen), "", *cut_lines(self._run_, self._walk, self.cut)]
        self.query_one("#words", Static).update(as_text(lines))
        self.query_one("#said", Static).update(as_text([self.said]))

    def _condition_words(self) -> str:
        if self._asked is None:
            return ""
        try:
            return f"{self._asked.text}: {'holds' if self._asked.holds(self.cut) else 'does not hold'}"
        except StrobeError as error:
            return f"{self._asked.text}: {_sentence(error)}"


def _asked(run: Run, text: str) -> _Asked:
    predicate = read_predicate(text, run)
    return _Asked(text, predicate, in_cuts(run, predicate))


def _sentence(error: StrobeError) -> str:
    return " ".join(filter(None, (error.what, error.next)))
