"""Which languages and scripts a request lets one expect in the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

from checkengine.detectors.language.codes import READ, normal
from checkengine.detectors.language.identifier import Identity, identify
from checkengine.detectors.language.languages import NEAR
from checkengine.detectors.language.names import is_about_languages, named, names_cyrillic, requested
from checkengine.detectors.language.scripts import Script, scripts_of

_JAPANESE = (1 << Script.HAN) | (1 << Script.KANA)
_KOREAN = (1 << Script.HANGUL) | (1 << Script.HAN)
ALL_SCRIPTS = ((1 << (max(Script) + 1)) - 1) & ~((1 << Script.COMMON) | (1 << Script.PARTIAL))

_OF_LANGUAGE: dict[str, int] = {
    **dict.fromkeys(["ru", "uk", "bg", "sr", "mk", "be", "kk", "ky", "tg"], 1 << Script.CYRILLIC),
    "mn": (1 << Script.CYRILLIC) | (1 << Script.MONGOLIAN),
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
_BY_SCRIPT_ALONE = (1 << Script.LATIN) | (1 << Script.COMMON) | (1 << Script.PARTIAL)

_ROLE = re.compile(r"^\s*(?:system|developer|user|assistant|human|ai)\s*:?\s*$", re.IGNORECASE)
_PERSONA = re.compile(
    r"^\s*(?:system\s*:?\s*)?(?:you are|you're|your (?:name|task|role|job) is|du bist|sie sind|tu es|vous êtes|eres\b"
    r"|usted es|você é|tu és|sei un|lei è|jij bent|je bent|jesteś|ты\b|вы\b|你是|您是|あなたは|당신은|أنت|आप\b|sen\b"
    r"|kamu adalah|anda adalah|bạn là)",
    re.IGNORECASE,
)
"""How system prompts begin, whatever the language of the user."""
PROMPT_READ = 4096
"""Characters of a prompt that are read from each end: where requests name a language."""
SURE, SURE_OF_START = 12.0, 30.0
"""Nats ahead from which a part of a prompt, or the start of an output, tells its language."""
PROSE = 0.6
"""Share of an output's start that must be words: code is in no language, though it is made of English."""
FEWEST_LETTERS = 12
ENOUGH = 512
"""Characters of each end of a text or line that tell what it is written in: more makes that no surer."""
PARTS = 24
"""Lines of a prompt that are looked at one by one."""


@dataclass(frozen=True, slots=True)
class Expectation:
    languages: frozenset[str] = frozenset()
    """ISO 639-1 codes; empty where nothing tells."""
    scripts: int = 0
    """Bit mask (1 << Script)."""
    anything: bool = False
    """The request is about translation or languages: every language may come."""

    @property
    def is_known(self) -> bool:
        return bool(self.languages) or self.anything


def scripts_of_languages(languages: frozenset[str]) -> int:
    mask = 1 << Script.LATIN
    for language in languages:
        mask |= _OF_LANGUAGE.get(language, 0)
    return mask


def expectation_of(prompt: str, language: str | None = None) -> Expectation:
    """`language` (as the client gave it: a code or an English name, see `codes.normal`) decides; else an explicit
    request in the prompt; else the languages that the prompt is written in. Languages that the prompt names may come
    too. Nothing known: see `expectation_from_start`.

    A `language` that is none counts as not given, and none of its text comes back; in one that the detectors do not
    read, anything may come."""
    if len(prompt) > 2 * PROMPT_READ:
        prompt = prompt[:PROMPT_READ] + "\n" + prompt[-PROMPT_READ:]
    names = named(prompt)
    asked = normal(language)
    if asked and asked not in READ:
        return Expectation(frozenset(), ALL_SCRIPTS, anything=True)
    languages = frozenset({asked}) if asked else requested(prompt, names)
    if not languages:
        if is_about_languages(prompt) and len(names) != 1:
            return Expectation(frozenset(), ALL_SCRIPTS, anything=True)
        languages = languages_in(_of_the_user(prompt)) | (names if is_about_languages(prompt) else frozenset())
    elif is_about_languages(prompt) and not asked:
        return Expectation(frozenset(), ALL_SCRIPTS, anything=True)
    if languages:
        languages |= names
    scripts = scripts_of_languages(languages | names) | scripts_of(prompt) | _cyrillic(prompt)
    if languages == {"ko"} and not scripts_of(prompt) & (1 << Script.HAN):
        scripts &= ~(1 << Script.HAN)
    return Expectation(languages, scripts)


def _of_the_user(prompt: str) -> str:
    """Without names of roles and without a first paragraph that tells the model who it is: its language is no wish.
    The whole prompt where nothing else is left."""
    paragraphs = "\n".join(line for line in prompt.splitlines() if not _ROLE.match(line)).strip().split("\n\n")
    if _PERSONA.match(paragraphs[0]):
        lines = paragraphs[0].splitlines()
        paragraphs[0] = "\n".join(lines[1:]) if len(paragraphs) == 1 else ""
    rest = "\n".join(paragraphs).strip()
    letters = islice((character for character in rest if character.isalpha()), FEWEST_LETTERS)
    return rest if len(list(letters)) == FEWEST_LETTERS else prompt


def languages_in(text: str) -> frozenset[str]:
    """Languages that the text is surely written in, line by line where it mixes them."""
    parts = [part for part in text.splitlines() if part.strip()][:PARTS]
    found = {_sure(identify(_ends(part)), SURE) for part in [text, *(parts if len(parts) > 1 else ())]}
    return frozenset(language for language in found if language)


def _ends(text: str) -> str:
    return text if len(text) <= 2 * ENOUGH else f"{text[:ENOUGH]}\n{text[-ENOUGH:]}"


def expectation_from_start(text: str, prompt_scripts: int = 0) -> Expectation:
    """From an output's own beginning, where the request tells nothing: what it goes on in is then expected."""
    identity = identify(text, quotations=False)
    language = _sure(identity, SURE_OF_START) if identity.prose > PROSE else None
    languages = frozenset({language}) if language else frozenset()
    return Expectation(
        languages, scripts_of_languages(languages) | prompt_scripts | (scripts_of(text) if not language else 0)
    )


def _cyrillic(text: str) -> int:
    return (1 << Script.CYRILLIC) if names_cyrillic(text) else 0


def _sure(identity: Identity, margin: float) -> str | None:
    if identity.letters < FEWEST_LETTERS or identity.margin < margin:
        return None
    return identity.language


def expected_scripts(prompt: str, language: str | None = None) -> int:
    """Bit mask of scripts (1 << Script) that the prompt justifies; Latin always is.

    A script counts where the prompt holds it or names a language that uses it; a prompt about
    translation or languages at large justifies all. `language` as for `expectation_of`.
    """
    asked = normal(language)
    if is_about_languages(prompt) or (asked and asked not in READ):
        return ALL_SCRIPTS
    languages = named(prompt) | ({asked} if asked else frozenset())
    mask = scripts_of_languages(languages) | scripts_of(prompt) | _cyrillic(prompt)
    if mask & (1 << Script.KANA):
        mask |= 1 << Script.HAN
    return mask


def names_language(context: str, language: str) -> bool:
    """True where a text names the language, or one that is near to it."""
    names = named(context)
    return language in names or bool(names & NEAR.get(language, frozenset()))


def names_script(context: str, script: int) -> bool:
    """True where a text names the script or a language that is written in it."""
    mask = _cyrillic(context) | scripts_of_languages(named(context)) & ~_BY_SCRIPT_ALONE
    return bool((mask >> script) & 1)
