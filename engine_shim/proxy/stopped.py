"""A whole answer of the proxy's own, for a request that a guard stopped before it was sent upstream."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from checkengine.engine_shim.proxy import actions
from checkengine.engine_shim.proxy.dialects import DONE_EVENT, Chunk, as_event
from checkengine.engine_shim.proxy.judging import Note
from checkengine.engine_shim.proxy.requests import Operation, RequestFacts
from checkengine.engine_shim.proxy.settings import ProxySettings

EVENTS, JSON = b"text/event-stream", b"application/json"
NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def stopped_answer(facts: RequestFacts, identity: str, settings: ProxySettings, note: Note) -> tuple[bytes, bytes]:
    """Content type and body: empty, with the finish reason of stopped answers."""
    if facts.operation is Operation.RESPONSE:
        return _response(facts, identity, note)
    created = int(time.time())
    if facts.stream:
        head = Chunk(id=f"checkengine-{identity}", created=created, model=facts.model)
        return EVENTS, actions.stop_event(facts.operation, head, 0, settings.finish_reason, note) + DONE_EVENT
    chat = facts.operation is Operation.CHAT
    part: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"text": ""}
    choice = {"index": 0, **part, "logprobs": None, "finish_reason": settings.finish_reason}
    body = {
        "id": f"checkengine-{identity}",
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": facts.model,
        "choices": [choice],
        "usage": NO_TOKENS,
        actions.FIELD: actions.extension([note]),
    }
    return JSON, msgspec.json.encode(body)


def _response(facts: RequestFacts, identity: str, note: Note) -> tuple[bytes, bytes]:
    response = {
        "id": f"resp_checkengine_{identity}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete",
        "incomplete_details": {"reason": "content_filter"},
        "model": facts.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        actions.FIELD: actions.extension([note]),
    }
    if not facts.stream:
        return JSON, msgspec.json.encode(response)
    name = "response.incomplete"
    return EVENTS, as_event({"type": name, "sequence_number": 0, "response": response}, name)
