"""Records in a real vLLM: `python black_box_run.py FOLDER`, with the fault plugin on the path. Prints one line of JSON.

Garbage fills the KV memory first; random traffic recycles it for more than 200 steps. A healthy window is captured,
then one in which a sequence of a certain length reads a slot too many (the fault is armed for that length only).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from checkengine.benchmarks.vllm_soak import KIND, LATE, Soak, engine
from checkengine.engine_shim.vllm.black_box import CaptureOrder
from checkengine.guards.finding import Finding, Severity

WINDOW = 8


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["CHECKENGINE_SOAK_FOLDER"] = str(folder)
    started = engine(asynchronous=False)
    worker = started.model_executor.driver_worker.worker
    generator = torch.Generator().manual_seed(0)
    for cache in worker.model_runner.kv_caches:
        cache.normal_(0, 5, generator=generator)
    soak = Soak(started, seed=3)
    while soak.steps < LATE + WINDOW:
        soak.step()
    healthy = captured(soak, *decoding(soak))
    victim, length = decoding(soak, room=14)
    # The whole window runs with the fault: another sequence may have this length before the victim has.
    faulty_length = length + WINDOW + 2
    Path(os.environ["DRILL_SWITCHES"], "over_read").write_text(json.dumps({"length": faulty_length}))
    while decoded(soak, victim) < faulty_length + 2:
        soak.step()
    Path(os.environ["DRILL_SWITCHES"], "over_read").unlink()
    faulty = captured(soak, victim, length)
    soak.box.close(120)
    print(json.dumps({"healthy": healthy, "faulty": faulty, "sequence": victim, "length": faulty_length}))


def decoding(soak: Soak, room: int = 0) -> tuple[str, int]:
    """Somebody who yields a token in each step, does not end in the next `room`, and stays inside a block; and how many
    tokens the last step computed with."""
    while True:
        for name, state in soak.engine.output_processor.request_states.items():
            length = decoded(soak, name)
            inside = length % 32 and length % 32 + room < 30
            if length and inside and state.max_tokens_param - len(tokens_of(soak, name)) > room + 2:
                return name, length
        soak.step()


def tokens_of(soak: Soak, name: str) -> list[int]:
    assert soak.box.recorder is not None
    return soak.box.recorder.ledger.tokens(name)[1]


def decoded(soak: Soak, name: str) -> int:
    """Length of the sequence's row in the last step; 0 where it did not yield a token."""
    assert soak.box.recorder is not None
    window = soak.box.recorder.recorder.window(soak.box.recorder.last_recorded)
    record = window.records[-1]
    for row, handle in enumerate(record.handles.tolist()):
        if window.starts[handle].name == name and record.samples[row] and record.query_lengths[row] == 1:
            return int(record.starts[row]) + 1
    return 0


def captured(soak: Soak, name: str, length: int) -> str:
    """The bundle's name."""
    from checkengine.benchmarks.vllm_soak_worker import WRITTEN

    finding = Finding(kind=KIND, sequence=name, severity=Severity.ERROR, step=soak.steps, token=0, guard="t", version=1)
    if not soak.box.capture(CaptureOrder(f"at-{length}", (finding,), WINDOW)):
        raise RuntimeError("no capture")
    while not soak.box.idle:
        soak.step()
    return WRITTEN[-1].name


if __name__ == "__main__":
    main()
