"""Faults that a drill plants into a rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """Of one rank, by step; -1 is never. A kill comes from outside, as SIGKILL."""

    slow_from: int = -1
    slow_seconds: float = 0.05
    """More in every step of its own computing."""
    wrong_from: int = -1
    """Expert outputs are a little off, and travel with a right checksum: only another rank's answer tells."""
    flap_every: int = 0
    """Every so many steps one bit of what it sends is flipped behind the checksum; 0 is never."""
    hang_at: int = -1
    """It stops for good and keeps its connections."""

    def slow(self, step: int) -> bool:
        return 0 <= self.slow_from <= step

    def wrong(self, step: int) -> bool:
        return 0 <= self.wrong_from <= step

    def flaps(self, step: int) -> bool:
        return self.flap_every > 0 and step > 0 and step % self.flap_every == 0
