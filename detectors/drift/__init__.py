"""Change of numbers over time: per series, and of one replica against its siblings.

Names load at first use, so that a process that only compares siblings never imports numba or scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkengine.detectors.lazy import lazy_exports

if TYPE_CHECKING:
    from checkengine.detectors.drift.bands import Bands
    from checkengine.detectors.drift.bank import CategoryBank, DriftAlarm, DriftBank
    from checkengine.detectors.drift.evidence import Evidence, FleetDetector
    from checkengine.detectors.drift.explain import DriftExplanation, explain_drift
    from checkengine.detectors.drift.siblings import Accusation, Counts, SiblingTest
    from checkengine.detectors.drift.summary import Summary

__all__ = [
    "Accusation",
    "Bands",
    "CategoryBank",
    "Counts",
    "DriftAlarm",
    "DriftBank",
    "DriftExplanation",
    "Evidence",
    "FleetDetector",
    "SiblingTest",
    "Summary",
    "explain_drift",
]

_MODULES = {
    "bands": ("Bands",),
    "bank": ("CategoryBank", "DriftAlarm", "DriftBank"),
    "evidence": ("Evidence", "FleetDetector"),
    "explain": ("DriftExplanation", "explain_drift"),
    "siblings": ("Accusation", "Counts", "SiblingTest"),
    "summary": ("Summary",),
}
__getattr__ = lazy_exports(__name__, _MODULES)
