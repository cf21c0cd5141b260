"""What is proven on this machine's accelerator, and what is not; minutes. Without one, its arithmetic runs on the CPU.

Attention here is torch's own, over pages gathered as an engine's block table says: what it proves is that fills tell an
over-read on this device with these kernels. An engine's own kernels are proven through that engine's executor.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from checkengine.detectors import row_stats
from checkengine.figures import Figure
from checkengine.output_file import write_output
from checkengine.replay.find_executor import GROUP
from checkengine.selftest import EXACT, TOLERANCE, logits_of

PAGE, HEADS, KV_HEADS, DIM = 16, 8, 2, 64
LENGTHS = (17, 31, 32, 33, 255, 256, 257, 1000, 4096, 4097, 16_385)
FILLS = (64.0, -64.0)
WINDOW_TOKENS, WINDOW_STEPS = 40, 16
STEP_ROWS, STEP_VOCABULARY = 64, 131_072
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def device_name() -> str:
    """The accelerator's name; empty without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_figures() -> list[Figure]:
    """Everything on the device, or on the CPU where there is none."""
    return [*statistics_figures(), *kernel_figures(), window_figure(), overhead_figure()]


# Row statistics


def statistics_figures() -> list[Figure]:
    """Statistics of the device's backend against the CPU's compiled one, over three dtypes."""
    differing, largest = 0, 0.0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = logits_of(16).to(dtype)
        logits[3, 1000], logits[5, 7] = math.nan, -math.inf
        here, there = row_stats(logits, backend="numba"), row_stats(logits.to(device()))
        differing += sum(int((getattr(here, name) != getattr(there, name)).sum()) for name in EXACT[3:])
        differing += sum(_unequal(getattr(here, name), getattr(there, name)) for name in EXACT[:3])
        sums = np.abs(here.logsumexp - there.logsumexp)  # type: ignore[operator]
        largest = max(largest, float(np.nanmax(sums)))
    return [
        _figure("row statistics of the device that differ from the CPU's", differing, "values", 0),
        _figure("largest difference of logsumexp, device and CPU", largest, "nats", TOLERANCE),
    ]


def _unequal(left: Any, right: Any) -> int:
    return int((~((left == right) | (np.isnan(left.astype(float)) & np.isnan(right.astype(float))))).sum())


# Fills on the device's kernels


class PagedCall:
    """One decode query over pages on the device; `over` reads that many slots past the end."""

    def __init__(self, length: int, dtype: torch.dtype, over: int = 0) -> None:
        generator = torch.Generator().manual_seed(length)
        pages = -(-(length + 1) // PAGE)
        shape = (2, pages + 2, PAGE, KV_HEADS, DIM)
        self.length, self.over = length, over
        self.memory = torch.randn(shape, generator=generator).to(device(), dtype)
        self.query = torch.randn(1, HEADS, 1, DIM, generator=generator).to(device(), dtype)
        self.table = torch.randperm(pages + 2, generator=generator)[:pages].to(device())

    def fill_unowned(self, pattern: float) -> None:
        owned = self._slots(self.length)
        kept = torch.ones(self.memory.shape[1] * PAGE, dtype=torch.bool, device=device())
        kept[owned] = False
        self.memory.flatten(1, 2)[:, kept] = pattern

    def attend(self) -> torch.Tensor:
        """Whole pages are gathered and cut to the length: what lies behind the cut in memory is the kernel's to leave
        alone."""
        gathered = self.memory[:, self.table].flatten(1, 2)[:, : self.length + self.over]
        keys, values = (part.transpose(0, 1).unsqueeze(0) for part in gathered)
        return torch.nn.functional.scaled_dot_product_attention(self.query, keys, values, enable_gqa=True)

    def _slots(self, length: int) -> torch.Tensor:
        positions = torch.arange(length, device=device())
        return self.table[positions // PAGE] * PAGE + positions % PAGE


def depends_on_fills(call: PagedCall, fills: tuple[float, float] = FILLS) -> bool:
    """Do two fills of unowned slots give different bits?"""
    outputs = []
    for pattern in fills:
        call.fill_unowned(pattern)
        outputs.append(call.attend().clone())
    return not torch.equal(outputs[0], outputs[1])


def kernel_figures() -> Iterator[Figure]:
    for name, backend in BACKENDS.items():
        for dtype in (torch.float32, torch.bfloat16):
            missed, wrong, unsafe, tried = 0, 0, 0, 0
            for length in LENGTHS:
                try:
                    with sdpa_kernel(backend):
                        missed += not depends_on_fills(PagedCall(length, dtype, over=1))
                        wrong += depends_on_fills(PagedCall(length, dtype))
                        unsafe += depends_on_fills(PagedCall(length, dtype), (FILLS[0], math.nan))
                except RuntimeError:  # torch has no kernel of this backend for these shapes here
                    break
                tried += 1
            if tried:
                what = f"{name} attention, {str(dtype).removeprefix('torch.')}"
                yield _figure(f"over-reads that fills missed, {what}", missed, f"of {tried}", 0)
                yield _figure(f"right calls that fills convicted, {what}", wrong, f"of {tried}", 0)
                yield _figure(f"calls that NaN behind their end changed, {what}", unsafe, f"of {tried}", 0)


# A window


def window_figure() -> Figure:
    """Decode steps of a tiny model on the device, run again from the same cache: rows whose fingerprint is another."""
    from checkengine.tiny import WORDS, tiny_model

    model = tiny_model().to(device())
    tokens = torch.arange(4 * WINDOW_TOKENS, device=device()).reshape(4, WINDOW_TOKENS) % WORDS
    prints = [_window(model, tokens) for _ in range(2)]
    rows = 4 * WINDOW_STEPS
    differing = int((np.concatenate(prints[0]) != np.concatenate(prints[1])).sum())
    return _figure("rows of a replayed window that are not bit-equal", differing, f"of {rows}", 0)


def _window(model: Any, tokens: torch.Tensor) -> list[Any]:
    prints = []
    with torch.no_grad():
        output = model(tokens, use_cache=True)
        for _ in range(WINDOW_STEPS):
            logits = output.logits[:, -1].contiguous()
            prints.append(row_stats(logits).fingerprint)
            output = model(logits.argmax(-1, keepdim=True), past_key_values=output.past_key_values, use_cache=True)
    return prints


# Overhead


def overhead_figure() -> Figure:
    """Row statistics of a step beside the product that made its logits: what they add, in percent of that product."""
    hidden = torch.randn(STEP_ROWS, 2048, device=device()).bfloat16()
    head = torch.randn(2048, STEP_VOCABULARY if device_name() else 8192, device=device()).bfloat16()
    logits = hidden @ head
    product = _seconds(lambda: hidden @ head)
    measured = _seconds(lambda: row_stats(logits, "screen"))
    return _figure("screen of a step's rows, of the time of its last product", 100 * measured / product, "%", 100.0)


def _seconds(what: Callable[[], object], times: int = 20) -> float:
    """Median of one call, all of the device's work done."""
    what()
    taken = []
    for _ in range(times):
        _wait()
        began = time.perf_counter()
        what()
        _wait()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# The log


def write_log(path: Path, measured: Mapping[str, Any]) -> None:
    """What was proven on which device, as text to hand on."""
    where = device_name() or "no accelerator: the CPU"
    executors = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none"
    lines = [
        f"checkengine {measured['version']} {measured['command']}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"device: {where}",
        f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, {platform.system()} {platform.machine()}",
        f"executors installed: {executors}",
        "",
        *(_line(figure) for figure in measured["figures"]),
        "",
        _conclusion(measured),
    ]
    write_output(path, "\n".join(lines) + "\n", "the log")


def _line(figure: Figure) -> str:
    mark = "proven" if figure["ok"] else "MISSED"
    return f"{mark}  {figure['name']}: {figure['value']:.4g} {figure['unit']} (target {figure['target']:.4g})"


def _conclusion(measured: Mapping[str, Any]) -> str:
    missed = sum(not figure["ok"] for figure in measured["figures"])
    if not device_name():
        return f"nothing is proven of an accelerator: there was none; {missed} figures missed their target on the CPU"
    return f"{missed} of {len(measured['figures'])} figures missed their target on this device"


def _figure(name: str, value: float, unit: str, target: float) -> Figure:
    return {"name": name, "value": value, "unit": unit, "target": target, "ok": value <= target}
