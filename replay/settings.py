"""Settings of the black box: the sections `[recorder]`, `[capture]` and `[audit]` of checkengine.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from checkengine.guards.errors import UserError
from checkengine.guards.settings import Section
from checkengine.replay.levels import Level

MEBIBYTE = 1 << 20


class RecorderSettings(Section):
    """The ring of step records and, beside it, the ring of overwritten KV bytes."""

    enabled: bool = True
    steps: int = Field(4096, ge=1)
    """Records kept; the oldest leave first."""
    checkpoint_every: int = Field(256, ge=1)
    """Steps between two records that hold all block tables; a window begins at one."""
    bytes: int = Field(64 * MEBIBYTE, ge=MEBIBYTE)
    """Bound of the records' memory."""
    undo_steps: int = Field(64, ge=0)
    """Steps whose overwritten slots are kept; 0 switches the undo ring off."""
    undo_bytes: int = Field(256 * MEBIBYTE, ge=0)
    """Bound of the undo ring's memory."""


class CaptureSettings(Section):
    """Bundles: what is written to disk when a guard fires."""

    enabled: bool = True
    content: Literal["none", "full"] = "none"
    """`full` writes token ids and KV bytes, which are personal data, to disk, encrypted; `none` writes neither."""
    recipients: tuple[str, ...] = ()
    """Public keys (`checkengine bundles identity`) for which content is encrypted; none: this user on this machine."""
    content_hours: float = Field(24.0, ge=0)
    """Content may be read for so long, unless the bundle is held; then it is erased. 0 keeps it for ever."""
    directory: Path = Path("checkengine-bundles")
    window_steps: int = Field(64, ge=1)
    """Steps before the trigger that a bundle holds."""
    after_steps: int = Field(0, ge=0, le=4096)
    """Steps after the trigger that it holds as well. They show whether the fault goes on, and cost as many of the undo
    ring's steps before the trigger, where causes lie; the bundle comes later, or not at all if the process dies."""
    level: Level = "L3"
    """At most so much of the KV memory: L0 none, L1 the tail, L2 the suspect sequences', L3 whatever they read."""
    kv_bytes: int = Field(1024 * MEBIBYTE, ge=0)
    """Bound of the KV bytes that a capture clones; where it does not do, the level goes down."""
    all_rows: bool = False
    """Clone, and write, every row that ran beside the suspect too, within `kv_bytes`. Only then is a fault that came
    once told from rows that reach into each other; and the bundle holds what other requests said."""
    reproducer: bool = True
    """With content "none": judge a first incident's steps in memory, in the background, and keep the least call that
    still shows the fault with made-up values, where a kernel is convicted."""
    per_fault: int = Field(3, ge=1)
    """Captures of one fault (kind, guard and kernel) in `per_fault_hours`; further ones are counted."""
    per_fault_hours: float = Field(1.0, gt=0)
    store: str = ""
    """An fsspec URL (s3://bucket/folder…) to which each bundle is copied, besides the directory."""
    maximum_bundles: int = Field(100, ge=1)
    """Bundles kept in the directory; the oldest are removed, but for those that are held."""

    @field_validator("recipients")
    @classmethod
    def _are_public_keys(cls, recipients: tuple[str, ...]) -> tuple[str, ...]:
        from checkengine.replay.bundle.identity import PublicKey

        try:
            return tuple(str(PublicKey.parse(text)) for text in recipients)
        except UserError as error:
            raise ValueError(str(error)) from None


class AuditSettings(Section):
    """Healthy-looking steps that are judged in memory now and then, off the serving path."""

    enabled: bool = True
    cpu_share: float = Field(0.06, gt=0, le=1)
    """Of one core's CPU time, for capturing and judging; the dearer an audit is, the rarer."""
    every_steps: int | None = Field(None, ge=1)
    """One audited step in so many, on average, whatever it costs: for drills and tests."""
    rows: int = Field(2, ge=1)
    """Rows of one step that are judged together."""
    tile: int = Field(128, ge=1)
    """Tokens that the attention kernel takes at a time: lengths near its multiples are strata of their own."""
    waiting: int = Field(1, ge=1)
    """Audited steps that may wait for the judge, with their KV pages; one that comes beyond is skipped and counted."""


class SpoolSettings(Section):
    """This process's records of findings, actions and bundles, for the collector (engine_shim/spool)."""

    enabled: bool = True
    directory: Path = Path("checkengine-spool")
    rotate_bytes: int = Field(8 * MEBIBYTE, ge=4096)
    """A file that grows past it is followed by another one."""
    most_bytes: int = Field(256 * MEBIBYTE, ge=4096)
    """Bound of this process's files together; while it is reached new records are dropped and counted."""
    sync: Literal["record", "second", "never"] = "second"
    """How much of the spool a power cut may cost; the death of the process costs nothing."""


class CatalogSettings(Section):
    """Where incidents, findings, bundles and replays are kept."""

    url: str = "checkengine-catalog.db"
    """Path of an SQLite file, or an SQLAlchemy URL such as postgresql+psycopg://user@host/checkengine."""
    collect_seconds: float = Field(1.0, gt=0)
    """Pause between two rounds of the collector."""
    keep_requests_days: float = Field(7.0, ge=0)
    """Metadata of requests, without content. 0 keeps for ever, here and below."""
    keep_notices_days: float = Field(90.0, ge=0)
    keep_incidents_days: float = Field(365.0, ge=0)
    """With findings, actions and comments, from the last finding on; held ones, and those with a held bundle, stay."""
    keep_audit_days: float = Field(730.0, ge=0)
    """Who did what in the dashboard."""
    keep_replicas_days: float = Field(30.0, ge=0)
    """Of a process that told nothing of itself since."""
