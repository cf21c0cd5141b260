"""All rules, in the groups in which Prometheus evaluates them."""

from __future__ import annotations

from pathlib import Path

from checkengine.dashboards.rules.alerts import FAULTS, WATCHER
from checkengine.dashboards.rules.objectives import OBJECTIVES
from checkengine.dashboards.rules.rule import Alert, Group, Links, Recording, as_yaml

FILE = Path(__file__).parent / "checkengine.rules.yaml"

LIMITS = (
    Recording(
        "checkengine:decode_bandwidth:ratio_rate5m",
        "sum by (job, instance) (rate(checkengine_decode_bytes_total[5m]))\n/\n"
        "sum by (job, instance) (rate(checkengine_decode_seconds_total[5m]))\n/\n"
        "max by (job, instance) (checkengine_device_bandwidth_bytes_per_second > 0)",
    ),
    Recording(
        "checkengine:prefill_flops:ratio_rate5m",
        "sum by (job, instance) (rate(checkengine_prefill_flops_total[5m]))\n/\n"
        "sum by (job, instance) (rate(checkengine_prefill_seconds_total[5m]))\n/\n"
        "max by (job, instance) (checkengine_device_flops_per_second > 0)",
    ),
    Recording(
        "checkengine:capture_completeness:ratio",
        "sum by (job) (checkengine_incidents_captured_total)\n/\n(sum by (job) (checkengine_incidents_total) > 0)",
    ),
)

GROUPS = (
    Group("checkengine-objectives", [rule for each in OBJECTIVES for rule in each.recordings()], "30s"),
    Group("checkengine-limits", LIMITS),
    Group("checkengine-burn", [alert for each in OBJECTIVES for alert in each.alerts()], "30s"),
    Group("checkengine-faults", FAULTS, "15s"),
    Group("checkengine-watcher", WATCHER),
)


def alerts() -> list[Alert]:
    return [rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)]


def rules_yaml(links: Links | None = None) -> str:
    """The rule file for Prometheus 2.42 and later."""
    return as_yaml(GROUPS, links or Links())
