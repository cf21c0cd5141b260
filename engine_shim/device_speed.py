"""How fast a device reads memory and multiplies matrices, measured in a fraction of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 3
CPU_BYTES, DEVICE_BYTES = 64 << 20, 1 << 30
"""Larger than any cache."""
CPU_SIDE, DEVICE_SIDE = 512, 8192


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """The best of a few attempts: what else runs on the machine only ever subtracts."""

    bandwidth: float
    """Bytes a second."""
    flops: float
    """Floating-point operations a second, in matrices of the dtype asked for."""


def measure_device(device: torch.device, dtype: torch.dtype) -> DeviceSpeed:
    """On an idle device: before requests are taken. Half a gigabyte to a gigabyte of a GPU's memory for a moment."""
    on_cpu = device.type == "cpu"
    size = (CPU_BYTES if on_cpu else DEVICE_BYTES) // 4
    bandwidth = 4 * size / fastest(torch.ones(size, dtype=torch.float32, device=device).sum, device)
    side = CPU_SIDE if on_cpu else DEVICE_SIDE
    square = torch.ones(side, side, dtype=dtype, device=device)
    return DeviceSpeed(bandwidth, 2 * side**3 / fastest(lambda: square @ square, device))


def fastest(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(REPEATS + 1):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
