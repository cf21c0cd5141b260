"""Healthy text for the tables of `detectors/salad`: read from outside, never kept here."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.corpus import hard_negatives
from checkengine.benchmarks.detectors.replies import BASE_MODELS, replies

FILES_TRAINED = 26 / 256
"""Share of the machine's files that the tables may learn from; of public replies and agents' runs it is a half."""
OF_A_KIND = 600
MORE = {"script": 5, "table": 3, "other": 3, "man": 2, "docs": 2, "c": 2, "python": 2}
"""Times as many of the kinds that are least alike in themselves."""
CHARACTERS = 5200
AGENTS = "tau_bench_airline.json.gz"
SYLLABLES = (
    *("ka", "ro", "mi", "sch", "wil", "son", "ber", "ta", "nov", "ski", "o'", "mac", "van", "der", "li", "zh", "ang"),
    *("ngu", "yen", "per", "ez", "ham", "ford", "ston", "el", "an", "us", "do", "ru"),
)


@dataclass(frozen=True, slots=True)
class Text:
    kind: str
    text: str


def trains_file(path: str) -> bool:
    return _draw(path) < FILES_TRAINED


def trains_reply(id: str, source: str) -> bool:
    return _draw(f"{id}{source}") < 0.5


def training_texts(options: DetectorOptions) -> list[Text]:
    """Chunks of files, replies in fifteen languages, agents' messages, and shapes made of these: minified code, lists
    of words and of names."""
    files = list(_files(options))
    code = [text.text for text in files if text.kind in ("python", "script", "c")]
    return [*files, *_replies(options), *_agents(options), *_shapes(code)]


def _draw(key: str) -> float:
    return md5(key.encode(errors="surrogateescape"), usedforsecurity=False).digest()[0] / 256


def _files(options: DetectorOptions) -> Iterator[Text]:
    corpus = hard_negatives(options)
    chosen = [trains_file(str(path)) for path in corpus.sources]
    order = [index for index in range(len(corpus)) if chosen[corpus.source_of[index]]]
    random.Random(0).shuffle(order)
    kept: dict[str, int] = {}
    for index in order:
        kind = corpus.kinds[corpus.source_of[index]]
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= OF_A_KIND * MORE.get(kind, 1):
            yield Text(kind, corpus.text_of(index))


def _replies(options: DetectorOptions) -> Iterator[Text]:
    kept: dict[str, int] = {}
    for reply in replies(options):
        if reply.model not in BASE_MODELS and trains_reply(reply.id, reply.source):
            kept[reply.language] = kept.get(reply.language, 0) + 1
            if kept[reply.language] <= OF_A_KIND:
                yield Text(f"language {reply.language}", reply.completion)


def _agents(options: DetectorOptions) -> Iterator[Text]:
    path = Path(options.data or "") / AGENTS
    if not path.is_file():
        print(f"{AGENTS} is not in {options.data}: agents' messages are left out (--data DIR)", file=sys.stderr)
        return
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trials = json.load(file)
    for number, trial in enumerate(trials):
        for message in trial["traj"]:
            text = (message.get("content") or "") + json.dumps(message.get("tool_calls") or "")
            if message["role"] in ("assistant", "tool") and trains_reply("agent", str(number)):
                yield Text("agent", text[:CHARACTERS])


def _shapes(code: Sequence[str]) -> Iterator[Text]:
    draw = random.Random(1)
    code = draw.sample(list(code), min(3000, len(code)))
    yield from (Text("minified", minified(text, draw)) for text in code[:700])
    for first in range(0, len(code) - 5, 4):
        words = sorted(set(re.findall(r"[A-Za-z_]\w{2,}", " ".join(code[first : first + 6]))))
        yield Text("words", _list_of(words, draw))
        parts = re.findall(r"[a-z]{3,9}", " ".join(code[first : first + 3]).lower())
        yield Text("keywords", keywords(parts or ["abc"], draw))
    yield from (Text("names", names(draw)) for _ in range(500))


def minified(code: str, draw: random.Random) -> str:
    tight = re.sub(r"\s+", " ", re.sub(r"\s*([^\w\s])\s*", r"\1", code))
    if draw.random() < 0.5:
        tight = re.sub(r"\b[a-z]\w+\b", lambda word: draw.choice((word[0], word[0], word[0][0])), tight)
    return tight


def _list_of(words: list[str], draw: random.Random) -> str:
    if draw.random() < 0.5:
        draw.shuffle(words)
    between = draw.choice((" ", ", ", "|", "\n", '", "', "',", " - ", "\n- "))
    case = draw.choice((str.lower, str.title, str, str.upper))
    return between.join(case(word) for word in words)


def keywords(parts: Sequence[str], draw: random.Random) -> str:
    """Lines of compound names behind the same head, as in syntax files."""
    head = draw.choice(("", f"syn keyword {draw.choice(parts)} ", f"{draw.choice(parts)}: ", "Builtin  ", "- ", "@"))
    between, middle = draw.choice((" ", ", ", "\t")), ("", "-", "_", ">", "?", "!", "")

    def name() -> str:
        return draw.choice(parts) + draw.choice(middle) + draw.choice(parts)

    return "\n".join(head + between.join(name() for _ in range(draw.randint(2, 7))) for _ in range(14))


def names(draw: random.Random) -> str:
    """Sixty full names of syllables."""

    def name() -> str:
        return "".join(draw.choice(SYLLABLES) for _ in range(draw.randint(2, 4))).title()

    between = draw.choice((", ", "\n", "; ", " | ", ",", "\t"))
    return between.join(f"{name()} {name()}" for _ in range(60))
