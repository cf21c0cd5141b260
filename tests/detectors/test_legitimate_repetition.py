"""Repetition that healthy models write on purpose must pass; loops of broken ones must not."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from checkengine.detectors import CycleDetector, Vocabulary

MODEL = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "checkengine/models/smollm2-135m"
pytestmark = pytest.mark.skipif(not (MODEL / "tokenizer.json").exists(), reason="the demo model is not here")

DRAW = random.Random(3)


def digits(n: int) -> str:
    return "".join(DRAW.choice("0123456789abcdef") for _ in range(n))


HEALTHY = {
    "table rules": "| name | value | unit |\n" + "|------|-------|------|\n" + "| a | 1 | s |\n| b | 2 | m |\n",
    "a wide table rule": "|" + "---|" * 20 + "\n" + "|" + " a |" * 12,
    "a twelve row table": "| id | square | cube |\n|---|---|---|\n"
    + "".join(f"| {i} | {i * i} | {i**3} |\n" for i in range(12)),
    "dividers": ("=" * 80 + "\nSection\n" + "-" * 80 + "\n") * 2,
    "box drawing": "┌" + "─" * 60 + "┐\n│" + " " * 60 + "│\n└" + "─" * 60 + "┘\n",
    "ellipses and blanks": "Well" + "." * 60 + "\n" * 30 + " " * 100 + "then . . . . . . . . . . . .",
    "zero filled numbers": "0x" + "0" * 64 + " 000000000000001 1000000000000000000000000000000",
    "a bitmap": "\n".join("".join(DRAW.choice("01") for _ in range(16)) for _ in range(16)),
    "json objects": "[" + ", ".join(f'{{"id": {i}, "name": "user{i}", "ok": true}}' for i in range(30)) + "]",
    "inserts": "".join(f"INSERT INTO t (id, v) VALUES ({i}, '{digits(6)}');\n" for i in range(20)),
    "hex and uuids": "\n".join(f"{digits(8)}-{digits(4)}-{digits(4)}-{digits(12)}" for _ in range(15)),
    "imports": "".join(f"from package.module{i} import Class{i}\n" for i in range(20)),
    "switch arms": "".join(f"    case {i}:\n        return handle_{i}(value);\n" for i in range(20)),
    "a matrix": "[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]",
    "logs": "".join(f"2024-05-01T12:{i:02d}:00 INFO worker-{i % 4} finished job {1000 + i}\n" for i in range(20)),
    "a refrain": "We will rock you\n" * 2 + "Buddy you're a boy make a big noise\n" + "We will, we will rock you\n" * 2,
    "counting": ", ".join(str(i) for i in range(1, 101)),
    "a multiplication table": "".join(f"7 x {i} = {7 * i}\n" for i in range(1, 21)),
    "unit conversions": "".join(f"{i} km = {i * 0.6214:.4f} miles\n" for i in range(1, 16)),
    "dna": "".join(DRAW.choice("ACGT") for _ in range(300)),
    "graph edges": "".join(f"A{i} --> B{i}\n" for i in range(20)),
    "a latex matrix": r"\begin{pmatrix} a & b & c \\ d & e & f \\ g & h & i \end{pmatrix} " * 2,
    "a diff": "".join(f"-    old_{i} = {i}\n+    new_{i} = {i + 1}\n" for i in range(12)),
    "parallel tool calls": "".join(
        f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{c}"}}}}\n</tool_call>\n'
        for c in ("Paris", "Rome", "Berlin", "Oslo", "Madrid", "Vienna")
    ),
    "a checklist": "".join(f"- [ ] step {i}\n" for i in range(1, 25)),
    "a laugh": "ha" * 12 + " no no no no no " + "very " * 6,
}

LOOPS = {
    "one word": "I think that the" + " the" * 80,
    "exclamation marks": "Yes" + "!" * 1200,
    "a sentence": "It is a good idea to start. " + "I am sorry, I cannot answer that question. " * 8,
    "a block of lines": "Here:\n" + "1. Open the file.\n2. Read a line.\n3. Close it.\n4. Think about it again.\n" * 6,
    "a tool call": '<tool_call>\n{"name": "search", "arguments": {"query": "weather"}}\n</tool_call>\n' * 5,
    "closing tags": "<div>" + "</div>\n" * 60,
    "two words": "word " + "again and " * 40,
}


@pytest.fixture(scope="module")
def demo():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)


def cycles(demo, text: str):
    tokenizer, vocabulary = demo
    detector = CycleDetector(words=vocabulary.words)
    return [reading for token in tokenizer(text)["input_ids"] if (reading := detector.push(token)) is not None]


@pytest.mark.parametrize("name", HEALTHY)
def test_legitimate_repetition_passes(demo, name):
    assert cycles(demo, HEALTHY[name]) == []


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_found(demo, name):
    assert cycles(demo, LOOPS[name])


def test_the_sources_of_the_standard_library_hold_few_cycles(demo):
    """Code repeats itself for good reasons; a rule that finds cycles everywhere in it is no use."""
    tokenizer, vocabulary = demo
    chunks = found = 0
    for name in ("argparse.py", "ast.py", "calendar.py", "datetime.py", "html/entities.py", "token.py", "stat.py"):
        ids = tokenizer((Path(os.__file__).parent / name).read_text()[:60_000])["input_ids"]
        for first in range(0, len(ids), 500):
            detector = CycleDetector(words=vocabulary.words)
            chunks += 1
            found += any(detector.push(token) is not None for token in ids[first : first + 500])
    assert chunks > 100
    assert found <= 2
