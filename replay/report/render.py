"""Facts as one HTML file that opens offline, and as words."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from checkengine.replay.investigate import Investigation
from checkengine.replay.report import sections
from checkengine.replay.report.facts import Facts, facts_of_investigation
from checkengine.replay.report.names import Confidential, Names

MOST_BYTES = 2 << 20
MOST_CELLS = 4096
PACKAGE = "checkengine.replay.report"


def render_html(found: Investigation, *, command: str, confidential: Confidential = "default") -> str:
    """Of an investigation alone, without its bundle."""
    facts = facts_of_investigation(found)
    facts.commands = [("The whole investigation:", command)]
    return render(facts, confidential)


def render(facts: Facts, confidential: Confidential = "default") -> str:
    """One file: no script, no request, dark and light, at most 2 MiB. What does not fit is left out, and said so."""
    cells = MOST_CELLS
    while len((html := page(facts, confidential, cells)).encode()) > MOST_BYTES and cells > 1:
        cells //= 4
    return html


def page(facts: Facts, confidential: Confidential, most_cells: int) -> str:
    names = Names(confidential, facts.names)
    result = facts.result or {}
    style = stylesheet()
    html = template().render(
        style=Markup(style),
        style_hash=f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}",
        headline=names.clean(headline(result) if facts.result else f"not judged: {facts.why_not or 'no verdict yet'}"),
        incident=names.shown(facts.incident) if facts.incident and confidential != "none" else "",
        summary=names.clean(sections.summary(result)),
        tests=names.clean(sections.tests(result)),
        places=names.clean(sections.places(result)),
        slots=names.clean(sections.slots(facts, most_cells)),
        findings=names.clean(sections.findings(facts, most_cells)),
        axis=names.clean(sections.axis(facts)),
        strip=sections.strip(result, most_cells),
        strip_words=names.clean(sections.strip_words(result)),
        **names.clean(sections.tokens(facts, confidential == "full", most_cells)),
        environment=names.clean(sections.environment(facts)),
        held=names.clean(list(facts.held.items())),
        commands=[(what, sections.anonymous(command, facts.bundle, confidential)) for what, command in facts.commands],
        footer=names.clean(sections.footer(result)),
    )
    # A path need not be text.
    return html.encode("utf-8", "backslashreplace").decode()


@cache
def template() -> Template:
    environment = Environment(
        loader=PackageLoader("checkengine.replay", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


@cache
def stylesheet() -> str:
    return "".join(files(PACKAGE).joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "parts.css"))


def headline(found: Investigation | Mapping[str, Any]) -> str:
    """The verdict in one sentence."""
    result = found.to_dict() if isinstance(found, Investigation) else found
    verdict = result.get("verdict")
    if isinstance(verdict, Mapping):
        return f"{verdict.get('kind')}: {verdict.get('sentence')}"
    if result.get("reproduced") is None:
        return "not judged"
    return "the finding fires again" if result["reproduced"] else "the finding does not fire again"


def strip(found: Investigation) -> list[dict[str, Any]]:
    """For the terminal: one cell a step, the last MOST_CELLS of them."""
    told: Sequence[Any] = (
        [[step.step, step.rows, step.equal_rows] for step in found.forced.strip] if found.forced else []
    )
    return sections.cells(told, MOST_CELLS)
