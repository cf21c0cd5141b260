"""Names in Host headers, and whether one is this machine's own."""

from __future__ import annotations

import ipaddress
import re

HOST = re.compile(r"(\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<name>[^][:@/\s]+))(:[0-9]{1,5})?", re.ASCII)


def host_name(header: str) -> str:
    """The name or address in a Host header, without port and brackets; empty where it is neither."""
    found = HOST.fullmatch(header)
    return (found["bracketed"] or found["name"]).lower() if found else ""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
