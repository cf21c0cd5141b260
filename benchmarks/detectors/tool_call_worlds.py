"""Made-up places for agents to work in: tools, arguments and results of many shapes and sizes, from a seed."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    "invoice ledger parser cache router session token kernel buffer schema index widget planet bridge "
    "harbour engine lantern garden museum recipe orchid turbine ferry glacier violin comet market archive "
    "canal meadow falcon quarry tunnel"
)
VERBS = _words(
    "load merge render parse compare export resolve rotate encode measure retry collect align trim index sort"
)
CITIES = _words("Lisbon Nairobi Oslo Quito Hanoi Tunis Perth Lima Cork Turin Kyoto Dakar")
NAMES = _words("Ada Bruno Chloe Dmitri Esi Farid Greta Hugo Ines Jonas Kemal Lena")
EXTENSIONS = ("py", "ts", "go", "rs", "md", "json", "yaml", "java")


class Chance(random.Random):
    """Random words, paths, times and ids."""

    def phrase(self, least: int = 2, most: int = 5) -> str:
        return " ".join(self.choice(NOUNS) for _ in range(self.randint(least, most)))

    def sentence(self) -> str:
        words = [
            self.choice((self.choice(NOUNS), self.choice(VERBS), "the", "of", "with"))
            for _ in range(self.randint(6, 18))
        ]
        return " ".join(words).capitalize() + "."

    def path(self) -> str:
        folders = "/".join(self.choice(NOUNS) for _ in range(self.randint(1, 3)))
        top, name = self.choice(("src", "lib", "app", "docs", "/repo")), f"{self.choice(VERBS)}_{self.choice(NOUNS)}"
        return f"{top}/{folders}/{name}.{self.choice(EXTENSIONS)}"

    def hexadecimal(self, length: int) -> str:
        return "".join(self.choice("0123456789abcdef") for _ in range(length))

    def identifier(self) -> str:
        return self.choice(
            (
                str(uuid.UUID(int=self.getrandbits(128))),
                f"req_{self.hexadecimal(16)}",
                self.hexadecimal(24),
                f"{self.choice('ABCDEFG')}{self.randint(1000, 999999)}",
            )
        )

    def date(self) -> str:
        return f"2026-{self.randint(1, 12):02d}-{self.randint(1, 28):02d}"

    def moment(self, shape: int, second: int) -> str:
        """A time `second` seconds into a day, in one of six ways to write it."""
        hour, minute, rest = 8 + second // 3600 % 12, second // 60 % 60, second % 60
        clock = f"{hour:02d}:{minute:02d}:{rest:02d}"
        return (
            f"2026-03-14T{clock}Z",
            f"2026-03-14 {clock}.{self.randint(0, 999):03d}",
            f"Sat Mar 14 {clock} UTC 2026",
            str(1_773_475_200 + second),
            str((1_773_475_200 + second) * 1000 + self.randint(0, 999)),
            f"14 Mar 2026 {clock} GMT",
        )[shape % 6]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    arguments: Callable[[Chance], dict[str, Any]]
    result: Callable[[Chance], str]


def _text(chance: Chance) -> str:
    return "\n".join(chance.sentence() for _ in range(chance.choice((1, 1, 3, 3, 8, 8, 30))))


def _code(chance: Chance) -> str:
    lines = [
        f"def {chance.choice(VERBS)}_{chance.choice(NOUNS)}(value):\n    return value + {chance.randint(1, 99)}\n"
        for _ in range(chance.choice((2, 6, 40)))
    ]
    return "\n".join(lines)


def _records(chance: Chance) -> str:
    fields = chance.sample(NOUNS, chance.randint(2, 6))
    rows = [
        {field: chance.choice((chance.randint(1, 9999), chance.phrase(1, 3), chance.date())) for field in fields}
        | {"id": chance.randint(1, 99999)}
        for _ in range(chance.choice((1, 3, 10, 40)))
    ]
    value: Any = rows if chance.random() < 0.5 else {"results": rows, "total": len(rows)}
    return json.dumps(value, indent=chance.choice((None, 2)))


def _record(chance: Chance) -> str:
    return json.dumps(
        {
            "id": chance.randint(1, 99999),
            "name": chance.choice(NAMES),
            "city": chance.choice(CITIES),
            "since": chance.date(),
            "note": chance.sentence(),
        }
    )


def _listing(chance: Chance) -> str:
    return "\n".join(chance.path() for _ in range(chance.choice((2, 8, 40))))


def _page(chance: Chance) -> str:
    return f"# {chance.phrase().title()}\n\n" + "\n\n".join(_text(chance) for _ in range(chance.choice((1, 2, 4))))


def _query(chance: Chance) -> dict[str, Any]:
    return {"query": chance.phrase()} | ({"limit": chance.choice((5, 10, 20))} if chance.random() < 0.4 else {})


def _path(chance: Chance) -> dict[str, Any]:
    return {chance.choice(("path", "file_path", "filename")): chance.path()}


def _id(chance: Chance) -> dict[str, Any]:
    return {"id": chance.choice((chance.randint(1, 99999), chance.identifier()))}


def _shell(chance: Chance) -> dict[str, Any]:
    return {
        "command": chance.choice(
            (
                f"cat {chance.path()}",
                f"grep -rn {chance.choice(NOUNS)} src",
                f"ls -la {chance.choice(NOUNS)}/",
                f"head -50 {chance.path()}",
                f"find . -name '*{chance.choice(NOUNS)}*'",
            )
        )
    }


READS: tuple[tuple[Tool, ...], ...] = (
    (
        Tool("read_file", _path, _code),
        Tool("list_directory", lambda c: {"path": c.path().rpartition("/")[0]}, _listing),
        Tool("grep_search", lambda c: {"pattern": c.choice(NOUNS), "path": "src"}, _listing),
        Tool("bash", _shell, lambda c: c.choice((_code, _listing, _text))(c)),
        Tool("find_symbol", lambda c: {"symbol": f"{c.choice(VERBS)}_{c.choice(NOUNS)}"}, _listing),
    ),
    (
        Tool("web_search", _query, _records),
        Tool(
            "fetch_url",
            lambda c: {"url": f"https://{c.choice(NOUNS)}.example/{c.choice(NOUNS)}/{c.randint(1, 999)}"},
            _page,
        ),
        Tool("search_papers", _query, _records),
        Tool("summarize_page", lambda c: {"url": f"https://{c.choice(NOUNS)}.example/{c.randint(1, 999)}"}, _text),
        Tool("lookup_entity", lambda c: {"name": c.phrase(1, 2)}, _record),
    ),
    (
        Tool("get_order_details", lambda c: {"order_id": f"#W{c.randint(1000000, 9999999)}"}, _record),
        Tool("get_user_details", lambda c: {"user_id": f"{c.choice(NAMES).lower()}_{c.randint(1000, 9999)}"}, _record),
        Tool("searchProducts", _query, _records),
        Tool(
            "calculate",
            lambda c: {"expression": f"{c.randint(1, 999)} * {c.randint(1, 99)} + {c.randint(1, 99)}"},
            lambda c: str(c.randint(1, 99999)),
        ),
        Tool(
            "get_shipping_quote",
            lambda c: {"city": c.choice(CITIES), "weight": c.randint(1, 40)},
            lambda c: json.dumps({"price": c.randint(3, 90), "days": c.randint(1, 9)}),
        ),
    ),
    (
        Tool(
            "query_database",
            lambda c: {
                "sql": f"SELECT {c.choice(NOUNS)} FROM {c.choice(NOUNS)} WHERE {c.choice(NOUNS)} > {c.randint(1, 999)}"
            },
            _records,
        ),
        Tool("describe_table", lambda c: {"table": c.choice(NOUNS)}, _records),
        Tool("get_metrics", lambda c: {"service": c.choice(NOUNS), "window": c.choice(("5m", "1h", "1d"))}, _records),
        Tool("get_alert", _id, _record),
        Tool("searchLogs", lambda c: {"service": c.choice(NOUNS), "text": c.phrase(1, 3)}, _text),
    ),
)
"""What agents look with, one tuple a place of work."""


def _edit(chance: Chance) -> dict[str, Any]:
    return {"path": chance.path(), "old_string": chance.sentence(), "new_string": chance.sentence()}


DONE = (
    "ok",
    "OK",
    '{"status": "success"}',
    "File updated successfully.",
    '{"success": true}',
    "Done",
    "",
    "The file has been edited.",
    '{"ok": true, "message": "saved"}',
    "true",
)
CHANGES = (
    Tool("edit_file", _edit, lambda c: c.choice(DONE)),
    Tool("write_file", lambda c: {"path": c.path(), "content": _code(c)}, lambda c: c.choice(DONE)),
    Tool("move_file", lambda c: {"source": c.path(), "destination": c.path()}, lambda c: c.choice(DONE)),
    Tool("apply_patch", lambda c: {"patch": f"--- a/{c.path()}\n+{c.sentence()}"}, lambda c: c.choice(DONE)),
    Tool("update_record", lambda c: {"id": c.randint(1, 99999), "note": c.sentence()}, lambda c: c.choice(DONE)),
    Tool(
        "send_email",
        lambda c: {"to": f"{c.choice(NAMES).lower()}@example.org", "body": c.sentence()},
        lambda c: c.choice(DONE),
    ),
    Tool(
        "create_ticket",
        lambda c: {"title": c.phrase(), "body": c.sentence()},
        lambda c: json.dumps({"id": c.randint(1000, 99999), "state": "created"}),
    ),
    Tool("bash", lambda c: {"command": f"sed -i 's/{c.choice(NOUNS)}/{c.choice(NOUNS)}/' {c.path()}"}, lambda c: ""),
)
