"""The demo's result as one HTML file that opens offline."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from checkengine import __version__
from checkengine.drills import words
from checkengine.drills.outcome import DemoResult


def render(result: DemoResult) -> str:
    """No script, no request; dark and light."""
    environment = Environment(
        loader=PackageLoader("checkengine.drills", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(result=result, words=words, version=__version__)
