"""Random traffic in a real vLLM with the black box on: `python -m checkengine.benchmarks.vllm_soak FOLDER …`.

Requests of random lengths share prefixes, are sampled or greedy, with penalties or without, are preempted for want of
blocks, are aborted. At random steps a window of random length is captured, of one sequence or of all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path
from typing import Any

from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.vllm.numba_first import let_vllm_scan_llvmlite
from checkengine.guards.finding import Finding, Severity

LATE = 200
"""Steps after the engine's start from which on a window counts as late."""
ROWS, BUDGET, BLOCKS, BLOCK_SIZE, LONGEST = 8, 64, 40, 32, 512
KIND = "token.impossible"
"""A name for the trigger; nothing is wrong with these steps."""


def engine(asynchronous: bool) -> Any:
    """A vLLM in this process, with few blocks."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    let_vllm_scan_llvmlite()
    from vllm import LLM

    if asynchronous:
        keep_async_scheduling()
    return LLM(
        str(model_directory("smollm2-135m")),
        dtype="float32",
        max_model_len=LONGEST,
        block_size=BLOCK_SIZE,
        enforce_eager=True,
        max_num_seqs=ROWS,
        max_num_batched_tokens=BUDGET,
        num_gpu_blocks_override=BLOCKS,
        enable_prefix_caching=True,
        async_scheduling=asynchronous,
        worker_cls="checkengine.benchmarks.vllm_soak_worker.RecordingWorker",
    ).llm_engine


def keep_async_scheduling() -> None:
    """vLLM switches it off on CPUs, where it gains nothing; the code runs there all the same."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


class Soak:
    def __init__(self, engine: Any, seed: int) -> None:
        from checkengine.benchmarks.vllm_soak_worker import BOX

        self.engine, self.box = engine, BOX
        self.random = random.Random(seed)
        self.prefix = [self.random.randrange(300, 40_000) for _ in range(256)]
        self.asked = self.steps = self.aborted = self.preempted = self.prefix_hits = 0

    def step(self) -> None:
        while self.engine.get_num_unfinished_requests() < ROWS + 3:
            self._ask()
        if self.random.random() < 0.02:
            self.engine.abort_request(
                [self.random.choice(list(self.engine.output_processor.request_states))], internal=True
            )
            self.aborted += 1
        self.engine.step()
        self.steps += 1

    def capture(self) -> bool:
        """False where nobody runs just now."""
        recorder = self.box.recorder
        if recorder is None or recorder.off:
            raise RuntimeError(recorder.off if recorder else "no step was recorded")
        window = recorder.recorder.window(recorder.last_recorded)
        running = sorted({window.starts[handle].name for handle in window.records[-1].handles.tolist()})
        chosen = running if self.random.random() < 0.3 else [self.random.choice(running)]
        findings = tuple(
            Finding(
                kind=KIND, sequence=name, severity=Severity.ERROR, step=self.steps, token=0, guard="soak", version=1
            )
            for name in chosen
        )
        from checkengine.engine_shim.vllm.black_box import CaptureOrder

        return bool(self.box.capture(CaptureOrder(f"soak-{self.steps}", findings, self.random.randrange(2, 25))))

    def told(self) -> dict[str, int]:
        assert self.box.recorder is not None
        records = self.box.recorder.recorder.window().records
        self.preempted = sum(int((record.block_changes[:, 2] == -1).sum()) for record in records)
        self.prefix_hits = sum(
            int(record.starts[record.handles == start.handle].sum() > 0) for record in records for start in record.begun
        )
        if self.box.unlike:
            raise RuntimeError(
                f"{len(self.box.unlike)} messages do not come back from JSON, first {self.box.unlike[0]}"
            )
        self.messages = self.box.messages
        names = ("steps", "asked", "aborted", "preempted", "prefix_hits", "messages")
        return {name: int(getattr(self, name)) for name in names}

    def _ask(self) -> None:
        from vllm import SamplingParams

        draw = self.random
        shared = self.prefix[: draw.choice([0, 0, 64, 100, 160, 224])]
        prompt = shared + [draw.randrange(300, 40_000) for _ in range(draw.randrange(1, 150))]
        parameters = SamplingParams(
            temperature=draw.choice([0.0, 0.0, 0.7, 1.2]),
            top_p=draw.choice([1.0, 0.9]),
            top_k=draw.choice([0, 40]),
            min_p=draw.choice([0.0, 0.05]),
            presence_penalty=draw.choice([0.0, 0.0, 0.5]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
            max_tokens=draw.randrange(2, 120),
            ignore_eos=True,
        )
        self.engine.add_request(f"r{self.asked}", {"prompt_token_ids": prompt}, parameters)
        self.asked += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--asynchronous", action="store_true")
    asked = parser.parse_args()
    os.environ["CHECKENGINE_SOAK_FOLDER"] = str(asked.folder)
    soak = Soak(engine(asked.asynchronous), asked.seed)
    early = asked.windows * 2 // 5
    taken = 0
    while taken < asked.windows:
        soak.step()
        due = soak.steps > 5 and (taken < early or soak.steps > LATE + 25) and soak.random.random() < 0.2
        # One at a time: a writer that is behind would drop it.
        if due and soak.box.idle and soak.capture():
            taken += 1
    soak.box.close(120)
    print(json.dumps(soak.told()))


if __name__ == "__main__":
    main()
