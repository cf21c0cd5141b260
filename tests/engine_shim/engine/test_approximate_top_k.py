"""The drill of the 2025 incident: a sampler that now and then loses the best token, in the engine, under guard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import ApproximateTopK, Fault, build_faults, describe_fault
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.finding import Finding
from checkengine.guards.settings import GuardsSettings, SamplerSettings
from checkengine.replay.settings import AuditSettings, CaptureSettings, RecorderSettings, SpoolSettings

PROMPT = list(range(20, 31))


class Seen:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def step_done(self, record: Any, findings: list[Finding], actions: Any) -> None:
        self.findings += [finding for finding in findings if finding.kind == "sampler.inconsistent"]


@contextmanager
def engine_of(model: Any, tokenizer: Any, faults: Sequence[Fault], redrawn: int = 1) -> Iterator[tuple[Any, Seen]]:
    settings = Settings(
        engine=EngineSettings(blocks=128, threads=1),
        guards=GuardsSettings(sampler=SamplerSettings(redrawn_rows=redrawn)),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        recorder=RecorderSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
    engine, shim = embed(model, tokenizer, settings, faults)
    seen = Seen()
    shim.parts.listeners.append(seen)
    yield engine, seen
    shim.close()


def run(engine: Any, requests: Sequence[tuple[str, SamplingParameters]], prompt: Sequence[int] = PROMPT) -> None:
    for name, sampling in requests:
        engine.submit(GenerationRequest(name, list(prompt), sampling))
    while engine.has_work:
        engine.step()


def sampled(count: int, tokens: int, **parameters: Any) -> list[tuple[str, SamplingParameters]]:
    base = {"max_tokens": tokens, "ignore_eos": True} | parameters
    return [(f"r{number}", SamplingParameters(seed=number, **base)) for number in range(count)]


class Letters:
    """As much of a tokenizer as a vocabulary needs."""

    all_special_ids = (0, 1, 2)
    eos_token_id = None

    def get_vocab(self) -> dict[str, int]:
        return {f"w{token}": token for token in range(160)}

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return " ".join(f"w{token}" for token in tokens)


@pytest.mark.parametrize(
    "parameters", [{"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.0, "top_k": 5}, {"top_p": 0.8}]
)
def test_an_honest_engine_is_never_accused(tiny_llama: Any, parameters: dict[str, Any]) -> None:
    with engine_of(tiny_llama, Letters(), ()) as (engine, seen):
        run(engine, sampled(4, 60, **parameters))
    assert seen.findings == []


def test_requests_with_penalties_are_left_alone(tiny_llama: Any) -> None:
    with engine_of(tiny_llama, Letters(), (), redrawn=0) as (engine, seen):
        run(engine, sampled(4, 40, temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4))
    assert seen.findings == []


def test_a_lost_best_token_is_told_of_a_greedy_request_at_the_token_itself(tiny_llama: Any) -> None:
    clean: dict[str, list[int]] = {}
    with engine_of(tiny_llama, Letters(), ()) as (engine, _):
        engine.submit(GenerationRequest("r0", PROMPT, SamplingParameters(temperature=0.0, max_tokens=80)))
        clean["r0"] = [token for output in drain(engine) for token in output.tokens]
    with engine_of(tiny_llama, Letters(), [ApproximateTopK(rate=0.05)]) as (engine, seen):
        engine.submit(GenerationRequest("r0", PROMPT, SamplingParameters(temperature=0.0, max_tokens=80)))
        faulty = [token for output in drain(engine) for token in output.tokens]
    first = next(i for i, (a, b) in enumerate(zip(clean["r0"], faulty, strict=False)) if a != b)
    assert seen.findings[0].token == first


def drain(engine: Any) -> list[Any]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def test_drawing_again_tells_a_lost_token_of_a_sampled_request(tiny_llama: Any) -> None:
    with engine_of(tiny_llama, Letters(), [ApproximateTopK(rate=0.3)]) as (engine, seen):
        run(engine, sampled(1, 200, temperature=0.5))
    assert seen.findings
    assert seen.findings[0].evidence["redrawn"] is True


def test_the_fault_can_be_described_and_made_again_and_strikes_at_its_rate() -> None:
    fault = ApproximateTopK(rate=0.25, seed=3)
    (again,) = build_faults([describe_fault(fault)])
    logits = torch.tensor([0.0, 3.0, 1.0])
    struck = [tuple(fault.loses(logits, position)) for position in range(4000)]
    assert struck == [tuple(again.loses(logits, position)) for position in range(4000)]
    assert set(struck) == {(), (1,)}
    assert abs(sum(map(bool, struck)) / 4000 - 0.25) < 0.03


@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 40}])
def test_smollm2_loses_its_best_token_once_in_a_hundred_and_is_found_within_500_tokens(
    demo_model: tuple[Any, Any], parameters: dict[str, Any]
) -> None:
    model, tokenizer = demo_model
    questions = ("Explain how bread is made.", "Who was Ada Lovelace?", "Write a poem about rain.", "What is a prime?")
    with engine_of(model, tokenizer, [ApproximateTopK(rate=0.01)], redrawn=4) as (engine, seen):
        for question, (name, sampling) in zip(questions, sampled(4, 125, **parameters), strict=True):
            chat = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            engine.submit(GenerationRequest(name, list(prompt), sampling))
        while engine.has_work and not seen.findings:
            engine.step()
    assert seen.findings
