"""What guards found and did."""

from __future__ import annotations

from checkengine.dashboards.grafana.panel import Dashboard, Panel, Query, Row
from checkengine.dashboards.grafana.promql import gauge, rate

INCIDENT = Dashboard(
    "checkengine-incidents",
    "checkengine / Incidents",
    [
        Row(
            "What happened",
            [
                Panel(
                    "Findings a second, by guard and severity",
                    [Query(rate("findings_total", "guard, severity"), "{{guard}} {{severity}}")],
                    width=12,
                ),
                Panel(
                    "Evidence on known causes, a second",
                    [Query(rate("findings_total", "kind", 'primary="false"') + " or vector(0)", "{{kind}}")],
                    width=12,
                    about="Lesser findings on sequences whose cause is known.",
                ),
                Panel(
                    "Incidents by kind",
                    [Query(gauge("incidents_total", "kind"), "{{kind}}")],
                    kind="bargauge",
                    width=12,
                ),
                Panel(
                    "Would have stopped, by guard",
                    [Query(gauge("would_have_stopped_total", "guard"), "{{guard}}")],
                    kind="bargauge",
                    width=12,
                    about="Since the start; read it before a guard is switched to act.",
                ),
            ],
        ),
        Row(
            "What was done",
            [
                Panel(
                    "Actions",
                    [Query(gauge("actions_total", "action, kind"), "{{action}} {{kind}}")],
                    kind="bargauge",
                    width=8,
                ),
                Panel("Quarantined KV blocks", [Query(gauge("kv_blocks_quarantined")), Query(gauge("kv_blocks"))]),
                Panel(
                    "Errors of requests", [Query(rate("request_errors_total", "error") + " or vector(0)", "{{error}}")]
                ),
            ],
        ),
    ],
    "What guards found and did.",
)
