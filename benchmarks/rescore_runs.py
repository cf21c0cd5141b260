"""What the demo model writes under planted faults, and what it writes oddly by itself: made once, kept in the cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkengine.benchmarks import salad_runs
from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.engine_shim.faults import ApproximateTopK, MaskedStop, NanAttention
from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.models import model_cache, model_directory

MODEL, VERSION, TOKENS = "smollm2-135m", 1, 72
SHORT = (
    "What is the capital of {}? Answer with one word.",
    "Say hello to {} in one short sentence.",
    "Is {} a country? Answer yes or no.",
)
PLACES = ("France", "Japan", "Kenya", "Peru", "Norway", "Egypt", "Canada", "India", "Greece", "Chile", "Spain", "Ghana")
GARBLED = (
    "Réponds en français et en 日本語 mélangés: {}",
    "Пиши по-русски: {}",
    "用中文回答，然后用韩文: {}",
    "Svara på svenska blandat med suomi: {}",
    "Write a list of made-up words for: {}",
    "Antworte auf Plattdeutsch: {}",
)
LOOPS = (
    "Repeat the word {} for ever.",
    "Count from 1 and never stop, then say {}.",
    "Write the same line about {} again.",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How outputs of one class are made. `prompts`: questions, short, garbled or loops."""

    faulty: bool
    temperature: float
    top_p: float = 1.0
    prompts: str = "questions"
    fault: str = ""
    ignore_eos: bool = False


KINDS: dict[str, Kind] = {
    "stop masked, greedy": Kind(True, 0.0, prompts="short", fault="masked_stop"),
    "stop masked, nucleus": Kind(True, 0.7, 0.9, prompts="short", fault="masked_stop"),
    "top token lost, greedy": Kind(True, 0.0, fault="top_k 0.05"),
    "top token lost, temperature 0.7": Kind(True, 0.7, fault="top_k 0.2"),
    "after NaN": Kind(True, 0.7, fault="nan"),
    "temperature 1.2": Kind(False, 1.2),
    "temperature 1.5": Kind(False, 1.5),
    "garbled languages": Kind(False, 1.0, prompts="garbled"),
    "loops, greedy": Kind(False, 0.0, prompts="loops", ignore_eos=True),
    "nucleus": Kind(False, 0.8, 0.9),
    "goes on after its end": Kind(False, 0.7, prompts="short", ignore_eos=True),
}
SALAD = {
    "salad, scale 5": ("garbage slot, scale 5", True, 0.7),
    "salad, greedy": ("garbage slot, scale 5, greedy", True, 0.0),
    "temperature 3": ("temperature 3", False, 3.0),
    "healthy": ("healthy", False, 0.7),
    "healthy, temperature 1": ("healthy, temperature 1", False, 1.0),
    "healthy, greedy": ("healthy, greedy", False, 0.0),
}
"""Classes of benchmarks/salad_runs, its runs and cache."""


@dataclass(frozen=True, slots=True)
class Run:
    prompt: list[int]
    tokens: list[int]
    temperature: float
    top_p: float


def runs_of(name: str, count: int) -> list[Run]:
    """From the cache as far as it has them; the rest are generated and kept (a quarter of a minute a class)."""
    if name in SALAD:
        kind, _, temperature = SALAD[name]
        return [Run(run.prompt_tokens, run.tokens, temperature, 1.0) for run in salad_runs.runs_of(kind, count)]
    path = model_cache().parent / "bench" / "rescore" / f"{MODEL}-v{VERSION}-{plain(name)}.jsonl"
    known = read(path)
    if len(known) < count:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = generated(name, count)
        path.write_text("".join(json.dumps(asdict(run)) + "\n" for run in known), encoding="utf-8")
    return known[:count]


def plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def read(path: Path) -> list[Run]:
    if not path.is_file():
        return []
    return [Run(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def generated(name: str, count: int) -> list[Run]:
    """Of a masked stop, those that would have ended: where the end token never came, nothing was masked."""
    print(f"generating {count} outputs of {name!r}", file=sys.stderr)
    kind = KINDS[name]
    model, tokenizer = _load()
    prompts = [prompt_of(tokenizer, kind.prompts, number) for number in range(2 * count)]
    outputs = serve(model, tokenizer, kind, prompts, faults_of(kind))
    kept = list(range(len(prompts)))
    if kind.fault == "masked_stop":
        healthy = serve(model, tokenizer, kind, prompts, [])
        kept = [number for number in kept if len(healthy[number]) < len(outputs[number])]
    elif kind.fault:
        healthy = serve(model, tokenizer, kind, prompts, [])
        kept = [number for number in kept if healthy[number] != outputs[number]]
    return [Run(prompts[number], outputs[number], kind.temperature, kind.top_p) for number in kept][:count]


def _load() -> tuple[Any, Any]:
    from checkengine.engine_shim.engine.load import load_model

    if not _loaded:
        _loaded.append(load_model(model_directory(MODEL)))
    return _loaded[0]


_loaded: list[tuple[Any, Any]] = []


def faults_of(kind: Kind) -> list[Fault]:
    name, _, rate = kind.fault.partition(" ")
    if name == "masked_stop":
        return [MaskedStop(())]
    if name == "top_k":
        return [ApproximateTopK(rate=float(rate))]
    return [NanAttention(modulus=32, remainder=1, layer=12)] if name == "nan" else []


def prompt_of(tokenizer: Any, prompts: str, number: int) -> list[int]:
    question, place = QUESTIONS[(37 * number + 5) % len(QUESTIONS)], PLACES[number % len(PLACES)]
    texts = {"short": SHORT, "garbled": GARBLED, "loops": LOOPS}.get(prompts, ("{}",))
    text = texts[number % len(texts)].format(place if prompts in ("short", "loops") else question)
    chat = [{"role": "user", "content": text}]
    found: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    return found


def serve(
    model: Any, tokenizer: Any, kind: Kind, prompts: Sequence[list[int]], faults: Sequence[Fault]
) -> list[list[int]]:
    """Output tokens of each prompt, end token included."""
    from checkengine.engine_shim.engine.engine import Engine
    from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
    from checkengine.engine_shim.settings import EngineSettings

    engine = Engine(model, tokenizer, EngineSettings(maximum_sequences=len(prompts), threads=2), faults=faults)
    for number, prompt in enumerate(prompts):
        sampling = SamplingParameters(
            temperature=kind.temperature,
            top_p=kind.top_p,
            seed=1000 + number,
            max_tokens=TOKENS,
            ignore_eos=kind.ignore_eos,
        )
        engine.submit(GenerationRequest(str(number), list(prompt), sampling))
    outputs: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.name, []).extend(output.tokens)
    return [outputs.get(str(number), []) for number in range(len(prompts))]
