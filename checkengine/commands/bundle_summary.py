"""What `checkengine bundles show` tells a person: a bundle on one screen, without its content."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkengine.guards.errors import one_line
from checkengine.replay.bundle import BundleError, BundleReader, results_of

MEANS = {
    "L0": "no KV memory: shows what ran, cannot be replayed",
    "L1": "the suspect's last page and its neighbours: cannot be replayed",
    "L2": "all pages of the suspect sequences",
    "L3": "all pages of the suspect sequences, and of all that wrote into one of these",
}
"""Capture levels."""
MOST_FINDINGS, MOST_LETTERS = 5, 300


def summary_of(path: Path, row: Mapping[str, Any]) -> list[str]:
    """Lines; `row` is the bundle's row of `bundles ls`. BundleError where the bundle is damaged."""
    reader = BundleReader(path, "show")
    told = [("bundle", row["bundle"]), *facts_of(reader, row), ("next", next_of(reader, path, row))]
    return [f"{name:<12}{one_line(text[:MOST_LETTERS])}" for name, text in told]


def facts_of(reader: BundleReader, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    manifest, environment = reader.manifest, mapping(reader.json("env.json"))
    when = manifest.get("time")
    if isinstance(when, int | float) and 0 < when < 2**37:
        yield "captured", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
    yield from findings_of(reader, environment)
    if manifest.get("incident"):
        yield "incident", str(manifest["incident"])
    level = str(row["captured"])
    yield "level", f"{level}, {MEANS[level]}" if level in MEANS else level
    yield "content", content_of(row)
    yield "holds", holds_of(reader)
    yield "engine", engine_of(environment)
    yield "size", f"{row['bytes'] / 1e6:.1f} MB in {len(reader.files)} files and the content"
    yield "results", results_line(reader.path)


def findings_of(reader: BundleReader, environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    findings = reader.findings
    if not findings:
        yield "finding", f"none: captured by condition {environment['armed']}" if "armed" in environment else "none"
    for finding in findings[:MOST_FINDINGS]:
        yield "finding", f"{finding.kind} by {finding.guard}, step {finding.step}, sequence {finding.sequence}"
    if len(findings) > MOST_FINDINGS:
        yield "", f"and {len(findings) - MOST_FINDINGS} more"


def content_of(row: Mapping[str, Any]) -> str:
    if row["level"] != "full":
        return {"core": "none was captured"}.get(row["level"], str(row["level"]))
    kept = "; held, so it does not expire" if row["held"] else f"; readable {row['note']}" if row["note"] else ""
    return ("encrypted" if row["encrypted"] else "in the clear") + kept


def holds_of(reader: BundleReader) -> str:
    step = mapping(reader.json("step.json"))
    sequences = mapping(step.get("sequences"))
    named = step.get("kernels")
    kernels = ", ".join(map(str, named)) if isinstance(named, list) and named else "unknown"
    if not step.get("steps"):
        return f"one attention call, kernel {kernels}"
    involved = sum(bool(mapping(each).get("involved")) for each in sequences.values())
    exact = step.get("first_exact_step")
    known = "memory known byte for byte from no step" if exact is None else f"bit-exact from step {exact}"
    span = f"steps {step.get('first_step')} to {step.get('last_step')}, {known}"
    return f"{span}; {len(sequences)} sequences, {involved} of them captured; kernel {kernels}"


def engine_of(environment: Mapping[str, Any]) -> str:
    parts = [environment.get(name) for name in ("engine", "engine_version", "device", "dtype", "model")]
    return ", ".join(str(part) for part in parts if isinstance(part, str | int))


def results_line(path: Path) -> str:
    try:
        results = results_of(path)
    except BundleError as error:
        return str(error)
    if not results:
        return "none yet"
    verdict = mapping(mapping(results[-1]).get("verdict"))
    return f"{len(results)}; the last: {verdict.get('sentence') or verdict.get('kind') or 'no verdict'}"


def next_of(reader: BundleReader, path: Path, row: Mapping[str, Any]) -> str:
    if "call.json" in reader.files or (row["level"] == "full" and row["captured"] in ("L2", "L3")):
        return f"checkengine replay {path}"
    return f"checkengine report {path} -o FILE.html (it cannot be replayed)"


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
