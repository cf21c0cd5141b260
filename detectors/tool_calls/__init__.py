"""Tool calls: recognising them in a stream, telling loops of them, and whether they are valid."""

from checkengine.detectors.tool_calls.call import ToolCall
from checkengine.detectors.tool_calls.delimiters import DIALECTS, HERMES, LLAMA3, MISTRAL, Dialect
from checkengine.detectors.tool_calls.loops import CallLimits, CallLoops, CallReading
from checkengine.detectors.tool_calls.messages import Round, Said, ToolUse, UserTurn, prompt_of, tools_of, turns_of
from checkengine.detectors.tool_calls.recogniser import ToolCallRecogniser
from checkengine.detectors.tool_calls.tags import Tags, tags_of
from checkengine.detectors.tool_calls.turns import TurnLimits, TurnLoops, TurnReading

__all__ = [
    "DIALECTS",
    "HERMES",
    "LLAMA3",
    "MISTRAL",
    "CallLimits",
    "CallLoops",
    "CallReading",
    "Dialect",
    "Round",
    "Said",
    "Tags",
    "ToolCall",
    "ToolCallRecogniser",
    "ToolUse",
    "TurnLimits",
    "TurnLoops",
    "TurnReading",
    "UserTurn",
    "prompt_of",
    "tags_of",
    "tools_of",
    "turns_of",
]
