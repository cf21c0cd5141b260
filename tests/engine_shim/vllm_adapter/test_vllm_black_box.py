"""Captures between the steps of a worker, in front of a memory whose every state is known."""

from __future__ import annotations

import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkengine.benchmarks.vllm_traffic import Message, Traffic
from checkengine.engine_shim.vllm.black_box import BlackBox, CaptureOrder
from checkengine.engine_shim.vllm.carried import StepReading, ToWorkers, attach
from checkengine.engine_shim.vllm.kv_cache import PackedCache
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleReader, write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings, RecorderSettings
from checkengine.replay.windows import build_window

LAYERS, BLOCKS, HEADS, SIZE, DIM = 2, 40, 1, 4, 2
RECORDING = RecorderSettings(steps=128, bytes=4 << 20, checkpoint_every=8, undo_steps=12, undo_bytes=4 << 20)


class Layer:
    isa = "vec"

    def __init__(self, cache: torch.Tensor) -> None:
        self.kv_cache = cache
        self.impl = self

    def do_kv_cache_update(self, layer: Any, keys: torch.Tensor, values: torch.Tensor, cache: Any, slots: Any) -> None:
        flat = cache.view(len(cache), HEADS, -1)
        dims = torch.arange(DIM)
        for index, slot in enumerate(slots.tolist()):
            block, offset = divmod(slot, SIZE)
            flat[block][:, dims * SIZE + offset] = keys[index]
            flat[block][:, SIZE * DIM + offset * DIM + dims] = values[index]


def worker_of(layers: list[Layer]) -> Any:
    names = [f"layer.{index}" for index in range(len(layers))]
    group = SimpleNamespace(layer_names=names, kv_cache_spec=SimpleNamespace(num_kv_heads=HEADS))
    runner = SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
        compilation_config=SimpleNamespace(static_forward_context=dict(zip(names, layers, strict=True))),
    )
    model = SimpleNamespace(model="tiny", revision=None, dtype=torch.float32, get_vocab_size=lambda: 1000)
    config = SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(block_size=SIZE, cache_dtype="auto"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    return SimpleNamespace(model_runner=runner, vllm_config=config)


class Run:
    """A worker whose steps write numbers of their own, with outcomes that come `late` steps late."""

    def __init__(self, seed: int, late: int, write: Any = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.caches = [torch.randn(BLOCKS, HEADS, SIZE, 2 * DIM, generator=generator) for _ in range(LAYERS)]
        self.at_start = [cache.clone() for cache in self.caches]
        self.worker = worker_of([Layer(cache) for cache in self.caches])
        self.traffic, self.late = Traffic(seed, SIZE, BLOCKS), late
        self.captures: list[Capture] = []
        self.box = BlackBox(
            write or self.captures.append, RECORDING, CaptureSettings(window_steps=16, per_fault=10_000), {"guards": {}}
        )
        self.box.ready(self.worker)
        self.after: list[list[torch.Tensor]] = []
        """By recorded step: memory as it left it."""
        self.waiting: list[tuple[list[str], list[list[int]]]] = []
        self.messages = 0

    def step(self, order: CaptureOrder | None = None, refill: tuple[int, ...] = ()) -> None:
        message, expected = self.traffic.step()
        self.messages += 1
        attach(message, ToWorkers(self.messages, refill, (order,) if order else ()))
        self.box.between_steps(self.worker, message)
        for block in refill:
            for cache in self.caches:
                cache[block] = 0
        if refill:
            # What is refilled counts as the end of the step before, or as what there was before any.
            now = [cache.clone() for cache in self.caches]
            if self.after:
                self.after[-1] = now
            else:
                self.at_start = now
        self.box.before_step(self.worker, message)
        slots = [slot for slots in expected.slots.values() for slot in slots]
        for cache in self.caches:
            where = torch.tensor(slots, dtype=torch.long)
            Layer(cache).do_kv_cache_update(None, *torch.randn(2, len(slots), HEADS, DIM), cache, where)
        self.box.raw_logits(self.worker, torch.empty(0))
        rows, tokens = self.traffic.outcome(message)
        if message.total_num_scheduled_tokens:
            self.after.append([cache.clone() for cache in self.caches])
            self.waiting.append((rows, tokens))
        while len(self.waiting) > self.late:
            rows, tokens = self.waiting.pop(0)
            self.box.after_step(self.worker, SimpleNamespace(req_ids=rows, sampled_token_ids=tokens), None)

    def order(self) -> CaptureOrder:
        recorder = self.box.recorder
        assert recorder is not None
        window = recorder.recorder.window(recorder.last_recorded)
        names = sorted({window.starts[handle].name for handle in window.records[-1].handles.tolist()})
        finding = Finding(kind="k", sequence=names[0], severity=Severity.ERROR, step=self.messages, token=0, guard="g")
        return CaptureOrder("incident", (finding,))


def slots_of(caches: list[torch.Tensor], blocks: np.ndarray) -> dict[str, torch.Tensor]:
    layers = [Layer(cache) for cache in caches]
    cache = PackedCache(caches, lambda k, v, memory, slots: layers[0].do_kv_cache_update(None, k, v, memory, slots))
    return cache.image(blocks).tensors


@settings(max_examples=25, deadline=None)
@example(seed=8174, late=0, steps=20, refilling=False)  # Back to before the first step.
@example(seed=5, late=0, steps=20, refilling=True)  # A block is refilled before the first step.
@given(seed=st.integers(0, 10**6), late=st.integers(0, 2), steps=st.integers(20, 60), refilling=st.booleans())
def test_a_capture_holds_memory_as_the_last_recorded_step_left_it_and_leads_back_byte_for_byte(
    seed: int, late: int, steps: int, refilling: bool
) -> None:
    run = Run(seed, late)
    for step in range(steps):
        if step % 13 == 7:
            run.traffic.abort()
        run.step(refill=(run.traffic.free[-1],) if refilling and step % 11 == 5 else ())
    run.step(run.order())
    run.step()
    run.box.close()
    assert run.box.recorder is not None
    assert run.box.recorder.off == ""
    (capture,) = run.captures
    image, last = capture.memory, capture.window.last_step
    for name, tensor in slots_of(run.after[last], image.blocks).items():
        assert torch.equal(image.tensors[name], tensor)
    first = capture.first_exact_step
    assert first is not None
    assert first <= last - 8 + late
    before = capture.memory_at(first)
    for name, tensor in slots_of(run.after[first - 1] if first else run.at_start, image.blocks).items():
        assert torch.equal(before.tensors[name], tensor)
    assert build_window(capture).exact_from == "undo"


def test_the_finding_of_a_capture_names_the_recorded_step_and_not_the_messages_number() -> None:
    run = Run(1, 0)
    for _ in range(20):
        run.step()
    empty = Message()
    run.messages += 1
    attach(empty, ToWorkers(run.messages, (), ()))
    run.box.between_steps(run.worker, empty)
    run.box.before_step(run.worker, empty)
    run.step()
    order = run.order()
    assert run.box.recorder is not None
    assert order.findings[0].step != run.box.recorder.last_recorded
    run.step(order)
    run.box.close()
    assert run.captures[0].findings[0].step == run.captures[0].window.last_step


def test_an_armed_condition_is_captured_without_a_finding_and_the_capture_says_what_armed_it() -> None:
    run = Run(3, 0)
    for _ in range(20):
        run.step()
    order = run.order()
    run.step(CaptureOrder(None, (), counted_as=order.findings[0], armed="a1b2", level="L1"))
    run.step()
    run.box.close()
    (capture,) = run.captures
    assert (capture.findings, capture.incident, capture.environment["armed"]) == ((), None, "a1b2")
    assert capture.level == "L1"
    assert {start.name for start in capture.window.starts.values()} >= {order.findings[0].sequence}


def test_a_disk_that_refuses_costs_the_bundle_and_serving_goes_on() -> None:
    run = Run(2, 0, write=lambda capture: False)
    for _ in range(12):
        run.step()
    run.step(run.order())
    run.step()
    run.box.close()
    assert run.box.counts.outcomes()["failed"] == 1


def test_one_fault_is_captured_so_often_and_no_more() -> None:
    run = Run(4, 0)
    run.box._limit._most = 2
    for _ in range(12):
        run.step()
    for _ in range(5):
        run.step(run.order())
        while not run.box.idle:
            pass
    run.box.close()
    assert len(run.captures) == 2
    assert run.box.counts.outcomes()["duplicate"] == 3


def test_an_engine_whose_memory_cannot_be_read_is_recorded_without_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    run = Run(5, 0)
    group = run.worker.model_runner.kv_cache_config.kv_cache_groups[0]
    run.worker.model_runner.kv_cache_config.kv_cache_groups = [group, group]
    run.box.recorder = None
    run.box.ready(run.worker)
    assert "without KV pages" in caplog.text
    for _ in range(12):
        run.step()
    run.step(run.order())
    run.step()
    run.box.close()
    assert run.captures[0].level == "L0"
    path = write_bundle(run.captures[0], tmp_path, content="full")
    assert len(BundleReader(path).capture().window) == len(run.captures[0].window)


def test_fingerprints_come_from_the_workers_reading() -> None:
    run = Run(6, 0)
    stats = SimpleNamespace(fingerprint=np.array([5, 6], np.uint64))
    message, _ = run.traffic.step()
    while len(message.num_scheduled_tokens) != 2:
        run.traffic = Traffic(run.traffic.random.randrange(10**6), SIZE, BLOCKS)
        message, _ = run.traffic.step()
    run.box.between_steps(run.worker, message)
    run.box.before_step(run.worker, message)
    rows, tokens = run.traffic.outcome(message)
    reading = StepReading(tuple(rows), np.arange(2, dtype=np.int32), stats)  # type: ignore[arg-type]
    run.box.after_step(run.worker, SimpleNamespace(req_ids=rows, sampled_token_ids=tokens), reading)
    assert run.box.recorder is not None
    (record,) = run.box.recorder.recorder.window().records
    told = np.array([5, 6], np.uint64)[[bool(ids) for ids in tokens]]
    assert record.fingerprints.tolist() == told.tolist()


def switched_off(run: Run, steps: int) -> None:
    """Steps that the black box does not see."""
    box = run.box
    run.box = SimpleNamespace(between_steps=no, before_step=no, raw_logits=no, after_step=no)  # type: ignore[assignment]
    for _ in range(steps):
        run.step()
    run.box = box


def no(*arguments: Any) -> None: ...


def test_steps_are_recorded_again_when_requests_from_before_a_gap_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(7, 0)
    for _ in range(20):
        run.step()
    switched_off(run, 5)
    run.step()
    recorder = run.box.recorder
    assert recorder is not None
    assert "messages of vLLM were missed" in caplog.text
    gap = recorder.ledger.last_step
    run.traffic.drain()
    for _ in range(60):
        run.step()
    assert recorder.off == ""
    assert recorder.ledger.last_step > gap + 8
    unseen = len(run.after) - 1 - recorder.ledger.last_step
    run.step(run.order())
    run.step()
    run.box.close()
    (capture,) = run.captures
    first = capture.first_exact_step
    assert first is not None
    assert first > gap
    before = capture.memory_at(first)
    for name, tensor in slots_of(run.after[first - 1 + unseen], before.blocks).items():
        assert torch.equal(before.tensors[name], tensor)


def test_an_order_can_be_packed_for_a_worker_s_process_whatever_a_guard_gave_as_evidence() -> None:
    odd = {"share": np.float32(0.5), "count": 3, "a lock": threading.Lock(), "a call": lambda: 1}
    found = Finding("text.salad", "a", Severity.ERROR, 3, 1, "salad", evidence=MappingProxyType(odd))  # type: ignore[arg-type]
    for order in (CaptureOrder("inc-1", (found,)), CaptureOrder(None, (), counted_as=found)):
        assert ForkingPickler.dumps(order)
        assert order.trigger[0].evidence == {"share": 0.5, "count": 3}
    assert ForkingPickler.dumps(Finding("drift", "a", Severity.INFO, 0, 0, "drift")), "nor does evidence by default"
