"""What a device tells of itself, with NVIDIA's library and without."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checkengine.engine_shim.devices import NvidiaCounters, counters_of, device_facts, processor_name


class NoSuchThing(Exception):
    pass


class Nvml:
    """As much of nvidia-ml-py as is asked of it. `lacks`: functions that this device has not."""

    NVMLError = NoSuchThing
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_NVLINK_MAX_LINKS = 2
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY, NVML_NVLINK_ERROR_DL_CRC_FLIT = 0, 1, 2
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, lacks: tuple[str, ...] = (), xids: tuple[int, ...] = ()) -> None:
        self.lacks, self.xids = lacks, list(xids)

    def _has(self, name: str) -> None:
        if name in self.lacks:
            raise NoSuchThing(name)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        self._has("device")
        return uuid.decode()

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, since: int) -> int:
        self._has("ecc")
        return 3 if kind else 40

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: str, link: int, kind: int) -> int:
        self._has("nvlink")
        return link + kind

    def nvmlEventSetCreate(self) -> str:
        self._has("events")
        return "set"

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: str) -> None:
        assert (kinds, events) == (8, "set")

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        assert milliseconds == 0, "a report waits for nothing"
        if not self.xids:
            raise NoSuchThing("timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))


def test_errors_of_memory_and_links_are_told_and_xids_are_counted_as_they_come() -> None:
    nvml = Nvml(xids=(79, 79, 48))
    counters = NvidiaCounters(nvml, "GPU-1")
    told = counters()
    assert told == {"ecc_corrected": 40, "ecc_uncorrected": 3, "nvlink_errors": 9, "xid_79": 2, "xid_48": 1}
    nvml.xids.append(79)
    assert counters()["xid_79"] == 3


def test_a_counter_that_a_device_lacks_is_left_out() -> None:
    assert NvidiaCounters(Nvml(("ecc", "nvlink")), "GPU-1")() == {}
    assert NvidiaCounters(Nvml(("nvlink", "events")), "GPU-1")() == {"ecc_corrected": 40, "ecc_uncorrected": 3}
    assert NvidiaCounters(Nvml(("device",)), "GPU-1")() == {}


def test_a_processor_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Processor\n")
    assert processor_name(tmp_path / "cpuinfo") == "A Processor"
    assert processor_name(tmp_path / "none")


def test_a_machine_without_a_gpu_has_a_name_no_uuid_and_no_counters() -> None:
    facts = device_facts()
    if not facts.uuid:
        assert facts.name
        assert counters_of(facts)() == {}
