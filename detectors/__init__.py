"""Measurement: pure, streaming, no policy, no engine, no input or output.

Names load at first use, so that a process without logits never imports torch or numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkengine.detectors.lazy import lazy_exports

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
__getattr__ = lazy_exports(__name__, _MODULES)
