"""What a replica is to do, as a file beside its spool: the collector writes it, the engine's process reads it. So no
engine opens a connection, and a catalog that is down costs nothing.

`BOOT.orders` is one JSON object {"replica": NAME, "orders": [{"revision", "subject", "name", "desired"}…]}, replaced
as a whole; of each subject and name it holds the newest word that has not expired.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SUFFIX = ".orders"
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Order:
    revision: int
    subject: str
    """guard, sidecar, brake, capture or replica."""
    name: str = ""
    desired: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return str(self.desired.get("state", ""))


def orders_path(directory: Path, boot: str) -> Path:
    return directory / f"{boot}{SUFFIX}"


def encode(replica: str, orders: Sequence[Order]) -> bytes:
    return json.dumps({"replica": replica, "orders": [asdict(order) for order in orders]}, sort_keys=True).encode()


def write(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one. OSError where it cannot be written."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path, replica: str) -> list[Order]:
    """In the order of revisions; none where it is not there or another replica's. ValueError for a damaged one."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES} bytes")
    told = json.loads(data)
    if not isinstance(told, dict) or told.get("replica") != replica:
        return []
    return sorted((order_of(each) for each in told.get("orders", ())), key=lambda order: order.revision)


def order_of(value: Any) -> Order:
    try:
        return Order(int(value["revision"]), str(value["subject"]), str(value.get("name", "")), dict(value["desired"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an order that is none: {error}") from None
