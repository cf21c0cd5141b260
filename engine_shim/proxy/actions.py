"""What is put into an answer: annotations, and a well-formed end where a guard stopped it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from checkengine.engine_shim.proxy.dialects import Chunk, as_event, with_field
from checkengine.engine_shim.proxy.judging import Note
from checkengine.engine_shim.proxy.requests import Operation
from checkengine.engine_shim.proxy.stream import LINE_END, payload_of

FIELD = "checkengine"
HEADER = b"x-checkengine-findings"
MOST_NOTES = 16
CHUNK_OBJECTS = {Operation.CHAT: "chat.completion.chunk", Operation.COMPLETION: "text_completion"}


def extension(notes: Sequence[Note]) -> dict[str, Any]:
    """Kinds and incidents; the deepest first, and by itself where it is the only one."""
    first = notes[0]
    found: dict[str, Any] = {"kind": first.kind, "incident": first.incident, "action": first.action}
    told = list(dict.fromkeys((note.kind, note.incident, note.choice) for note in notes))
    if len(told) > 1:
        found["findings"] = [
            {"kind": kind, "incident": incident, "choice": choice} for kind, incident, choice in told[:MOST_NOTES]
        ]
    return found


def findings_header(notes: Iterable[Note]) -> tuple[bytes, bytes] | None:
    """`repetition.loop; incident=…; action=observe, …`."""
    told = list(dict.fromkeys(f"{note.kind}; incident={note.incident}; action={note.action}" for note in notes))
    told = told[:MOST_NOTES]
    return (HEADER, ", ".join(told).encode("ascii", "replace")) if told else None


def annotated(event: bytes, notes: Sequence[Note]) -> bytes:
    """An event of a stream with the extension field in its JSON."""
    payload = payload_of(event)
    told = with_field(payload, FIELD, extension(notes))
    if event.count(payload) == 1:
        return event.replace(payload, told)
    # In several lines: other fields stay, and the data follows them.
    others = [line for line in LINE_END.split(event) if line and not line.startswith(b"data")]
    return b"\n".join([*others, *(b"data: " + line for line in told.split(b"\n")), b"", b""])


def stop_event(operation: Operation, last: Chunk | None, choice: int, reason: str, note: Note) -> bytes:
    """The last chunk of a choice that a guard stopped."""
    part: dict[str, Any] = {"delta": {}} if operation is Operation.CHAT else {"text": ""}
    whole = {"index": choice, **part, "logprobs": None, "finish_reason": reason}
    return as_event(head_of(operation, last) | {"choices": [whole], FIELD: extension([note])})


def note_event(operation: Operation, last: Chunk | None, notes: Sequence[Note]) -> bytes:
    """A chunk without choices, as the one with the usage is."""
    return as_event(head_of(operation, last) | {"choices": [], FIELD: extension(notes)})


def usage_event(operation: Operation, last: Chunk | None, prompt: int, output: int) -> bytes:
    """Where the server's own would have come after the end: tokens as they were counted here, which is an estimate."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return as_event(head_of(operation, last) | {"choices": [], "usage": usage, FIELD: {"usage": "estimated"}})


def head_of(operation: Operation, last: Chunk | None) -> dict[str, Any]:
    """As in the chunk before."""
    known = last or Chunk()
    head = {"id": known.id, "object": CHUNK_OBJECTS.get(operation), "created": known.created, "model": known.model}
    return {name: value for name, value in head.items() if value is not None}
