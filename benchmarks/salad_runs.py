"""Word salad and healthy answers that the demo model writes here: generated once, kept in the user's cache.

Each class is a way to break one model. A run is a prompt, the tokens that followed, and what the logits told of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.engine_shim.models import model_cache, model_directory

MODEL = "smollm2-135m"
VERSION = 1
"""Of what the classes mean: runs of another version are made anew."""
COUNT, QUICK_COUNT = 128, 20
TOKENS = 72
ROWS = 32
CLASSES: dict[str, tuple[str, float, float]] = {
    "garbage slot, scale 2": ("over_read", 2.0, 0.7),
    "garbage slot, scale 5": ("over_read", 5.0, 0.7),
    "garbage slot, scale 10": ("over_read", 10.0, 0.7),
    "garbage slot, scale 20": ("over_read", 20.0, 0.7),
    "garbage slot, scale 5, greedy": ("over_read", 5.0, 0.0),
    "shuffled blocks": ("shuffled", 0.0, 0.7),
    "temperature 3": ("", 0.0, 3.0),
    "healthy": ("", 0.0, 0.7),
    "healthy, temperature 1": ("", 0.0, 1.0),
    "healthy, greedy": ("", 0.0, 0.0),
}
"""Fault, the garbage's standard deviation, temperature."""
HEALTHY = tuple(name for name in CLASSES if name.startswith("healthy"))


@dataclass(frozen=True, slots=True)
class SaladRun:
    """`first` is the output index of the first token that the fault could change; the lists are as long as `tokens`."""

    prompt_tokens: list[int]
    tokens: list[int]
    first: int
    entropy: list[float]
    margin: list[float]


class ShuffledBlocks(Fault):
    """In each layer every row reads blocks of its neighbours in place of its own, in another order each time."""

    name: ClassVar[str] = "shuffled_blocks"
    models: ClassVar[str] = "block tables mixed up between requests and layers"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        decoding = np.flatnonzero(query_lengths == 1)
        owned = tables[decoding]
        blocks = owned[owned >= 0]
        if len(decoding) < 2 or not len(blocks):
            return tables, lengths
        mixed = owned.copy()
        mixed[owned >= 0] = np.random.default_rng(layer).permutation(blocks)
        changed = tables.copy()
        changed[decoding] = mixed
        return changed, lengths


def runs_of(name: str, count: int, *, seed: int = 1) -> list[SaladRun]:
    """`count` runs of a class, from the cache as far as it has them; the rest are generated and kept (minutes).

    Raises KeyError for a class that is not in `CLASSES`, ModelError where the demo model is not here.
    """
    path = _path(name, seed)
    known = _read(path)
    if len(known) < count:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as lines:
            for run in _generate(name, len(known), count, seed):
                lines.write(json.dumps(asdict(run)) + "\n")
                known.append(run)
    return known[:count]


def cached_runs(name: str, *, seed: int = 1) -> list[SaladRun]:
    """What the cache has of a class; nothing is generated."""
    return _read(_path(name, seed))


def _path(name: str, seed: int) -> Path:
    plain = "".join(letter if letter.isalnum() else "-" for letter in name)
    return model_cache().parent / "bench" / "salad" / f"{MODEL}-v{VERSION}-{plain}-{seed}.jsonl"


def _read(path: Path) -> list[SaladRun]:
    if not path.is_file():
        return []
    whole = (line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n"))
    return [SaladRun(**json.loads(line)) for line in whole]


def _generate(name: str, first: int, count: int, seed: int) -> Iterator[SaladRun]:
    from checkengine.engine_shim.engine.load import load_model

    print(f"generating {count - first} runs of {name!r}", file=sys.stderr)
    model, tokenizer = load_model(model_directory(MODEL))
    for begin in range(first, count, ROWS):
        numbers = range(begin, min(begin + ROWS, count))
        yield from _batch(model, tokenizer, name, numbers, seed)


def _batch(model: Any, tokenizer: Any, name: str, numbers: Sequence[int], seed: int) -> Iterator[SaladRun]:
    from checkengine.engine_shim.engine.engine import Engine
    from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
    from checkengine.engine_shim.faults import OverRead
    from checkengine.engine_shim.settings import EngineSettings

    fault, scale, temperature = CLASSES[name]
    planted: dict[str, list[Fault]] = {"over_read": [OverRead()], "shuffled": [ShuffledBlocks()]}
    faults = planted.get(fault, [])
    watch = _Watch()
    settings = EngineSettings(maximum_sequences=ROWS, blocks=16 * ROWS, block_size=16, threads=2, prefix_cache=False)
    engine = Engine(model, tokenizer, settings, shim=watch, faults=faults)
    if fault == "over_read":
        engine.memory.fill_garbage(kind="recycled", scale=scale, seed=1000 * seed + numbers[0])
    prompts = {}
    for number in numbers:
        chat = [{"role": "user", "content": QUESTIONS[(number * 37 + seed) % len(QUESTIONS)]}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        sampling = SamplingParameters(max_tokens=TOKENS, seed=1000 * seed + number)
        sampling = sampling.model_copy(update={"temperature": temperature})
        prompts[number] = prompt
        engine.submit(GenerationRequest(str(number), prompt, sampling))
    while engine.has_work:
        engine.step()
    for number in numbers:
        tokens, entropy, margin = zip(*watch.seen[str(number)], strict=True)
        yield SaladRun(prompts[number], list(tokens), 1 if faults else 0, list(entropy), list(margin))


class _Watch:
    """In the shim's place: keeps every row's token with the entropy and margin of its logits."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[int, float, float]]] = {}
        self._names: dict[int, str] = {}
        self._handles: NDArray[np.int32] = np.empty(0, np.int32)

    def step(self, record: Any) -> Any:
        from contextlib import nullcontext

        self._names |= {start.handle: start.name for start in record.begun}
        self._handles = record.sampling_handles
        return nullcontext(self)

    def logits(self, logits: torch.Tensor) -> None:
        from checkengine.detectors import row_stats

        stats = row_stats(logits, "full")
        assert stats.entropy is not None
        assert stats.margin is not None
        self._rows = list(zip(stats.entropy.tolist(), stats.margin.tolist(), strict=True))

    def tokens(self, tokens: NDArray[np.int32]) -> tuple[()]:
        for handle, token, (entropy, margin) in zip(self._handles, tokens.tolist(), self._rows, strict=True):
            kept = (token, round(entropy, 3), round(margin, 3))
            self.seen.setdefault(self._names[int(handle)], []).append(kept)
        return ()


def main() -> None:
    """Fill the cache: `python -m checkengine.benchmarks.salad_runs [COUNT]`."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    for name in CLASSES:
        runs_of(name, count)


if __name__ == "__main__":
    main()
