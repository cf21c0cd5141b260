"""Whether the watcher itself is well, and what it costs."""

from __future__ import annotations

from checkengine.dashboards.grafana.panel import BAD_ABOVE_ZERO, Dashboard, Panel, Query, Row
from checkengine.dashboards.grafana.promql import WHERE, gauge, rate

BLACK_BOX = Dashboard(
    "checkengine-black-box",
    "checkengine / Black box",
    [
        Row(
            "Captures",
            [
                Panel(
                    "Captures by outcome",
                    [Query(gauge("captures_total", "outcome"), "{{outcome}}")],
                    kind="stat",
                    width=12,
                    about="failed, torn, skipped and dropped leave an incident without a bundle.",
                ),
                Panel(
                    "Captures by level",
                    [Query(gauge("captures_by_level_total", "level"), "{{level}}")],
                    kind="bargauge",
                    width=6,
                ),
                Panel("Bundles written", [Query(gauge("bundles_written_total"))], kind="stat", width=6),
            ],
        ),
        Row(
            "Records",
            [
                Panel(
                    "Dropped",
                    [
                        Query(gauge("recorder_dropped_total"), "steps"),
                        Query(gauge("spool_dropped_total"), "spool"),
                        Query(gauge("events_dropped_total", "listener"), "events of {{listener}}"),
                    ],
                    kind="stat",
                    width=12,
                    thresholds=BAD_ABOVE_ZERO,
                ),
                Panel(
                    "Age of the catalog",
                    [Query(f"time() - {gauge('collector_last_round_timestamp_seconds', 'job', 'max')}", "{{job}}")],
                    "s",
                    width=6,
                    about="A missing collector is not evidence of health.",
                ),
                Panel(
                    "Records collected a second",
                    [
                        Query(rate("collector_records_total"), "taken"),
                        Query(rate("collector_rejected_total"), "rejected"),
                        Query(rate("collector_failures_total"), "rounds failed"),
                    ],
                    width=6,
                ),
            ],
        ),
        Row(
            "Audits",
            [
                Panel(
                    "Audited steps by verdict",
                    [Query(gauge("audits_total", "verdict"), "{{verdict}}")],
                    kind="bargauge",
                ),
                Panel(
                    "Rows audited, of those seen",
                    [
                        Query(
                            f'sum by (stratum) (checkengine_audit_rows{{{WHERE},state="audited"}}) / '
                            f'sum by (stratum) (checkengine_audit_rows{{{WHERE},state="seen"}})',
                            "{{stratum}}",
                        )
                    ],
                    "percentunit",
                    "bargauge",
                ),
                Panel("CPU time of audits, of one core", [Query(rate("audit_cpu_seconds_total"))], "percentunit"),
            ],
        ),
        Row(
            "What it costs",
            [
                Panel(
                    "CPU time of guards and recorder, of one core",
                    [Query(rate("guard_cpu_seconds_total"))],
                    "percentunit",
                    width=12,
                ),
                Panel(
                    "CPU time by guard",
                    [Query(rate("guard_seconds_total", "guard"), "{{guard}}")],
                    "percentunit",
                    width=12,
                ),
                Panel(
                    "Metrics that could not be read",
                    [Query(gauge("scrape_failures_total"))],
                    kind="stat",
                    thresholds=BAD_ABOVE_ZERO,
                ),
                Panel(
                    "Spans and webhooks",
                    [Query(gauge("notifications_total", "channel, outcome"), "{{channel}} {{outcome}}")],
                    kind="stat",
                ),
            ],
        ),
    ],
    "Captures, records and audits: whether the watcher itself is well, and what it costs.",
)
