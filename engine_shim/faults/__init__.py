"""Planted faults, each modelled on a public bug. They exist for drills and tests; nothing enables one by default."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from checkengine.engine_shim.faults import (
    approximate_top_k,
    arithmetic,
    kv_writes,
    masked_stop,
    memory,
    nan_attention,
    nondeterminism,
    nonfinite,
    over_read,
    rotary,
    rows,
    sampling,
    under_read,
    wrong_page,
)
from checkengine.engine_shim.faults.approximate_top_k import ApproximateTopK
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS
from checkengine.engine_shim.faults.healthy import HEALTHY
from checkengine.engine_shim.faults.masked_stop import MaskedStop
from checkengine.engine_shim.faults.nan_attention import NanAttention
from checkengine.engine_shim.faults.over_read import OverRead
from checkengine.replay.judge.fault_class import FaultClass

_MODULES = (
    nan_attention,
    nonfinite,
    over_read,
    under_read,
    wrong_page,
    rotary,
    arithmetic,
    kv_writes,
    rows,
    nondeterminism,
    memory,
    masked_stop,
    approximate_top_k,
    sampling,
)


def faults_of(module: object) -> list[type[Fault]]:
    """The faults that a module defines, in its order."""
    return [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, Fault)
        and "name" in vars(thing)
        and thing.__module__ == getattr(module, "__name__", "")
    ]


FAULTS: Mapping[str, type[Fault]] = {fault.name: fault for module in _MODULES for fault in faults_of(module)}


def describe_fault(fault: Fault) -> dict[str, Any]:
    """What `build_faults` needs to make it again: its name and its parameters, as JSON."""
    parameters = {name: getattr(fault, name) for name in inspect.signature(type(fault)).parameters}
    return {"name": fault.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in parameters.items()}}


def build_faults(specs: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Faults from `describe_fault`'s form; ValueError names an unknown one."""
    faults = []
    known = {**FAULTS, **BLIND_FAULTS, **FRESH_FAULTS, **HEALTHY}
    for spec in specs:
        parameters = {key: value for key, value in spec.items() if key != "name"}
        if spec.get("name") not in known:
            raise ValueError(f"unknown fault {spec.get('name')!r}; known: {', '.join(sorted(known))}")
        faults.append(known[spec["name"]](**parameters))
    return faults


__all__ = [
    "FAULTS",
    "HEALTHY",
    "ApproximateTopK",
    "Fault",
    "FaultClass",
    "MaskedStop",
    "NanAttention",
    "OverRead",
    "build_faults",
    "describe_fault",
    "faults_of",
]
