"""Clean generations of the demo model: how often do the guards find something where nothing was planted?

The model does go round in circles by itself now and then. A loop counts as genuine where 256 further tokens, unguarded
and from the step of the finding on, repeat more than half of their 4-grams; it is then the true finding that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkengine.assemble import embed
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.prompts import MOST_TOKENS, QUESTIONS, TEMPERATURES
from checkengine.config import Settings
from checkengine.detectors import seq_rep_n
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.events import Event, FindingRaised
from checkengine.guards.finding import Finding
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings

MODEL = "smollm2-135m"
FURTHER = 256
GENUINE = 0.5
WANTED = 200


@dataclass(slots=True)
class Generation:
    question: int
    sampling: SamplingParameters
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """The step of each token."""

    @property
    def name(self) -> str:
        return f"{self.question}@{self.sampling.temperature}"

    def until(self, step: int) -> list[int]:
        """Prompt and output up to that step's token."""
        return self.prompt + [token for token, made in zip(self.tokens, self.steps, strict=True) if made <= step]


def clean_figures(path: Path | None = None, *, questions: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """All prompts at all temperatures, about a minute; `questions` are positions in QUESTIONS."""
    model, tokenizer = load_model(path or model_directory(MODEL))
    chosen = range(len(QUESTIONS)) if questions is None else questions
    generations = [generation(tokenizer, number, t) for t in TEMPERATURES for number in chosen]
    findings = guarded(model, tokenizer, generations)
    loops, others = genuine_loops(model, tokenizer, generations, findings)
    wanted = min(WANTED, len(generations))
    return [
        figure("clean.generations", len(generations), "generations", wanted, at_least=True),
        figure(
            "clean.tokens", sum(len(each.tokens) for each in generations), "tokens", len(generations), at_least=True
        ),
        {**figure("clean.false_findings", len(others), "findings", 0), "which": others},
        {**figure("clean.genuine_loops", len(loops), "true findings", len(generations)), "which": loops},
    ]


def generation(tokenizer: Any, number: int, temperature: float) -> Generation:
    chat = [{"role": "user", "content": QUESTIONS[number]}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    return Generation(number, SamplingParameters(temperature=temperature, seed=number, max_tokens=MOST_TOKENS), prompt)


def guarded(model: Any, tokenizer: Any, generations: Sequence[Generation]) -> list[Finding]:
    """Fills the generations; returns everything that the guards found."""
    heard: list[Event] = []
    engine, shim = embed(model, tokenizer, settings())
    assert shim is not None
    shim.assembly.bus.subscribe_sync(heard.append, name="clean")
    by_name = {each.name: each for each in generations}
    for each in generations:
        engine.submit(GenerationRequest(each.name, each.prompt, each.sampling))
    while engine.has_work:
        step = engine.steps
        for output in engine.step():
            by_name[output.name].tokens += output.tokens
            by_name[output.name].steps += [step] * len(output.tokens)
    shim.close()
    return [event.finding for event in heard if isinstance(event, FindingRaised)]


def genuine_loops(
    model: Any, tokenizer: Any, generations: Sequence[Generation], findings: Sequence[Finding]
) -> tuple[list[str], list[str]]:
    """Genuine loops and all other findings, as "kind of question@temperature"; a sequence loops once."""
    by_name = {each.name: each for each in generations}
    suspects = {f.sequence: f for f in findings if f.kind == "repetition.loop"}
    further = go_on(model, tokenizer, [(by_name[name], finding) for name, finding in suspects.items()])
    loops = [name for name, tokens in further.items() if seq_rep_n(tokens, 4) > GENUINE]
    others = [f"{f.kind} of {f.sequence}" for f in findings if f.kind != "repetition.loop" or f.sequence not in loops]
    return [f"repetition.loop of {name}" for name in loops], others


def go_on(model: Any, tokenizer: Any, suspects: Sequence[tuple[Generation, Finding]]) -> dict[str, list[int]]:
    """What follows each finding on a bare engine, at most FURTHER tokens; an end token ends it."""
    engine, _ = embed(model, tokenizer, settings(), watched=False)
    further: dict[str, list[int]] = {each.name: [] for each, _ in suspects}
    for each, finding in suspects:
        sampling = each.sampling.model_copy(update={"max_tokens": FURTHER})
        engine.submit(GenerationRequest(each.name, each.until(finding.step), sampling))
    while engine.has_work:
        for output in engine.step():
            further[output.name] += output.tokens
    return further


def settings() -> Settings:
    return Settings(
        engine=EngineSettings(maximum_sequences=32),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
