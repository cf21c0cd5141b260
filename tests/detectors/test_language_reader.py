"""The reader: turns to another language or script, what is no turn, and that cuts change nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkengine.detectors import LanguageReader, LanguageReading, expectation_of, identify
from checkengine.detectors.language import LanguageLimits

TEXTS = {
    "en": "The old harbour was quiet in the morning, and the boats lay close to the wall while the children went to "
    "school. Nobody had thought that the winter would be so long, but there was still enough wood for the house.",
    "fr": "Le vieux port était calme ce matin, et les bateaux étaient serrés contre le quai pendant que les enfants "
    "allaient à l'école. Personne n'avait pensé que l'hiver serait si long, mais il restait assez de bois.",
    "de": "Der alte Hafen war am Morgen ruhig, und die Boote lagen dicht an der Mauer, während die Kinder zur Schule "
    "gingen. Niemand hatte gedacht, dass der Winter so lang sein würde, aber es gab noch genug Holz für das Haus.",
    "es": "El viejo puerto estaba tranquilo por la mañana, y los barcos estaban junto al muro mientras los niños iban "
    "a la escuela. Nadie había pensado que el invierno sería tan largo, pero todavía quedaba leña para la casa.",
    "pt": "O velho porto estava calmo de manhã, e os barcos estavam junto ao muro enquanto as crianças iam para a "
    "escola. Ninguém tinha pensado que o inverno seria tão longo, mas ainda havia lenha suficiente para a casa.",
    "ru": "Старая гавань была тихой утром, и лодки стояли близко к стене, пока дети шли в школу. Никто не думал, что "
    "зима будет такой долгой, но дров для дома ещё хватало.",
    "uk": "Стара гавань була тихою вранці, і човни стояли близько до стіни, поки діти йшли до школи. Ніхто не думав, "
    "що зима буде такою довгою, але дров для будинку ще вистачало, і ми сиділи біля вогню.",
    "zh": "清晨的旧港口很安静，小船紧靠着墙停着，孩子们正在去学校的路上。没有人想到冬天会这么长，但是家里的木柴还够用，"
    "我们坐在火边讲了很多关于大海的故事。",
    "ja": "朝の古い港は静かで、子どもたちが学校へ行くあいだ、小舟は壁のそばに並んでいた。冬がこんなに長くなるとは誰も"
    "思わなかったが、家にはまだ薪が残っていた。",
    "ar": "كان الميناء القديم هادئا في الصباح، وكانت القوارب قريبة من الجدار بينما ذهب الأطفال إلى المدرسة. لم يظن أحد "
    "أن الشتاء سيكون طويلا هكذا، ولكن الحطب كان لا يزال كافيا للبيت.",
    "fa": "بندر قدیمی صبح آرام بود و قایق‌ها نزدیک دیوار بودند در حالی که بچه‌ها به مدرسه می‌رفتند. هیچ‌کس فکر نمی‌کرد "
    "که زمستان این‌قدر طولانی باشد، اما هنوز هیزم کافی برای خانه بود و ما کنار آتش نشستیم.",
}  # fmt: skip


def read(text: str, prompt: str = "", language: str | None = None, **limits: float) -> list[LanguageReading]:
    reader = LanguageReader(expectation_of(prompt, language), LanguageLimits(**limits))  # type: ignore[arg-type]
    return reader.push(text) + reader.end()


@pytest.mark.parametrize(
    ("first", "second", "most"),
    [
        ("en", "fr", 100), ("fr", "en", 100), ("de", "en", 100), ("es", "pt", 140), ("pt", "es", 140),
        ("en", "de", 100),
        ("ru", "uk", 120), ("ar", "fa", 140), ("zh", "ja", 40), ("ja", "zh", 60), ("zh", "en", 130), ("ru", "en", 130),
    ],
)  # fmt: skip
def test_a_turn_to_another_language_is_told_near_where_it_begins(first, second, most):
    start = TEXTS[first] + " "
    readings = read(start + TEXTS[second], language=first)
    assert readings
    assert readings[0].stage == "warning"
    # A word or two before it may be of both languages.
    assert len(start) - 12 <= readings[0].start <= readings[0].end <= len(start) + most


@pytest.mark.parametrize(("first", "second"), [("en", "ru"), ("ru", "ar"), ("fr", "zh"), ("zh", "ru"), ("ar", "ja")])
def test_a_turn_to_another_script_is_told_within_eight_letters(first, second):
    start = TEXTS[first] + " "
    reading = read(start + TEXTS[second], language=first)[0]
    assert reading.by == "script"
    assert sum(c.isalpha() for c in (start + TEXTS[second])[len(start) : reading.end]) <= 8


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_in_the_expected_language_passes(language):
    assert read(TEXTS[language] * 3, language=language) == []


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_is_expected_in_the_language_of_its_prompt(language):
    assert read(TEXTS[language], prompt=TEXTS[language][:100]) == []
    other = "ru" if language == "en" else "en"
    assert read(TEXTS[other], prompt=TEXTS[language][:100])


def test_a_reply_that_is_wrong_from_the_beginning_is_told_from_the_beginning():
    reading = read(TEXTS["en"], language="fr")[0]
    assert reading.start <= len("The ")
    assert reading.foreign == "en"


def test_what_goes_on_becomes_an_error_and_each_stage_is_told_once():
    readings = read(TEXTS["fr"] + TEXTS["en"] * 4, language="fr")
    assert [reading.stage for reading in readings] == ["warning", "error"]
    assert readings[1].evidence > readings[0].evidence


def test_a_japanese_title_is_one_writing_system():
    assert read("「進撃の巨人」は諫山創による漫画である。進撃の巨人の物語は壁の中で始まる。", language="ja") == []


HEALTHY = {
    (
        "code",
        "fr",
    ): "Voici la fonction demandée :\n\n```python\ndef compute(values):\n    # return the sum of all the values that "
    "are in the list and the number of them\n    return sum(values), len(values)\n```\nElle rend la somme.",
    (
        "code without a fence",
        "es",
    ): "La función es esta:\n\nfor (int i = 0; i < count; i++) { if (is_valid(items[i])) { "
    "total += items[i].price(); } else { throw new Error('the item is not valid and was not found in the list'); } }\n",
    (
        "names",
        "de",
    ): "Die bekanntesten Autoren sind William Shakespeare, Jane Austen, Charles Dickens, Oscar Wilde, George "
    "Orwell, Virginia Woolf, James Joyce, Agatha Christie und Arthur Conan Doyle; sie alle schrieben auf ihre Weise.",
    (
        "a quotation",
        "fr",
    ): "Il écrivait : « All happy families are alike; each unhappy family is unhappy in its own way » et "
    "il continuait ensuite son récit en français.",
    (
        "a bracket",
        "fr",
    ): "Le titre est connu de tous (The Unbearable Lightness of Being and the story that follows it) et il "
    "revient souvent dans la conversation.",
    (
        "formulae",
        "fr",
    ): "Soit f(x) = ∑ aₙ xⁿ avec |x| < R ; alors ∂f/∂x = α·β + γ, où λ, μ, σ et ω sont réels, et lim f = 0.",
    (
        "an address",
        "de",
    ): "Das steht auf https://www.example.com/the-best-of-the-year/and-all-the-rest-of-it.html und dort "
    "auch unter /usr/share/doc/the_name_of_the_package/README.",
    (
        "a foreign term",
        "de",
    ): "Das ist ein typischer Fall von Machine Learning und Deep Learning mit Python und PyTorch.",
    ("a name in its own script", "en"): "The Russian name Достоевский (Dostoevsky) means little to most readers.",
    ("an announced phrase", "de"): "Auf Griechisch schreibt man ευχαριστώ πολύ, und das heißt vielen Dank.",
    ("a table", "de"): "| Deutsch | Englisch |\n|---|---|\n| Haus | the house on the hill |\n"
    "| Katze | the cat that was here |\n",
    ("emoji and signs", "de"): "Das ist gut 🙂🎉 → weiter so ✨ und ½ Liter bei 37 °C, 5 µm ± 2 Ω, №5.",
    ("a refrain", "fr"): "La chanson dit love love love love love love love love love love love, et le public chante.",
}


@pytest.mark.parametrize(("name", "language"), HEALTHY)
def test_code_names_quotations_formulae_and_tables_pass(name, language):
    assert read(HEALTHY[name, language], language=language) == []


def test_quotations_can_be_left_out_of_a_verdict():
    text = HEALTHY["a quotation", "fr"]
    assert identify(text).language == "en"
    assert identify(text, quotations=False).language == "fr"


def test_a_quotation_whose_end_was_forgotten_does_not_hide_the_rest():
    assert read('Il a dit : "' + TEXTS["en"] * 4, language="fr")


def test_a_fence_hides_code_and_its_end_shows_text_again():
    fence = "```\n" + TEXTS["en"] + "\n```\n"
    assert read(TEXTS["fr"] + "\n" + fence + TEXTS["fr"], language="fr") == []
    assert read(TEXTS["fr"] + "\n" + fence + TEXTS["en"], language="fr")


def test_a_language_that_the_reply_itself_announces_is_no_turn():
    text = "Voici la traduction en anglais :\n\nThe old harbour was quiet in the morning, and the boats lay close."
    assert read(text, language="fr") == []


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Translate to French: the old harbour was quiet", "fr"), ("Übersetze ins Englische: der alte Hafen", "en"),
        ("Please answer in German: what is a harbour?", "de"),
        ("¿Cómo se dice esto en ruso? El puerto es viejo", "ru"),
        ("用法语回答：什么是港口？", "fr"), ("ответь по-английски: что такое гавань?", "en"),
        ("日本語で答えてください", "ja"),
        ("Escribe en inglés un texto sobre el puerto viejo de la ciudad", "en"),
    ],
)  # fmt: skip
def test_a_user_who_asked_for_another_language_gets_it_without_an_alarm(prompt, answer):
    assert read(TEXTS[answer], prompt=prompt) == []


def test_an_answer_in_the_prompts_language_is_told_where_another_was_asked_for():
    assert read(TEXTS["en"], prompt="Please answer in French: what is a harbour and why is it quiet?")


def test_without_a_prompt_the_outputs_own_start_is_the_expectation():
    assert read(TEXTS["de"] * 2) == []
    reading = read(TEXTS["de"] * 2 + TEXTS["en"])[0]
    assert reading.foreign == "en"
    assert reading.start >= 2 * len(TEXTS["de"]) - 1


def test_code_without_a_prompt_tells_no_language_and_none_is_foreign():
    text = "import os\n\ndef main(argv):\n    for name in os.listdir(argv[1]):\n        print(name.upper())\n" * 20
    assert read(text + TEXTS["fr"]) == []


NASTY = st.text(
    st.sampled_from('abcdefgh  .,"(`\n’éñдשل漢あ각ไ\u0301\u200d\u200f\ud800\udfff\0𝔸😀的theundla'), max_size=300
)
MIXED = st.lists(st.sampled_from([*TEXTS.values(), '"', "```", "(", "\n", "\ud83d", "x = 1;", "e\u0301"]), max_size=6)


@settings(max_examples=60, deadline=None)
@given(NASTY, st.lists(st.integers(0, 300), max_size=6), st.sampled_from(["fr", "zh", "ru", None]))
@example("\ud83d\ude00 the \ud800 and", [1, 7], "fr")
def test_any_characters_pass_through_and_cuts_change_nothing(text, cuts, language):
    assert pieces(text, cuts, language) == pieces(text, [], language)


@settings(max_examples=60, deadline=None)
@given(MIXED.map("".join), st.lists(st.integers(0, 1500), max_size=8), st.sampled_from(["fr", "zh", "ru", None]))
def test_a_text_cut_anywhere_is_read_alike(text, cuts, language):
    assert pieces(text, cuts, language) == pieces(text, [], language)


def test_a_text_read_character_by_character_gives_the_same_readings():
    text = TEXTS["fr"] + " « " + TEXTS["en"][:60] + " » " + TEXTS["ru"] + TEXTS["en"]
    assert pieces(text, list(range(len(text))), "fr") == pieces(text, [], "fr") != []


def pieces(text: str, cuts: list[int], language: str | None) -> list[LanguageReading]:
    reader = LanguageReader(expectation_of("", language))
    found: list[LanguageReading] = []
    at = 0
    for cut in [*sorted(cuts), len(text)]:
        found += reader.push(text[at : max(at, cut)])
        at = max(at, cut)
    return found + reader.end()


def test_a_word_of_a_megabyte_and_a_line_of_ten_are_read_in_bounded_state():
    reader = LanguageReader(expectation_of("", "fr"))
    assert reader.push("a" * 1_000_000) == []
    for _ in range(50):
        reader.push(TEXTS["fr"] * 1000)
    assert reader.end() == []
    assert len(reader._tail) <= 640


def test_right_to_left_marks_joiners_and_decomposed_letters_are_no_turn():
    assert read("\u200f" + TEXTS["ar"].replace(" ", "\u200f "), language="ar") == []
    assert read(TEXTS["fa"], language="fa") == []
    decomposed = (
        "Le cafe\u0301 e\u0301tait ferme\u0301, et la fore\u0302t e\u0301tait de\u0301ja\u0300 tre\u0300s sombre. "
    )
    assert read(decomposed * 5, language="fr") == []
