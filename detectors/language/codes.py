"""Codes and English names of languages, as requests give them; what is none of them is no language."""

from __future__ import annotations

import re
from functools import lru_cache

_TWO_LETTERS = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta
te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
ISO_639_1 = frozenset(_TWO_LETTERS.split())

_NAMED = """
af afr Afrikaans; am amh Amharic; ar ara arb arz Arabic; as asm Assamese; az aze azj azb Azerbaijani; be bel Belarusian;
bg bul Bulgarian; bn ben Bengali Bangla; bo bod tib Tibetan; ca cat Catalan; cs ces cze Czech; cy cym wel Welsh;
da dan Danish; de deu ger German; el ell gre Greek; en eng English; es spa Spanish Castilian; et est ekk Estonian;
eu eus baq Basque; fa fas per pes prs Persian Farsi Dari; fi fin Finnish; fr fra fre French; gl glg Galician;
gu guj Gujarati; he heb iw Hebrew; hi hin Hindi; hr hrv bs bos sh hbs Croatian Bosnian Serbo-Croatian;
hu hun Hungarian; hy hye arm Armenian; id ind in Indonesian; is isl ice Icelandic; it ita Italian; ja jpn Japanese;
ka kat geo Georgian; kk kaz Kazakh; km khm Khmer; kn kan Kannada; ko kor Korean; ky kir Kyrgyz Kirghiz; la lat Latin;
lo lao Lao; lt lit Lithuanian; lv lav lvs Latvian; mk mkd mac Macedonian; ml mal Malayalam; mn mon khk Mongolian;
mr mar Marathi; ms msa may zsm Malay; my mya bur Burmese; ne nep npi Nepali; nl nld dut vls Dutch Flemish;
no nor nb nob nn nno Norwegian Bokmål Nynorsk; or ori ory Odia Oriya; pa pan Punjabi Panjabi; pl pol Polish;
ps pus pbt Pashto; pt por Portuguese; ro ron rum mo Romanian Moldovan; ru rus Russian; sa san Sanskrit; sd snd Sindhi;
si sin Sinhala Sinhalese; sk slk slo Slovak; sl slv Slovenian Slovene; sq sqi alb als Albanian; sr srp Serbian;
sv swe Swedish; sw swa swh Swahili; ta tam Tamil; te tel Telugu; tg tgk Tajik; th tha Thai; ti tir Tigrinya;
tl tgl fil Tagalog Filipino; tr tur Turkish; ug uig Uyghur Uighur; uk ukr Ukrainian; ur urd Urdu; vi vie Vietnamese;
yi yid Yiddish; zh zho chi cmn yue Chinese Mandarin Cantonese
"""
"""Languages that the detectors know: ISO 639-1, then ISO 639-2 and 639-3, older codes, neighbours that they take for
the same, and English names."""

_CODE_OF = {
    name.lower(): words[0]
    for words in (line.split() for line in _NAMED.replace("\n", " ").split(";"))
    for name in words
}
READ = frozenset(_CODE_OF.values())
"""ISO 639-1 codes of the languages that the detectors know by their letters or their words."""
MOST = 64
"""Characters; longer texts are no code and no name."""
_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{1,8})*(?:\.[a-z0-9-]+)?")
"""A language with a region, a script or a locale's encoding: `pt-BR`, `zh-Hans-CN`, `en_US.UTF-8`."""
_IN_BRACKETS = re.compile(r"\s*\([^()]*\)$")


def normal(code: str | None) -> str | None:
    """The ISO 639-1 code: `pt-BR` and `Portuguese` -> `pt`, `nb` -> `no`, `deu` -> `de`; None where it is no language.

    Codes of languages that the detectors do not read (not in `READ`) stay as they are.
    """
    return None if code is None or len(code) > MOST else _normal(code)


@lru_cache(1024)
def _normal(code: str) -> str | None:
    lowered = code.strip().lower()
    tag = _TAG.fullmatch(lowered)
    head = tag.group(1) if tag else _IN_BRACKETS.sub("", lowered)
    return _CODE_OF.get(head) or (head if head in ISO_639_1 else None)
