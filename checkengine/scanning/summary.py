"""What a scan tells a person at its end."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from checkengine.scanning.registry import shapes_of
from checkengine.scanning.scan import Totals

WIDTH = 120
SHAPE_NAMES = {
    "Completion": "completion",
    "Chat": "conversation",
    "TokenStream": "token stream",
    "Measurement": "measurement",
}
"""As docs/scan.md calls them."""


def one_line_summary(totals: Totals) -> str:
    """For example: 1,200 records, 3 findings, 1 bad line, 2.1 s (571 records/s, 0.3 MB/s)."""
    seconds = max(totals.seconds, 1e-9)
    parts = [_counted(totals.records, "record"), _counted(totals.findings.total(), "finding")]
    parts += [_counted(totals.bad, "bad line")] if totals.bad else []
    parts += [_counted(totals.failures.total(), "guard failure")] if totals.failures else []
    speed = f"{totals.records / seconds:,.0f} records/s, {totals.bytes / seconds / 1e6:.1f} MB/s"
    return f"{', '.join(parts)}, {seconds:.1f} s ({speed})"


def unread(totals: Totals, named: Sequence[str]) -> list[str]:
    """A line for each guard that was asked for by name and for which no record was there."""
    silent = [name for name in named if totals.records and not totals.account.records[name]]
    return [f"guard {name} read nothing: it reads {shapes_of(name)}, and no record is one" for name in silent]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def table_of(totals: Totals, *, terminal: bool) -> str:
    """A table for stderr: stdout is for findings. A row for each guard and kind; guards that found nothing too.
    Time is that of a record after a guard's first one."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "guard", "kind", "severity", "findings", "records read", "µs/record", "failed", title="checkengine scan"
    )
    silent = set(totals.account.records) - {guard for guard, _, _ in totals.findings}
    rows = [(guard, kind, severity.name.lower(), count) for (guard, kind, severity), count in totals.findings.items()]
    rows += [(guard, "–", "–", 0) for guard in silent]
    for guard, kind, severity, count in sorted(rows):
        read, timed = totals.account.records[guard], totals.account.timed[guard]
        each = f"{totals.account.nanoseconds[guard] / timed / 1e3:.0f}" if timed else "–"
        table.add_row(guard, kind, severity, f"{count:,}", f"{read:,}", each, f"{totals.failures[guard]:,}")
    shapes = ", ".join(_counted(count, SHAPE_NAMES[shape]) for shape, count in sorted(totals.shapes.items()))
    table.caption = f"{shapes or 'no records'}; {totals.lines:,} lines, {totals.bad:,} bad"
    # In a file nothing need be cut to the width of a terminal that is not there.
    written = StringIO()
    Console(file=written, force_terminal=terminal, width=None if terminal else WIDTH).print(table)
    return written.getvalue()
