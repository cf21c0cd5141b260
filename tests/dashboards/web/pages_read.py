"""Reads pages as a browser's parser does, as far as tests ask."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "img", "br", "hr"}
SCRIPTS = re.compile(r"^/static/page\.js\?[0-9a-f]{12}$")


class Seen(HTMLParser):
    """Tags, attributes, text, and what would run or load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.headings: list[int] = []
        self.forms: list[dict[str, str]] = []
        self.fields: list[dict[str, str]] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self._in_script = False
        self.feed(html)
        self.close()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split()).replace(" ,", ",")

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attributes}
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in told.items()]
        if tag == "script":
            self._in_script = True
            self.scripts.append(told.get("src", ""))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "form":
            self.forms.append(told)
        if tag in ("input", "select", "textarea", "button"):
            self.fields.append(told | {"tag": tag})
        if tag == "a":
            self.links.append(told.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.scripts.append(f"inline: {data[:80]}")
        self.texts.append(data)

    def field(self, name: str) -> str:
        return next(each.get("value", "") for each in self.fields if each.get("name") == name)
