"""Healthy traffic of the shared data through the proxy's guards: nothing may be found in it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.language_truth import Consensus
from checkengine.benchmarks.detectors.replies import Reply, degenerate, healthy
from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.proxy.conversation import told_of_conversation
from checkengine.engine_shim.proxy.inspecting import Inspector
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.requests import Operation, facts_of
from checkengine.engine_shim.proxy.watch import AnswerWatch

LEAST_CAUGHT = 92.0
"""Per cent; they are cut off after some 100 tokens, so that the last copy may be the first that is told."""
TAU = "tau_bench_airline.json.gz"
QUICK_EVERY = 10
PIECE = 4
"""Characters of a chunk: about a token."""
LANGUAGES = {
    "ar": "Arabic", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "hi": "Hindi", "id": "Indonesian",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "pt": "Portuguese", "ru": "Russian", "tr": "Turkish",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""The data has no prompts; they were written in English or in the language of the answer."""
SWITCH, LOOP = "language.switch", "repetition.loop"

Exchange = tuple[list[Mapping[str, Any]], Mapping[str, Any]]
"""Messages of a request, and the message that answers it."""
Figures = Iterator[dict[str, Any]]


def healthy_figures(data: Path | None, *, quick: bool = False) -> Figures:
    """None where the data is not there; the missing file is named on stderr."""
    if data is None:
        return
    parts = _parts()
    if (data / TAU).is_file():
        found, count = Counter[str](), 0
        for messages, reply in conversations(data / TAU):
            count += 1
            found += found_in(parts, messages, reply)
        yield _alarms(found, f"{count:,} turns of reward-1 conversations", frozenset())
    yield from of_replies(parts, DetectorOptions(data, quick))


def of_replies(parts: ProxyParts, options: DetectorOptions) -> Figures:
    """Of instruct models: healthy; of base models, those of which more than half repeats: degenerate. Other replies of
    base models are neither: many fall into a loop before they are cut off."""
    every = QUICK_EVERY if options.quick else 1
    if not (well := healthy(options)[::every]):
        return
    found, truth = Counter[str](), Consensus.installed()
    for reply in well:
        kinds = found_in(parts, *exchange_of(reply))
        # The collection is about models that answer in another language than they were asked for.
        if kinds[SWITCH] and not (truth is not None and truth.is_right(reply)):
            kinds["switch that is one"] = kinds.pop(SWITCH)
        found += kinds
    yield _alarms(found, f"{len(well):,} replies of healthy models", frozenset({"switch that is one"}))
    loops = degenerate(options)[::every]
    caught = sum(found_in(parts, *exchange_of(reply))[LOOP] > 0 for reply in loops)
    name = f"proxy: of {len(loops):,} degenerate replies, told as loops"
    yield figure(name, 100 * caught / len(loops), "%", LEAST_CAUGHT, at_least=True)


def exchange_of(reply: Reply) -> Exchange:
    asked = reply.prompt or f"Answer in {LANGUAGES.get(reply.language, reply.language)}."
    return [{"role": "user", "content": asked}], {"role": "assistant", "content": reply.completion}


def _alarms(found: Counter[str], what: str, apart: frozenset[str]) -> dict[str, Any]:
    told = ", ".join(f"{kind} {number}" for kind, number in found.most_common()) or "none"
    counted = sum(number for kind, number in found.items() if kind not in apart)
    return figure(f"proxy: findings in {what} ({told})", counted, "findings", 0)


def conversations(path: Path) -> Iterator[Exchange]:
    """Every turn of the assistant, with all that came before."""
    with gzip.open(path) as file:
        runs = json.load(file)
    for run in runs:
        if run["reward"] == 1:
            messages = run["traj"]
            for number, message in enumerate(messages):
                if message["role"] == "assistant":
                    yield messages[:number], message


def found_in(parts: ProxyParts, messages: list[Mapping[str, Any]], reply: Mapping[str, Any]) -> Counter[str]:
    """Kinds that the guards find where this is streamed, tokens one by one; warnings count."""
    body = msgspec.json.encode({"model": "m", "stream": True, "messages": messages})
    facts = facts_of(Operation.CHAT, body)
    assert parts.bench is not None
    key = parts.sessions.key_of([], facts)
    found = Counter(finding.kind for _, finding in told_of_conversation(key, "x", facts, parts.bench, parts.sessions))
    watch = AnswerWatch("x", facts, parts.bench, parts.judge, parts.first_tokens, parts.settings.batch_chunks)
    inspector = Inspector(watch, parts.settings, lambda reason: found.update([f"unguarded.{reason}"]))
    for event in events_of(reply):
        if inspector.push(event) != event:
            found["changed"] += 1
    inspector.end()
    watch.close()
    found.update(note.kind for note in watch.notes)
    return found


def events_of(reply: Mapping[str, Any]) -> Iterable[bytes]:
    text, calls = reply.get("content") or "", reply.get("tool_calls") or []
    for begin in range(0, len(text), PIECE):
        yield _event({"content": text[begin : begin + PIECE]})
    for index, call in enumerate(calls):
        yield _event({"tool_calls": [{**call, "index": index}]})
    yield _event({}, "tool_calls" if calls else "stop")
    yield b"data: [DONE]\n\n"


def _event(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode({"id": "c", "choices": [choice]}) + b"\n\n"


def _parts() -> ProxyParts:
    from checkengine.config import Settings
    from checkengine.proxying import assemble_proxy

    settings = Settings.model_validate({"proxy": {"upstreams": ["http://mock"]}, "spool": {"enabled": False}})
    return assemble_proxy(settings).app.parts
