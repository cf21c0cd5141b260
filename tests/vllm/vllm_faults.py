"""Test-only plugin of vLLM: plants one fault into its own execution. DRILL names it, DRILL_AT says at which length.

vLLM loads it through its plugin group, in each of its processes; `plugin_folder` makes the entry point.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LAYERS = 30
"""Of SmolLM2: attention runs so often a step."""


def plugin_folder(folder: Path) -> Path:
    """For PYTHONPATH, beside the folder of this file."""
    info = folder / "vllm_faults-0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-faults\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nvllm_faults = vllm_faults:register\n")
    return folder


def register() -> None:
    settings = json.loads(os.environ.get("DRILL", "{}"))
    for name, arguments in settings.items():
        FAULTS[name](**arguments)


def nan_row(length: int, layer: int = 12) -> None:
    """A decode row of this very length leaves attention of one layer as NaN."""
    from vllm.v1.attention.backends import cpu_attn

    ops = cpu_attn.ops
    calls = [0]

    class Faulty:
        def __getattr__(self, name: str) -> Any:
            return getattr(ops, name)

        def cpu_attention_with_kv_cache(self, **arguments: Any) -> Any:
            result = ops.cpu_attention_with_kv_cache(**arguments)
            calls[0] += 1
            if calls[0] % LAYERS == layer:
                for row in decode_rows(arguments, length):
                    arguments["output"][row] = float("nan")
            return result

    cpu_attn.ops = Faulty()


def decode_rows(arguments: dict[str, Any], length: int) -> list[int]:
    """Positions in the packed batch of decode tokens whose row is so long."""
    starts, lengths = arguments["query_start_loc"], arguments["seq_lens"]
    ones = (starts[1:] - starts[:-1]) == 1
    hit = ones & (lengths[: len(ones)] == length)
    return [int(starts[row]) for row in hit.nonzero().flatten()]


def over_read(modulus: int, remainder: int) -> None:
    """Decode rows of such a length attend one slot too many: a stale one."""
    from vllm.v1.attention.backends import cpu_attn

    ops = cpu_attn.ops

    def one_more(arguments: dict[str, Any]) -> dict[str, Any]:
        starts, lengths = arguments["query_start_loc"], arguments["seq_lens"].clone()
        rows = len(starts) - 1
        hit = ((starts[1:] - starts[:-1]) == 1) & (lengths[:rows] % modulus == remainder)
        lengths[:rows][hit] += 1
        return {**arguments, "seq_lens": lengths}

    class Faulty:
        def __getattr__(self, name: str) -> Any:
            return getattr(ops, name)

        def cpu_attention_with_kv_cache(self, **arguments: Any) -> Any:
            return ops.cpu_attention_with_kv_cache(**one_more(arguments))

        def cpu_attn_get_scheduler_metadata(self, **arguments: Any) -> Any:
            return ops.cpu_attn_get_scheduler_metadata(**one_more(arguments))

    cpu_attn.ops = Faulty()


def deaf_stop(after: list[int]) -> None:
    """End tokens are not honoured once the output holds these tokens in a row."""
    from vllm.v1.core.sched import scheduler

    check = scheduler.check_stop

    def check_stop(request: Any, max_model_len: int) -> bool:
        outputs = list(request.output_token_ids)
        width = len(after)
        if any(outputs[i : i + width] == after for i in range(len(outputs) - width + 1)):
            return bool(request.num_output_tokens >= request.max_tokens) and check(request, max_model_len)
        return bool(check(request, max_model_len))

    scheduler.check_stop = check_stop


def async_scheduling() -> None:
    """vLLM turns it off on CPUs as not needed; its code runs there all the same."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


FAULTS = {
    "nan_row": nan_row,
    "over_read": over_read,
    "deaf_stop": deaf_stop,
    "async_scheduling": async_scheduling,
}
