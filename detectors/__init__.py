"""Measurement: pure, streaming, no policy, no engine, no input or output.

Names load at first use, so that a process without logits never imports torch or numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkengine.detectors.language import (
        Expectation,
        Identity,
        LanguageLimits,
        LanguageReader,
        LanguageReading,
        Script,
        ScriptLimits,
        ScriptReading,
        ScriptSwitch,
        expectation_of,
        expected_scripts,
        identify,
        scripts_of,
    )
    from checkengine.detectors.logits import RowStats, compile_backend, row_stats, warm_up
    from checkengine.detectors.repetition import RepetitionLimits, RepetitionReading, RepetitionStreams, seq_rep_n
    from checkengine.detectors.salad import SaladBatch, SaladReading, SaladTables
    from checkengine.detectors.tool_calls import CallLimits, CallLoops, CallReading, ToolCall, ToolCallRecogniser
    from checkengine.detectors.vocabulary import Vocabulary

__all__ = [
    "CallLimits",
    "CallLoops",
    "CallReading",
    "Expectation",
    "Identity",
    "LanguageLimits",
    "LanguageReader",
    "LanguageReading",
    "RepetitionLimits",
    "RepetitionReading",
    "RepetitionStreams",
    "RowStats",
    "SaladBatch",
    "SaladReading",
    "SaladTables",
    "Script",
    "ScriptLimits",
    "ScriptReading",
    "ScriptSwitch",
    "ToolCall",
    "ToolCallRecogniser",
    "Vocabulary",
    "compile_backend",
    "expectation_of",
    "expected_scripts",
    "identify",
    "row_stats",
    "scripts_of",
    "seq_rep_n",
    "warm_up",
]

_MODULES = {
    "language": (
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
        "scripts_of",
    ),
    "logits": ("RowStats", "compile_backend", "row_stats", "warm_up"),
    "repetition": ("RepetitionLimits", "RepetitionReading", "RepetitionStreams", "seq_rep_n"),
    "salad": ("SaladBatch", "SaladReading", "SaladTables"),
    "tool_calls": ("CallLimits", "CallLoops", "CallReading", "ToolCall", "ToolCallRecogniser"),
    "vocabulary": ("Vocabulary",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"checkengine.detectors.{_HOME[name]}"), name)
