"""Which scripts a prompt lets one expect in the answer."""

from __future__ import annotations

import re

from checkengine.detectors.language.scripts import Script, scripts_of

_JAPANESE = (1 << Script.HAN) | (1 << Script.KANA)
_KOREAN = (1 << Script.HANGUL) | (1 << Script.HAN)

_NAMES: dict[str, tuple[Script, ...]] = {
    # English, then German, French, Spanish and Italian names, as stems where endings vary.
    "russ|ruso|rusa|ukrain|ucran|bulgar|búlgar|serb|macedon|mazedon|belarus|kazakh|kasach|kyrgyz|tajik|cyrillic|kyrill"
    "|cirílic|cyrillique|cirillic": (Script.CYRILLIC,),
    "greek|griech|grec|grieg|greco": (Script.GREEK,),
    "chinese|chines|chinois|chino\\b|cinese|mandarin|cantonese|kanton|hanzi|kanji": (Script.HAN,),
    "japan|japon|giappon|hiragana|katakana": (Script.HAN, Script.KANA),
    "korea|corea|coréen|hangul": (Script.HANGUL, Script.HAN),
    "arab(?!l|esq)|árabe|persian|persisch|farsi|iran|urdu|pashto|uyghur|sindhi": (Script.ARABIC,),
    "hebrew|hebrä|hébreu|hebreo|ebraic|yiddish|jiddisch": (Script.HEBREW,),
    "hindi|marathi|nepali|nepales|sanskrit|devanagari": (Script.DEVANAGARI,),
    "bengal|bangla|assamese": (Script.BENGALI,),
    "punjabi|gurmukhi": (Script.GURMUKHI,),
    "gujarat": (Script.GUJARATI,),
    "odia|oriya": (Script.ORIYA,),
    "tamil": (Script.TAMIL,),
    "telugu": (Script.TELUGU,),
    "kannada": (Script.KANNADA,),
    "malayalam": (Script.MALAYALAM,),
    "sinhal|singhal": (Script.SINHALA,),
    "thai|thaï|tailand": (Script.THAI,),
    r"lao\b|laos\b|laotian": (Script.LAO,),
    "tibet": (Script.TIBETAN,),
    "burm|birman|myanmar": (Script.MYANMAR,),
    "georgian|georgisch|géorgien|georgiano": (Script.GEORGIAN,),
    "armen|armén": (Script.ARMENIAN,),
    "amhar|ethiop|äthiop|tigrin": (Script.ETHIOPIC,),
    "khmer|cambod|kambod": (Script.KHMER,),
    "mongol": (Script.MONGOLIAN, Script.CYRILLIC),
    "cherokee": (Script.CHEROKEE,),
}
_MATCHERS = tuple(
    (re.compile(rf"\b(?:{stems})", re.IGNORECASE), sum(1 << script for script in scripts))
    for stems, scripts in _NAMES.items()
)
_ANY = re.compile(
    r"\b(?:translat|übersetz|traduc|tradui|tradur|languages|sprachen|langues|idiomas|lingue|unicode|utf-?8|alphabets?)",
    re.IGNORECASE,
)
ALL_SCRIPTS = ((1 << (max(Script) + 1)) - 1) & ~((1 << Script.COMMON) | (1 << Script.PARTIAL))

_OF_LANGUAGE: dict[str, int] = {
    **dict.fromkeys(["ru", "uk", "bg", "sr", "mk", "be", "kk", "ky", "tg", "mn"], 1 << Script.CYRILLIC),
    "el": 1 << Script.GREEK,
    "zh": 1 << Script.HAN,
    "ja": _JAPANESE,
    "ko": _KOREAN,
    **dict.fromkeys(["ar", "fa", "ur", "ps", "ug", "sd"], 1 << Script.ARABIC),
    **dict.fromkeys(["he", "yi"], 1 << Script.HEBREW),
    **dict.fromkeys(["hi", "mr", "ne", "sa"], 1 << Script.DEVANAGARI),
    **dict.fromkeys(["bn", "as"], 1 << Script.BENGALI),
    "pa": 1 << Script.GURMUKHI,
    "gu": 1 << Script.GUJARATI,
    "or": 1 << Script.ORIYA,
    "ta": 1 << Script.TAMIL,
    "te": 1 << Script.TELUGU,
    "kn": 1 << Script.KANNADA,
    "ml": 1 << Script.MALAYALAM,
    "si": 1 << Script.SINHALA,
    "th": 1 << Script.THAI,
    "lo": 1 << Script.LAO,
    "bo": 1 << Script.TIBETAN,
    "my": 1 << Script.MYANMAR,
    "ka": 1 << Script.GEORGIAN,
    "hy": 1 << Script.ARMENIAN,
    **dict.fromkeys(["am", "ti"], 1 << Script.ETHIOPIC),
    "km": 1 << Script.KHMER,
}


def expected_scripts(prompt: str, language: str | None = None) -> int:
    """Bit mask of scripts (1 << Script) that the prompt justifies; Latin always is.

    A script counts where the prompt holds it or names a language that uses it; a prompt about
    translation or languages at large justifies all. `language` is an ISO 639-1 code.
    """
    mask = (1 << Script.LATIN) | scripts_of(prompt)
    if language is not None:
        mask |= _OF_LANGUAGE.get(language.lower().split("-")[0], 0)
    for names, scripts in _MATCHERS:
        if names.search(prompt):
            mask |= scripts
    if mask & (1 << Script.KANA):
        mask |= 1 << Script.HAN
    return ALL_SCRIPTS if _ANY.search(prompt) else mask
