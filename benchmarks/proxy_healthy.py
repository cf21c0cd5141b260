"""Healthy traffic of the shared data through the proxy's guards: nothing may be found in it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.proxy.conversation import told_of_conversation
from checkengine.engine_shim.proxy.inspecting import Inspector
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.requests import Operation, facts_of
from checkengine.engine_shim.proxy.watch import AnswerWatch

TAU, CONFUSION = "tau_bench_airline.json.gz", "language_confusion.jsonl.gz"
HEALTHY_TASK = "monolingual"
REPLIES = 2000
"""Of the data's healthy replies, every n-th."""
PIECE = 4
"""Characters of a chunk: about a token."""

Exchange = tuple[list[Mapping[str, Any]], Mapping[str, Any]]
"""Messages of a request, and the message that answers it."""


def healthy_figures(data: Path | None) -> list[dict[str, Any]]:
    """Nothing where the data is not there."""
    if data is None or not (data / TAU).is_file():
        return []
    parts = _parts()
    found = [_figure(parts, conversations(data / TAU), "turns of reward-1 conversations", frozenset())]
    if (data / CONFUSION).is_file():
        # What this collection is about is models that confuse languages.
        found.append(
            _figure(parts, replies(data / CONFUSION), "replies in one language", frozenset({"language.switch"}))
        )
    return found


def _figure(parts: ProxyParts, exchanges: Iterable[Exchange], what: str, apart: frozenset[str]) -> dict[str, Any]:
    found, count = Counter[str](), 0
    for messages, reply in exchanges:
        count += 1
        found += found_in(parts, messages, reply)
    counted = {kind: number for kind, number in found.items() if kind not in apart}
    told = ", ".join(f"{kind} {number}" for kind, number in found.most_common()) or "none"
    return figure(f"proxy: findings in {count:,} {what} ({told})", sum(counted.values()), "findings", 0)


def replies(path: Path) -> Iterator[Exchange]:
    with gzip.open(path, "rt") as lines:
        healthy = [row for row in map(json.loads, lines) if row["task"] == HEALTHY_TASK]
    for row in healthy[:: max(1, len(healthy) // REPLIES)]:
        asked = {"role": "user", "content": f"Answer in {row['language']}."}
        yield [asked], {"role": "assistant", "content": row["completion"]}


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
