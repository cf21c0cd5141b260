"""The chat requests of the demo. Prompts and seeds were fixed before any guard was run on them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Chat:
    name: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


def user(content: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": content},)


def search_call(query: str) -> str:
    call = json.dumps({"name": "search", "arguments": {"query": query}})
    return f"<tool_call>{call}</tool_call>"


SEARCH = search_call("population of Lisbon")

AGENT: tuple[Message, ...] = (
    {
        "role": "system",
        "content": "You can call one function: search(query). Answer with one call, for example:\n"
        + search_call("weather in Oslo"),
    },
    {"role": "user", "content": "Calls so far:\n" + "\n".join([SEARCH] * 5)},
    {"role": "assistant", "content": SEARCH},
    {"role": "user", "content": "Again."},
)
"""An agent whose search has found nothing so far."""

ARTICLE = (
    "Lighthouses were built to warn ships of dangerous coasts and to guide them into harbours. The first ones were "
    "open fires on hills. Later the fire was placed on a platform, and so the tower was born. The most famous tower "
    "of antiquity stood on the island of Pharos near Alexandria and was more than a hundred metres high. In the "
    "Middle Ages few were built, because trade by sea had declined. With the growth of shipping in the seventeenth "
    "and eighteenth centuries, many countries began to mark their coasts. Engineers learned to build towers on rocks "
    "that the tide covers twice a day, with granite blocks that lock into each other like the pieces of a puzzle. "
    "Lamps burned whale oil, then rape seed oil, then paraffin, and in the end electricity. The greatest step was "
    "the lens that Augustin Fresnel designed in 1822: rings of prisms gather the light of one lamp into a beam that "
    "can be seen twenty miles away. Keepers lived in the towers with their families, wound the clockwork that turned "
    "the lens, trimmed the wicks and kept a log of wind and weather. Today almost all lights run by themselves, and "
    "satellites tell ships where they are; yet many towers are kept, since a sailor likes to see with his own eyes "
    "what the instruments say."
)

TIDES = (
    "I am a teacher at a primary school by the North Sea, and my class of nine-year-olds walks on the beach every "
    "week. Twice a day the water goes far out and comes back, and the children ask me why. They know that the Earth "
    "turns, that the Moon goes round the Earth, and that a magnet can pull on a nail without touching it. Last week "
    "we built a sand castle at noon, and an hour later it was gone. Explain to the children in "
    "three sentences why the sea has tides."
)

CHATS: tuple[Chat, ...] = (
    Chat("article", user(f"Read this text.\n\n{ARTICLE}\n\nWrite a short summary of it."), 256),
    Chat("agent", AGENT, 256),
    Chat("tides", user(TIDES), 256),
    Chat("photosynthesis", user("What is photosynthesis? Answer in two sentences."), 24),
    Chat("bread", user("Give me three tips for baking bread at home."), 24),
    Chat("letter", user("Write a polite email that asks a colleague to move our meeting to Friday."), 24, 0.7, 1),
    Chat("python", user("Write a Python function that returns the largest number in a list."), 24),
    Chat("haiku", user("Write a short poem about the first snow."), 24, 0.7, 2),
    Chat("bicycle", user("How do I fix a flat bicycle tyre?"), 24),
    Chat("rome", user("Who was Julius Caesar?"), 24),
    Chat("interview", user("How should I prepare for a job interview?"), 24, 0.7, 3),
    Chat("moon", user("How far away is the Moon?"), 24),
    Chat("story", user("Tell me a short story about a fox and a crow."), 24, 0.7, 4),
    Chat("savings", user("What is the difference between a savings account and a current account?"), 24),
    Chat("plants", user("Which house plants need little light?"), 24, 0.7, 5),
    Chat("sleep", user("Why do we need sleep?"), 24),
)

"""Three long ones, on which the faults act, and thirteen neighbours."""

WARM: tuple[Chat, ...] = (
    Chat("warm-1", user("Describe how a water mill works, from the river to the flour, step by step."), 40),
    Chat("warm-2", user("Write a letter to a friend about a week in the mountains."), 40, 0.7, 11),
    Chat("warm-3", user(f"Find a title for this text.\n\n{ARTICLE}"), 24),
)
"""Served before a run where recycled memory is to hold what other sequences left there."""


def to_request(chat: Chat, tokenizer: object) -> GenerationRequest:
    """The request as the server would make it from the same messages."""
    rendered = tokenizer.apply_chat_template(list(chat.messages), add_generation_prompt=True, return_dict=True)  # type: ignore[attr-defined]
    sampling = SamplingParameters(
        temperature=chat.temperature,
        top_p=0.9 if chat.temperature else 1.0,
        seed=chat.seed,
        max_tokens=chat.max_tokens,
    )
    return GenerationRequest(chat.name, list(rendered["input_ids"]), sampling)
