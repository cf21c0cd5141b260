"""Healthy text and word salad for the tables of `detectors/transitions`: read from outside, never kept here."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

CHARACTERS, TOKENS, PROMPT = 2600, 512, 64
"""Of a file's slice; of any slice; of a file's slice that stands for its prompt, since nobody starts in mid file."""
PER_KIND = 900
PROSE = ("language", "agent", "model")


@dataclass(frozen=True, slots=True)
class Text:
    kind: str
    training: bool
    tokens: list[int]
    prompt: int = 0
    """Leading tokens that count as prompt."""


@dataclass(frozen=True, slots=True)
class Run:
    """A generation in which one KV slot too many is read from output token `first` on."""

    prompt_tokens: list[int]
    tokens: list[int]
    first: int
    scale: float
    """Standard deviation of what that slot holds."""


Raw = tuple[str, bool, str]


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """One run a line of JSON; those that ended before three corrupted tokens are left out."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    runs = [Run(*(line[name] for name in ("prompt_tokens", "tokens", "first", "scale"))) for line in lines]
    return [run for run in runs if len(run.tokens) > run.first + 2]


def healthy_texts(data: Path, folders: Sequence[Path], tokenizer: Any) -> list[Text]:
    """Completions and agents' messages of the data folder, a slice of each file (at most 900 of a suffix), and shapes
    made of the training half: minified code, lists of words. Halves are parted by prompt and by folder."""
    found = [*_completions(data), *_agents(data), *_files(folders)]
    found += _shapes([text for kind, training, text in found if training and not kind.startswith(PROSE)])
    encoded = tokenizer([text for _, _, text in found], add_special_tokens=False)["input_ids"]
    return [
        Text(kind, training, ids[:TOKENS], 0 if kind.startswith(PROSE) else min(PROMPT, len(ids) - 1))
        for (kind, training, _), ids in zip(found, encoded, strict=True)
        if len(ids) > 1
    ]


def _completions(data: Path) -> Iterator[Raw]:
    with gzip.open(data / "language_confusion.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if isinstance(row["completion"], str) and len(row["completion"]) > 20:
                training = _training(f"{row['id']}{row['source']}")
                yield f"language {row['language']}", training, row["completion"][: 2 * CHARACTERS]


def _agents(data: Path) -> Iterator[Raw]:
    with gzip.open(data / "tau_bench_airline.json.gz", "rt", encoding="utf-8") as file:
        trials = json.load(file)
    for number, trial in enumerate(trials):
        for message in trial["traj"]:
            text = (message.get("content") or "") + json.dumps(message.get("tool_calls") or "")
            if message["role"] in ("assistant", "tool"):
                yield f"agent {message['role']}", _training(f"agent{number}"), text[: 2 * CHARACTERS]


def _files(folders: Sequence[Path]) -> Iterator[Raw]:
    by_suffix: dict[str, list[Path]] = {}
    for folder in folders:
        for path in folder.rglob("*.*"):
            by_suffix.setdefault(path.suffix.lower(), []).append(path)
    draw = random.Random(0)
    for suffix, paths in sorted(by_suffix.items()):
        paths.sort()
        draw.shuffle(paths)
        kept = 0
        for path in paths[: 3 * PER_KIND]:
            text = _text_of(path)
            if len(text) > 600 and kept < PER_KIND:
                kept += 1
                begin = draw.randrange(max(1, len(text) - CHARACTERS))
                yield f"file {suffix}", _training(str(path.parent)), text[begin : begin + CHARACTERS]


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(400_000)
    except (OSError, UnicodeDecodeError):
        return ""


def _shapes(code: Sequence[str]) -> Iterator[Raw]:
    draw = random.Random(1)
    code = draw.sample(list(code), min(3000, len(code)))
    for text in code[:750]:
        tight = re.sub(r"\s+", " ", re.sub(r"\s*([^\w\s])\s*", r"\1", text))
        if draw.random() < 0.4:
            tight = re.sub(r"\b[a-z]\w+\b", lambda word: draw.choice((word[0], word[0], word[0][0])), tight)
        yield "minified", True, tight
    for first in range(0, len(code) - 5, 6):
        words = sorted(set(re.findall(r"[A-Za-z_]\w{2,}", " ".join(code[first : first + 6]))))
        yield "words", True, draw.choice((" ", ", ", "|", "\n", '", "', ",")).join(words).lower()


def _training(key: str) -> bool:
    return md5(key.encode(), usedforsecurity=False).digest()[0] < 128
