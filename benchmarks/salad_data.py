"""Healthy text for the tables of `detectors/salad`: read from outside, never kept here."""

from __future__ import annotations

import gettext
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
from checkengine.benchmarks.detectors.corpus import Corpus
from checkengine.benchmarks.detectors.replies import BASE_MODELS, replies

KINDS_SHARE, SEEN_SHARE = 0.12, 0.48
"""Of the machine's files (by name): kinds of text are learned from the first share, neighbours from those up to the
second. Figures are measured on the rest. Public replies and agents' runs: a sixth, up to a half, the rest."""
OF_A_KIND = 600
MORE = {"script": 8, "table": 4, "other": 6, "man": 2, "docs": 4, "c": 2, "python": 2}
"""Times as many of the kinds that are least alike in themselves."""
CHARACTERS = 5200
AGENTS = "tau_bench_airline.json.gz"
CATALOGUES = Path("/usr/share/locale")
OF_A_LANGUAGE = 120
"""Texts of translated messages that kinds are learned from."""
SYLLABLES = (
    *("ka", "ro", "mi", "sch", "wil", "son", "ber", "ta", "nov", "ski", "o'", "mac", "van", "der", "li", "zh", "ang"),
    *("ngu", "yen", "per", "ez", "ham", "ford", "ston", "el", "an", "us", "do", "ru"),
)


@dataclass(frozen=True, slots=True)
class Text:
    kind: str
    text: str


def share_of(key: str) -> float:
    """Where a file or reply falls between 0 and 1."""
    return int.from_bytes(md5(key.encode(errors="surrogateescape"), usedforsecurity=False).digest()[:4], "big") / 2**32


def is_held_out(path: str) -> bool:
    """Whether the tables learned nothing from this file of the machine's."""
    return share_of(path) >= SEEN_SHARE


def is_reply_held_out(id: str, source: str) -> bool:
    return share_of(f"{id}{source}") >= 0.5


def kinds_of_text(options: DetectorOptions, corpus: Corpus) -> list[Text]:
    """Chunks of files, translated messages, replies in fifteen languages and agents' messages where they are here, and
    shapes made of these: minified code, lists of words and of names."""
    files = list(_files(corpus))
    code = [text.text for text in files if text.kind in ("python", "script", "c")]
    messages = list(catalogues(0.0, KINDS_SHARE))
    replied = list(_replies(options, 0.0, 1 / 6, OF_A_KIND))
    words = [word for text in (*replied, *messages) for word in re.findall(r"[^\W\d_]{3,}", text.text)]
    return [*files, *messages, *replied, *_agents(options), *_shapes(code, words)]


def seen_texts(options: DetectorOptions, corpus: Corpus) -> Iterator[str]:
    """What neighbours are counted over."""
    chosen = [KINDS_SHARE <= share_of(str(path)) < SEEN_SHARE for path in corpus.sources]
    for index in range(len(corpus)):
        if chosen[corpus.source_of[index]]:
            yield corpus.text_of(index)
    messages = catalogues(KINDS_SHARE, SEEN_SHARE, most=1 << 30)
    yield from (text.text for text in (*messages, *_replies(options, 1 / 6, 0.5, 1 << 30)))


def running_texts(options: DetectorOptions) -> Iterator[Text]:
    """Sentences only, of all that may be learned from: what function words are counted in."""
    yield from catalogues(0.0, SEEN_SHARE, most=1 << 30)
    yield from _replies(options, 0.0, 0.5, 1 << 30)


def _files(corpus: Corpus) -> Iterator[Text]:
    chosen = [share_of(str(path)) < KINDS_SHARE for path in corpus.sources]
    order = [index for index in range(len(corpus)) if chosen[corpus.source_of[index]]]
    random.Random(0).shuffle(order)
    kept: dict[str, int] = {}
    for index in order:
        kind = corpus.kinds[corpus.source_of[index]]
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= OF_A_KIND * MORE.get(kind, 1):
            yield Text(kind, corpus.text_of(index))


def catalogues(first: float, last: float, most: int = OF_A_LANGUAGE) -> Iterator[Text]:
    """Messages of translated programs, a dozen a text: running text in about forty languages. None where the machine
    has none."""
    for folder in sorted(CATALOGUES.glob("*/LC_MESSAGES")):
        language, kept = folder.parent.name, 0
        for path in sorted(folder.glob("*.mo")):
            if not first <= share_of(path.name) < last:
                continue
            messages = _messages(path)
            for at in range(0, len(messages) - 11, 12):
                kept += 1
                if kept <= most:
                    between = " " if at % 24 else "\n"
                    yield Text(f"catalogue {language}", between.join(messages[at : at + 12]))


def _messages(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            known = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    except (OSError, UnicodeDecodeError, ValueError, LookupError):
        return []
    found = [text for key, text in sorted(known.items(), key=str) if isinstance(key, str) and key]
    return [text.replace("\n", " ").strip() for text in found if 24 <= len(text) <= 600]


def _replies(options: DetectorOptions, first: float, last: float, most: int) -> Iterator[Text]:
    kept: dict[str, int] = {}
    for reply in replies(options):
        if reply.model not in BASE_MODELS and first <= share_of(f"{reply.id}{reply.source}") < last:
            kept[reply.language] = kept.get(reply.language, 0) + 1
            if kept[reply.language] <= most:
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
            if message["role"] in ("assistant", "tool") and share_of(f"agent{number}") < 0.5:
                yield Text("agent", text[:CHARACTERS])


def _shapes(code: Sequence[str], vocabulary: Sequence[str]) -> Iterator[Text]:
    draw = random.Random(1)
    yield from (Text("words", _list_of(draw.sample(vocabulary, 80), draw)) for _ in range(600 if vocabulary else 0))
    code = draw.sample(list(code), min(3000, len(code)))
    yield from (Text("minified", minified(text, draw)) for text in code[:700])
    for first in range(0, len(code) - 5, 4):
        words = sorted(set(re.findall(r"[A-Za-z_]\w{2,}", " ".join(code[first : first + 6]))))
        yield Text("words", _list_of(words, draw))
        near = " ".join(code[first : first + 3])
        parts = re.findall(r"[A-Za-z]\w{1,14}", near) if first % 8 else re.findall(r"[a-z]{3,9}", near.lower())
        yield Text("keywords", keywords(parts or ["abc"], draw))
        yield Text("patterns", patterns(re.findall(r"[a-z]{3,9}", near.lower()) or ["abc"], draw))
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
    head = draw.choice(
        (
            "",
            f"syn keyword {draw.choice(parts)} ",
            f"syn keyword {draw.choice(parts)} contained ",
            f"{draw.choice(parts)}: ",
            "Builtin  ",
            "- ",
            "@",
        )
    )
    between, middle = draw.choice((" ", ", ", "\t")), ("", "-", "_", ">", "?", "!", "")

    single = draw.random() < 0.4

    def name() -> str:
        return draw.choice(parts) + ("" if single else draw.choice(middle) + draw.choice(parts))

    return "\n".join(head + between.join(name() for _ in range(draw.randint(2, 7))) for _ in range(14))


def patterns(words: Sequence[str], draw: random.Random) -> str:
    """Pieces of words with digits or points between their letters, as in hyphenation patterns and lists of sounds."""
    marks = draw.choice(("12345", "1234", "-", "'", ".", "·", "0123456789"))
    between = draw.choice(("\n", " ", "\n", "\t"))

    def pattern() -> str:
        part = draw.choice(words)[: draw.randint(2, 6)]
        return "".join(letter + (draw.choice(marks) if draw.random() < 0.35 else "") for letter in part)

    return between.join(pattern() for _ in range(90))


def names(draw: random.Random) -> str:
    """Sixty full names of syllables."""

    def name() -> str:
        return "".join(draw.choice(SYLLABLES) for _ in range(draw.randint(2, 4))).title()

    between = draw.choice((", ", "\n", "; ", " | ", ",", "\t"))
    return between.join(f"{name()} {name()}" for _ in range(60))
