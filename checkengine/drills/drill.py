"""The four drills: which fault, on which request, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from checkengine.drills.requests import WARM, Chat
from checkengine.engine_shim.faults import Fault, MaskedStop, NanAttention, OverRead

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Drill:
    name: str
    title: str
    story: str
    """What happens without guards, in one sentence."""
    victim: str
    make_faults: Callable[[Any, dict[str, int]], Sequence[Fault]]
    """From the tokenizer and every request's prompt length."""
    quiet: bool = False
    """The text stays fluent: only the audit can see it."""
    warm: tuple[Chat, ...] = ()


def nan_fault(tokenizer: Any, prompts: dict[str, int]) -> list[Fault]:
    """At the first length 1 modulo the page size that the victim reaches, and rarely enough that nobody else does."""
    length = (prompts["tides"] // BLOCK + 1) * BLOCK + 1
    return [NanAttention(modulus=16 * BLOCK, remainder=length, layer=12)]


def stop_fault(tokenizer: Any, prompts: dict[str, int]) -> list[Fault]:
    return [MaskedStop(tokenizer.encode("</tool_call>", add_special_tokens=False))]


def over_read(tokenizer: Any, prompts: dict[str, int]) -> list[Fault]:
    return [OverRead(minimum_length=prompts["article"], block_size=BLOCK)]


DRILLS: tuple[Drill, ...] = (
    Drill(
        "nan_loop",
        "A kernel writes NaN",
        "the attention kernel writes NaN at a rare length, one past a page, and the model repeats one token for ever",
        "tides",
        nan_fault,
    ),
    Drill(
        "runaway_tool_call",
        "The end-of-turn token is not honoured",
        "the stop path masks the end token after a tool call, and the model makes the same call again and again",
        "agent",
        stop_fault,
    ),
    Drill(
        "off_by_one",
        "Attention reads one slot past the end",
        "the paged kernel reads a slot that nobody wrote, and the answer turns into word salad",
        "article",
        over_read,
    ),
    Drill(
        "off_by_one_quiet",
        "The same read, of a slot that another sequence left behind",
        "the logits change and the text stays fluent, so no guard on outputs can see it",
        "article",
        over_read,
        quiet=True,
        warm=WARM,
    ),
)
