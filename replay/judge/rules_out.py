"""What the outcome of a test excludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from checkengine.replay.judge.verdict import TestResult

RULES_OUT: Mapping[tuple[str, bool], str] = {
    ("weights", True): "weights that changed since the record",
    ("repeat", True): "results that change from run to run of one process",
    ("repeat", False): "every other verdict: what does not repeat cannot be compared",
    ("gate", True): "results that depend on the process or its addresses, or change from run to run",
    ("gate", False): "a defect that comes again on every run",
    ("record", True): "a transient fault of the machine, and replayed memory other than the recorded",
    ("record", False): "that the record's bits follow from its memory, tokens and code as they are here",
    ("finite", True): "NaN and infinity, in memory or arithmetic",
    ("fills", True): "reads of memory that the sequence does not own",
    ("fills", False): "rounding: a finite number in memory that is not the sequence's changes its bits",
    ("NaN fill", True): "masked reads through which NaN would come in",
    ("NaN fill", False): "a kernel that leaves memory alone which it masks",
    ("bound", True): "in these calls: another scale, page, window edge or formula of attention than the record's",
    ("bound", False): "rounding, in whatever order the sums run",
    ("inputs", True): "in these steps: rotary positions, cache writes and projections other than the model's",
    ("inputs", False): "rounding: the same numbers in the same shape should give the same bits",
    ("all rows", True): "faults that depend on what the rows beside it hold, or on their tables",
    ("all rows", False): "rounding, and a fault that came once: the shape is the same, only the company differs",
    ("placement", True): "kernels that depend on which blocks hold a page",
    ("placement", False): "rounding: the same pages are read in the same order",
    ("neighbours", True): "rows of the batch that are mixed up or reach into each other",
    ("neighbours", False): "rounding: the shape is the same",
    ("memory", True): "memory that changed after it was written",
    ("memory", False): "a fault of the step that shows it: what it read had changed before",
    ("stop", True): "a passed-over end token",
    ("stop", False): "a model that would not have ended",
    ("reference", True): "that the recorded kernel's rounding or faults made the finding",
    ("reference", False): "a finding that any healthy kernel would give",
}


def ruled(test: TestResult) -> TestResult:
    """The result with what it excludes."""
    if test.passed is None or test.rules_out:
        return test
    return replace(test, rules_out=RULES_OUT.get((test.name, test.passed), ""))
