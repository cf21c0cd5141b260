"""The script and language of an output, and whether its prompt justifies them.

Scripts need nothing; languages load a model of 4.5 MB from py3langid's wheel at first use. Names load at first use too,
so that who only wants scripts never imports numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"checkengine.detectors.language.{_HOME[name]}"), name)
