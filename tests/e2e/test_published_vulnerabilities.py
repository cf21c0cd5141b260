"""Kinds of vulnerabilities that were published of such tools: each has a test, and docs/security.md names it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkengine.config import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
KINDS = (
    "CVE-2026-3989",
    "CVE-2025-32444",
    "CVE-2026-15969",
    "CVE-2025-32434",
    "CVE-2026-42208",
    "CVE-2024-6587",
    "CVE-2026-134835",
    "GHSA-46cm-pfwv-cgf8",
    "PYSEC-2026-2013",
    "CVE-2026-40217",
    "CVE-2026-49468",
    "CVE-2026-24055",
    "CVE-2026-53995",
    "CVE-2025-41117",
    "CVE-2024-9264",
    "CVE-2026-41523",
    "PYSEC-2025-223",
    "PYSEC-2026-2",
)
"""One of each kind."""
ROW = re.compile(r"^\| .* \|$", re.MULTILINE)
LISTENER = """
import socket
def refuse(*arguments, **more):
    raise SystemExit("importing opened a connection")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import checkengine, checkengine.assemble, checkengine.commands.main, checkengine.dashboards.web.app
import checkengine.engine_shim.engine.server, checkengine.engine_shim.proxy.app
"""


def rows_of(kind: str) -> list[str]:
    return [row for row in ROW.findall(PAGE) if re.search(rf"\b{re.escape(kind)}\b(?!\d)", row)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_row_that_names_a_test(kind: str) -> None:
    (row,) = rows_of(kind)
    assert re.search(r"`test_\w+`", row), row


def test_every_test_that_the_page_names_is_there() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 20
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []
    files = set(re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", PAGE))
    assert [name for name in files if not list(ROOT.rglob(f"tests/**/{Path(name).name}"))] == []


def test_every_server_of_ours_listens_on_this_machine_only_unless_it_is_told_otherwise() -> None:
    settings = Settings()
    hosts = (settings.server.host, settings.dashboard.host, settings.proxy.host, settings.proxy.admin_host)
    assert set(hosts) == {"127.0.0.1"}


def test_importing_checkengine_opens_no_connection() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
