"""Reports of an investigation."""

from checkengine.replay.report.render import Confidential, render_html

__all__ = ["Confidential", "render_html"]
