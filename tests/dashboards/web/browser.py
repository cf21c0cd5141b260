"""A real Chromium, and what axe-core and a few rules of our own ask of a page as it has drawn it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from checkengine.benchmarks.debian import found_or_installed

PATIENCE = 60_000
"""Milliseconds: the machine may be busy with other tests."""

ACCESSIBLE = """
() => {
  const faults = [];
  const told = (element) => element.outerHTML.slice(0, 120);
  const shown = (element) => element.getClientRects().length > 0;
  const name = (element) => (element.getAttribute("aria-label") || element.textContent || element.title || "").trim()
    || (element.labels && [...element.labels].map((label) => label.textContent.trim()).join(" "))
    || (element.getAttribute("aria-labelledby") || "").split(" ")
      .map((id) => document.getElementById(id)?.textContent).join("");
  if (!document.documentElement.lang) faults.push("no language");
  if (!document.title.trim()) faults.push("no title");
  if (document.querySelectorAll("main").length !== 1) faults.push("not one main landmark");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  let level = 0;
  for (const heading of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) faults.push(`h${next} after h${level}: ${told(heading)}`);
    if (!heading.textContent.trim()) faults.push(`empty heading ${told(heading)}`);
    level = next;
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`two of id ${id}`);
  const fields = "input:not([type=hidden]), select, textarea, button, a, summary, progress";
  for (const field of document.querySelectorAll(fields))
    if (shown(field) && !name(field)) faults.push(`no name: ${told(field)}`);
  for (const image of document.querySelectorAll("svg, [role=img]"))
    if (!image.getAttribute("aria-label")) faults.push(`no text alternative: ${told(image)}`);
  for (const cell of document.querySelectorAll("th")) {
    if (!cell.textContent.trim() && !cell.querySelector("[aria-label]")) faults.push(`empty header ${told(cell)}`);
    if (!cell.scope) faults.push(`header of what? ${told(cell)}`);
  }
  for (const list of document.querySelectorAll("ul, ol"))
    if ([...list.children].some((child) => child.tagName !== "LI")) faults.push(`not a list: ${told(list)}`);
  for (const element of document.querySelectorAll("[tabindex]"))
    if (element.tabIndex > 0) faults.push(`jumps the order: ${told(element)}`);
  const parts = (color) => { const n = color.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const over = (top, ground) => [0, 1, 2].map((i) => top[i] * top[3] + ground[i] * (1 - top[3]));
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement)
      layers.push(parts(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (color) => color.slice(0, 3).map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !shown(element) || element.closest(".unseen, .skip, option, svg, .cells")) continue;
    const style = getComputedStyle(element), below = ground(element);
    const both = [light(over(parts(style.color), below)), light(below)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (both[0] + 0.05) / (both[1] + 0.05);
    if (ratio < (large ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)}: ${told(element)}`);
  }
  return [...new Set(faults)].slice(0, 12);
}
"""


@dataclass
class Seen:
    """What a page did besides being drawn."""

    messages: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self, page: Page, base: str) -> None:
        def message(told: ConsoleMessage) -> None:
            if told.type in ("error", "warning") and "Failed to load resource" not in told.text:
                self.messages.append(told.text)

        def request(asked: Request) -> None:
            if not asked.url.startswith((base, "data:")):
                self.foreign.append(asked.url)

        page.on("console", message)
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", request)
        page.on("dialog", lambda dialog: self.messages.append(f"dialog {dialog.message}"))


def chromium_program() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's, installed where it is missing; playwright downloads none of its own."""
    path = found_or_installed(chromium_program, "chromium", "Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, base: str, **options: Any) -> Iterator[tuple[Page, Seen]]:
    context: BrowserContext = browser.new_context(base_url=base, **options)
    context.set_default_timeout(PATIENCE)
    page, seen = context.new_page(), Seen()
    seen.watch(page, base)
    yield page, seen
    context.close()


@cache
def axe() -> str:
    """Deque's axe-core, as a package of PyPI carries it; its rules of WCAG 2 and its best practices."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


def inaccessible(page: Page) -> list[str]:
    """What is wrong for who cannot see, point or tell colours apart; empty where nothing is."""
    page.evaluate(axe())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    told = [f"axe {each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]
    return told + list(page.evaluate(ACCESSIBLE))


def overflow(page: Page) -> int:
    """Pixels that a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
