"""A live system while it runs: a table that refreshes on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from strobe.cli.figures import human_bytes, plural
from strobe.hosts.live.system.report import NodeReport, Report, SnapshotReport
from strobe.hosts.live.system.serving import Ending
from strobe.model.ids import NodeId

__all__ = [
    "PlainView", "QuietView", "TableView", "check_lines", "farewell", "head_of", "node_table", "snapshot_table",
]  # fmt: skip

_SNAPSHOTS = 5  # in the live view
_NODES = 24  # more do not fit on a screen
_PLAIN_EVERY = 20  # refreshes between two lines on the nodes


def head_of(report: Report) -> Text:
    colour = {"running": "green", "restoring": "yellow"}.get(report.state, "")
    return Text.assemble(
        (report.system, "bold"), "  ", (report.state, colour), f"  {report.seconds:.0f} s  incarnation "
        f"{report.incarnation}  snapshots {report.completed}",
        (f"  not taken {report.failed}" if report.failed else "", "red"),
        f"  restores {report.restores}" if report.restores else "",
    )  # fmt: skip


def node_table(nodes: tuple[NodeReport, ...]) -> Table:
    """One line each, fits into 80 columns unless names are long: then the names are cut short, never a figure."""
    table = _table("node")
    table.add_column("state", no_wrap=True)
    for name in ("process", "sent/s", "received/s", "queued", "on the way", "connected"):
        table.add_column(name, justify="right", no_wrap=True)
    for node in nodes:
        colour = {"running": "green", "missing": "red", "silent": "red"}.get(node.state, "yellow")
        whole = node.connected == node.outputs
        table.add_row(
            node.node,
            Text(node.state, style=colour),
            "remote" if node.pid is None else str(node.pid),
            f"{node.sent_per_second:,.0f}",
            f"{node.received_per_second:,.0f}",
            f"{node.queued:,}",
            f"{node.unacknowledged:,}",
            Text(f"{node.connected}/{node.outputs}", style="" if whole else "yellow"),
        )
    return table


def snapshot_table(snapshots: tuple[SnapshotReport, ...]) -> Table:
    table = _table("snapshot")
    for name in ("took", "longest gap", "alignment", "new", "total", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    for taken in snapshots:
        table.add_row(
            _name(taken),
            f"{taken.took_ms:.0f} ms",
            f"{taken.gap_ms:.1f} ms",
            f"{taken.alignment_ms:.0f} ms",
            human_bytes(taken.bytes_new),
            human_bytes(taken.bytes_total),
            f"{taken.messages_in_flight:,}",
        )
    return table


def check_lines(report: Report) -> list[tuple[str, str]]:
    """Checks and invariants, each with its colour: what is found in full, the rest in a line."""
    lines = []
    for each in report.invariants:
        skipped = f" ({plural(each.skipped, 'snapshot')} passed over)" if each.skipped else ""
        colour = {"holds": "green", "violated": "red", "failed": "red"}.get(each.outcome, "yellow")
        lines.append((f"{each.sentence or f'invariant {each.name!r} was not asked yet'}{skipped}", colour))
    for check in report.checks:
        colour = {True: "red", False: "green", None: "yellow"}[check.found]
        name = check.check.rpartition("/")[2]
        at = f", snapshot {check.snapshot}" if check.snapshot else ""
        since = f" (since snapshot {check.since})" if check.since not in (None, check.snapshot) else ""
        lines.append((f"check {name}{at}: {check.sentence}{since}", colour))
        lines += [(f"  {line}", colour) for line in check.details]
    return lines


def _name(taken: SnapshotReport) -> str:
    return str(taken.snapshot) if taken.kind == "checkpoint" else f"{taken.snapshot} ({taken.kind})"


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="ellipsis", no_wrap=True)
    return table


def _missing(missing: Mapping[NodeId, str]) -> str:
    return "waiting for " + ", ".join(f"{node} ({why.rstrip('.') or 'no answer yet'})" for node, why in missing.items())


def farewell(ending: Ending) -> str:
    kept = (
        f"snapshot {ending.snapshot} keeps its state" if ending.snapshot is not None else "no last snapshot was taken"
    )
    trouble = f": {ending.trouble.rstrip('.')}" if ending.trouble else ""
    return f"{ending.system} has ended: {ending.why}; {kept}{trouble}. The same command goes on from its last snapshot."


class QuietView:
    """Shows nothing: only the outcome is asked for, or nobody watches."""

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def waiting(self, missing: Mapping[NodeId, str]) -> None:
        pass

    def running(self, report: Report) -> None:
        pass

    def show(self, report: Report) -> None:
        pass

    def ending(self, why: str) -> None:
        pass

    def note(self, line: str) -> None:
        pass


class PlainView(QuietView):
    """One line per snapshot and per change, and now and then one on the nodes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told = 0
        self._failed = 0
        self._incarnation = 0
        self._count = 0

    def waiting(self, missing: Mapping[NodeId, str]) -> None:
        self._say(_missing(missing))

    def running(self, report: Report) -> None:
        self._incarnation = report.incarnation
        self._say(f"{report.system} runs: {plural(len(report.nodes), 'node')}, incarnation {report.incarnation}")

    def show(self, report: Report) -> None:
        if report.incarnation != self._incarnation and report.state == "running":
            self._incarnation = report.incarnation
            self._say(f"all nodes are back: incarnation {report.incarnation}")
        for taken in report.snapshots:
            if taken.snapshot > self._told:
                self._told = taken.snapshot
                self._say(
                    f"snapshot {_name(taken)} complete in {taken.took_ms:.0f} ms: longest gap {taken.gap_ms:.1f} ms, "
                    f"{human_bytes(taken.bytes_total)}, {plural(taken.messages_in_flight, 'message')} in flight"
                )
        if report.failed > self._failed:
            self._failed = report.failed
            self._say(f"a snapshot was not taken: {report.reason}")
        if self._count % _PLAIN_EVERY == 2:
            nodes = "; ".join(
                f"{n.node} {n.state}, sends {n.sent_per_second:,.0f}/s, gets {n.received_per_second:,.0f}/s, "
                f"queued {n.queued:,}"
                for n in report.nodes
            )
            self._say(f"{report.seconds:6.0f} s  {nodes}")
        self._count += 1

    def ending(self, why: str) -> None:
        self._say(f"{why}: a last snapshot, then the end …")

    def note(self, line: str) -> None:
        self._say(line)


class TableView(QuietView):
    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> TableView:
        self._live.__enter__()
        self._live.update(Text(f"{self._name} starts …"), refresh=True)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def waiting(self, missing: Mapping[NodeId, str]) -> None:
        self._live.update(Text.assemble((self._name, "bold"), f"  {_missing(missing)}"), refresh=True)

    def running(self, report: Report) -> None:
        self.show(report)

    def show(self, report: Report) -> None:
        parts: list[RenderableType] = [head_of(report), Text(), node_table(report.nodes[:_NODES])]
        if len(report.nodes) > _NODES:
            parts.append(Text(f"… and {len(report.nodes) - _NODES} more", style="dim"))
        if report.snapshots:
            parts += [Text(), snapshot_table(report.snapshots[-_SNAPSHOTS:])]
        if report.reason:
            why = Text(f"not taken: {report.reason}", style="red")
            why.truncate(2 * self._console.width, overflow="ellipsis")
            parts += [Text(), why]
        if report.checks or report.invariants:
            parts += [Text(), *(Text(line, style=colour) for line, colour in check_lines(report))]
        hint = "Ctrl-C ends it.  Elsewhere: strobe live status | snapshot | kill NODE | down"
        parts += [Text(), Text(hint, style="dim")]
        self._live.update(Group(*parts), refresh=True)

    def ending(self, why: str) -> None:
        self._live.update(Text(f"{why}: a last snapshot, then the end …"), refresh=True)

    def note(self, line: str) -> None:
        self._console.print(Text(line, style="yellow"), soft_wrap=True)
