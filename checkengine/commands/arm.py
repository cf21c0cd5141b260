"""`checkengine arm`: capture steps that meet a condition, for a while, on a running server."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from typing import Any

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(rich_markup_mode=None)

TOKEN = "CHECKENGINE_CONTROL_TOKEN"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TIMEOUT = 10.0
MOST_ANSWER_BYTES = 1 << 20


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token goes to the address that was given, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))


class ArmError(UserError):
    """A server that is not there, or that refuses."""

    exit_code = 1


@app.command()
def arm(
    urls: list[str] = typer.Option(..., "--url", help="A server's address, http://127.0.0.1:8000; may be repeated."),
    replica: str | None = typer.Option(None, help="Of the addresses given, only the one of this name."),
    when: str | None = typer.Option(None, help="For example: length % 16 == 1 and not prefix_hit. Fields: see docs."),
    level: str = typer.Option("L3", help="L0 to L3: how much of the KV memory a capture holds."),
    lasts: str = typer.Option("1h", "--for", help="How long: 30m, 6h, 2d."),
    most: int = typer.Option(3, min=1, help="Captures, each of another sequence."),
    disarm: str | None = typer.Option(None, help="End the condition of this id."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of text."),
) -> None:
    """Arm a condition, or list what is armed. The server's control token is read from CHECKENGINE_CONTROL_TOKEN."""
    if when is not None and disarm is not None:
        raise typer.BadParameter("give either --when or --disarm")
    for url in chosen(urls, replica):
        if disarm is not None:
            answer = ask(url, "DELETE", f"/{disarm}" if re.fullmatch(r"[0-9a-f]+", disarm) else "/unknown")
        elif when is not None:
            body = {"when": when, "level": level, "seconds": seconds_of(lasts), "most": most}
            answer = ask(url, "POST", "", body)
        else:
            answer = ask(url, "GET")
        typer.echo(json.dumps(answer) if as_json else "\n".join(lines_of(url, answer)))


def chosen(urls: list[str], replica: str | None) -> list[str]:
    """All of them, or those that call themselves `replica`."""
    if replica is None:
        return urls
    names = {url: str(ask(url, "GET").get("replica")) for url in urls}
    found = [url for url, name in names.items() if name == replica]
    if not found:
        raise ArmError(f"none of the servers is replica {replica!r}; there are {', '.join(sorted(names.values()))}")
    return found


def seconds_of(text: str) -> float:
    """Of 90s, 30m, 6h, 2d."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no time: give 30m, 6h or 2d", param_hint="--for")
    return float(match[1]) * SECONDS[match[2]]


def ask(url: str, method: str, path: str = "", body: dict[str, Any] | None = None) -> dict[str, Any]:
    """ArmError with what the server says."""
    if not re.match(r"https?://", url):
        raise typer.BadParameter(f"{url!r} is no address: give http://HOST:PORT", param_hint="--url")
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    address = f"{url.rstrip('/')}/checkengine/arm{path}"
    try:
        request = urllib.request.Request(address, data, headers, method=method)
        with OPENER.open(request, timeout=TIMEOUT) as answer:
            told = json.loads(answer.read(MOST_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise ArmError(f"{url}: {message_of(error)}") from None
    except (OSError, ValueError) as error:
        raise ArmError(f"{url} does not answer as a checkengine server does: {error}") from None
    if not isinstance(told, dict):
        raise ArmError(f"{url} does not answer as a checkengine server does")
    return told


def message_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(MOST_ANSWER_BYTES))["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"


def lines_of(url: str, answer: dict[str, Any]) -> list[str]:
    if "disarmed" in answer:
        return [f"{url}: disarmed {answer['disarmed']}"]
    armed = answer.get("armed")
    rows = [armed] if isinstance(armed, dict) else armed or []
    name = f"{url} ({answer.get('replica', '?')})"
    return [f"{name}: {line_of(row)}" for row in rows] or [f"{name}: nothing is armed"]


def line_of(row: dict[str, Any]) -> str:
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(float(row["until"])))
    return (
        f"{row['id']}  {row['level']} where {row['when']}, until {until}, {row['captured']} of {row['most']} captured"
    )
