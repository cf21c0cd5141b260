"""What a request may call a language, and what is none."""

from __future__ import annotations

import pytest

from checkengine.detectors.language.codes import ISO_639_1, READ, normal
from checkengine.detectors.language.expectation import (
    _OF_LANGUAGE,
    ALL_SCRIPTS,
    expectation_of,
    expected_scripts,
)
from checkengine.detectors.language.languages import COLUMNS, LONE, NO_LANGUAGE
from checkengine.detectors.language.names import STEMS
from checkengine.detectors.language.reader import LanguageReader

IRISH = "Bhí an seanchuan ciúin ar maidin agus bhí na báid gar don bhalla fad is a chuaigh na páistí abhaile. " * 6
NO_CODES = ("zz", "xyz", "secret: my prompt text", "en and secret text", "not a language", "zxx", "", "en-" + "x" * 99)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("en", "en"),
        ("en-US", "en"),
        ("EN_us", "en"),
        ("zh-Hans-CN", "zh"),
        ("en_US.UTF-8", "en"),
        ("eng", "en"),
        ("deu", "de"),
        ("ger", "de"),
        ("English", "en"),
        (" german ", "de"),
        ("Portuguese (Brazil)", "pt"),
        ("nb", "no"),
        ("cmn", "zh"),
        ("ga", "ga"),
        (None, None),
    ],
)
def test_codes_regions_longer_codes_and_english_names_become_one_code(given: str | None, code: str | None) -> None:
    assert normal(given) == code


@pytest.mark.parametrize("given", NO_CODES)
def test_a_language_that_is_none_leaves_the_prompt_as_the_expectation_and_none_of_its_text_comes_back(
    given: str,
) -> None:
    prompt = "Please tell me how the harbour was built and who paid for all of it."
    assert normal(given) is None
    assert expectation_of(prompt, given) == expectation_of(prompt)
    assert expectation_of("", given).languages == frozenset()
    assert expected_scripts(prompt, given) == expected_scripts(prompt)


def test_every_language_that_the_detectors_know_has_a_code_that_is_accepted() -> None:
    known = {*_OF_LANGUAGE, *COLUMNS, *LONE.values(), *STEMS} - {NO_LANGUAGE}
    assert known == READ
    assert known <= ISO_639_1
    assert all(normal(code) == code for code in known)


def test_in_a_language_that_the_detectors_do_not_read_nothing_is_foreign() -> None:
    expectation = expectation_of("Tell me of the harbour, in the language of my mother.", "ga")
    assert expectation.anything
    assert expected_scripts("", "ga") == ALL_SCRIPTS
    reader = LanguageReader(expectation)
    assert reader.push(IRISH) + reader.end() == []
