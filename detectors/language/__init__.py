"""The script and language of an output, and whether its prompt justifies them.

Scripts need nothing; languages load a model of 4.5 MB from py3langid's wheel at first use. Names load at first use too,
so that who only wants scripts never imports numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkengine.detectors.lazy import lazy_exports

if TYPE_CHECKING:
    from checkengine.detectors.language.expectation import ALL_SCRIPTS, Expectation, expectation_of, expected_scripts
    from checkengine.detectors.language.identifier import Identity, identify
    from checkengine.detectors.language.reader import LanguageLimits, LanguageReader, LanguageReading
    from checkengine.detectors.language.scripts import Script, script_of, script_of_piece, scripts_of
    from checkengine.detectors.language.switch import ScriptLimits, ScriptReading, ScriptSwitch

__all__ = [
    "ALL_SCRIPTS",
    "Expectation",
    "Identity",
    "LanguageLimits",
    "LanguageReader",
    "LanguageReading",
    "Script",
    "ScriptLimits",
    "ScriptReading",
    "ScriptSwitch",
    "expectation_of",
    "expected_scripts",
    "identify",
    "script_of",
    "script_of_piece",
    "scripts_of",
]

_MODULES = {
    "expectation": ("ALL_SCRIPTS", "Expectation", "expectation_of", "expected_scripts"),
    "identifier": ("Identity", "identify"),
    "reader": ("LanguageLimits", "LanguageReader", "LanguageReading"),
    "scripts": ("Script", "script_of", "script_of_piece", "scripts_of"),
    "switch": ("ScriptLimits", "ScriptReading", "ScriptSwitch"),
}
__getattr__ = lazy_exports(__name__, _MODULES)
