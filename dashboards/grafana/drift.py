"""Series that change, and siblings that differ."""

from __future__ import annotations

from checkengine.dashboards.grafana.panel import Dashboard, Panel, Query, Row
from checkengine.dashboards.grafana.promql import gauge, rate

EVIDENCE = gauge("drift_log_evidence", "series", "max")

DRIFT = Dashboard(
    "checkengine-drift",
    "checkengine / Drift",
    [
        Row(
            "Series",
            [
                Panel(
                    "Evidence that a series has changed (log of the e-value)",
                    [Query(EVIDENCE, "{{series}}")],
                    width=12,
                    about="It alarms where it crosses the threshold beside.",
                ),
                Panel(
                    "Share of the way to the alarm",
                    [
                        Query(
                            f"{EVIDENCE} / {gauge('drift_log_threshold', 'series', 'max')}",
                            "{{series}}",
                        )
                    ],
                    "percentunit",
                    "bargauge",
                    12,
                    thresholds=((None, "green"), (0.5, "orange"), (1, "red")),
                ),
            ],
        ),
        Row(
            "What may have caused it",
            [
                Panel("Finish reasons", [Query(rate("sequences_total", "finish_reason"), "{{finish_reason}}")]),
                Panel(
                    "Output tokens a sequence", [Query(f"{rate('output_tokens_total')} / {rate('sequences_total')}")]
                ),
                Panel(
                    "Prompt tokens a sequence", [Query(f"{rate('prompt_tokens_total')} / {rate('sequences_total')}")]
                ),
                Panel("Canaries", [Query(gauge("canaries_total", "outcome"), "{{outcome}}")], kind="stat"),
                Panel("Upstreams", [Query(gauge("upstreams", "standing"), "{{standing}}")], kind="stat"),
            ],
        ),
    ],
    "Series that change, and siblings that differ.",
)
