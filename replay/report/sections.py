"""The parts of a report, from facts to what the template shows. Names are replaced afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkengine.guards.finding import Severity
from checkengine.replay.report.facts import Facts, differences
from checkengine.replay.report.names import Confidential
from checkengine.replay.report.tokens import HIGH_ENTROPY, Token, bar

CLOSE = 0.1
"""A margin below it: the two best tokens all but tie."""
NEIGHBOURS = 12
"""Tokens before and after a finding that are told in numbers."""
MOST_ROWS = 200
SCRIPT_COLOURS = 4
RESULTS = {True: ("passed", "nothing wrong"), False: ("failed", "found"), None: ("unknown", "for information")}


def summary(result: Mapping[str, Any]) -> list[str]:
    if not result:
        return []
    lines = []
    if result.get("rows"):
        lines.append(equality(result))
    fired: dict[Any, str] = {True: "The finding fires again.", False: "The finding does not fire again."}
    if result.get("finding") is not None and (words := fired.get(result.get("reproduced"))):
        lines.append(words)
    reference = mapping(result.get("reference"))
    if reference.get("finding_fires") is not None:
        does = "fires too" if reference["finding_fires"] else "does not fire"
        lines.append(f"Under the {reference.get('kernel')} kernel it {does}.")
    notes = result.get("notes")
    return [*lines, *(str(note) for note in (notes if isinstance(notes, list) else [])[:20])]


def equality(result: Mapping[str, Any]) -> str:
    told = f"{result.get('equal_rows')} of {result.get('rows')} rows equal the record in {result.get('steps')} steps"
    exact = "bit for bit" if result.get("bit_exact") else f"compared: {result.get('compared')}"
    first = mapping(result.get("first_difference"))
    other = (
        f"; the first other {first.get('what')} is at step {first.get('step')}, row {first.get('row')}" if first else ""
    )
    return f"Replay: {told}, {exact}{other}."


def tests(result: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    for test in rows_of(mapping(result.get("verdict")).get("tests")):
        passed = test.get("passed")
        state, words = RESULTS.get(passed if isinstance(passed, bool) else None, RESULTS[None])
        texts = {name: str(test.get(name) or "") for name in ("name", "detail", "rules_out")}
        found.append(texts | {"state": state, "result": words})
    return found[:MOST_ROWS]


def places(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    verdict = mapping(result.get("verdict"))
    names = {
        "fault_class": "class",
        "persistence": "persistence",
        "op": "first op that differs",
        "layers": "layers",
        "heads": "query heads",
        "sequence": "sequence",
        "step": "step",
        "position": "position of the first wrong token",
        "parts": "read of the slots",
    }
    found = [(words, listed(verdict[name])) for name, words in names.items() if verdict.get(name) not in (None, [], "")]
    for place in rows_of(verdict.get("slots")):
        found.append(("slot" if len(found) else "slots", f"{place.get('words')} (block {place.get('block')})"))
    if "rows" in result and (first := mapping(result.get("first_difference"))):
        found.append(("first row that is not as recorded", f"step {first.get('step')}, row {first.get('row')}"))
    return found[:MOST_ROWS]


def listed(value: Any) -> str:
    """Numbers in a row as a range."""
    if not isinstance(value, list | tuple):
        return str(value)
    whole = len(value) > 2 and all(isinstance(each, int) for each in value)
    if whole and list(value) == list(range(value[0], value[0] + len(value))):
        return f"{value[0]} to {value[-1]}"
    return ", ".join(str(each) for each in value)


def slots(facts: Facts, most_cells: int) -> dict[str, Any] | None:
    drawn = facts.slots
    if drawn is None:
        return None
    pages = drawn.pages[: max(1, most_cells // max(1, len(drawn.pages[0].cells)))] if drawn.pages else ()
    return {
        "step": drawn.step,
        "suspect": facts.owners.get(drawn.suspect, "the sequence") if drawn.suspect is not None else "the sequence",
        "left_out": drawn.left_out + len(drawn.pages) - len(pages),
        "pages": [
            {"label": page_label(page, facts.owners), "cells": [slot_cell(page, i) for i in range(len(page.cells))]}
            for page in pages
        ],
    }


def page_label(page: Any, owners: Mapping[int, str]) -> str:
    where = "" if page.first_position is None else f", positions {page.first_position} to {page.cells[-1].position}"
    whose = ", ".join(owners.get(handle, f"sequence {handle}") for handle in page.owners[:3]) or "nobody"
    return f"block {page.block}{where}: {whose}"


def slot_cell(page: Any, offset: int) -> dict[str, str]:
    cell = page.cells[offset]
    slot = page.block * len(page.cells) + offset
    if not cell.read:
        return {"classes": cell.state, "title": "", "mark": ""}
    where = "" if cell.position is None else f", position {cell.position}"
    whose = {"free": "nobody's", "other": "another sequence's"}.get(cell.state, "its own")
    return {"classes": "read", "title": f"slot {slot}{where}: {whose}, read without right", "mark": "×"}


def findings(facts: Facts, most_cells: int) -> list[dict[str, str]]:
    ordered = sorted(facts.findings, key=lambda each: (each["step"], each["token"]))
    return [
        {
            "step": str(each["step"]),
            "token": str(each["token"]),
            "kind": str(each["kind"]),
            "guard": str(each["guard"]),
            "severity": severity(each["severity"]),
            "sequence": str(each["sequence"]),
            "evidence": ", ".join(f"{name} {shown(value)}" for name, value in dict(each["evidence"]).items()),
        }
        for each in ordered[: min(MOST_ROWS, most_cells)]
    ]


def severity(value: Any) -> str:
    try:
        return Severity(value).name.lower()
    except ValueError:
        return str(value)


def axis(facts: Facts) -> dict[str, Any] | None:
    if facts.steps is None or not facts.findings:
        return None
    first, last = facts.steps
    trigger = min(each["step"] for each in facts.findings)
    span = max(1, last - first)
    marks = [
        {
            "x": f"{8 + 584 * min(1.0, max(0.0, (each['step'] - first) / span)):.1f}",
            "classes": "trigger" if each["step"] == trigger else "later",
            "title": f"step {each['step']}: {each['kind']}",
        }
        for each in facts.findings[:MOST_ROWS]
    ]
    return {"first": first, "last": last, "trigger": trigger, "marks": marks}


def strip(result: Mapping[str, Any], most_cells: int) -> list[dict[str, Any]]:
    """One cell a step."""
    told = result.get("strip")
    return cells(told if isinstance(told, list) else [], most_cells)


def cells(told: Sequence[Any], most: int) -> list[dict[str, Any]]:
    steps = [row for row in told if isinstance(row, list | tuple) and len(row) == 3][-most:]
    return [
        {
            "state": "none" if not rows else "equal" if equal == rows else "other",
            "title": f"step {step}: {equal} of {rows} rows equal",
        }
        for step, rows, equal in steps
    ]


def strip_words(result: Mapping[str, Any]) -> str:
    exact = result.get("exact_from") == "undo"
    known = (
        "every readable byte is known (undo ring)" if exact else "unowned slots are not known: claims hold under fills"
    )
    span = f"From step {result.get('from_step')}, {result.get('steps')} steps"
    return f"{span}; compared: {result.get('compared')}; {known}."


def tokens(facts: Facts, with_text: bool, most_cells: int) -> dict[str, Any]:
    share = max(1, most_cells // max(1, len(facts.tokens)))
    told = {name: list(cells_)[-share:] for name, cells_ in facts.tokens.items()}
    names = [script for cells_ in told.values() for token in cells_ if (script := token.script)]
    scripts = {
        name: min(place, SCRIPT_COLOURS - 1)
        for place, name in enumerate(sorted(set(names), key=lambda n: -names.count(n)))
    }
    return {
        "tokens": [
            (name, [token_cell(token, scripts, with_text) for token in cells_]) for name, cells_ in told.items()
        ],
        "scripts": [{"name": name, "classes": f"s{colour}"} for name, colour in list(scripts.items())[:8]],
        "around": around(told, with_text),
        "with_text": with_text and any(token.text is not None for cells_ in told.values() for token in cells_),
        "high_entropy": f"{HIGH_ENTROPY:g}",
        "close": f"{CLOSE:g}",
    }


def token_cell(token: Token, scripts: Mapping[str, int], with_text: bool) -> dict[str, Any]:
    classes = [f"s{scripts[token.script]}"] if token.script else []
    classes += ["close"] if token.margin is not None and token.margin < CLOSE else []
    classes += ["found"] if token.findings else []
    words = [f"token {token.index}, step {token.step}"]
    words += [f"entropy {token.entropy:g}"] if token.entropy is not None else []
    words += [f"margin {token.margin:g}"] if token.margin is not None else []
    words += [token.script] if token.script else []
    words += [f"finding {', '.join(token.findings)}"] if token.findings else []
    words += [f"text {token.text!r}"] if with_text and token.text is not None else []
    return {"classes": " ".join(classes), "title": "; ".join(words), "bar": bar(token.entropy)}


def around(told: Mapping[str, Sequence[Token]], with_text: bool) -> list[dict[str, str]]:
    """Tokens near the first finding, in numbers."""
    for cells_ in told.values():
        place = next((place for place, token in enumerate(cells_) if token.findings), None)
        if place is not None:
            near = cells_[max(0, place - NEIGHBOURS) : place + NEIGHBOURS + 1]
            return [
                {
                    "index": str(token.index),
                    "step": str(token.step),
                    "entropy": shown(token.entropy),
                    "margin": shown(token.margin),
                    "script": token.script,
                    "text": (token.text or "") if with_text else "",
                    "findings": ", ".join(token.findings),
                }
                for token in near
            ]
    return []


def environment(facts: Facts) -> list[dict[str, str]]:
    states = {True: "failed", False: "passed", None: "unknown"}
    return [
        {
            "name": name,
            "recorded": recorded,
            "here": here or ("not looked at" if differs is None else here),
            "state": states[differs],
        }
        for name, recorded, here, differs in differences(facts.environment, facts.here)[:MOST_ROWS]
    ]


def anonymous(command: str, bundle: str, confidential: Confidential) -> str:
    return command if confidential == "full" or not bundle else command.replace(bundle, "BUNDLE")


def footer(result: Mapping[str, Any]) -> str:
    verdict = mapping(result.get("verdict"))
    if not result:
        return "Not judged."
    return f"{verdict.get('replays_used', 0)} replays by the judge; {result.get('seconds')} s in all."


def shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.4g}"


def mapping(value: Any) -> Mapping[str, Any]:
    """A result may have been written by a stranger."""
    return value if isinstance(value, Mapping) else {}


def rows_of(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []
