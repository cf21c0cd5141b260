"""Word salad from token ids and from text."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from checkengine.detectors.salad import (
    SaladBatch,
    SaladReading,
    SaladTables,
    TextPieces,
    text_tables,
    text_tokenizer,
)
from checkengine.detectors.salad import columns as k
from checkengine.detectors.salad.batch import OTHER_VOCABULARY
from checkengine.detectors.salad.neighbours import BUCKET, OFTEN, fill, levels_of, piece_logs
from checkengine.detectors.salad.sense import HASH_PRIME
from checkengine.detectors.salad.table import edges, mark_of, utf8_parts
from checkengine.detectors.salad.tables import load_tables
from checkengine.detectors.salad.token_classes import (
    CLASSES,
    FORMS,
    RANKED,
    TokenClass,
    class_of,
    classes_of,
    in_order_of_frequency,
)
from checkengine.detectors.salad.transitions import states_of
from checkengine.detectors.salad.words import hash_of, letters_of
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.settings import SaladSettings

MODEL = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "checkengine/models/smollm2-135m"
needs_model = pytest.mark.skipif(not (MODEL / "tokenizer.json").exists(), reason="the demo model is not here")
EVIDENCE = SaladSettings().text_evidence
NEVER = float("inf")
TEXTS = [text for _, text in sorted(topics.topics.items())]
SOURCES = [path.read_text() for path in sorted(Path(json.__file__).parents[1].glob("*.py"))]
TABLES = text_tables()
TOKENIZER = text_tokenizer()
_C = TokenClass

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


def first_alarm(
    tokens, tables=TABLES, prompt=(), threshold=EVIDENCE, entropies=None
) -> tuple[int, SaladReading] | None:
    batch = SaladBatch(tables, threshold, slots=1)
    slot = batch.open(prompt)
    for index, token in enumerate(tokens):
        entropy = np.empty(0, np.float32) if entropies is None else np.array([entropies[index]], np.float32)
        if len(batch.push(np.array([slot]), np.array([token]), entropy)):
            return index, batch.reading(slot)
    return None


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def random_ids(size: int, seed: int, length: int = 64) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(size) for _ in range(length)]


@pytest.fixture(scope="module")
def demo():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return tokenizer, vocabulary, SaladTables(vocabulary)


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (" a", _C.WORD_1),
        (" the", _C.WORD_3),
        (" responsible", _C.WORD_LONG),
        ("ing", _C.PART_3),
        ("The", _C.CAPITAL_PART),
        (" I", _C.CAPITAL_LETTER_WORD),
        ("HTTP", _C.UPPER_PART),
        ("getValue", _C.MIXED),
        ("'s", _C.CONTRACTION),
        (" 42", _C.SPACED_DIGITS),
        ('."', _C.SIGNS),
        ("\n\n", _C.NEWLINE),
        ("\n    ", _C.INDENT),
        ("\xa0", _C.ODD_SPACE),
        ("海", _C.OTHER_SCRIPT),
        (" été", _C.ACCENTED_WORD),
        ("😀", _C.SYMBOL),
    ],
)
def test_a_token_is_classed_by_its_looks(piece, expected):
    assert class_of(piece.encode()) is expected


def test_rare_tokens_are_told_from_common_ones_of_the_same_looks():
    classes = classes_of([b" word"] * 96)
    assert [int(value) for value in sorted(set(classes.tolist()))] == [
        _C.WORD_6,
        len(TokenClass) + 2 * RANKED.index(_C.WORD_6),
        len(TokenClass) + 2 * RANKED.index(_C.WORD_6) + 1,
    ]
    assert len(FORMS) == CLASSES


def test_the_tables_hold_probabilities():
    known = load_tables()
    for part in (known.tokens, known.text):
        kinds, ways = len(part.healthy), len(part.salad)
        assert part.healthy.shape == (kinds, len(TokenClass), CLASSES)
        assert part.healthy_states.shape == (kinds, len(TokenClass), CLASSES, k.STATES)
        assert part.salad.shape == (ways, CLASSES)
        assert part.salad_states.shape == (ways, CLASSES, k.STATES)
        for probabilities in (part.healthy, part.healthy_states, part.salad, part.salad_states):
            np.testing.assert_allclose(probabilities.sum(axis=-1), 1)
            assert probabilities.min() > 0
    assert len(known.word_pairs) == len(known.words)
    assert known.logs.shape == (len(TABLES),)


@needs_model
def test_the_demo_models_vocabulary_is_the_one_that_was_counted_over_and_others_need_more_evidence(demo):
    assert demo[2].own
    other = SaladTables(Vocabulary.from_tokenizer(TOKENIZER))
    assert TABLES.own
    assert not other.own
    ids = random_ids(len(TABLES), 3)
    assert first_alarm(ids, other)[1].evidence >= OTHER_VOCABULARY * EVIDENCE > first_alarm(ids)[1].evidence - 10


def test_ids_in_no_order_of_frequency_are_not_read():
    draw = random.Random(0)
    pieces = [b"x" * draw.randrange(1, 12) for _ in range(400)]
    assert not in_order_of_frequency(pieces)
    assert in_order_of_frequency([*sorted(pieces, key=len), *(chr(0x4E00 + n).encode() for n in range(400))])
    tables = SaladTables(
        Vocabulary.from_tokenizer(Tokenizer(models.WordLevel({"x" * (400 - n): n for n in range(400)}, "x")))
    )
    assert not tables.available
    assert first_alarm(random_ids(400, 0, 500), tables) is None


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="the quickbrownfxjmpsvlazydgnit é-'", max_size=60))
def test_what_the_tokenizer_writes_never_has_a_strange_join(text):
    ids = np.array(ids_of(text), np.int64)
    slots = np.zeros(len(ids), np.int64)
    assert not TABLES.joins.strange(slots, ids, np.full((1, k.WHOLE_COLUMNS), -1, np.int64)).any()


def test_pieces_that_the_tokenizer_would_cut_elsewhere_are_a_strange_join_known_the_second_time_too():
    (begin,), (end,) = ids_of(" th"), ids_of("e")
    assert len(ids_of(" the")) == 1
    wholes = np.full((1, k.WHOLE_COLUMNS), -1, np.int64)
    for _ in range(2):
        found = TABLES.joins.strange(np.zeros(2, np.int64), np.array([begin, end]), wholes)
        assert found.tolist() == [0, 1]


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=6))
def test_a_piece_of_a_character_tells_what_it_continues_and_what_it_leaves_open(piece):
    leading, more, end = utf8_parts(piece)
    assert 0 <= leading <= len(piece)
    assert more == (leading < len(piece))
    if end == 0:
        piece[leading:].decode("utf-8")


def test_broken_characters_are_marks_and_whole_ones_are_not():
    lead = next(token for token, piece in enumerate(pieces_of()) if piece == b"\xd0")
    found = first_alarm([lead, *ids_of(" the"), lead, *ids_of(" of"), lead, *ids_of(" and")], threshold=10.0)
    assert found is not None
    assert found[1].marks > 2 * found[1].transitions
    assert first_alarm(ids_of("Жизнь прекрасна и удивительна. " * 4), threshold=10.0) is None


def pieces_of() -> tuple[bytes, ...]:
    return Vocabulary.from_tokenizer(TOKENIZER).pieces


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        (b"<|reserved_special_token_12|>", k.RESERVED),
        (b"[control_555]", k.RESERVED),
        (b"<SPECIAL_23>", k.RESERVED),
        (b"<unk>", k.RESERVED),
        (b"<|im_start|>", k.CONTROL),
        (b"[INST]", k.CONTROL),
        (b"<repo_name>", k.CONTROL),
        (b"<|im_end|>", 0),
        (b"<think>", 0),
        (b"<tool_call>", 0),
        (b"<|start_of_thinking|>", 0),
        (b"<|channel|>", 0),
    ],
)
def test_a_special_token_tells_as_much_as_its_name_does(name, mark):
    assert mark_of(name) == mark


@needs_model
def test_control_tokens_that_leak_are_found_and_the_end_of_the_turn_is_none(demo):
    tokenizer, _, tables = demo
    words = tokenizer("The ship leaves the harbour at noon and comes back before it is dark.")["input_ids"]
    leaking = [
        token for at, token in enumerate(words * 4) for token in ([token] if at % 7 else [token, 1 + at % 4 * 2])
    ]
    assert [token for token in leaking if token in (1, 3, 5, 7)]
    found = first_alarm(leaking[:64], tables)
    assert found is not None
    assert found[1].marks >= found[1].transitions
    assert first_alarm([*words, 2, *words, 2], tables) is None


FUNCTION_WORDS = {
    "en": "the of and to in a is that for it as with on at by from or an be this have not are was",
    "de": "der die und in zu den das von mit sich des auf für ist im dem nicht ein eine als auch an werden aus",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más o",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus au sur se ne pas",
}


@pytest.mark.parametrize("language", FUNCTION_WORDS)
def test_function_words_without_sense_are_found_within_64_tokens(language):
    words, found = FUNCTION_WORDS[language].split(), 0
    for seed in range(20):
        draw = random.Random(seed)
        found += first_alarm(ids_of("".join(" " + draw.choice(words) for _ in range(80)))[:64]) is not None
    assert found >= 19


FOREIGN = {
    "russian": ("эксперимент", "дорога", "успех"),
    "japanese": ("実験結果", "天気予報", "自動車"),
    "greek": ("πείραμα", "δρόμος", "αυτοκίνητο"),
    "arabic": ("تجربة", "طريق", "سيارة"),
    "hindi": ("प्रयोग", "सड़क", "गाड़ी"),
    "korean": ("실험이", "도로가", "자동차"),
    "mixed": ("эксперимент", "実験結果", "πείραμα"),
}
SENTENCES = (
    "The {} of the study was better than all of us had hoped for.",
    "We then went on to the next part of the plan.",
    "It is not clear why the {} has grown so fast.",
    "Most people agree that more work is needed.",
    "After lunch the whole {} was moved to another room near the stairs.",
    "The rest of the day was quiet and all went home.",
)


@pytest.mark.parametrize("kind", FOREIGN)
def test_one_foreign_word_in_every_other_sentence_is_found(kind):
    text = " ".join(SENTENCES)
    for word in FOREIGN[kind]:
        text = text.replace("{}", word, 1)
    found = first_alarm(ids_of(text))
    assert found is not None
    assert found[1].marks > found[1].transitions


def test_the_same_foreign_name_again_and_again_is_no_salad():
    assert first_alarm(ids_of(" ".join(SENTENCES * 3).replace("{}", "эксперимент"))) is None


def test_foreign_words_in_quotes_or_in_a_prompt_of_their_script_are_no_salad():
    def told(write, prompt=""):
        text = " ".join(SENTENCES)
        for word in ("эксперимент", "дорога", "успех"):
            text = text.replace("{}", write(word), 1)
        return first_alarm(ids_of(text), prompt=ids_of(prompt))

    assert told(lambda word: word) is not None
    assert told(lambda word: f"word “{word}”") is None
    assert told(lambda word: word, prompt="Объясни слова.") is None
    assert told(lambda word: f"angle {word[0]}") is None


def test_random_ids_are_salad_within_64_tokens_of_any_vocabulary():
    delays = [found[0] for seed in range(40) if (found := first_alarm(random_ids(len(TABLES), seed), TABLES))]
    assert len(delays) >= 38


@needs_model
@pytest.mark.parametrize("case", range(len(SALAD)))
def test_salad_of_the_demo_model_is_caught(demo, case):
    tokenizer, _, tables = demo
    prompt, tokens = SALAD[case]
    chat = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert first_alarm([int(token) for token in tokens.split()], tables, asked, threshold=12.0) is not None


def test_the_evidence_begins_where_the_text_turns_to_salad():
    starts, tables = [], SaladTables(Vocabulary.from_tokenizer(TOKENIZER))
    for seed, text in enumerate(TEXTS[1:60:2]):
        ids = ids_of(text)[:120]
        if len(ids) == 120 and (found := first_alarm(ids[64:] + random_ids(len(TABLES), seed), tables, ids[:64])):
            assert found[0] >= 56
            starts.append(found[1].start)
    assert len(starts) >= 10
    assert abs(float(np.median(starts)) - 56) <= 3


def test_high_entropy_speeds_an_alarm_up_and_makes_none_by_itself():
    late, early = 0, 0
    for seed in range(10):
        ids = random_ids(len(TABLES), seed)
        late += first_alarm(ids)[0]
        at, reading = first_alarm(ids, entropies=[8.0] * 64)
        early += at
        assert reading.logits > 0
    assert early < late
    text = ids_of(TEXTS[3])[:200]
    assert first_alarm(text, entropies=[9.0] * len(text)) is None


def test_entropy_never_tells_more_than_the_text_does():
    batch = SaladBatch(TABLES, NEVER, slots=1)
    slot = np.array([batch.open()])
    for token in ids_of(TEXTS[3])[:200]:
        batch.push(slot, np.array([token]), np.array([12.0], np.float32))
        reading = batch.reading(int(slot[0]))
        assert reading.evidence <= 2.0 * (reading.transitions + reading.marks + reading.words) + 1e-3


def test_words_are_put_together_of_the_pieces_that_a_vocabulary_has():
    whole, power = hash_of("für".encode())
    assert power > 1
    first, second = hash_of(b"f"), hash_of("ür".encode())
    assert (first[0] * second[1] + second[0]) % HASH_PRIME == whole
    assert letters_of(" für".encode()) == "für".encode()
    assert letters_of(b" ") == b""
    assert letters_of(b" a1") is letters_of(b"the ") is None


def test_pairs_that_were_counted_are_told_from_others_and_the_frequent_from_the_rare():
    counts = np.zeros(1 << 14, np.uint8)
    before, pieces = np.arange(2000, dtype=np.int64), np.arange(2000, dtype=np.int64) * 7 % 1999
    often = np.repeat(np.array([len(OFTEN) - 1, 0], np.uint8), 1000)
    lost = fill(before, pieces, often, counts)
    assert lost < 0.02 * len(pieces)
    assert (counts > 0).sum() + lost <= len(pieces)
    logs = piece_logs(np.full(20_000, 40)).astype(np.float32)

    def levels(first, then):
        found = np.zeros(len(first), np.int64)
        levels_of(first, then, counts, logs, found)
        return found

    known = levels(before, pieces)
    assert (known[:1000] == 4).mean() > 0.97
    assert ((known[1000:] >= 1) & (known[1000:] <= 4)).mean() > 0.97
    assert (levels(pieces, before + 5000) >= 5).mean() > 0.85
    assert len(counts) % BUCKET == 0


def test_a_common_pair_that_was_never_counted_is_avoided():
    counts, found = np.zeros(1 << 10, np.uint8), np.zeros(2, np.int64)
    pieces = piece_logs(np.array([100_000, 100_000, 1, 1, 10_000_000])).astype(np.float32)
    levels_of(np.array([0, 2]), np.array([1, 3]), counts, pieces, found)
    assert found.tolist() == [8, 5]


@pytest.mark.parametrize(("between", "known"), [(0, True), (100, True), (127, True), (128, False)])
def test_a_token_that_comes_back_is_known_for_128_tokens(between, known):
    told = TABLES.known
    ids = np.array([5, *([7] * between), 5])
    found, recent = np.zeros(len(ids), np.int64), np.zeros((k.RECENT_PLACES, 2), np.int32)
    states_of(ids, np.array([0, len(ids)]), told.tokens, told.counts, told.logs, recent, found)
    assert found[-1] % 2 == known


def test_the_baseline_of_entropy_follows_the_model():
    batch = SaladBatch(TABLES, slots=4)
    slots = np.array([batch.open() for _ in range(4)])
    ids = np.array(ids_of(TEXTS[3])[:400])
    for at in range(0, len(ids) - 4, 4):
        batch.push(slots, ids[at : at + 4], np.full(4, 3.0, np.float32))
        batch.push(slots, ids[at : at + 4], np.full(4, np.nan, np.float32))
    assert 1.1 < batch.baseline[0] < 3.0


def test_odd_structure_that_repeats_is_no_salad():
    for seed in range(5):
        assert first_alarm(random_ids(len(TABLES), seed, 3) * 200) is None


def test_a_row_of_several_tokens_is_read_like_so_many_steps():
    ids = np.array(random_ids(len(TABLES), 3))
    one, many = SaladBatch(TABLES, NEVER), SaladBatch(TABLES, NEVER)
    slot, other = one.open(), many.open()
    for token in ids:
        one.push(np.array([slot]), np.array([token]))
    for at in range(0, len(ids), 5):
        many.push(np.full(len(ids[at : at + 5]), other), ids[at : at + 5])
    assert one.reading(slot) == many.reading(other)


def test_slots_are_handed_on_clean_and_more_are_made_when_all_are_taken():
    batch = SaladBatch(TABLES, NEVER, slots=2)
    slots = [batch.open() for _ in range(9)]
    assert len(set(slots)) == 9
    for token in random_ids(len(TABLES), 1):
        batch.push(np.array([slots[4]]), np.array([token]))
    assert batch.reading(slots[4]).evidence > 0
    batch.close(slots[4])
    assert batch.open() == slots[4]
    assert batch.reading(slots[4]).evidence == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**40), 2**40), max_size=80), st.lists(st.integers(-5, 20000), max_size=80))
def test_any_ids_at_all_leave_the_evidence_finite(prompt, tokens):
    batch = SaladBatch(TABLES, NEVER, slots=1)
    slot = batch.open(prompt)
    batch.push(np.full(len(tokens), slot, np.int64), np.array(tokens, np.int64))
    reading = batch.reading(slot)
    assert 0.0 <= reading.evidence < 20.0 * (len(tokens) + 1)


def cut(text: str, places: list[int]) -> list[str]:
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("ab é海\ud800\x00\n\t.(-A1"), max_size=700)
    | st.text(alphabet="ab", min_size=500, max_size=700),
    st.lists(st.integers(0, 700), max_size=12),
)
def test_splitting_a_text_anywhere_changes_no_token(text, places):
    def read(pieces):
        stream = TextPieces()
        found = [part for piece in pieces for part in stream.push(piece)] + list(stream.end())
        return [ids for part, _ in found for ids in part], [at for _, part in found for at in part]

    places = sorted(min(place, len(text)) for place in places)
    assert read([text]) == read(cut(text, places))


def test_the_characters_of_tokens_are_those_of_the_text():
    text = "A first word, then 海 and a second line\nwith more. " * 30
    stream = TextPieces()
    found = [*stream.push(text[:100]), *stream.push(text[100:]), *stream.end()]
    ids = [token for part, _ in found for token in part]
    places = [at for _, part in found for at in part]
    assert ids == TOKENIZER.encode(text, add_special_tokens=False).ids
    assert places == [first for first, _ in TOKENIZER.encode(text, add_special_tokens=False).offsets]


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


HEALTHY |= {
    "japanese": "進撃の巨人は諫山創による日本の漫画作品。カタカナとひらがなと漢字が混ざる文章です。" * 4,
    "translation table": "\n".join(
        f"| {a} | {b} | {c} |"
        for a, b, c in [("water", "вода", "水"), ("fire", "огонь", "火"), ("air", "воздух", "空気")] * 6
    ),
    "vocabulary list": "water: вода (voda), Wasser, eau, agua; fire: огонь (ogon), Feuer, feu, fuego; " * 4,
    "phonetics": "The word thought is /θɔːt/, through is /θruː/ and though is /ðəʊ/ in IPA; [ˈlæŋɡwɪdʒ] is language. "
    * 3,
    "chemistry": "2-amino-3-(4-hydroxyphenyl)propanoic acid, (2S,3R)-2-amino-3-hydroxybutanoic acid and "
    "N-(4-hydroxyphenyl)acetamide; CC(=O)NC1=CC=C(C=C1)O; C8H9NO2 melts at 169 °C. " * 3,
    "formulae": r"\\frac{\\partial^2 u}{\\partial t^2} = c^2 \\nabla^2 u, where ∑ α_i β_i ≤ γ. " * 4,
    "hexadecimal": "deadbeef cafebabe 0x1f 0x2a ff00aa 12ab34cd 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c " * 4,
    "greek letters in prose": "The angle α is larger than β if the ratio of γ to δ is above the limit that ε sets. "
    * 4,
    "russian with english words": "Мы используем Python и Docker, а затем deploy через GitHub Actions в production. "
    * 6,
    "chinese with english words": "我们使用 Python 和 Docker 来部署 service，然后在 production 环境中 monitor 日志。"
    * 6,
    "names of people": ", ".join(
        f"{a} {b}"
        for a, b in zip(
            [
                "Aaliyah",
                "Björn",
                "Chiamaka",
                "Dmitri",
                "Eilidh",
                "Farrukh",
                "Guðrún",
                "Hyun-woo",
                "Ikechukwu",
                "Jorge",
                "Kaveh",
                "Lwazi",
            ]
            * 4,
            [
                "Nguyễn",
                "O'Brien",
                "Papadopoulos",
                "Quispe",
                "Rasmussen",
                "Szymański",
                "Thiruvengadam",
                "Ueda",
                "Vaszary",
                "Wójcik",
                "Xiong",
                "Ypma",
            ]
            * 4,
            strict=True,
        )
    ),
    "call of tools": '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>\n' * 6,
    "assembly": "mov eax, dword ptr [ebp-4]\n  xor ebx, ebx\n  call sub_401000\n  jz short loc_40102A\n" * 8,
    "regular expressions": r"^(?:[a-z0-9!#$%&'*+/=?^_`{|}~-]+@(?:[a-z0-9-]+\\.)+[a-z]{2,}$ " * 3,
    "latin verse": "Arma virumque cano, Troiae qui primus ab oris\nItaliam, fato profugus, Laviniaque venit litora. "
    * 3,
    "haskell": "foldr (\\\\x acc -> if even x then x : acc else acc) [] . map (*2) $ zipWith3 f xs ys zs\n" * 6,
    "log": "2026-11-30T15:12:46Z ERROR [worker-3] c.e.Pool - timeout after 3000ms id=7f3a-22 path=/v1/chat retry=2\n"
    * 6,
}


HEALTHY |= {
    "keyword list of a syntax file": "".join(
        f"syn keyword tableOption {line} contained\n"
        for line in (
            "alignLeft alignRight borderTop borderWidth captionSide cellPadding",
            "cellSpacing columnSpan defaultRow emptyCells footerHeight gridAutoFlow",
            "headerRow indentFirst justifySelf keepTogether lineBreak markerEnd",
            "nestedDepth orphanControl padInline quoteStyle rowGroup spanAll",
        )
    ),
    "hyphenation patterns": "a1ba\na2bad\nb3ab\n4ific\nill5ab\nim1i\nima5ry\n2ilit\nus3tr\n5tenn\nter3ic\nth2er\n" * 2,
    "menu of headings": " Overview \n\n Installation \n\n Using pip \n\n \n\n Reference \n\n Threading control \n\n"
    " GPU support \n\n Functions \n\n Generators \n\n \n\n Frequently asked questions \n\n Glossary \n\n",
    "list of words": "abandon ability able about above absent absorb abstract absurd abuse access accident account",
    "dutch": "De trein naar de stad vertrekt elk half uur van het laatste spoor, en wie te laat komt moet wachten. "
    * 3,
    "finnish": "Juna kaupunkiin lähtee puolen tunnin välein viimeiseltä raiteelta, ja myöhästynyt joutuu odottamaan. "
    * 3,
    "polish": "Pociąg do miasta odjeżdża co pół godziny z ostatniego toru, a kto się spóźni, musi czekać. " * 3,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_text_with_hard_tokens_is_no_salad(name):
    assert first_alarm(ids_of(HEALTHY[name])) is None


@needs_model
@pytest.mark.parametrize("name", HEALTHY)
def test_nor_is_it_in_the_demo_models_tokens(demo, name):
    tokenizer, _, tables = demo
    assert first_alarm(tokenizer(HEALTHY[name])["input_ids"], tables) is None


def test_documentation_and_source_code_pass():
    texts = [*TEXTS, *SOURCES]
    encoded = TOKENIZER.encode_batch([text[:8000] for text in texts])
    batch = SaladBatch(TABLES, EVIDENCE)
    alarms = tokens = 0
    for encoding in encoded:
        for first in range(0, len(encoding.ids), 512):
            ids = np.array(encoding.ids[first : first + 512])
            slot = batch.open()
            alarms += len(batch.push(np.full(len(ids), slot), ids))
            batch.close(slot)
            tokens += len(ids)
    assert tokens > 300_000
    assert alarms == 0


def test_bits_of_a_piece_tell_letters_blanks_and_characters_cut():
    assert edges(b" the")[0] & (k.BEGINS_SPACE | k.ENDS_LETTER | k.SMALL) == k.BEGINS_SPACE | k.ENDS_LETTER | k.SMALL
    assert edges(b" ")[0] & k.BLANK
    assert edges(b" The")[0] & k.SMALL
    assert not edges(b" Theatre")[0] & k.SMALL
    assert edges(b" \xe5\xae")[0] & k.BEGINS_SPACE
