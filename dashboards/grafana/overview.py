"""Whether generations are clean and quick, and whether the guards look."""

from __future__ import annotations

from checkengine.dashboards.grafana.panel import BAD_ABOVE_ZERO, Dashboard, Panel, Query, Row
from checkengine.dashboards.grafana.promql import WHERE, gauge, rate

WELL = Row(
    "Is all well?",
    [
        Panel(
            "Incidents open",
            [Query(gauge("incidents_open"))],
            kind="stat",
            width=4,
            height=4,
            thresholds=BAD_ABOVE_ZERO,
            about="With a finding in the last ten minutes.",
        ),
        Panel(
            "Clean generations, 1 h",
            [Query("1 - checkengine:clean_generation_errors:ratio_rate1h", "{{job}}")],
            "percentunit",
            "stat",
            4,
            4,
            thresholds=((None, "red"), (0.99, "orange"), (0.999, "green")),
            about="Sequences that ended without a finding of severity error.",
        ),
        Panel(
            "First tokens within 500 ms, 1 h",
            [Query("1 - checkengine:first_token_errors:ratio_rate1h", "{{job}}")],
            "percentunit",
            "stat",
            4,
            4,
            thresholds=((None, "red"), (0.95, "orange"), (0.99, "green")),
        ),
        Panel(
            "Next tokens within 30 ms, 1 h",
            [Query("1 - checkengine:inter_token_errors:ratio_rate1h", "{{job}}")],
            "percentunit",
            "stat",
            4,
            4,
            thresholds=((None, "red"), (0.95, "orange"), (0.99, "green")),
        ),
        Panel(
            "Incidents with a capture",
            [Query("checkengine:capture_completeness:ratio", "{{job}}")],
            "percentunit",
            "stat",
            4,
            4,
            thresholds=((None, "red"), (0.9, "green")),
        ),
        Panel("Replicas", [Query(f"count(checkengine_build_info{{{WHERE}}})")], kind="stat", width=4, height=4),
    ],
)


OVERVIEW = Dashboard(
    "checkengine-overview",
    "checkengine / Overview",
    [
        WELL,
        Row(
            "What guards found",
            [
                Panel(
                    "Findings a second, by kind",
                    [Query(rate("findings_total", "kind", 'primary="true"'), "{{kind}}")],
                    exemplars=True,
                    width=12,
                    about="The deepest cause on each sequence; exemplars lead to the trace.",
                ),
                Panel(
                    "Incidents opened, 1 h",
                    [
                        Query(
                            f"sum by (kind) (increase(checkengine_incidents_total{{{WHERE}}}[1h])) or vector(0)",
                            "{{kind}}",
                        )
                    ],
                    width=12,
                ),
                Panel("Actions a second", [Query(rate("actions_total", "action, kind"), "{{action}} {{kind}}")]),
                Panel(
                    "Output tokens saved a second",
                    [Query(rate("tokens_saved_total"))],
                    about="What stopped sequences could still have asked for, at most.",
                ),
                Panel("Requests a second", [Query(rate("sequences_total", "finish_reason"), "{{finish_reason}}")]),
            ],
        ),
        Row(
            "Is the watcher well?",
            [
                Panel(
                    "Guards that look",
                    [Query(gauge("guard_active", "guard", "min"), "{{guard}}")],
                    kind="stat",
                    width=12,
                    mappings={"0": "off", "1": "on"},
                    thresholds=((None, "red"), (1, "green")),
                ),
                Panel(
                    "Brakes pulled",
                    [Query(gauge("guard_braked", "guard", "max"), "{{guard}}")],
                    kind="stat",
                    width=12,
                    mappings={"0": "free", "1": "pulled"},
                    thresholds=BAD_ABOVE_ZERO,
                ),
            ],
        ),
    ],
    "Whether generations are clean and quick, and whether the guards look.",
)
