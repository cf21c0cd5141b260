"""Word salad told from tokens alone."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from checkengine.detectors import SaladDetector, SaladLimits, SaladTables, Script, Vocabulary, expected_scripts
from checkengine.detectors.joins import WordJoins
from checkengine.detectors.utf8 import Utf8Stream, Utf8Table

MODEL = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "checkengine/models/smollm2-135m"
needs_model = pytest.mark.skipif(not (MODEL / "tokenizer.json").exists(), reason="the demo model is not here")
LATIN = 1 << Script.LATIN

SALAD = [
    (
        "What is the capital of France?",
        "504 284 40276 284 284 40276 7036 7036 804 804 27270 43532 355 38428 355 365 284 355 20553 284 38428 "
        "284 284 284 284 284 284 7036 40276 38428 38428 26828 ",
    ),
    (
        "Explain photosynthesis to a child.",
        "52 284 42 284 284 284 40276 284 284 22 38428 40276 18084 38428 355 670 17 232 7036 232 26828 284 284 "
        "284 284 284 284 4257 40276 38428 38428 38428 ",
    ),
    (
        "What is the capital of France?",
        "504 738 88 738 355 12125 198 15940 198 15940 347 88 446 312 198 198 28208 198 28208 28208 12125 418 "
        "198 198 198 198 198 198 198 198 281 12125 ",
    ),
    (
        "Give me a recipe for pancakes.",
        "57 216 34 34 198 9911 33 33 2620 106 561 198 35 35538 8570 2080 540 35538 13149 13149 2080 561 561 "
        "365 39975 8570 349 8874 13277 13149 13149 21326 ",
    ),
    (
        "What is the capital of France?",
        "504 11166 355 277 355 15097 32237 12808 11166 32237 11166 15442 1004 277 33 355 15442 355 355 5075 "
        "277 22877 1677 4966 2360 43018 15442 355 11099 355 15077 4088 ",
    ),
    (
        "Write a short story about a dog.",
        "1653 277 355 476 277 15442 15442 277 363 2756 277 277 15442 277 15442 15442 277 15442 277 292 22877 "
        "2706 277 47003 43018 15442 21945 355 1283 21945 2520 4088 ",
    ),
    (
        "Write a polite email that asks a colleague to move our meeting to Friday.",
        "26652 15442 40574 6645 1613 15442 45675 14525 253 284 18 240 2489 198 18085 198 1379 8858 26 198 29 "
        "563 30 15096 28 47826 472 355 95 28 389 449 198 1029 48032 12559 2479 198 38995 198 ",
    ),
    (
        "Write a Python function that returns the largest number in a list.",
        "3725 347 2040 599 121 40237 258 1672 1398 284 665 1945 1323 365 5068 12316 6245 109 13348 28 504 "
        "8123 51 47 5212 198 588 15442 281 540 18352 3805 8942 624 2026 15442 7153 7385 15442 15442 ",
    ),
    (
        "Who was Julius Caesar?",
        "28813 2649 302 198 539 6918 272 924 761 79 476 6799 284 85 40506 284 28 27600 1714 248 679 2677 446 "
        "429 284 43 8350 284 33 284 347 2177 418 284 2194 28 382 47 384 34 ",
    ),
    (
        "How far away is the Moon?",
        "504 24 198 7481 29329 134 288 8851 449 9653 2685 592 392 28 6121 304 79 6403 198 108 17100 441 13360 "
        "949 390 506 253 986 244 28 355 682 533 28 284 355 15442 186 1012 339 ",
    ),
]
"""Answers of SmolLM2-135M-Instruct whose attention reads a slot of garbage from the second token on: the same
slot at each step in the first six (greedy), the one past the sequence's end in the others."""


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    corpus = ["the quick brown fox jumps over the lazy dog while reading internationalisation notes, déjà vu"] * 5
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    return tokenizer


TOKENIZER = trained()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)
TABLES = SaladTables(VOCABULARY)


def reading(tokens, tables=TABLES, expected=LATIN, **limits):
    detector = SaladDetector(tables, expected, SaladLimits(**limits))
    return next(((i, r) for i, t in enumerate(tokens, 1) if (r := detector.push(t)) is not None), None)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="the quickbrownfxjmpsvlazydgnit é-'", max_size=60))
def test_what_the_tokenizer_writes_never_has_a_strange_join(text):
    joins, ids = WordJoins(VOCABULARY), TOKENIZER.encode(text).ids
    assert all(joins.agree(a, b) for a, b in pairwise(ids))


def test_pieces_that_the_tokenizer_would_cut_elsewhere_are_a_strange_join():
    joins = WordJoins(VOCABULARY)
    (begin,), (end,) = VOCABULARY.ids_of(" ov"), VOCABULARY.ids_of("er")
    assert len(TOKENIZER.encode(" over").ids) == 1
    assert not joins.agree(begin, end)
    assert joins.agree(-1, end)
    assert joins.agree(begin, 10**6)


def test_a_tokenizer_that_is_not_byte_pair_has_no_strange_joins():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    joins = WordJoins(Vocabulary.from_tokenizer(tokenizer))
    assert not joins.available
    assert joins.agree(0, 1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=4), max_size=12))
def test_the_utf8_stream_reports_a_break_exactly_where_the_bytes_do_not_decode(pieces):
    stream = Utf8Stream(Utf8Table(pieces))
    broken = sum(stream.push(token) for token in range(len(pieces))) > 0
    joined = b"".join(pieces)
    try:
        joined.decode()
        assert not broken
    except UnicodeDecodeError as error:
        unfinished = error.reason == "unexpected end of data"
        assert broken or unfinished or _overlong(joined)


def _overlong(data: bytes) -> bool:
    """A second byte that its lead byte forbids, split between tokens: the table does not look that far."""
    return any(lead in (0xE0, 0xED, 0xF0, 0xF4) for lead in data)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20), st.data())
def test_valid_text_cut_anywhere_is_never_broken(text, data):
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=8)))
    pieces = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(encoded)], strict=True) if a < b]
    stream = Utf8Stream(Utf8Table(pieces))
    assert not any(stream.push(token) for token in range(len(pieces)))


def test_each_kind_of_evidence_is_counted():
    ids = {text: VOCABULARY.ids_of(text)[0] for text in (" ov", "er", " the", " fox", " quick")}
    found = reading([ids[" the"], ids[" fox"], ids[" fox"], ids[" quick"], ids[" quick"], ids[" ov"], ids["er"]])
    assert found is not None
    assert (found[1].start, found[1].repeated_words, found[1].strange_joins) == (2, 2, 1)
    (lead,) = [token for token, piece in enumerate(VOCABULARY.pieces) if piece == b"\xd0"]
    found = reading([lead, ids[" the"], lead, ids[" the"]])
    assert found is not None
    assert found[1].broken_characters == 2
    assert found[1].foreign_scripts == 1


def test_a_refrain_counts_once_and_ordinary_text_takes_evidence_away():
    (the,), (fox,) = VOCABULARY.ids_of(" the"), VOCABULARY.ids_of(" fox")
    assert reading([the] * 400) is None
    text = TOKENIZER.encode(" over the lazy dog while jumps brown").ids
    assert reading([fox, fox, *(text * 8)] * 10) is None


def test_each_kind_of_odd_space_counts_once_in_a_while():
    (comma,), (letter,), (the,) = VOCABULARY.ids_of(","), VOCABULARY.ids_of("t"), VOCABULARY.ids_of(" the")
    (opened,), (newline,) = VOCABULARY.ids_of("("), VOCABULARY.ids_of("\n")
    assert reading([comma, letter] * 300) is None
    found = reading([comma, letter, opened, the, newline, the])
    assert found is not None
    assert (found[1].start, found[1].odd_spaces) == (1, 3)


def test_ids_outside_the_vocabulary_are_no_evidence_and_no_error():
    assert reading([10**6, -5, 10**6, -5] * 50) is None


@pytest.fixture(scope="module")
def demo():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return tokenizer, vocabulary, SaladTables(vocabulary)


@needs_model
@pytest.mark.parametrize("case", range(len(SALAD)))
def test_salad_of_the_demo_model_is_caught_within_40_tokens(demo, case):
    prompt, tokens = SALAD[case]
    ids = [int(token) for token in tokens.split()]
    assert reading(ids, demo[2], expected_scripts(prompt)) is not None


HEALTHY = {
    "prose": "Photosynthesis is how plants make food. They take in light, water and carbon dioxide, and they give "
    "off oxygen. He said that that was fine, and she had had enough of it; it was very, very late. " * 3,
    "long words": "Donaudampfschifffahrtsgesellschaftskapitän, antidisestablishmentarianism and "
    "pneumonoultramicroscopicsilicovolcanoconiosis are long; Rechtsschutzversicherungsgesellschaften too.",
    "code": "import os\nimport sys\nfor (int i = 0; i < n; i++) {\n  int a = a + a; foo(foo, foo);\n}\n" * 4,
    "table": "| name | age |\n|------|-----|\n" + "".join(f"| Bob{i} | {i} | yes | yes |\n" for i in range(20)),
    "json": '{"ok": true, "list": [true, true, false, true], "null": null, "a": {"a": "a"}}\n' * 5,
    "base64": "aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQgdGV4dCBhbmQgaXQgaXMgbG9uZyBlbm91Z2ggdG8gYmUgc2VlbiBhcyBzdWNo" * 2,
    "protein": "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVVHSLAKWKRQTLGQHDFSAGEGLYTHM",
    "refrain": "La la la, la la la, sing a song, la la la la la. Ha ha ha! Na na na na, hey hey hey, goodbye. " * 3,
    "comma separated": "name,age,city\n" + "".join(f"user{i},{20 + i},Paris,yes,no\n" for i in range(40)),
    "minified code": "function f(a,b,c){return a.map(x=>x+b,c);}var g=[a,b,c],h={a:1,b:2};" * 6,
    "spaced code": "if ( isset( $name ) ) { echo esc_html( $name ); }\n" * 8,
    "emoji": "Great 🙂🎉 work ☕✨ today 🌱🌱🌱 and 👩‍👩‍👧 tomorrow 🇫🇷! " * 4,
    "names": "Dostoyevsky, Tchaikovsky, Przybyszewski, Ngũgĩ, Thiruvananthapuram and Llanfairpwllgwyngyll.",
    "links": "See https://example.org/a/b?c=d&e=f and user.name@example.com, or C:\\\\Users\\\\name\\\\AppData.",
    "quotation": "The Russian «Все счастливые семьи похожи друг на друга» and the Greek Ἀθήνα, then 東京 too.",
    "german": "Die Geschwindigkeit der Datenverarbeitung hängt von der Speicherbandbreite ab. " * 4,
    "poem": "Row, row, row your boat,\ngently down the stream.\nMerrily, merrily, merrily, merrily,\nlife is a dream.",
}


@needs_model
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_text_with_hard_tokens_is_no_salad(demo, name):
    tokenizer, _, tables = demo
    assert reading(tokenizer(HEALTHY[name])["input_ids"], tables) is None


@needs_model
def test_source_code_of_the_standard_library_is_no_salad(demo):
    tokenizer, _, tables = demo
    for name in ("json/decoder.py", "textwrap.py", "enum.py", "heapq.py"):
        source = (Path(os.__file__).parent / name).read_text()[:20_000]
        ids = tokenizer(source)["input_ids"]
        for first in range(0, len(ids), 500):
            found = reading(ids[first : first + 500], tables, expected_scripts(source))
            assert found is None, (name, found, tokenizer.decode(ids[first : first + found[0]])[-200:])


def test_a_token_costs_microseconds():
    """Loose: it is to find an accident such as encoding at every token, on a machine that is busy."""
    ids = TOKENIZER.encode("the quick brown fox jumps over the lazy dog " * 500).ids
    detector = SaladDetector(TABLES, LATIN)
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for token in ids:
            detector.push(token)
        best = min(best, (time.process_time() - began) / len(ids))
    assert best < 20e-6
