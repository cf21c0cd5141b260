"""The language of a line, and what a request lets one expect."""

from __future__ import annotations

import math

import pytest

from checkengine.detectors.language import Script, expectation_of, identify
from checkengine.detectors.language.languages import CANDIDATES, COLUMNS, NEAR
from checkengine.detectors.language.model import language_model
from checkengine.detectors.language.names import STEMS, is_about_languages, named, requested


@pytest.mark.parametrize(
    ("line", "language"),
    [
        ("Where were you yesterday evening?", "en"), ("Wo warst du gestern Abend?", "de"),
        ("Où étais-tu hier soir ?", "fr"), ("¿Dónde estabas ayer por la noche?", "es"),
        ("Onde você estava ontem à noite?", "pt"), ("Dove eri ieri sera?", "it"), ("Dün akşam neredeydin?", "tr"),
        ("Di mana kamu tadi malam?", "id"), ("Tối qua bạn đã ở đâu?", "vi"), ("Где ты был вчера вечером?", "ru"),
        ("أين كنت مساء أمس؟", "ar"), ("कल शाम तुम कहाँ थे?", "hi"), ("你昨天晚上在哪里？", "zh"),
        ("昨日の夜はどこにいましたか。", "ja"),
        ("어제 저녁에 어디 있었어요?", "ko"), ("Πού ήσουν χθες το βράδυ;", "el"),
        ("Waar was je gisteravond?", "nl"), ("Gdzie byłeś wczoraj wieczorem?", "pl"),
        ("Де ти був учора ввечері?", "uk"),
    ],
)  # fmt: skip
def test_a_sentence_tells_its_language(line, language):
    found = identify(line)
    assert found.language == language
    assert found.lag_of(language) == 0


def test_a_language_of_another_script_lags_infinitely_and_a_near_one_by_nothing_that_counts():
    english = identify("Where were you yesterday evening?")
    assert english.lag_of("ru") == math.inf
    assert english.lag_of("fr") > 10
    assert identify("Di mana kamu tadi malam?").lag_of("ms") < 5


@pytest.mark.parametrize("text", ["", "123 !?", "\0\ud800", "🙂🙂"])
def test_a_text_without_letters_tells_nothing(text):
    found = identify(text)
    assert (found.language, found.script, found.lag_of("fr")) == (None, Script.COMMON, 0.0)


def test_a_han_character_counts_more_than_a_letter_beside_it():
    assert identify("使用 Salesforce Customer 来收集和分析客户的数据").language == "zh"
    assert identify("オブジェクト指向プログラミング (Object-Oriented Programming)").language == "ja"


def test_the_candidates_can_be_restricted():
    assert identify("Di mana kamu tadi malam?", among=("ms", "en")).language == "ms"


def test_every_candidate_is_in_the_model_and_tables_fit_together():
    model = language_model()
    assert model.table.shape[1] == len(COLUMNS)
    assert set(model.emits.tolist()) <= set(range(-1, len(model.table)))
    assert model.first.max() + 255 < len(model.following)
    assert model.following.max() < len(model.first)
    assert len(set(COLUMNS)) == len(COLUMNS) == sum(map(len, CANDIDATES.values()))
    assert all(language in NEAR[other] for language in COLUMNS for other in NEAR[language])


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("answer in English", {"en"}), ("auf Deutsch, bitte", {"de"}), ("en español", {"es"}), ("用中文写", {"zh"}),
        ("на английском языке", {"en"}), ("en allemand", {"de"}), ("bằng tiếng Anh", {"en"}),
        ("باللغة العربية", {"ar"}),
        ("हिन्दी में", {"hi"}), ("영어로", {"en"}), ("日本語で", {"ja"}), ("dalam bahasa Inggris", {"en", "id"}),
        ("Türkçe yaz", {"tr"}), ("in het Nederlands", {"nl"}), ("po polsku", {"pl"}), ("in francese", {"fr"}),
        ("arable land, a laoch, Tamara, rust, the frenzy, a germ, dutiful", set()),
    ],
)  # fmt: skip
def test_names_of_languages_are_known_in_the_languages_people_ask_in(text, codes):
    assert named(text) == codes


ENGLISH_NAMES = """
    en English fr French de German es Spanish pt Portuguese it Italian nl Dutch pl Polish id Indonesian ms Malay
    tr Turkish vi Vietnamese sv Swedish da Danish no Norwegian fi Finnish cs Czech sk Slovak ro Romanian hu Hungarian
    ca Catalan hr Croatian et Estonian lt Lithuanian lv Latvian sl Slovenian sq Albanian tl Tagalog sw Swahili
    eu Basque gl Galician af Afrikaans cy Welsh is Icelandic az Azerbaijani la Latin ru Russian uk Ukrainian
    be Belarusian bg Bulgarian sr Serbian mk Macedonian kk Kazakh ky Kyrgyz tg Tajik mn Mongolian el Greek zh Chinese
    ja Japanese ko Korean ar Arabic fa Persian ur Urdu ps Pashto ug Uyghur sd Sindhi he Hebrew yi Yiddish hi Hindi
    mr Marathi ne Nepali sa Sanskrit bn Bengali as Assamese pa Punjabi gu Gujarati or Odia ta Tamil te Telugu
    kn Kannada ml Malayalam si Sinhala th Thai lo Lao bo Tibetan my Burmese ka Georgian hy Armenian am Amharic
    ti Tigrinya km Khmer
"""


def test_every_language_of_the_table_is_found_by_its_english_name_and_no_other_is():
    words = ENGLISH_NAMES.split()
    names = dict(zip(words[::2], words[1::2], strict=True))
    assert names.keys() == STEMS.keys()
    assert {code: set(named(f"write it in {name}, please")) for code, name in names.items()} == {
        code: {code} for code in names
    }


@pytest.mark.parametrize(
    ("prompt", "language"),
    [
        ("Answer in French: what is a harbour?", "fr"), ("Respond to the user in German.", "de"),
        ("Réponds en anglais : qu'est-ce qu'un port ?", "en"), ("Antworte auf Spanisch.", "es"),
        ("Responda em inglês: o que é um porto?", "en"), ("Rispondi in tedesco", "de"), ("请用英文回答", "en"),
        ("英語で答えてください", "en"), ("영어로 대답해 주세요", "en"), ("Отвечай на немецком", "de"),
    ],
)  # fmt: skip
def test_an_explicit_request_is_the_expectation(prompt, language):
    assert requested(prompt, named(prompt)) == {language}
    assert expectation_of(prompt).languages == {language}


def test_what_the_client_says_goes_before_what_the_prompt_is_written_in():
    found = expectation_of("What is a harbour and why is it so quiet in the morning?", "pt-BR")
    assert found.languages == {"pt"}


def test_a_system_prompt_in_another_language_is_no_wish():
    user = "Pourquoi le port est-il si calme le matin, et que font les enfants ?"
    assert expectation_of("You are a helpful assistant.\n\n" + user).languages == {"fr"}
    assert expectation_of("system\nYou are a helpful assistant.\nuser\n" + user).languages == {"fr"}


def test_a_prompt_in_two_languages_expects_both():
    prompt = (
        "Please summarise this for me in a few short sentences:\n\nLe port était calme ce matin, et les bateaux aussi."
    )
    assert expectation_of(prompt).languages == {"en", "fr"}


def test_languages_at_large_expect_anything():
    assert expectation_of("Write 'peace' in as many languages as you can").anything
    assert expectation_of("Translate this sentence").anything
    assert is_about_languages("翻译这句话")
    assert not is_about_languages("Why is the harbour quiet?")


def test_a_korean_request_does_not_expect_chinese():
    scripts = expectation_of("항구는 왜 아침에 그렇게 조용한가요?").scripts
    assert (scripts >> Script.HANGUL) & 1
    assert not (scripts >> Script.HAN) & 1


def test_a_prompt_of_a_megabyte_is_read_at_both_ends():
    prompt = "Réponds en anglais. " + "x " * 500_000
    assert expectation_of(prompt).languages == {"en"}
