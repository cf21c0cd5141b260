"""Forms, read with bounds: urlencoded only, so that no file is ever taken in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.requests import Request

from checkengine.dashboards.web.problems import Problem

MOST_BYTES = 1 << 16
MOST_FIELDS = 600
MOST_VALUE = 4096


class Form:
    """Names to values."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def one(self, name: str, default: str = "") -> str:
        """The only value; Problem where there are several, which differ by reader."""
        values = self._fields.get(name, ())
        if len(values) > 1:
            raise Problem(400, "That form cannot be read", f"{name} came more than once.")
        return values[0] if values else default

    def all(self, name: str) -> list[str]:
        return list(self._fields.get(name, ()))


async def read_form(request: Request) -> Form:
    """Problem 413 for a large one, 415 for another type, 400 for what is none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", ""):
        raise Problem(415, "That form cannot be read", "Send application/x-www-form-urlencoded.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Problem(413, "That form is too large", f"At most {MOST_BYTES} bytes.")
    return parse_form(bytes(body))


def parse_form(body: bytes) -> Form:
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise Problem(400, "That form cannot be read", "It is not urlencoded UTF-8, or has too many fields.") from None
    if any(len(value) > MOST_VALUE for values in fields.values() for value in values):
        raise Problem(400, "That form cannot be read", f"A field takes at most {MOST_VALUE} characters.")
    return Form({name: [value.replace("\0", "\ufffd") for value in values] for name, values in fields.items()})
