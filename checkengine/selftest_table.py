"""The table of planted faults in docs/selftest.md: `python -m checkengine.selftest_table` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from checkengine.engine_shim.faults import FAULTS, Fault
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS
from checkengine.selftest_cases import UNDECIDABLE


def fault_tables() -> str:
    """Markdown: the author's faults, those written blind, and those written when the judge was done."""
    return "\n".join(
        [
            f"### The author's, {len(FAULTS)}",
            "",
            *table(FAULTS),
            "",
            f"### Written blind, {len(BLIND_FAULTS)}",
            "",
            *table(BLIND_FAULTS),
            "",
            f"### Written after the judge was done, {len(FRESH_FAULTS)}",
            "",
            *table(FRESH_FAULTS),
            "",
        ]
    )


def table(faults: Mapping[str, type[Fault]]) -> Iterator[str]:
    yield "| fault | what it does | class | after |"
    yield "|---|---|---|---|"
    for name, fault in faults.items():
        undecided = " (*)" if name in UNDECIDABLE else ""
        cells = [f"`{name}`", what_it_does(fault), f"{fault.fault_class}{undecided}", fault.models]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def what_it_does(fault: type[Fault]) -> str:
    """The first paragraph of its docstring."""
    return " ".join(inspect.cleandoc(fault.__doc__ or "").split("\n\n")[0].split())


if __name__ == "__main__":
    print(fault_tables())
