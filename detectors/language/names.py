"""Names of languages in the languages that people ask in, and the ways to ask for an answer in one."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import product

STEMS: dict[str, str] = {
    # English, German, French, Spanish, Portuguese, Italian, Dutch, then others; as stems where endings vary.
    "en": (
        r"english|englis[ck]h|engels|anglais|ingl[eéê]s|inglese|inggris|ingilizce|ti[eế]ng anh|angielsk"
        r"|angli[ck]|engelsk|английск|англійськ|英語|英语|英文|영어|ال[إا]نجليزي|[إا]نجليزي|انگلیسی"
        r"|انگریزی|अंग्रेज़ी|अंग्रेजी|इंग्लिश|αγγλικ|אנגלית|อังกฤษ"
    ),
    "fr": (
        r"french|französisch|fran[cç]ais|franc[eé]s|franc[eê]s|frans\b|prancis|frans[iı]zca"
        r"|ti[eế]ng ph[aá]p|francusk|французск|法語|法语|法文|フランス語|프랑스어|불어|ال?فرنسية|فرانسوی"
        r"|फ़्रेंच|फ्रेंच|γαλλικ"
    ),
    "de": (
        r"german|deutsch|allemand|alem[aá]n|alem[aã]o|tedesc|duits|jerman|almanca|ti[eế]ng đ[uứ]c|niemieck"
        r"|немецк|德語|德语|德文|ドイツ語|독일어|ال?[أا]لمانية|जर्मन|γερμανικ"
    ),
    "es": (
        r"spanish|spanisch|espagnol|espa[nñ]ol|espanhol|spagnol|castellano|spaans|spanyol|ispanyolca"
        r"|ti[eế]ng t[aâ]y ban nha|hiszpańsk|испанск|西班牙[語语文]|スペイン語|스페인어|ال?[إا]سبانية"
        r"|स्पेनिश|स्पैनिश|ισπανικ"
    ),
    "pt": (
        r"portug(?:u|i)|português|portekizce|ti[eế]ng b[oồ]|葡萄牙[語语文]|ポルトガル語|포르투갈어"
        r"|ال?برتغالية|पुर्तगाली|португальск"
    ),
    "it": (
        r"italian|italien|italiaans|italia\b|italyanca|ti[eế]ng [yý]\b|włosk|итальянск|意大利[語语文]"
        r"|イタリア語|이탈리아어|ال?[إا]يطالية|इतालवी"
    ),
    "nl": (
        r"\bdutch|niederländ|n[eé]erland|holand[eé]s|oland[eé]s|nederlands|belanda|flam[ea]nd|flemish"
        r"|нидерландск|荷兰[語语文]|オランダ語"
    ),
    "pl": (
        r"\bpolish\b|polnisch|polonais|polaco|polon[eê]s|polacc|pools\b|polsk|польск|波兰[語语文]"
        r"|ポーランド語"
    ),
    "id": (
        r"indones|bahasa|印[尼度]尼?西?亞?亚?[語语文]|インドネシア語|인도네시아어|индонезийск"
        r"|ال?[إا]ندونيسية"
    ),
    "ms": r"\bmalay\b|malais|malayo|melayu|马来[語语文]|マレー語",
    "tr": (
        r"turk(?:ish|ce|isch)|türk|turc\b|turco|turks\b|turki\b|turqu|турецк|土耳其[語语文]|トルコ語"
        r"|터키어|튀르키예어|ال?تركية|तुर्की"
    ),
    "vi": r"vietnam|viêt|ti[eế]ng vi[eệ]t|вьетнамск|越南[語语文]|ベトナム語|베트남어|ال?فيتنامية",
    "sv": r"swed|schwed|suéd|sueco|svedes|zweeds|svensk|шведск|瑞典[語语文]|スウェーデン語",
    "da": r"danish|dänisch|danois|danés|dinamarqu|danese|deens|dansk|датск|丹麦[語语文]",
    "no": r"norweg|norvég|noruego|noruegu|norveg|noors|norsk|bokm[åa]l|nynorsk|норвежск|挪威[語语文]",
    "fi": r"finnish|finnisch|finnois|finland[eé]s|finlandese|fins\b|suome|финск|芬兰[語语文]",
    "cs": r"\bczech|tschech|tch[eè]que|checo|ceco\b|tsjech|[cč]esk[yéý]|чешск|捷克[語语文]",
    "sk": r"slovak|slowak|slovaque|eslovac|slovac|slovensk",
    "ro": r"romanian|rumän|roumain|rumano|romeno|rumen[oi]|român|румынск",
    "hu": r"hungar|ungar|hongrois|húngar|unghere|magyar|венгерск",
    "ca": r"catal[aàáo]|katalan",
    "hr": r"croat|kroat|croaz|hrvatsk|bosni|хорватск",
    "et": r"estoni|estni|eesti",
    "lt": r"lithuan|litau|lituan|lietuv",
    "lv": r"latvi|lettisch|letton|let[oó]n|latvie",
    "sl": r"sloven(?:e|ia|isch)|slovène|esloven|slovenšč",
    "sq": r"albani|albanes|shqip",
    "tl": r"tagalog|filipin|pilipin",
    "sw": r"swahili|suaheli|kiswahili",
    "eu": r"basque|baskisch|vasco|euskera|euskara",
    "gl": r"galici|gallego|galego",
    "af": r"afrikaans",
    "cy": r"\bwelsh|walisisch|gallois|galés|cymraeg",
    "is": r"iceland|isländ|island(?:ais|[eé]s)|íslensk",
    "az": r"azer(?:i\b|bai|bay)|aserbaid",
    "la": r"\blatin\b|latein|latín|latim|latino\b|lateinisch",
    "ru": r"russ|ruso\b|rusa\b|rusça|rusia|ti[eế]ng nga|русск|俄語|俄语|俄文|ロシア語|러시아어|ال?روسية|रूसी",
    "uk": r"ukrain|ucran|україн|украинск|乌克兰[語语文]",
    "be": r"belarus|беларус|белорус",
    "bg": r"bulgar|búlgar|болгарск|български",
    "sr": r"serb|српск|сербск",
    "mk": r"macedon|mazedon|македонск",
    "kk": r"kazakh|kasach|казахск|қазақ",
    "ky": r"kyrgyz|kirgis|кыргыз",
    "tg": r"tajik|tadschik|тоҷик|таджик",
    "mn": r"mongol|монгол",
    "el": r"greek|griech|grec\b|grecque|grieg|greco\b|grego|ελληνικ|греческ|希腊[語语文]",
    "zh": (
        r"chinese|chines|chinois|chino\b|cinese|mandarin|cantonese|kanton|hanzi|kanji|tionghoa|[cç]ince"
        r"|ti[eế]ng trung|китайск|中文|汉语|漢語|中国語|普通话|华语|중국어|ال?صينية|चीनी"
    ),
    "ja": (
        r"japan|japon|giappon|jepang|hiragana|katakana|ti[eế]ng nh[aậ]t|японск|日本語|日语|日文|일본어"
        r"|ال?يابانية|जापानी"
    ),
    "ko": (
        r"korea|corea|coréen|kore(?:li|ce)|hangul|ti[eế]ng h[aà]n|корейск|韓国語|韩语|韩文|한국어|ال?كورية"
        r"|कोरियाई"
    ),
    "ar": (
        r"arab(?!l|esq|l[ei]|idop)|árabe|ti[eế]ng [aả] r[aậ]p|арабск|阿拉伯[語语文]|アラビア語|아랍어|عربي"
        r"|अरबी"
    ),
    "fa": r"persian|persisch|farsi|iran|فارسی|персидск|波斯[語语文]",
    "ur": r"\burdu|اردو",
    "ps": r"pashto|paschtu",
    "ug": r"uyghur|uigur",
    "sd": r"sindhi",
    "he": r"hebrew|hebrä|hébreu|hebreo|hebraico|ebraic|עברית|иврит",
    "yi": r"yiddish|jiddisch",
    "hi": r"\bhindi|хинди|印地[語语文]|ヒンディー語|힌디어|ال?هندية|हिंदी|हिन्दी|हिंदि",
    "mr": r"marathi|मराठी",
    "ne": r"nepal|नेपाली",
    "sa": r"sanskrit|devanagari|संस्कृत",
    "bn": r"bengal|bangla|বাংলা",
    "as": r"assamese",
    "pa": r"punjabi|gurmukhi",
    "gu": r"gujarat",
    "or": r"\bodia|oriya",
    "ta": r"\btamil",
    "te": r"telugu",
    "kn": r"kannada",
    "ml": r"malayalam",
    "si": r"sinhal|singhal",
    "th": r"\bthai|thaï|tailand|ภาษาไทย|泰[語语文]|タイ語",
    "lo": r"\blao\b|\blaos\b|laotian",
    "bo": r"tibet",
    "my": r"burm|birman|myanmar",
    "ka": r"georgian|georgisch|géorgien",
    "hy": r"armen|armén",
    "am": r"amhar|ethiop|äthiop",
    "ti": r"tigrin",
    "km": r"khmer|cambod|kambod",
}
_SCRIPT_NAMES = r"cyrillic|kyrill|cirílic|cirillic|кирилл"
_ABOUT = (
    r"translat|übersetz|traduc|tradui|traduz|tradur|vertaal|terjemah|çevir|d[iị]ch\b|languages|sprachen|langues"
    r"|idiomas|l[ií]nguas|lingue|talen\b|unicode|utf|alphabet"
    r"|перевед|перевод|язык|翻[译訳譯]|语言|言語|번역|언어|ترجم|لغات|अनुवाद|भाषा"
)
_WORD = re.compile(r"[^\W\d_]+")
_CLASS = re.compile(r"\\b|\[([^\]]+)\]|([^\[\\(|?])")
HEAD = 3


def _heads(stem: str) -> set[str]:
    """The first three letters of what a stem may match: a look-up before any regular expression runs."""
    choices: list[str] = []
    for match in _CLASS.finditer(stem):
        if match.group(0) != r"\b":
            choices.append(match.group(1) or match.group(2))
        if len(choices) == HEAD:
            break
    return {"".join(letters) for letters in product(*choices)}


def _split(stems: str) -> tuple[list[str], list[str]]:
    """Stems in Latin letters, which begin words, and all others, which may stand anywhere in a word."""
    parts = re.split(r"\|(?![^(]*\))", stems)
    latin = [part for part in parts if re.match(r"(?:\\b)?\[?[a-z\u00c0-\u024f\u1e00-\u1eff]", part)]
    return latin, [part for part in parts if part not in latin]


Heads = dict[str, list[int]]
"""First letters of a text's words, and where words begin with them."""


class _Stems:
    """Several names of one thing; matches text that is in lower case."""

    def __init__(self, stems: str) -> None:
        latin, others = _split(stems)
        self.heads = frozenset(head for stem in latin for head in _heads(stem))
        self.latin = re.compile("|".join(rf"\b(?:{stem})" for stem in latin)) if latin else None
        self.others = re.compile("|".join(others)) if others else None

    def in_text(self, lowered: str, heads: Heads) -> bool:
        latin = self.latin
        if latin and any(latin.match(lowered, at) for head in self.heads & heads.keys() for at in heads[head]):
            return True
        return bool(self.others and not lowered.isascii() and self.others.search(lowered))


_LANGUAGE = {code: _Stems(stems) for code, stems in STEMS.items()}
_SCRIPT = _Stems(_SCRIPT_NAMES)
_ANY = _Stems(_ABOUT)


_OF_HEAD: dict[str, list[str]] = {}
for _code, _stems in _LANGUAGE.items():
    for _head in _stems.heads:
        _OF_HEAD.setdefault(_head, []).append(_code)
PROMPTS_KEPT = 4
"""Guards of one request ask the same of its prompt."""


_KNOWN = frozenset(_OF_HEAD) | _SCRIPT.heads | _ANY.heads
_LETTERS = bytes(byte if chr(byte).isalpha() else ord(" ") for byte in range(256))
"""Of ASCII: whatever stands between words becomes white space."""


@lru_cache(PROMPTS_KEPT)
def _prepared(text: str) -> tuple[str, Heads]:
    """Prompts are long, and few of their words begin like a language's name: the others cost a look-up."""
    lowered = text.lower()
    return lowered, {head: places for head in _heads_of(lowered) & _KNOWN if (places := _places(lowered, head))}


def _heads_of(lowered: str) -> set[str]:
    """The first letters of all words."""
    if lowered.isascii():
        words = set(lowered.encode().translate(_LETTERS).decode().split())
    else:
        words = set(_WORD.findall(lowered))
    return {word[:HEAD] for word in words}


def _places(lowered: str, head: str) -> list[int]:
    """Where words begin with it."""
    places, at = [], lowered.find(head)
    while at >= 0:
        if not at or not (before := lowered[at - 1]).isalnum() or before.isdecimal():
            places.append(at)
        at = lowered.find(head, at + 1)
    return places


_ANSWER = (
    r"(?:answer|repl(?:y|ies)|respond|response|output|antwort\w*|r[ée]pon\w*|respond\w*|respost\w*|respuest\w*"
    r"|rispond\w*|rispost\w*|antwoord\w*|ответ\w*|отвеча\w*|jawab\w*|cevap\w*|yan[ıi]t\w*|tr[aả] l[oờ]i)"
)
_IN = r"(?:in|on|into|auf|en|em|au|op|на|по|dalam|b[aằ]ng)"


@cache
def _request(code: str) -> re.Pattern[str]:
    stems = STEMS[code]
    return re.compile(
        rf"\b{_ANSWER}\b[^.!?\n]{{0,40}}?\b{_IN}[\s-]+(?:the\s+|lingua\s+|bahasa\s+)?(?:{stems})"
        rf"|\b{_IN}[\s-]+(?:{stems})\w*[^.!?\n]{{0,20}}\b{_ANSWER}"
        rf"|(?:请)?[用以](?:{stems})\s*(?:来)?(?:回答|回复|作答|答)|(?:{stems})で(?:回答|答え|返[信事答])|(?:{stems})로\s*(?:답|대답|응답)"
        rf"|(?:أجب|الرد|رد|اجب)[^.!?\n]{{0,20}}(?:{stems})|(?:{stems})\s*(?:भाषा\s*)?में\s*(?:उत्तर|जवाब)"
        rf"|(?:{stems})\w*\s*(?:olarak\s*)?(?:cevap|yan[ıi]t)",
        re.IGNORECASE,
    )


@lru_cache(PROMPTS_KEPT)
def named(text: str) -> frozenset[str]:
    """Codes of the languages that a text names, in any of the languages of the table."""
    lowered, heads = _prepared(text)
    in_ascii = {code for head in heads.keys() & _OF_HEAD.keys() for code in _OF_HEAD[head]}
    codes = in_ascii if lowered.isascii() else _LANGUAGE
    return frozenset(code for code in codes if _LANGUAGE[code].in_text(lowered, heads))


def requested(text: str, among: frozenset[str]) -> frozenset[str]:
    """Those of `among` that the text asks to be answered in."""
    return frozenset(code for code in among if _request(code).search(text))


def names_cyrillic(text: str) -> bool:
    return _SCRIPT.in_text(*_prepared(text))


def is_about_languages(text: str) -> bool:
    """Translation, or languages at large: anything may follow."""
    return _ANY.in_text(*_prepared(text))
