"""Scripts of characters, of tokens, and turns from one to another."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import Script, ScriptLimits, ScriptReading, ScriptSwitch, expected_scripts, scripts_of
from checkengine.detectors.language import ALL_SCRIPTS, script_of, script_of_piece

L, C, H, A, G, T, P = (
    Script.LATIN, Script.CYRILLIC, Script.HAN, Script.ARABIC, Script.GREEK, Script.THAI, Script.PARTIAL,
)  # fmt: skip
LATIN = 1 << Script.LATIN


def first_reading(
    scripts, expected: int = LATIN, limits: ScriptLimits | None = None
) -> tuple[int, ScriptReading] | None:
    switch = ScriptSwitch(expected, limits)
    return next(((i, r) for i, s in enumerate(scripts, 1) if (r := switch.push(s)) is not None), None)


def scripts_by_character(text: str) -> list[Script]:
    """As a vocabulary of single characters would read it: the hardest for a detector that counts tokens."""
    return [script_of(character) for character in text]


@pytest.mark.parametrize(
    ("sample", "script"),
    [
        ("aZéßøŁ", Script.LATIN), ("αΩά", Script.GREEK), ("дЯё", Script.CYRILLIC), ("Հայ", Script.ARMENIAN),
        ("שלום", Script.HEBREW), ("سلامچ", Script.ARABIC), ("नमस", Script.DEVANAGARI), ("বাং", Script.BENGALI),
        ("தமிழ", Script.TAMIL), ("తెలు", Script.TELUGU), ("ไทย", Script.THAI), ("ქართ", Script.GEORGIAN),
        ("한글", Script.HANGUL), ("አማር", Script.ETHIOPIC), ("ខ្មែ", Script.KHMER), ("ひカ", Script.KANA),
        ("漢字龥", Script.HAN), ("1 .,!?()€→─│█☕🙂🌱∑√×½²\n\t", Script.COMMON),
    ],
)  # fmt: skip
def test_characters_have_their_script(sample, script):
    assert {script_of(character) for character in sample} == {script}


def test_the_block_table_agrees_with_the_names_of_unicode():
    names = {
        "LATIN": L, "GREEK": G, "CYRILLIC": C, "ARMENIAN": Script.ARMENIAN, "HEBREW": Script.HEBREW, "ARABIC": A,
        "DEVANAGARI": Script.DEVANAGARI, "BENGALI": Script.BENGALI, "TAMIL": Script.TAMIL, "TELUGU": Script.TELUGU,
        "THAI": T, "GEORGIAN": Script.GEORGIAN, "HANGUL": Script.HANGUL, "ETHIOPIC": Script.ETHIOPIC,
        "KHMER": Script.KHMER, "HIRAGANA": Script.KANA, "KATAKANA": Script.KANA, "CJK": H,
    }  # fmt: skip
    wrong = []
    for code in range(0x41, 0x20000):
        character = chr(code)
        if unicodedata.category(character) not in ("Ll", "Lu", "Lo"):
            continue
        expected = names.get(unicodedata.name(character, "").split(" ")[0].split("-")[0])
        if expected is not None and script_of(character) not in (expected, Script.OTHER, Script.COMMON):
            wrong.append(f"U+{code:04X} {unicodedata.name(character)}")
    assert wrong == []


@settings(max_examples=300, deadline=None)
@given(st.characters(min_codepoint=0x80, exclude_categories=["Cs"]))
def test_the_first_bytes_of_a_character_never_name_a_wrong_script(character):
    encoded = character.encode()
    whole = script_of(character)
    for cut in range(1, len(encoded)):
        found = script_of_piece(encoded[:cut])
        if found > Script.PARTIAL and whole > Script.PARTIAL:
            same_lead = script_of_piece(encoded[:cut]) == whole
            assert same_lead or whole in (Script.OTHER, Script.COMMON) or found in _SHARED.get(whole, ())


_SHARED = {
    # Lead bytes whose range holds a few letters of a neighbour.
    Script.HEBREW: (Script.ARMENIAN,), Script.ARMENIAN: (C,), C: (Script.ARMENIAN,), Script.HANGUL: (H,),
    Script.SYRIAC: (A,), Script.THAANA: (A,), G: (L,), H: (Script.HANGUL, Script.KANA), Script.KANA: (H,),
    L: (C, G, Script.CHEROKEE), A: (Script.SYRIAC, L),
}  # fmt: skip


def test_continuation_bytes_alone_are_partial_and_a_letter_beside_them_decides():
    assert script_of_piece(b"\x9c") == Script.PARTIAL
    assert script_of_piece(b" \xd0") == Script.CYRILLIC
    assert script_of_piece(b"\xe6\x97") == Script.HAN
    assert script_of_piece(b"\xf0\x9f") == Script.COMMON
    assert script_of_piece("д".encode() + b"\xd0") == Script.CYRILLIC


@pytest.mark.parametrize(
    "salad",
    [
        [L, C, H, L, A], [C, H, A, P], [H, C, L, G, T], [L, L, T, C, P, A, L, H], [P, C, P, A, P, H],
        [Script.HANGUL, L, Script.HEBREW, L, Script.DEVANAGARI, Script.GEORGIAN],
    ],
)  # fmt: skip
def test_tokens_that_jump_among_scripts_are_salad_within_eight(salad):
    found = first_reading([L] * 40 + (salad * 3))
    assert found is not None
    assert found[1].kind == "salad"
    assert 40 <= found[1].start < found[0]
    assert found[0] <= 40 + 8


HEALTHY = {
    "a name": "The Russian name Достоевский (Dostoevsky) means little to most readers of English prose.",
    "a quotation": "He wrote: «Все счастливые семьи похожи друг на друга» and then went on with his English text.",
    "city in many scripts": "Jerusalem (Hebrew: ירושלים; Arabic: القدس; Greek: Ιερουσαλήμ) is a city in the region.",
    "mathematics": "Let α, β ∈ ℝ with α < β; then ∑ λᵢ → ∞ and Δx = μ ± σ, so ∂f/∂θ ≈ π·Ω for all ε > 0, δ > 0.",
    "emoji": "Great 🙂🎉 work ☕✨ today 🌱🌱 and 👩‍👩‍👧 tomorrow 🇫🇷!",
    "boxes": "┌──┬──┐\n│ a│ b│\n├──┼──┤ ███▓▓░░ ⠿⠇ ● ◆ ★ → ⇒",
    "code": "def f(x: int) -> str:\n    return f'{x:>8}'  # naïve façade\n\nλ = lambda µ: µ ** 2",
    "a single han character": "The character 道 means way, and 德 means virtue; together 道德 means morality.",
    "units": "5 µm, 20 Ω, 37 °C, 12 ℃, 3 Å, №5 and ½ cup",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_quotations_names_mathematics_emoji_and_code_pass(name):
    assert first_reading(scripts_by_character(HEALTHY[name])) is None


def test_an_output_that_goes_over_to_a_foreign_script_is_a_switch():
    text = "The capital is Paris. " + "Это столица Франции и самый большой город этой страны, известный всем."
    found = first_reading(scripts_by_character(text))
    assert found is not None
    at, reading = found
    assert (reading.kind, reading.start) == ("switch", 22)
    assert reading.foreign_tokens == ScriptLimits().switch_tokens
    assert reading.scripts == 1 << Script.CYRILLIC
    assert at < len(text)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Write a greeting in Russian.", "Здравствуйте, дорогие друзья! " * 4),
        ("Antworte bitte auf Japanisch.", "こんにちは、元気ですか。漢字も使います。" * 5),
        ("Переведи на английский и ответь по-русски", "Хорошо, вот перевод этого текста. " * 4),
        ("Traduis en coréen : bonjour", "안녕하세요, 만나서 반갑습니다. " * 6),
        ("Write 'peace' in as many languages as you can", "мир, 和平, سلام, שלום, ειρήνη, शांति, สันติภาพ"),
        ("List the letters of the Greek alphabet", "α β γ δ ε ζ η θ ι κ λ μ ν ξ ο π ρ σ τ υ φ χ ψ ω" * 3),
    ],
)
def test_what_the_prompt_asks_for_passes(prompt, answer):
    assert first_reading(scripts_by_character(answer), expected_scripts(prompt)) is None


def test_a_request_may_name_its_language():
    assert (expected_scripts("Bonjour", "ru") >> Script.CYRILLIC) & 1
    assert (expected_scripts("Bonjour", "zh-CN") >> Script.HAN) & 1
    assert expected_scripts("Hello there") == LATIN
    assert expected_scripts("Translate this") == ALL_SCRIPTS


def test_words_that_merely_contain_a_languages_name_justify_nothing():
    assert (
        expected_scripts("The rust-coloured car; my cousin Tamara; an overlay; a laoch; arable land; the Crusso inn")
        & ~LATIN
        == 0
    )


def test_kana_in_the_prompt_expects_han_too():
    assert (expected_scripts("こんにちは") >> Script.HAN) & 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([Script.COMMON, Script.PARTIAL, L, C]), max_size=200))
def test_expected_scripts_are_never_reported(scripts):
    assert first_reading(scripts, LATIN | (1 << C)) is None


def test_scripts_of_a_text_leave_signs_out():
    assert scripts_of("a1! д") == (1 << L) | (1 << C)
    assert scripts_of("123 ...") == 0
