"""Which guard of `checkengine scan` is which class, and what it can read: the one place to add one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from checkengine.guards.errors import UserError
from checkengine.guards.failure import place
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import ConversationGuard, SeriesGuard, TextGuard, TextStart
from checkengine.guards.text_logprobs import LogprobsGuard


class GuardUnavailable(Exception):
    """The guard cannot be loaded here; the message says why, and holds nothing of a record."""


MakeText = Callable[[TextStart], TextGuard]
MakeLogprobs = Callable[[TextStart], LogprobsGuard]
MakeConversation = Callable[[], ConversationGuard]
MakeSeries = Callable[[str], SeriesGuard]


@dataclass(frozen=True, slots=True)
class Entry:
    """A guard's readers by the shape of the record; a shape without a reader finds nothing.

    A reader is "module:Class" in checkengine.guards, made with what it reads (a text's start, a series' name; nothing
    for a conversation) and with its settings, `[guards.<settings>]`.
    """

    settings: str
    text: str = ""
    logprobs: str = ""
    """Reads the OpenAI `logprobs` of a completion."""
    conversation: str = ""
    series: str = ""
    steps: tuple[str, ...] = ()
    """Names of the guards of `build_guards` that read its token streams."""


ENTRIES: dict[str, Entry] = {
    "logits": Entry("uniform", logprobs="text_logprobs:LogprobsGuard", steps=("nonfinite", "uniform", "magnitude")),
    "tokens": Entry("impossible_token", steps=("impossible_token",)),
    "sampler": Entry("sampler", steps=("sampler",)),
    "speculation": Entry("speculation", steps=("speculation",)),
    "stop": Entry("ignored_stop", text="text_stop:StopTextGuard", steps=("ignored_stop",)),
    "repetition": Entry("repetition", text="text_repetition:TextRepetitionGuard", steps=("repetition",)),
    "salad": Entry("salad", text="text_salad:SaladTextGuard", steps=("salad",)),
    "tool_calls": Entry(
        "tool_calls",
        text="text_tool_calls:TextToolCallGuard",
        conversation="tool_loops:ToolLoopGuard",
        steps=("tool_calls",),
    ),
    "language": Entry("language", text="text_language:LanguageTextGuard", steps=("language",)),
    "drift": Entry("drift", series="drift:SeriesDriftGuard"),
    "latency": Entry("latency", steps=("latency",)),
    "recurrence": Entry("recurrence", steps=("recurrence",)),
}


def chosen_guards(names: Sequence[str], settings: GuardsSettings) -> tuple[str, ...]:
    """The guards to run: those named, or, with none named, all whose action is not `off`.

    Raises UserError for a name that is none.
    """
    for name in names:
        if name not in ENTRIES:
            raise UserError(f"there is no guard {name!r}; there are {', '.join(ENTRIES)}")
    if names:
        return tuple(dict.fromkeys(names))
    return tuple(name for name, entry in ENTRIES.items() if settings.of(entry.settings).action != "off")


def shapes_of(name: str) -> str:
    """Which records the guard reads, in words."""
    entry = ENTRIES[name]
    shapes = {
        "completions and conversations": entry.text,
        "completions with logprobs": entry.logprobs,
        "conversations": entry.conversation and not entry.text,
        "measurements": entry.series,
        "token streams (with --tokenizer)": entry.steps,
    }
    return " or ".join(shape for shape, reader in shapes.items() if reader)


def scan_name(step_guard: str) -> str:
    """The scan's name for a guard of `build_guards`, for example `stop` for `ignored_stop`."""
    return next((name for name, entry in ENTRIES.items() if step_guard in entry.steps), step_guard)


def text_makers(names: Sequence[str], settings: GuardsSettings) -> dict[str, MakeText]:
    return {name: _maker(ENTRIES[name].text, name, settings) for name in names if ENTRIES[name].text}


def logprobs_makers(names: Sequence[str], settings: GuardsSettings) -> dict[str, MakeLogprobs]:
    return {name: _maker(ENTRIES[name].logprobs, name, settings) for name in names if ENTRIES[name].logprobs}


def conversation_makers(names: Sequence[str], settings: GuardsSettings) -> dict[str, MakeConversation]:
    return {name: _maker(ENTRIES[name].conversation, name, settings) for name in names if ENTRIES[name].conversation}


def series_makers(names: Sequence[str], settings: GuardsSettings) -> dict[str, MakeSeries]:
    return {name: _maker(ENTRIES[name].series, name, settings) for name in names if ENTRIES[name].series}


def _maker(reader: str, name: str, settings: GuardsSettings) -> Callable[..., Any]:
    """Loads the guard when it is first made; one that cannot be loaded raises GuardUnavailable each time."""
    module, _, made = reader.partition(":")
    own = settings.of(ENTRIES[name].settings)

    @cache
    def load() -> Any:
        try:
            return getattr(importlib.import_module(f"checkengine.guards.{module}"), made)
        except Exception as error:
            return f"cannot be loaded: {type(error).__name__} {place(error)}"

    def make(*start: Any) -> Any:
        guard = load()
        if isinstance(guard, str):
            raise GuardUnavailable(guard)
        return guard(*start, own)

    return make
