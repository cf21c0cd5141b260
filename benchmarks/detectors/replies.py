"""Public completions of ten models in fifteen languages (language_confusion.jsonl.gz): healthy and degenerate ones."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.tokenizer import encode
from checkengine.detectors import seq_rep_n

FILE = "language_confusion.jsonl.gz"
BASE_MODELS = frozenset({"command-r-base", "command-r-plus-base"})
HEALTHY_MODELS = frozenset({"command-r", "command-r-plus", "gpt-3.5-turbo", "gpt-4-turbo", "mistral-large"})
"""Healthy as for repetition; mistral-large changes its language now and then."""
DEGENERATE = 0.5
"""seq-rep-4 above which a base model's reply counts as degenerate."""


@dataclass(frozen=True, slots=True)
class Reply:
    id: str
    model: str
    completion: str
    """At most about 100 tokens of the model that wrote it: many end in mid sentence."""
    task: str
    """`monolingual` or `crosslingual` (the prompt asks for an answer in another language)."""
    source: str
    language: str
    """ISO 639-1 code of the language that was asked for."""
    prompt: str = ""


def replies(options: DetectorOptions) -> tuple[Reply, ...]:
    """All of them in the file's order, none where the file is missing (said on stderr, once)."""
    return _replies(None if options.data is None else Path(options.data))


def healthy(options: DetectorOptions) -> tuple[Reply, ...]:
    """Replies of the healthy instruct models; about 19,500 of the public share."""
    return tuple(reply for reply in replies(options) if reply.model in HEALTHY_MODELS)


def instruct(options: DetectorOptions) -> tuple[Reply, ...]:
    """Replies of all eight instruct models, those included that answer in the wrong language."""
    return tuple(reply for reply in replies(options) if reply.model not in BASE_MODELS)


def degenerate(options: DetectorOptions) -> tuple[Reply, ...]:
    """Base models' replies that repeat more than half of their 4-grams (tokens of the benchmarks' tokenizer)."""
    return _degenerate(None if options.data is None else Path(options.data))


@lru_cache(maxsize=2)
def _replies(data: Path | None) -> tuple[Reply, ...]:
    if data is None or not (data / FILE).is_file():
        print(f"{FILE} is not in {data}: figures on public replies are left out (--data DIR)", file=sys.stderr)
        return ()
    with gzip.open(data / FILE, "rt", encoding="utf-8") as lines:
        return tuple(_reply(json.loads(line)) for line in lines)


def _reply(row: dict[str, str]) -> Reply:
    names = ("id", "model", "completion", "task", "source", "language")
    told = {name: str(row[name] or "") for name in names}
    return Reply(**told, prompt=str(row.get("prompt") or ""))


@lru_cache(maxsize=2)
def _degenerate(data: Path | None) -> tuple[Reply, ...]:
    base = [reply for reply in _replies(data) if reply.model in BASE_MODELS]
    tokens = encode([reply.completion for reply in base])
    return tuple(reply for reply, ids in zip(base, tokens, strict=True) if seq_rep_n(ids.tolist(), 4) > DEGENERATE)
