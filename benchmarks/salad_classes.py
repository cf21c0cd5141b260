"""Word salad that needs no model: single-language function words, a foreign word in every other sentence; and the
vocabularies that a wheel ships."""

from __future__ import annotations

import base64
import importlib.util
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.detectors.language.scripts import Script, script_of_piece
from checkengine.detectors.vocabulary import Vocabulary

FUNCTION_WORDS = {
    "English": "the of and to in a is that for it as with on at by from or an be this have not are was which but",
    "German": "der die und in zu den das von mit sich des auf für ist im dem nicht ein eine als auch an werden aus er",
    "French": "de la le et les des en un du une que est pour qui dans a par plus au sur se ne pas il ce avec",
    "Spanish": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus",
    "Italian": "di e il la che in un a per una del non con le da i si è al della dei come più o ma gli",
    "Portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos como mas ao",
}
SENTENCES = (
    "The {} of the study was better than all of us had hoped for.",
    "It is not clear why the {} has grown so fast in the last years.",
    "After lunch the whole {} was moved to another room near the stairs.",
    "They said that this {} would be ready when the train arrives.",
    "You can see how the {} changes when the light is turned off.",
    "Every year the old {} is painted again by the people who live here.",
)
BETWEEN = (
    "We then went on to the next part of the plan without a break.",
    "Most people agree that more work is needed before the end of the year.",
    "Nobody had seen anything like that in the city for a long time.",
    "The rest of the day was quiet and all went home early.",
    "There are several ways to do this and none of them is hard.",
)
FOREIGN = {
    "of another script": (
        *("эксперимент", "результат", "дорога", "実験結果", "天気予報", "研究成果", "πείραμα", "δρόμος"),
        *("تجربة", "طريق", "ניסוי", "प्रयोग", "실험이", "도로가"),
    ),
    "of the same script": (
        *("Ergebnis", "Straße", "versuch", "résultat", "chemin", "prueba", "camino", "strada"),
        *("esperimento", "wynik", "droga", "výsledek"),
    ),
}


def function_words(language: str) -> Callable[[random.Random], str]:
    words = FUNCTION_WORDS[language].split()
    return lambda draw: " " + " ".join(draw.choice(words) for _ in range(64))


def foreign_words(kind: str) -> Callable[[random.Random], str]:
    """In every other sentence, the first one included."""

    def make(draw: random.Random) -> str:
        pairs = zip(draw.sample(SENTENCES, 6), [*draw.sample(BETWEEN, 5), ""], strict=True)
        text = " ".join(f"{one} {two}" for one, two in pairs)
        while "{}" in text:
            text = text.replace("{}", draw.choice(FOREIGN[kind]), 1)
        return text

    return make


MADE: dict[str, Callable[[random.Random], str]] = {
    **{f"function words, {language}": function_words(language) for language in FUNCTION_WORDS},
    **{f"a foreign word {kind}": foreign_words(kind) for kind in FOREIGN},
}


def wheel_vocabularies() -> dict[str, Vocabulary]:
    """Two vocabularies of the wheel `mistral-common`, read as files; none where it is not installed."""
    found = importlib.util.find_spec("mistral_common")
    if found is None or not found.submodule_search_locations:
        return {}
    data = Path(next(iter(found.submodule_search_locations))) / "data"
    tekken, model = data / "tekken_240911.json", data / "mistral_instruct_tokenizer_240323.model.v3"
    made = {}
    if tekken.is_file():
        made["tekken, 131k"] = of_pieces(*_tekken(tekken))
    if model.is_file():
        made["SentencePiece, 32k"] = of_pieces(*_sentencepiece(model.read_bytes()))
    return made


def of_pieces(pieces: list[bytes], special: frozenset[int]) -> Vocabulary:
    script = np.array([script_of_piece(piece) for piece in pieces], np.uint8)
    script[list(special)] = Script.COMMON
    possible = np.ones(len(pieces), np.bool_)
    words = np.zeros(len(pieces), np.bool_)
    added = {pieces[token].decode(): token for token in special}
    return Vocabulary(tuple(pieces), possible, script, words, special, added)


def _tekken(path: Path) -> tuple[list[bytes], frozenset[int]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    size, reserved = (int(content["config"][key]) for key in ("default_vocab_size", "default_num_special_tokens"))
    pieces = [f"<SPECIAL_{number}>".encode() for number in range(reserved)]
    pieces += [base64.b64decode(entry["token_bytes"]) for entry in content["vocab"][: size - reserved]]
    return pieces, frozenset(range(reserved))


NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def _sentencepiece(content: bytes) -> tuple[list[bytes], frozenset[int]]:
    """The pieces (field 1) of a SentencePiece model, a protocol buffer: name (1) and kind (3) of each."""
    pieces: list[bytes] = []
    special: set[int] = set()
    for field, value in _fields(content):
        if field == 1 and isinstance(value, bytes):
            entry: dict[int, Any] = dict(_fields(value))
            name, kind = bytes(entry[1]), int(entry.get(3, NORMAL))
            if kind in (UNKNOWN, CONTROL):
                special.add(len(pieces))
            pieces.append(bytes([int(name[3:5], 16)]) if kind == BYTE else name.replace("▁".encode(), b" "))
    return pieces, frozenset(special)


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(content):
        key, at = _number(content, at)
        if key & 7 == 2:
            length, at = _number(content, at)
            yield key >> 3, content[at : at + length]
            at += length
        elif key & 7 == 0:
            value, at = _number(content, at)
            yield key >> 3, value
        else:
            at += 4 if key & 7 == 5 else 8


def _number(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
