"""Bytes that came from memory, counted by the processor itself where the kernel lets us read its counters."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable

LINE = 64
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _CACHE_MISSES = 0, 3
_ATTRIBUTES = 120
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_ENABLE, _DISABLE = 0x2400, 0x2401


class MissCounter:
    """Misses of the last cache level by this thread (perf_event_open(2), PERF_COUNT_HW_CACHE_MISSES).

    OSError where the kernel, the container or the virtual machine has none to give.
    """

    def __init__(self) -> None:
        number = _SYSCALL.get(platform.machine())
        if platform.system() != "Linux" or number is None:
            raise OSError("only Linux on x86-64 and arm64 gives counters here")
        attributes = bytearray(_ATTRIBUTES)
        flags = _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
        struct.pack_into("<IIQQQQQ", attributes, 0, _HARDWARE, _ATTRIBUTES, _CACHE_MISSES, 0, 0, 0, flags)
        library = ctypes.CDLL(None, use_errno=True)
        buffer = (ctypes.c_char * _ATTRIBUTES).from_buffer(attributes)
        self._descriptor = int(library.syscall(number, buffer, 0, -1, -1, 0))
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._control = library.ioctl

    def bytes_during(self, work: Callable[[], object]) -> int:
        """What `work` fetched from behind the last cache level."""
        before = self._read()
        self._control(self._descriptor, _ENABLE, 0)
        work()
        self._control(self._descriptor, _DISABLE, 0)
        return (self._read() - before) * LINE

    def close(self) -> None:
        os.close(self._descriptor)

    def _read(self) -> int:
        return int(struct.unpack("<Q", os.read(self._descriptor, 8))[0])


def miss_counter() -> MissCounter | None:
    """None where counters cannot be read; the table then says that traffic is estimated from sizes."""
    try:
        return MissCounter()
    except OSError:
        return None
