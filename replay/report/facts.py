"""All that a report tells, gathered from a bundle and from the newest verdict on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checkengine.replay.bundle import BundleError, BundleReader, layout, results_of
from checkengine.replay.investigate import Investigation, finding_json, jsonable
from checkengine.replay.recorded import RecordedWindow
from checkengine.replay.report.names import Confidential
from checkengine.replay.report.slots import SlotMap, slot_map
from checkengine.replay.report.tokens import Pieces, Token, strips, token_rows

TOKENS = "tokens"
"""Key of a result that holds `token_rows`."""
STRIP = "strip"
"""Key of a result that holds step, rows, and rows that equal the record."""
MOST_STEPS = 4096


@dataclass(slots=True)
class Facts:
    result: Mapping[str, Any] | None
    """As Investigation.to_dict(); None where nobody could judge."""
    findings: Sequence[Mapping[str, Any]]
    environment: Mapping[str, Any]
    here: Mapping[str, Any] = field(default_factory=dict)
    """What decides numbers on this machine, under the same names; what is not known is left out."""
    bundle: str = ""
    incident: str | None = None
    why_not: str = ""
    """Why there is no verdict."""
    steps: tuple[int, int] | None = None
    """First and last recorded step."""
    held: Mapping[str, Any] = field(default_factory=dict)
    """What the bundle holds, in words, by name."""
    names: Sequence[str] = ()
    tokens: Mapping[str, Sequence[Token]] = field(default_factory=dict)
    """By sequence."""
    slots: SlotMap | None = None
    owners: Mapping[int, str] = field(default_factory=dict)
    """Names by handle."""
    commands: Sequence[tuple[str, str]] = ()
    """What for, and the command."""


def result_json(found: Investigation) -> dict[str, Any]:
    """What a bundle keeps of an investigation: all that a report needs later."""
    strip = [[step.step, step.rows, step.equal_rows] for step in found.forced.strip] if found.forced else []
    return found.to_dict() | {TOKENS: jsonable(token_rows(found)), STRIP: strip[-MOST_STEPS:]}


def newest_result(bundle: Any) -> Mapping[str, Any] | None:
    """The last one that holds a verdict, else the last one; None where there is none that can be read."""
    try:
        found = [result for result in results_of(bundle) if isinstance(result, dict)]
    except (BundleError, OSError):
        return None
    judged = [result for result in found if isinstance(result.get("verdict"), dict)]
    return judged[-1] if judged else found[-1] if found else None


def facts_of_investigation(found: Investigation) -> Facts:
    """Without a bundle at hand."""
    findings = [told for each in found.findings if (told := finding_json(each)) is not None]
    facts = Facts(result_json(found), findings, found.environment, bundle=found.bundle)
    if found.forced is not None and found.forced.strip:
        facts.steps = (found.forced.strip[0].step, found.forced.strip[-1].step)
    facts.names = names_in(facts)
    return facts


def facts_of_bundle(
    reader: BundleReader,
    result: Mapping[str, Any] | None,
    *,
    confidential: Confidential = "default",
    pieces: Pieces | None = None,
    here: Mapping[str, Any] | None = None,
    open_content: bool = True,
) -> Facts:
    """`pieces` gives a token's bytes. Content is opened only where the level shows something of it, and not at all
    without `open_content`: then sequences have their keyed names and tokens no script."""
    opened = open_content and confidential != "none" and reader.level == "full" and reader.opens()
    # A bundle of one op's call has no window.
    window = reader.window(content=opened) if layout.RING in reader.files else RecordedWindow()
    findings = findings_of(reader, opened)
    facts = Facts(
        result,
        findings,
        dict(reader.json(layout.ENVIRONMENT)),
        here or {},
        str(reader.path),
        reader.manifest.get("incident"),
        steps=(window.first_step, window.last_step) if len(window) else None,
        held=held(reader, window),
    )
    facts.owners = {handle: start.name for handle, start in window.starts.items()}
    facts.names = names_in(facts)
    suspects = suspects_in(window, facts)
    rows = (result or {}).get(TOKENS)
    shown = confidential != "none" and len(window)
    told = strips(window, suspects, usable(rows), findings, pieces if opened else None) if shown else {}
    facts.tokens = {window.starts[handle].name: tokens for handle, tokens in told.items()}
    facts.slots = map_of(reader, window, suspects, facts)
    return facts


def findings_of(reader: BundleReader, opened: bool) -> Sequence[Mapping[str, Any]]:
    """The recorded ones, under the names that the window has: keyed where the content is not opened."""
    told: list[dict[str, Any]] = [dict(finding_json(each) or {}) for each in reader.findings]
    if opened:
        for each, name in zip(told, reader.finding_names(), strict=False):
            each["sequence"] = name
    return told


def held(reader: BundleReader, window: RecordedWindow) -> dict[str, Any]:
    told: dict[str, Any] = {
        "content": {"core": "none was captured", "full": "encrypted"}.get(reader.level, reader.level),
        "level": reader.manifest.get("capture_level", "L3"),
        "format": ".".join(str(number) for number in reader.manifest.get("version", ())),
    }
    if len(window):
        told["steps"] = f"{len(window)} ({window.span()})"
        told["sequences"] = len(window.starts)
        told["steps that could not be recorded"] = window.dropped
    return told


def names_in(facts: Facts) -> tuple[str, ...]:
    """Of sequences, the finding's first; and the incident."""
    result = facts.result or {}
    parts = [result.get("finding"), result.get("verdict"), result.get("first_difference"), *facts.findings]
    names = [str(part.get("sequence") or "") for part in parts if isinstance(part, Mapping)]
    return tuple(dict.fromkeys(name for name in [*names, *facts.owners.values(), facts.incident or ""] if name))


def suspects_in(window: RecordedWindow, facts: Facts) -> list[int]:
    """Handles of the verdict's and the findings' sequences; of the involved ones where no finding names any."""
    verdict = (facts.result or {}).get("verdict") or {}
    wanted = [str(verdict.get("sequence") or ""), *(str(each["sequence"]) for each in facts.findings)]
    by_name = [handle for name in dict.fromkeys(wanted) if name for handle in window.handles_of(name)]
    return by_name or involved_in(window)


def involved_in(window: RecordedWindow) -> list[int]:
    told = {handle for record in window.records for handle in record.handles.tolist()}
    return sorted(handle for handle in told if not window.starts[handle].name.startswith("other-"))


def usable(rows: Any) -> list[Any]:
    return [row for row in rows if isinstance(row, list) and len(row) == 5] if isinstance(rows, list) else []


def map_of(reader: BundleReader, window: RecordedWindow, suspects: Sequence[int], facts: Facts) -> SlotMap | None:
    if not len(window) or layout.PAGES not in reader.files:
        return None
    pages = reader.json(layout.PAGES)
    verdict = (facts.result or {}).get("verdict") or {}
    places = verdict.get("slots") or []
    step = verdict.get("step")
    if not isinstance(step, int):
        step = min((each["step"] for each in facts.findings), default=window.last_step)
    try:
        guilty = [int(place["slot"]) for place in places]
        blocks = [int(block) for block in pages["blocks"]]
        suspect = suspects[0] if suspects else None
        return slot_map(window, blocks, int(pages["block_size"]), suspect, step, guilty)
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, str, str, bool | None]]:
    """Name, recorded, here, and whether they differ (None: not known here)."""
    rows: list[tuple[str, str, str, bool | None]] = []
    for name, value in flat(recorded).items():
        now = flat(here).get(name)
        rows.append((name, value, now or "", None if now is None else now != value))
    return sorted(rows, key=lambda row: row[3] is not True)


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    told: dict[str, str] = {}
    for name, value in values.items():
        if name in HIDDEN:
            continue
        if isinstance(value, Mapping):
            told |= {f"{name}: {key}": str(item) for key, item in value.items()}
        else:
            told[str(name)] = str(value.item() if isinstance(value, np.generic) else value)
    return told


HIDDEN = ("layout", "guards")
"""Of the environment: what says nothing about a difference."""
