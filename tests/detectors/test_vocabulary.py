"""Vocabulary tables from tokenizers of the main families, trained here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from checkengine.detectors import Script, Vocabulary

TEXTS = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Съешь же ещё этих мягких французских булок. " * 3,
    "素早い茶色の狐が怠惰な犬を飛び越える。" * 3,
    "def f(x):\n    return x + 1  # naïve café — ☕ 🙂\n" * 3,
]


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen, SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("日本語", special=False)])
    return tokenizer


def metaspace() -> Tokenizer:
    """As Gemma, Mistral, Llama 2: SentencePiece marks and byte tokens."""
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = marks
    special = ["<unk>", "<s>", "</s>"]
    learner.train_from_iterator(TEXTS[:2], trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    learned = json.loads(learner.to_str())["model"]
    vocabulary = learned["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = marks
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


@pytest.fixture(scope="module", params=[byte_level, metaspace], ids=["byte level", "metaspace"])
def tokenizer(request) -> Tokenizer:
    return request.param()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_pieces_of_a_byte_level_tokenizer_join_to_the_text(text):
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL)
    ids = _BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    assert b"".join(vocabulary.piece(token) for token in ids) == text.encode()


_BYTE_LEVEL = byte_level()


@pytest.mark.parametrize("text", ["The quick fox", "ещё булок", "byte fallback: 狐 ☕ \n\t end"])
def test_pieces_of_a_sentencepiece_tokenizer_join_to_the_text(text):
    tokenizer = metaspace()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(vocabulary.piece(token) for token in ids) == b" " + text.encode()


def test_a_wrapped_tokenizer_gives_the_same_tables_as_the_bare_one(tokenizer):
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    a, b = Vocabulary.from_tokenizer(tokenizer), Vocabulary.from_tokenizer(wrapped)
    assert a.pieces == b.pieces
    assert (a.script == b.script).all()
    assert a.special == b.special


def test_padded_head_rows_and_holes_are_impossible():
    length = _BYTE_LEVEL.get_vocab_size()
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL, length + 100)
    assert vocabulary.possible.sum() == length
    assert not vocabulary.possible[length:].any()
    assert len(vocabulary.script) == length + 100
    assert vocabulary.piece(length + 5) == b""
    for token in (-1, length, length + 100, 10**9):
        assert not vocabulary.is_possible(token)


def test_a_head_smaller_than_the_tokenizer_keeps_its_own_columns():
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL, 300)
    assert len(vocabulary) == 300
    assert vocabulary.possible.all()


def test_special_tokens_belong_to_no_script_and_are_left_out_of_the_text():
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL)
    start = _BYTE_LEVEL.token_to_id("<|im_start|>")
    assert start in vocabulary.special
    assert vocabulary.script[start] == Script.COMMON
    ids = [start, *_BYTE_LEVEL.encode("fox").ids]
    assert vocabulary.text(ids) == "fox"
    assert vocabulary.text(ids, special=True) == "<|im_start|>fox"


def test_added_tokens_keep_their_own_text_and_script():
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL)
    (call,) = vocabulary.ids_of("<tool_call>")
    assert vocabulary.piece(call) == b"<tool_call>"
    assert call not in vocabulary.special
    (word,) = vocabulary.ids_of("日本語")
    assert vocabulary.script[word] == Script.HAN


def test_words_are_pieces_with_two_letters_side_by_side():
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL)
    by_piece = {piece: vocabulary.words[token] for token, piece in enumerate(vocabulary.pieces)}
    assert by_piece[b"the"] if b"the" in by_piece else by_piece[b"he"]
    assert not by_piece[b"."]
    assert not by_piece[b"a"]
    assert not by_piece[b"\xd0"]


def test_scripts_of_tokens_follow_their_bytes():
    vocabulary = Vocabulary.from_tokenizer(_BYTE_LEVEL)
    for text, script in (("fox", Script.LATIN), ("булок", Script.CYRILLIC), ("  ", Script.COMMON)):
        for token in _BYTE_LEVEL.encode(text).ids:
            assert vocabulary.script[token] in (script, Script.PARTIAL)


MODEL = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "checkengine/models/smollm2-135m"


@pytest.mark.skipif(not (MODEL / "tokenizer.json").exists(), reason="the demo model is not here")
def test_the_demo_models_vocabulary_is_whole():
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(MODEL), 49_152)
    assert vocabulary.possible.all()
    assert {1, 2} <= vocabulary.special
    assert vocabulary.piece(2) == b"<|im_end|>"
