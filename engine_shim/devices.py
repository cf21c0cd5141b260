"""The device that an engine runs on: what it is, and on NVIDIA the counters of its faults."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger("checkengine.devices")


LINK_ERRORS = ("NVML_NVLINK_ERROR_DL_REPLAY", "NVML_NVLINK_ERROR_DL_RECOVERY", "NVML_NVLINK_ERROR_DL_CRC_FLIT")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Empty where nobody knows."""

    uuid: str = ""
    name: str = ""
    driver: str = ""


Counters = Callable[[], dict[str, int]]


def device_facts(index: int = 0) -> DeviceFacts:
    """Of the torch device of that index, or of the processor where there is none."""
    import torch

    if not torch.cuda.is_available():
        return DeviceFacts(name=processor_name())
    properties: Any = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", "")
    return DeviceFacts(f"GPU-{uuid}" if uuid else "", str(properties.name), nvidia_driver())


def processor_name(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.machine()


def nvidia_driver() -> str:
    nvml = loaded_nvml()
    if nvml is None:
        return ""
    try:
        version = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return ""
    return version.decode() if isinstance(version, bytes) else str(version)


def loaded_nvml() -> Any:
    """nvidia-ml-py, initialised; None where it or a driver is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@dataclass(slots=True)
class NvidiaCounters:
    """ECC errors, NVLink errors and XID events of one device; a counter that a device lacks is left out. XIDs are told
    by the driver as they happen, so they count from the first call on."""

    nvml: Any
    uuid: str
    _xids: dict[str, int] = field(default_factory=dict)
    _events: Any = None

    def __call__(self) -> dict[str, int]:
        handle = self._handle()
        if handle is None:
            return {}
        return {**self._ecc(handle), **self._nvlink(handle), **self._xid(handle)}

    def _handle(self) -> Any:
        try:
            return self.nvml.nvmlDeviceGetHandleByUUID(self.uuid.encode())
        except self.nvml.NVMLError:
            return None

    def _ecc(self, handle: Any) -> dict[str, int]:
        kinds = {"corrected": "NVML_MEMORY_ERROR_TYPE_CORRECTED", "uncorrected": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"}
        told = {}
        for name, constant in kinds.items():
            value = self._ask(
                "nvmlDeviceGetTotalEccErrors", handle, getattr(self.nvml, constant), self.nvml.NVML_VOLATILE_ECC
            )
            if value is not None:
                told[f"ecc_{name}"] = value
        return told

    def _nvlink(self, handle: Any) -> dict[str, int]:
        total, any_link = 0, False
        for link in range(int(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", 18))):
            for constant in (
                "NVML_NVLINK_ERROR_DL_REPLAY",
                "NVML_NVLINK_ERROR_DL_RECOVERY",
                "NVML_NVLINK_ERROR_DL_CRC_FLIT",
            ):
                value = self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, getattr(self.nvml, constant, 0))
                if value is not None:
                    total, any_link = total + value, True
        return {"nvlink_errors": total} if any_link else {}

    def _xid(self, handle: Any) -> dict[str, int]:
        try:
            if self._events is None:
                self._events = self.nvml.nvmlEventSetCreate()
                self.nvml.nvmlDeviceRegisterEvents(handle, self.nvml.nvmlEventTypeXidCriticalError, self._events)
            while True:
                event = self.nvml.nvmlEventSetWait_v2(self._events, 0)
                name = f"xid_{int(event.eventData)}"
                self._xids[name] = self._xids.get(name, 0) + 1
        except (self.nvml.NVMLError, AttributeError):
            return dict(self._xids)

    def _ask(self, function: str, *arguments: Any) -> int | None:
        try:
            return int(getattr(self.nvml, function)(*arguments))
        except (self.nvml.NVMLError, AttributeError, TypeError):
            return None


def no_counters() -> dict[str, int]:
    return {}


def counters_of(device: DeviceFacts) -> Counters:
    """Of an NVIDIA device; none where nvidia-ml-py is not installed."""
    nvml = loaded_nvml() if device.uuid else None
    return NvidiaCounters(nvml, device.uuid) if nvml is not None else no_counters
