"""Statistics that are read later: nothing waits for the device on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from checkengine.detectors.logits import RowStats, pending, pending_row_stats, row_stats, torch_backend


def same(a: RowStats, b: RowStats) -> bool:
    names = set(RowStats.__dataclass_fields__) - {"level"}
    return all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in names if name[0] != "l")


@pytest.mark.parametrize("level", ["screen", "full"])
def test_pending_statistics_in_cpu_memory_are_ready_at_once_and_equal_row_stats(level):
    logits = torch.randn(3, 1000)
    logits[1, 4] = math.nan
    found = pending_row_stats(logits, level, first_column=0)
    assert found.ready()
    assert len(found) == 3
    expected = row_stats(logits, level, "torch")
    assert found.collect().level == level
    assert found.collect() is found.collect()
    for name in ("nonfinite", "invalid", "maximum", "minimum"):
        np.testing.assert_array_equal(getattr(found.collect(), name), getattr(expected, name))
    assert len(found) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("level", ["screen", "full"])
def test_the_torch_backend_reads_no_value_of_the_device_on_its_way(dtype, level):
    """A meta tensor has no values: whatever waits for one raises."""
    logits = torch.empty(4, 300, dtype=dtype, device="meta")
    packed = torch_backend.pack(logits, level, 17)
    assert packed.block.shape == (4 * 56,)
    with pytest.raises(NotImplementedError):
        torch_backend.row_stats(logits, level)


class Event:
    """An event of a device that finishes when a test says so."""

    def __init__(self) -> None:
        self.over = False
        self.waits = 0

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.over = True
        self.waits += 1


def test_a_copy_under_way_is_not_ready_and_collecting_waits_for_it_once(monkeypatch):
    event = Event()
    logits = torch.randn(2, 50)
    packed = torch_backend.pack(logits, "full")
    host = torch.zeros_like(packed.block)

    def copy_later(block: torch.Tensor) -> tuple[torch.Tensor, Event]:
        return host, event

    class OnDevice:
        """The block as it looks on a GPU, for the one thing that is asked of it."""

        device = torch.device("cuda")

    monkeypatch.setattr(pending, "copy_aside", copy_later)
    block, packed.block = packed.block, OnDevice()
    found = pending.DeviceRowStats(packed)
    assert not found.ready()
    assert event.waits == 0
    host.copy_(block)
    assert same(found.collect(), row_stats(logits, "full", "torch"))
    assert event.waits == 1
    found.collect()
    assert (event.waits, found.ready()) == (1, True)
