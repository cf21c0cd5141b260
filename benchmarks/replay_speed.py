"""How long a person waits for a verdict, a bundle and a report."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from checkengine.assemble import embed
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.recorder import BATCH, MICROSECONDS_A_STEP, STEPS, decode_step, fastest_batch
from checkengine.config import Settings
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import OverRead
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.settings import LogitsSettings
from checkengine.guards.step import SequenceStart
from checkengine.replay.bundle import BundleReader, append_result, write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import Investigation, investigate
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.memory import MemoryImage
from checkengine.replay.minimise.convict import convict
from checkengine.replay.minimise.investigate_call import investigate_call
from checkengine.replay.minimise.minimise import minimise
from checkengine.replay.minimise.reproducer import write_reproducer
from checkengine.replay.record import BlockTables
from checkengine.replay.recorder import Recorder
from checkengine.replay.report import facts_of_bundle, newest_result, render, result_json
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings
from checkengine.replay.windows import build_window
from checkengine.tiny import tiny_model, tiny_tokenizer

T = TypeVar("T")
MODEL = "smollm2-135m"
SEQUENCES, PROMPT, SHORTEST = 16, 96, 100
ROWS, CONTEXT, BLOCK_SIZE, WINDOW = 64, 4096, 32, 64


def speed_figures(path: Path | None = None, *, demo: bool = True) -> list[dict[str, Any]]:
    """A minute; with `demo` a captured step of the demo model too."""
    with tempfile.TemporaryDirectory(prefix="checkengine-") as folder, own_state(folder):
        figures = [*reproducer_figures(Path(folder)), metadata_figure(Path(folder)), recorder_figure()]
        return [*figures, *(step_figures(path) if demo else [])]


@contextmanager
def own_state(folder: str) -> Iterator[None]:
    """Keys and the access log of this run only."""
    before = os.environ.get("CHECKENGINE_STATE")
    os.environ["CHECKENGINE_STATE"] = str(Path(folder) / "state")
    try:
        yield
    finally:
        os.environ.pop("CHECKENGINE_STATE")
        os.environ.update({} if before is None else {"CHECKENGINE_STATE": before})


def timed(call: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def reproducer_figures(folder: Path) -> list[dict[str, Any]]:
    """A reproducer of a planted over-read judged in this process and in a fresh one, and the report of its parent."""
    model = tiny_model()
    capture, executor = struck(model, tiny_tokenizer(), block_size=8, rows=4, prompt=20, shortest=24)
    found = investigate(capture, executor, None)
    bundle = write_bundle(capture, folder, content="full")
    append_result(bundle, result_json(found))
    verdict = convict(capture, executor)
    shrunk = minimise(capture, executor, verdict)
    small = write_reproducer(shrunk, capture, executor, folder, content_free=True, parent=bundle)
    judged, warm = timed(lambda: investigate_call(BundleReader(small)))
    command = [sys.executable, "-m", "checkengine", "replay", str(small), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done, cold = timed(lambda: subprocess.run(command, capture_output=True, check=False))
    processor = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    right = judged.verdict is not None and judged.verdict.kind is VerdictKind.CODE_DEFECT and done.returncode == 1
    return [
        figure("reproducer.judged", int(right), "of 1", 1, at_least=True),
        figure("reproducer.warm", warm, "s", 5.0),
        figure("reproducer.cold", cold, "s", 15.0, peer=("of the processor", processor)),
        *report_figures(bundle, found),
    ]


def report_figures(bundle: Path, found: Investigation) -> list[dict[str, Any]]:
    def build() -> str:
        return render(facts_of_bundle(BundleReader(bundle, "report"), newest_result(bundle)))

    html, seconds = timed(build)
    return [
        figure("report.build", seconds, "s", 2.0, peer=("judging it", found.seconds)),
        figure("report.size", len(html.encode()) / 2**20, "MiB", 2.0),
    ]


def struck(
    model: Any, tokenizer: Any, *, block_size: int, rows: int, prompt: int, shortest: int
) -> tuple[Capture, EmbeddedExecutor]:
    """One decode step of an engine whose kernel reads one slot too many, with every row in it."""
    fault = OverRead(minimum_length=shortest, block_size=block_size)
    engine, shim = embed(model, tokenizer, settings(block_size, rows), [fault])
    assert shim is not None
    assert shim.assembly.recorder is not None
    recorder: Recorder = shim.assembly.recorder
    taken: list[Capture] = []

    class Once:
        def step_done(self, record: Any, findings: Any, actions: Any) -> None:
            ends = record.starts + record.query_lengths
            if not taken and len(ends) == rows and (record.query_lengths == 1).all() and (ends >= shortest).all():
                handles = record.handles.tolist()
                name = recorder.live()[handles[0]].name
                finding = Finding("language.switch", name, Severity.WARNING, record.step, 1, "benchmark")
                found = take_capture(engine, recorder, handles, first_step=record.step, findings=(finding,))
                taken.append(found)

    shim.parts.listeners.append(Once())
    random = np.random.default_rng(1)
    for number in range(rows):
        tokens = random.integers(3, 150, prompt).tolist()
        sampling = SamplingParameters(temperature=0.0, max_tokens=64, ignore_eos=True)
        engine.submit(GenerationRequest(f"r{number}", tokens, sampling))
    while engine.has_work and not taken:
        engine.step()
    shim.close()
    return replace(taken[0], time=time.time()), EmbeddedExecutor.over(model, engine.environment())


def settings(block_size: int, rows: int) -> Settings:
    return Settings(
        engine=EngineSettings(
            block_size=block_size, blocks=16 * rows, tokens_per_step=512, maximum_sequences=rows, threads=1
        ),
        logits=LogitsSettings(level="full"),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )


def step_figures(path: Path | None) -> list[dict[str, Any]]:
    """On one thread: a step of 16 sequences of the demo model, judged and localised."""
    model, tokenizer = load_model(path or model_directory(MODEL))
    capture, executor = struck(model, tokenizer, block_size=32, rows=SEQUENCES, prompt=PROMPT, shortest=SHORTEST)
    step = capture.window.last_step
    verdict, seconds = timed(lambda: Judge(executor).judge(build_window(capture, first=step, last=step)))
    right = verdict.kind is VerdictKind.CODE_DEFECT and len(verdict.slots) >= 1
    return [
        figure(f"step.localised, {MODEL}", int(right), "of 1", 1, at_least=True),
        figure(f"step.judged, {MODEL}", seconds, "s", 60.0, peer=("runs", verdict.replays_used)),
    ]


def metadata_figure(folder: Path) -> dict[str, Any]:
    """64 sequences of 4,096 tokens, 64 steps, no content: on the disk for good."""
    capture = long_capture()
    copies = [replace(capture, identifier=f"{number:016x}") for number in range(3)]
    seconds = min(timed(lambda: write_bundle(copies.pop(), folder))[1] for _ in range(3))
    return figure("bundle.metadata", seconds, "s", 1.0)


def long_capture() -> Capture:
    recorder = Recorder(256, 32 << 20)
    handles = np.arange(ROWS, dtype=np.int32)
    blocks = CONTEXT // BLOCK_SIZE + 2
    tables = BlockTables(handles, np.full(ROWS, blocks, np.int32), np.arange(ROWS * blocks, dtype=np.int32))
    prompt = tuple(range(CONTEXT))
    for step in range(WINDOW):
        record = decode_step(step)
        record = replace(
            record,
            handles=handles,
            query_lengths=np.ones(ROWS, np.int32),
            starts=np.full(ROWS, CONTEXT + step, np.int32),
            samples=np.ones(ROWS, np.bool_),
            token_ids=handles + step,
            block_changes=np.empty((0, 3), np.int32),
            tables=lambda: tables,
            begun=tuple(SequenceStart(h, f"s{h}", prompt) for h in handles.tolist()) if not step else (),
        )
        recorder.begin(record)
        recorder.finish(step, np.arange(ROWS, dtype=np.uint64), handles)
    memory = MemoryImage(BLOCK_SIZE, np.empty(0, np.int32), {}, {})
    return Capture(recorder.window(), memory, frozenset(range(ROWS)), time=time.time(), level="L0")


def recorder_figure() -> dict[str, Any]:
    recorder = Recorder(STEPS)
    seconds = fastest_batch(recorder, [decode_step(step) for step in range(BATCH)], batches=8)
    return figure("recorder.step", seconds * 1e6, "µs", MICROSECONDS_A_STEP)
