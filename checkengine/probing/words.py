"""A probe's result as tables for people, with what it does and does not say."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checkengine.probing.loop_block import LOOPS
from checkengine.probing.products import USES
from checkengine.probing.residency import Residency

MIB = 2**20


def print_residency(found: Residency, console: Console) -> None:
    console.print(_products(found))
    console.print(_blocks(found))
    if found.kernels:
        console.print(_kernels(found))
    for line in sentences(found):
        console.print(f"[bold]·[/bold] {escape(line)}")


def sentences(found: Residency) -> list[str]:
    """What follows from the numbers, and what does not."""
    counted = any(each.shared_traffic is not None for each in found.sharing)
    told = [
        f"The last cache level of {found.options.device} holds {found.cache / MIB:.0f} MiB.",
        _where(found),
        *(_chip(found, size) for size in sorted({each.bytes for each in found.looped})),
        "Sharing parameters is not residency: a shared weight is read again by each loop unless it is still in cache "
        "when the loop comes back to it, and other work on the device may have put it out.",
    ]
    if not counted:
        told.append(
            "Traffic is estimated from sizes and times: this machine gives no counters of cache misses to a process."
        )
    return told


def _where(found: Residency) -> str:
    if not found.sharing:
        return "No size was measured: eight copies of the smallest weight fit into no memory that --memory allows."
    if not any(each.pays for each in found.sharing):
        return "Sharing paid at no size that was measured."
    size = found.stops_paying
    if size is None:
        return f"Sharing still pays at the largest size measured, {found.sharing[-1].bytes / MIB:.0f} MiB."
    return f"Sharing stops paying at {size / MIB:.3g} MiB a weight."


def _chip(found: Residency, size: int) -> str:
    verb = "fits" if found.fits(size) else "does not fit"
    return f"A loop block of {size / MIB:.1f} MiB {verb} an on-chip memory of {found.options.on_chip / 1e6:.0f} MB."


def _products(found: Residency) -> Table:
    table = Table(
        "weight, MiB",
        f"copies ÷ shared, {USES} uses",
        "95 %",
        "shared, GB/s",
        "copies, GB/s",
        "from memory, MiB",
        title=f"{USES} products that reuse one weight, beside {USES} copies",
    )
    for each in found.sharing:
        table.add_row(
            f"{each.bytes / MIB:.2f}",
            f"{each.ratio:.2f}" + (" pays" if each.pays else ""),
            f"{each.low:.2f} … {each.high:.2f}",
            f"{each.shared_bandwidth / 1e9:.1f}",
            f"{each.copies_bandwidth / 1e9:.1f}",
            _traffic(each.shared_traffic, each.copies_traffic, each.bytes, found.cache),
        )
    return table


def _traffic(shared: int | None, copies: int | None, size: int, cache: int) -> str:
    if shared is not None and copies is not None:
        return f"{shared / MIB:.1f} / {copies / MIB:.1f}"
    once = 0 if size <= cache else USES * size
    eight = 0 if USES * size <= cache else USES * size
    return f"≈ {once / MIB:.0f} / {eight / MIB:.0f}"


def _blocks(found: Residency) -> Table:
    table = Table(
        "block, MiB",
        "variant",
        "one loop, ms",
        f"{LOOPS} loops, ms",
        "ratio",
        "95 %",
        title=f"A looped model's block, {LOOPS} loops beside one (8 = every loop reads it all again)",
    )
    for each in found.looped:
        times = ("", "", f"[dim]{escape(each.problem)}[/dim]", "")
        if not each.problem:
            times = (
                f"{each.one_seconds * 1e3:.2f}",
                f"{each.loops_seconds * 1e3:.2f}",
                f"{each.ratio:.2f}",
                f"{each.low:.2f} … {each.high:.2f}",
            )
        table.add_row(f"{each.bytes / MIB:.1f}", each.variant, *times)
    return table


def _kernels(found: Residency) -> Table:
    table = Table("op", "ms", "calls", title=f"Where {LOOPS} loops of the smallest block spend their time")
    for name, spent, calls in found.kernels:
        table.add_row(escape(name), f"{spent * 1e3:.3f}", str(calls))
    return table
