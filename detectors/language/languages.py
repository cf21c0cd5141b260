"""Languages that the identifier tells apart, by the script that they share, and which are too near to each other."""

from __future__ import annotations

from checkengine.detectors.language.scripts import Script

CANDIDATES: dict[Script, tuple[str, ...]] = {
    Script.LATIN: (
        "en", "es", "fr", "de", "it", "pt", "id", "tr", "vi", "nl", "pl", "sv", "da", "no", "fi", "cs", "ro", "hu",
        "ca", "hr", "et", "lt", "lv", "sk", "sl", "sq", "tl", "sw", "eu", "gl", "af", "cy", "is", "ms", "az", "la",
        "zxx",
    ),
    Script.CYRILLIC: ("ru", "uk", "be", "bg", "sr", "mk", "kk", "ky", "mn", "tg"),
    Script.ARABIC: ("ar", "fa", "ur", "ps", "ug"),
    Script.DEVANAGARI: ("hi", "mr", "ne"),
    Script.HAN: ("zh", "ja"),
}  # fmt: skip
"""ISO 639-1 codes (`no` stands for Bokmål and Nynorsk). A script that is not here has one language, or is not read."""

COLUMNS: tuple[str, ...] = tuple(language for languages in CANDIDATES.values() for language in languages)
COLUMN_OF: dict[str, int] = {language: column for column, language in enumerate(COLUMNS)}

_NEAR = ("id ms", "da no", "sv no", "sv da", "hr sl", "cs sk", "es gl", "es ca", "pt gl", "fr ca", "tr az", "nl af",
         "it la", "es la", "ru be", "ru bg", "bg mk", "sr mk", "hi ne", "hi mr", "sr bg", "uk be", "it ca",
         "kk ky", "et fi")  # fmt: skip
NEAR: dict[str, frozenset[str]] = {
    language: frozenset(
        other for pair in _NEAR if language in pair.split() for other in pair.split() if other != language
    )
    for language in COLUMNS
}
"""Never alternatives to each other: some words do not tell them apart, and a reply that mixes them is rare."""

NO_LANGUAGE = "zxx"
"""The model's class of text without words (ISO 639-2): a candidate that is always expected."""

LONE: dict[Script, str] = {
    Script.GREEK: "el", Script.HEBREW: "he", Script.HANGUL: "ko", Script.THAI: "th", Script.BENGALI: "bn",
    Script.TAMIL: "ta", Script.TELUGU: "te", Script.GEORGIAN: "ka", Script.ARMENIAN: "hy", Script.ETHIOPIC: "am",
    Script.KHMER: "km", Script.LAO: "lo", Script.TIBETAN: "bo", Script.MYANMAR: "my", Script.SINHALA: "si",
    Script.GUJARATI: "gu", Script.GURMUKHI: "pa", Script.ORIYA: "or", Script.KANNADA: "kn", Script.MALAYALAM: "ml",
}  # fmt: skip
"""Scripts that name their language."""
