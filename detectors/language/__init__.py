"""The script of an output, and whether its prompt justifies it."""

from checkengine.detectors.language.expectation import ALL_SCRIPTS, expected_scripts
from checkengine.detectors.language.scripts import Script, script_of, script_of_piece, scripts_of
from checkengine.detectors.language.switch import ScriptLimits, ScriptReading, ScriptSwitch

__all__ = [
    "ALL_SCRIPTS",
    "Script",
    "ScriptLimits",
    "ScriptReading",
    "ScriptSwitch",
    "expected_scripts",
    "script_of",
    "script_of_piece",
    "scripts_of",
]
