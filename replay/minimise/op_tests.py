"""Exact tests of one call that need no fill: what it reads, and how far from float64 it lands."""

from __future__ import annotations

import torch

from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.localise.classify import class_of_reads
from checkengine.replay.localise.reads import Attend, Reads, find_reads
from checkengine.replay.localise.scale import fit_scale
from checkengine.replay.op_call import OpCall


def wrong_reads(attend: Attend, call: OpCall) -> tuple[Reads, FaultClass] | None:
    """What a call reads wrong and what kind of fault that is; None where it reads right or it cannot be told. Whose a
    page is, a single call does not know: another sequence's is a wrong page here."""
    reads = find_reads(attend, call)
    return None if reads is None or reads.right else (reads, class_of_reads(call, reads, {}, ""))


def beyond_bound(call: OpCall, output: torch.Tensor) -> bool:
    """Is an element of the call's output further from float64 than rounding can bring it?"""
    return bool((bounded(call).ratio(output) > 1).any())


def arithmetic_class(call: OpCall, output: torch.Tensor) -> FaultClass:
    """Of an output beyond the bound whose reads are right."""
    return FaultClass.SCALE if fit_scale(call, output) is not None else FaultClass.ARITHMETIC
