"""Templates: autoescaped, strict about names, and with every text of a stranger made visible and cut."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from checkengine.dashboards.web import words
from checkengine.dashboards.web.text import exact, visible


@cache
def templates() -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("checkengine.dashboards.web", "templates"), PackageLoader("checkengine.replay", "report")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "exact": exact,
        "part": part,
        "age": words.age,
        "duration": words.duration,
        "iso": words.iso,
        "clock": words.clock,
        "size": words.size,
        "count": words.count,
        "share": words.share,
        "power": words.power,
    }
    environment.globals |= {"query": query}
    return environment


def render(name: str, values: Mapping[str, Any]) -> str:
    # What a database holds need not be text that UTF-8 takes.
    return templates().get_template(name).render(values).encode("utf-8", "backslashreplace").decode()


def part(value: str) -> str:
    """One part of a path: an id with a slash, a question mark or dots stays one part."""
    quoted = quote(value, safe="", errors="backslashreplace")
    return quoted.replace(".", "%2E") if set(value) <= {"."} else quoted


def query(values: Mapping[str, str], **changes: str | None) -> str:
    """The query of a link: `values` with changes; what is None or empty is left out."""
    merged = {name: value for name, value in {**values, **changes}.items() if value not in (None, "")}
    return f"?{urlencode(merged, errors='backslashreplace')}" if merged else "?"
