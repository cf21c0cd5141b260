"""An investigation, or a bundle with the newest verdict on it, as one HTML file."""

from checkengine.replay.report.facts import Facts, facts_of_bundle, newest_result, result_json
from checkengine.replay.report.names import Confidential
from checkengine.replay.report.render import render, render_html

__all__ = ["Confidential", "Facts", "facts_of_bundle", "newest_result", "render", "render_html", "result_json"]
