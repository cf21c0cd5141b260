"""Tool calls inside one generation: recognising them, and telling loops of them."""

from checkengine.detectors.tool_calls.call import ToolCall
from checkengine.detectors.tool_calls.delimiters import DIALECTS, HERMES, LLAMA3, MISTRAL, Dialect
from checkengine.detectors.tool_calls.loops import CallLimits, CallLoops, CallReading
from checkengine.detectors.tool_calls.recogniser import ToolCallRecogniser

__all__ = [
    "DIALECTS",
    "HERMES",
    "LLAMA3",
    "MISTRAL",
    "CallLimits",
    "CallLoops",
    "CallReading",
    "Dialect",
    "ToolCall",
    "ToolCallRecogniser",
]
