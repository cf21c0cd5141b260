"""Spool records for the catalog's tests."""

from __future__ import annotations

from typing import Any

from checkengine.replay.spool_format import SpoolRecord

BOOT = "a" * 16


def finding(
    number: int, *, time: float = 10.0, replica: str = "host:1", request: str = "s-1", **changes: Any
) -> SpoolRecord:
    data = {
        "incident": "inc-1", "primary": True, "kind": "logits.nonfinite", "severity": 2, "step": 4, "token": 2,
        "guard": "nonfinite", "version": 1, "evidence": {"nan": 3, "worst": "nan"},
    }  # fmt: skip
    return SpoolRecord(BOOT, number, "finding", time, replica, request, data | changes)


def replica(number: int, *, time: float = 1.0, name: str = "host:1", **changes: Any) -> SpoolRecord:
    data: dict[str, Any] = {
        "host": "host", "engine": "embedded", "model": "m", "device": "GPU-1", "device_name": "H200", "driver": "550",
        "image": "img", "kernel": "flash", "versions": {"torch": "2.13"}, "kernels": {"attention": "flash"},
        "counters": {}, "guards": {}, "started": 1.0,
    }  # fmt: skip
    return SpoolRecord(BOOT, number, "replica", time, name, "", data | changes)


def request(
    number: int, *, time: float = 20.0, name: str = "host:1", sequence: str = "s-1", **changes: Any
) -> SpoolRecord:
    data: dict[str, Any] = {
        "request": "req-1", "response": "resp-1", "trace_id": "t" * 32, "model": "m", "prompt_tokens": 7,
        "output_tokens": 5, "cached_tokens": 4, "finish_reason": "stop", "ttft_seconds": 0.1, "total_seconds": 1.0,
        "scores": {"nonfinite": 1.0},
    }  # fmt: skip
    return SpoolRecord(BOOT, number, "request", time, name, sequence, data | changes)
