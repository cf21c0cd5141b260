"""Conversations that loop, by how they loop, and such that only look so, by why they are right (research: complaints
that users of agent tools filed about loop detectors)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from checkengine.benchmarks.detectors.tool_call_script import Script, looping_call
from checkengine.benchmarks.detectors.tool_call_work_kinds import WORK
from checkengine.benchmarks.detectors.tool_call_worlds import CHANGES, NOUNS, READS, Chance


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    loops: bool
    messages: tuple[dict[str, Any], ...]
    alarm_by: int | None
    """Index of the message with the call by which a loop should be found; None where none is promised."""


def identical(script: Script) -> None:
    call = looping_call(script)
    for copy in range(script.chance.randint(4, 14)):
        script.call(*call)
        if copy == 3:
            script.due()


def _cycle(script: Script, period: int) -> None:
    calls = [looping_call(script) for _ in range(period)]
    if script.chance.random() < 0.3:
        tool = script.chance.choice(CHANGES[:5])
        calls[script.chance.randrange(period)] = (tool.name, tool.arguments(script.chance), tool.result(script.chance))
    for cycle in range(script.chance.randint(3, 6)):
        for call in calls:
            script.call(*call)
        if cycle == 2:
            script.due()


def alternating(script: Script) -> None:
    _cycle(script, 2)


def period_3_to_6(script: Script) -> None:
    _cycle(script, script.chance.randint(3, 6))


def interleaved(script: Script) -> None:
    """One other call, seldom two, between the copies."""
    call, chance = looping_call(script), script.chance
    for copy in range(chance.randint(4, 9)):
        script.call(*call)
        if copy == 3:
            script.due()
        for _ in range(1 if chance.random() < 0.85 else 2):
            script.use(chance.choice(script.tools))


def volatile_results(script: Script) -> None:
    """The same but for a clock, an id, a duration or a temporary path."""
    chance = script.chance
    name, arguments, result = looping_call(script)
    shape, way, second = chance.randrange(6), chance.randrange(6), chance.randint(0, 9999)
    for copy in range(chance.randint(4, 14)):
        second += chance.randint(1, 90)
        now = chance.moment(shape, second)
        shown = (
            json.dumps({"timestamp": now, "request_id": chance.identifier(), "data": result}),
            f"[{now}] {result}",
            f"{result}\n\nTook {chance.randint(1, 900)} ms",
            f"{result}\n(request id: {chance.identifier()})",
            f"Output too large, saved to /tmp/results/{chance.hexadecimal(8)}.txt\nFirst lines:\n{result[:200]}",
            now if shape in (0, 2) else f"{now} {result}",
        )[way]
        script.call(name, arguments, shown)
        if copy == 3:
            script.due()


def volatile_arguments(script: Script) -> None:
    name, arguments, result = looping_call(script)
    key = script.chance.choice(("request_id", "trace_id", "nonce", "idempotency_key", "client_request_id"))
    for _ in range(script.chance.randint(5, 12)):
        script.call(name, arguments | {key: script.chance.identifier()}, result)


def reworded(script: Script) -> None:
    """Ever new words for one question, and the same set of answers."""
    chance = script.chance
    name = chance.choice(
        ("web_search", "search_docs", "searchKnowledgeBase", "retrieve_passages", "find_products", "query_docs")
    )
    core, result = chance.sample(NOUNS, 3), READS[1][0].result(chance)
    for _ in range(chance.randint(5, 10)):
        words = [
            *chance.sample(core, chance.randint(2, 3)),
            *chance.sample(NOUNS, chance.randint(0, 2)),
            chance.choice(("", "guide", "2026", "how to", "best")),
        ]
        chance.shuffle(words)
        script.call(name, {"query": " ".join(word for word in words if word)}, result)


def switching(script: Script) -> None:
    """One wish put to tool after tool, none of which can fulfil it."""
    chance = script.chance
    wish = chance.phrase(3, 5)
    names = chance.sample(
        ("web_search", "search_docs", "find_page", "lookup", "browse", "ask_wiki", "query_index", "google"),
        chance.randint(3, 5),
    )
    replies = [
        chance.choice(("No results found.", "[]", "Nothing found", "Error: not found", '{"results": []}'))
        for _ in names
    ]
    same = READS[1][0].result(chance) if chance.random() < 0.3 else None
    keys = [chance.choice(("query", "q", "text", "question")) for _ in names]
    for turn in range(chance.randint(7, 14)):
        at = turn % len(names) if chance.random() < 0.6 else chance.randrange(len(names))
        script.call(names[at], {keys[at]: wish}, same or replies[at])


def unrecorded(script: Script) -> None:
    """Calls that the client executes: nobody records what came of them."""
    name, arguments, _ = looping_call(script)
    for _ in range(script.chance.randint(6, 12)):
        script.call(name, arguments, None)


Maker = Callable[[Script], None]
LOOPS: tuple[Maker, ...] = (
    identical,
    alternating,
    period_3_to_6,
    interleaved,
    volatile_results,
    volatile_arguments,
    reworded,
    switching,
    unrecorded,
)


def taxonomy(seed: int, *, loops: int = 120, work: int = 60) -> Iterator[Case]:
    """So many conversations of each kind that loops, and of each that does not."""
    for makers, count, is_loop in ((LOOPS, loops, True), (WORK, work, False)):
        for place, make in enumerate(makers):
            for number in range(count):
                yield _case(make, is_loop, seed * 1_000_003 + 10_007 * place + number + 500_000_000 * is_loop)


def _case(make: Maker, is_loop: bool, seed: int) -> Case:
    script = Script(seed)
    script.fresh(script.chance.choice((0, 0, 1, 3, 8, 15)))
    make(script)
    if script.chance.random() < 0.5:
        script.fresh(script.chance.randint(0, 3))
    return Case(make.__name__, is_loop, tuple(script.messages), script.alarm_by)


__all__ = ["LOOPS", "WORK", "Case", "Chance", "taxonomy"]
