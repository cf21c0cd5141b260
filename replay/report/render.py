"""An investigation as one HTML file that opens offline, and as words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from checkengine.replay.investigate import Investigation

Confidential = Literal["none", "default", "full"]
"""How identifiers (sequences, bundle, incident) are shown: not at all, as short hashes, or as they are."""

MOST_BYTES = 2 << 20
MOST_CELLS = 4096
HIDDEN_ENVIRONMENT = ("layout", "faults", "guards")


@dataclass(frozen=True, slots=True)
class Names:
    """Replaces identifiers in everything that a report shows."""

    level: Confidential
    known: tuple[str, ...]

    def shown(self, name: str) -> str:
        if self.level == "full":
            return name
        if self.level == "none":
            return f"sequence-{self.known.index(name) + 1}" if name in self.known else "(hidden)"
        return "id-" + hashlib.sha256(name.encode()).hexdigest()[:8]

    def clean(self, value: Any) -> Any:
        """The value with every known identifier replaced, in strings at any depth."""
        if isinstance(value, str):
            for name in sorted(self.known, key=len, reverse=True):
                value = value.replace(name, self.shown(name)) if self.level != "full" else value
            return value
        if isinstance(value, Mapping):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        return value


def render_html(found: Investigation, *, command: str, confidential: Confidential = "default") -> str:
    """One file: no script, no request, dark and light, at most 2 MiB."""
    names = Names(confidential, known_names(found))
    environment = Environment(
        loader=PackageLoader("checkengine.replay", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    bundle = found.bundle if confidential == "full" else "BUNDLE"
    html = environment.get_template("report.html").render(
        data=names.clean(found.to_dict()) | {"bundle": bundle},
        headline=names.clean(headline(found)),
        words=names.clean(found.forced.words()) if found.forced else "",
        strip=strip(found),
        environment=names.clean(shown_environment(found.environment)),
        command=command.replace(found.bundle, bundle) if found.bundle else command,
    )
    # A path need not be text.
    html = html.encode("utf-8", "backslashreplace").decode()
    if len(html.encode()) > MOST_BYTES:
        raise ValueError(f"the report would take {len(html.encode())} bytes, more than {MOST_BYTES}")
    return html


def headline(found: Investigation) -> str:
    """The verdict in one sentence."""
    if found.verdict is not None:
        return f"{found.verdict.kind}: {found.verdict.sentence}"
    if found.reproduced is None:
        return "not judged"
    return "the finding fires again" if found.reproduced else "the finding does not fire again"


def strip(found: Investigation) -> list[dict[str, Any]]:
    """One cell a step, the last MOST_CELLS of them."""
    steps = found.forced.strip[-MOST_CELLS:] if found.forced else []
    return [
        {
            "state": "none" if not step.rows else "equal" if step.equal_rows == step.rows else "other",
            "title": f"step {step.step}: {step.equal_rows} of {step.rows} rows equal",
        }
        for step in steps
    ]


def shown_environment(environment: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    for key, value in environment.items():
        if key in HIDDEN_ENVIRONMENT:
            continue
        rows[key] = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
    return rows


def known_names(found: Investigation) -> tuple[str, ...]:
    """Names of sequences that any part of the investigation may mention."""
    names = [finding.sequence for finding in found.findings]
    if found.verdict and found.verdict.sequence:
        names.append(found.verdict.sequence)
    if found.forced and found.forced.first_difference:
        names.append(found.forced.first_difference.sequence)
    return tuple(dict.fromkeys(name for name in names if name))
