"""The last cache level of a device, in bytes: up to there weights stay close to the arithmetic."""

from __future__ import annotations

from pathlib import Path

import torch

from checkengine.guards.errors import UserError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def last_cache_bytes(device: torch.device, caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """From the driver for a GPU, from the kernel for a CPU. UserError where neither tells."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [bytes_of((index / "size").read_text()) for index in sorted(caches.glob("index*")) if _holds_data(index)]
    if not sizes:
        raise UserError(f"{caches} does not tell this processor's caches; give the last one's size with --cache")
    return max(sizes)


def _holds_data(index: Path) -> bool:
    return (index / "type").read_text().strip() != "Instruction"


def bytes_of(text: str) -> int:
    """`266240K`, `250MB`, `1.5 GiB`: K, M and G are powers of 1024. UserError for anything else."""
    cleaned = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    number, unit = (cleaned[:-1], cleaned[-1:]) if cleaned[-1:].isalpha() else (cleaned, "")
    try:
        size = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise UserError(f"{text.strip()!r} is no size; write 250MB, 1.5G or a number of bytes") from None
    if not 0 < size < 2**60:
        raise UserError(f"{text.strip()!r} is no size that a cache can have")
    return int(size)
