"""What a bundle shows on an incident's page. Without `pieces` its content stays closed: sequences are told by the names
that the catalog has for them, tokens by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkengine.guards.errors import UserError
from checkengine.replay.bundle import BundleReader
from checkengine.replay.bundle.privacy import deployment_key
from checkengine.replay.recorded import RecordedWindow, Tables
from checkengine.replay.report import Confidential, facts_of_bundle, newest_result
from checkengine.replay.report.facts import Facts
from checkengine.replay.report.render import headline
from checkengine.replay.report.sections import axis, places, slots, strip, strip_words, summary, tests, tokens
from checkengine.replay.report.slots import at_step
from checkengine.replay.report.tokens import Pieces

MOST_CELLS = 2048
MOST_ROWS = 64
PiecesOf = Callable[[Mapping[str, Any]], Pieces | None]
"""From a record's environment to what gives a token's bytes; the face knows the tokenizers."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence of the step in which the first finding fell."""

    name: str
    suspect: bool
    work: str
    """decode, or a chunk of its prompt."""
    cached: int
    prompt: int
    prefix_hit: int | None
    """Tokens that it found in the prefix cache; None where it began before the window."""
    shared: int
    """KV blocks that it shares with the suspects."""


@dataclass(slots=True)
class Evidence:
    problem: str = ""
    """Why there is nothing more to show."""
    parts: dict[str, Any] = field(default_factory=dict)
    batch: list[BatchRow] = field(default_factory=list)
    step: int = 0
    left_out: int = 0
    engine: str = ""
    device: str = ""
    level: str = ""
    sharing: list[str] = field(default_factory=list)
    """Sequences that hold blocks of the suspects, in or out of the batch."""


def evidence_of(
    open_bundle: Callable[[], BundleReader], known: Iterable[str], pieces_of: PiecesOf | None = None
) -> Evidence:
    """`known`: sequence names that the catalog has; keyed names are told by them. Never raises for a damaged bundle."""
    found = Evidence()
    try:
        reader = open_bundle()
        found.level = reader.level
        environment = dict(reader.json("env.json"))
        found.engine, found.device = str(environment.get("engine", "")), str(environment.get("device", ""))
        content = pieces_of is not None
        pieces = pieces_of(environment) if pieces_of is not None else None
        level: Confidential = "full" if content else "default"
        result = newest_result(reader.path)
        facts = facts_of_bundle(reader, result, confidential=level, pieces=pieces, open_content=content)
        names = {deployment_key().name(name): name for name in known}
        found.parts = parts_of(facts, names, content)
        window = reader.window(content=content)
        add_batch(found, window, facts, names)
    except UserError as error:
        found.problem = str(error)
    return found


def parts_of(facts: Facts, names: Mapping[str, str], content: bool) -> dict[str, Any]:
    """What the templates of the report's parts take."""
    result = facts.result or {}
    told = {
        "headline": headline(result) if facts.result else "",
        "summary": summary(result),
        "tests": tests(result),
        "places": places(result),
        "slots": slots(facts, MOST_CELLS),
        "axis": axis(facts),
        "strip": strip(result, MOST_CELLS),
        "strip_words": strip_words(result) if result else "",
        **tokens(facts, content, MOST_CELLS),
        "held": list(facts.held.items()),
    }
    renamed: dict[str, Any] = known_names(told, names)
    # Many labels with long names hide the map.
    renamed["slots"] = known_names(told["slots"], {keyed: short(name) for keyed, name in names.items()})
    return renamed


def short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:10]}…{name[-6:]}"


def known_names(value: Any, names: Mapping[str, str]) -> Any:
    """Keyed names replaced by the catalog's, at any depth."""
    if isinstance(value, str):
        for keyed, name in names.items():
            value = value.replace(keyed, name)
        return value
    if isinstance(value, Mapping):
        return {key: known_names(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [known_names(item, names) for item in value]
    return value


def add_batch(found: Evidence, window: RecordedWindow, facts: Facts, names: Mapping[str, str]) -> None:
    if not len(window) or not facts.findings:
        return
    first = min(each["step"] for each in facts.findings)
    place = at_step(window, first)
    if place is None:
        return
    record, tables = place
    wanted = {str(each["sequence"]) for each in facts.findings}
    suspects = {handle for handle, start in window.starts.items() if start.name in wanted}
    theirs = {block for handle in suspects for block in blocks_of(tables, handle)}
    hits = prefix_hits(window)
    rows = []
    for handle, count, start in zip(
        record.handles.tolist(), record.query_lengths.tolist(), record.starts.tolist(), strict=True
    ):
        told = window.starts[handle]
        prompt = len(told.prompt_tokens)
        work = "decode" if start >= prompt else f"prompt, tokens {start} to {min(start + count, prompt) - 1}"
        shared = 0 if handle in suspects else len(theirs & set(blocks_of(tables, handle)))
        unknown = told.name if handle in suspects else f"uninvolved ({told.name[:8]})"
        name = names.get(told.name, unknown)
        rows.append(BatchRow(name, handle in suspects, work, start, prompt, hits.get(handle), shared))
    rows.sort(key=lambda row: (not row.suspect, -row.shared))
    found.batch, found.left_out, found.step = rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS), record.step
    found.sharing = [
        names.get(start.name, start.name)
        for handle, start in window.starts.items()
        if handle not in suspects and theirs & set(blocks_of(tables, handle))
    ]


def prefix_hits(window: RecordedWindow) -> dict[int, int]:
    """Tokens that were in memory when a sequence began, of those that began in the window."""
    hits: dict[int, int] = {}
    for record in window.records:
        begun = {start.handle for start in record.begun}
        for handle, start in zip(record.handles.tolist(), record.starts.tolist(), strict=True):
            if handle in begun:
                hits.setdefault(handle, start)
    return hits


def blocks_of(tables: Tables, handle: int) -> list[int]:
    return [block for block in tables[handle].tolist() if block >= 0] if handle in tables else []
