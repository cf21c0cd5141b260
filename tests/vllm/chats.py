"""What the tests inside vLLM ask, and how runs are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkengine.drills.requests as drills

MARGIN = 1e-3
"""Stopping a sequence changes the batch's shape, and with it last bits: a neighbour may differ from the first place on
where its two best logits were nearer than this (design rule 10)."""

VICTIM = "tides"
CHATS = {
    "tides": list(drills.user(drills.TIDES)),
    "agent": list(drills.AGENT),
    "photosynthesis": list(drills.user("What is photosynthesis? Answer in two sentences.")),
    "bread": list(drills.user("Give me three tips for baking bread at home.")),
    "moon": list(drills.user("How far away is the Moon?")),
    "sleep": list(drills.user("Why do we need sleep?")),
}


def user(content: str) -> list[dict[str, str]]:
    return list(drills.user(content))


def chat_parameters(**more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "max_tokens": 32, "logprobs": 2, **more})


def ask(engine: Any, names: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """All at once; by name, what the engine answered."""
    chosen = names or list(CHATS)
    answers = engine.chat([CHATS[name] for name in chosen], chat_parameters(**more), use_tqdm=False)
    return dict(zip(chosen, answers, strict=True))


def tokens(answer: Any) -> list[int]:
    return list(answer.outputs[0].token_ids)


def margins(answer: Any) -> list[float]:
    """Best minus second best log probability at each place."""
    found = []
    for place in answer.outputs[0].logprobs:
        best = sorted((each.logprob for each in place.values()), reverse=True)
        found.append(best[0] - best[1])
    return found


def difference(clean: Any, other: Any) -> str:
    """Nothing for equal tokens, or where the clean run's choice was nearly a tie at the first place that differs."""
    ours, theirs = tokens(clean), tokens(other)
    for place, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        if one != two:
            margin = margins(clean)[place]
            return "" if margin < MARGIN else f"token {place} is {two} instead of {one}, which led by {margin:.4f}"
    return "" if len(ours) == len(theirs) else f"{len(theirs)} tokens instead of {len(ours)}"


def prompt_length(answer: Any) -> int:
    return len(answer.prompt_token_ids)


def records(spool: Path) -> list[dict[str, Any]]:
    """What the processes of an engine told, in order."""
    lines = [line for path in sorted(spool.glob("*.spool")) for line in path.read_bytes().splitlines()]
    found = [json.loads(line[line.index(b"{") :]) for line in lines]
    return sorted(found, key=lambda record: record["time"])


def findings(spool: Path) -> list[dict[str, Any]]:
    return [record["data"] for record in records(spool) if record["kind"] == "finding"]
