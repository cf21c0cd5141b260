"""Repetition that healthy models write on purpose must pass; loops of broken ones must not."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from checkengine.detectors import RepetitionReading, RepetitionStreams, Vocabulary
from checkengine.detectors.repetition import readings, token_units
from checkengine.guards.finding import Severity
from checkengine.guards.settings import RepetitionSettings
from checkengine.guards.text import TextStart
from checkengine.guards.text_repetition import TextRepetitionGuard

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
    "a song": "Down by the river where the willows grow\nI met a stranger with a lantern low\n"
    + "Sing away, sing away, the night is long\n" * 2
    + "He told me stories of the ships he knew\nAnd how the harbour lights were always blue\n"
    + "Sing away, sing away, the night is long\n" * 2,
    "a litany": "".join(
        f"{name}, pray for us.\n"
        for name in ("Mary", "Joseph", "Michael", "Gabriel", "Peter", "Paul", "Andrew", "James", "John", "Thomas")
    ),
    "metre notation": "\n".join(["مستفعلن فاعلن مستفعلن فاعلن"] * 3),
    "a tally": "||||| ||||| ||||| ||||| |||",
    "translations": "".join(
        f"{a} - {b} - {c}\n"
        for a, b, c in (
            ("one", "uno", "un"),
            ("two", "dos", "deux"),
            ("three", "tres", "trois"),
            ("four", "cuatro", "quatre"),
        )
    ),
    "ascii art": "  /\\_/\\\n ( o.o )\n  > ^ <\n" + "*" * 40 + "\n" + "=" * 40 + "\n",
    "a protein": "".join(DRAW.choice("ACDEFGHIKLMNPQRSTVWY") for _ in range(300)),
    "base64": "".join(
        DRAW.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") for _ in range(500)
    ),
    "csv": "id,name,price\n" + "".join(f"{i},item {digits(4)},{DRAW.randrange(9999) / 100}\n" for i in range(30)),
    "minified script": "".join(f"function {digits(2)}(a,b){{return a+b*{i}}};var {digits(3)}={i};" for i in range(12)),
    "generated tests": "".join(f"def test_{digits(5)}():\n    assert compute({i}) == {i * i}\n\n" for i in range(15)),
    "a multiple choice question": "1. What is diffusion in a liquid or a gas?\n"
    + "a) The ability of a particle to spread in the form of a wave and a current\n"
    + "b) The ability of a particle to spread in the form of a current only\n"
    + "c) The ability of a particle to spread in the form of a wave only\n"
    + "d) The ability of a particle to spread in the form of several particles\n",
    "directions": "First walk five miles to the south, which takes you to a point south of the start.\n"
    + "Then walk five miles to the east, which takes you to a point east of the first one.\n"
    + "Then walk five miles to the north, which takes you back to the height of the start.\n",
    "verse with a returning line": "The dog runs out and barks\nThe cat climbs up the wall\nThe mouse sits far\n"
    + "The dog runs out and barks\nThe bird sees none at all\n",
    "a form": "".join(
        f"{field}: ____________________\n"
        for field in ("Name", "Street", "City", "Country", "Phone", "Date of birth", "Signature")
    ),
    "a chat template": "".join(
        f"<|im_start|>{role}\n{text}<|im_end|>\n"
        for role, text in (
            ("system", "You are helpful."),
            ("user", "What is rain?"),
            ("assistant", "Water that falls."),
            ("user", "And snow?"),
            ("assistant", "Frozen water."),
        )
    ),
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
    return tokenizer, token_units(Vocabulary.from_tokenizer(tokenizer).pieces)


def told(demo, text: str) -> list[RepetitionReading]:
    tokenizer, units = demo
    return read(units[tokenizer(text)["input_ids"]])


def read(units) -> list[RepetitionReading]:
    streams = RepetitionStreams()
    events = streams.push(np.array([streams.open()]), np.array([len(units)]), units)
    return [reading for reading in readings(events) if reading.rule != "recovered"]


def told_in_text(text: str):
    guard = TextRepetitionGuard(TextStart("a"), RepetitionSettings())
    return [finding for finding in [*guard.push(text), *guard.end()] if finding.severity > Severity.INFO]


@pytest.mark.parametrize("name", HEALTHY)
def test_legitimate_repetition_passes(demo, name):
    assert told(demo, HEALTHY[name]) == []


@pytest.mark.parametrize("name", HEALTHY)
def test_legitimate_repetition_passes_as_text(name):
    assert told_in_text(HEALTHY[name]) == []


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_found(demo, name):
    assert told(demo, LOOPS[name])


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_found_in_text(name):
    assert told_in_text(LOOPS[name])


@pytest.mark.parametrize("name", ["a code block", "a table"])
def test_a_loop_is_found_inside_code_and_tables_too(demo, name):
    unit = {
        "a code block": "    if value is None:\n        return default\n    result = compute(value)\n",
        "a table": "| north | open | the door is closed |\n",
    }[name]
    assert told(demo, "```python\n" + unit * 12)
    assert told_in_text("```python\n" + unit * 12)


def test_the_sources_of_the_standard_library_are_never_stopped(demo):
    """Code repeats itself for good reasons; a rule that finds cycles everywhere in it is no use."""
    tokenizer, units = demo
    chunks = warned = 0
    for name in ("argparse.py", "ast.py", "calendar.py", "datetime.py", "html/entities.py", "token.py", "stat.py"):
        ids = tokenizer((Path(os.__file__).parent / name).read_text()[:60_000])["input_ids"]
        for first in range(0, len(ids), 500):
            found = read(units[ids[first : first + 500]])
            chunks += 1
            warned += bool(found)
            assert not any(reading.stop for reading in found)
    assert chunks > 100
    assert warned <= 6
