"""Latency, load, and how far steps are from what the device could do."""

from __future__ import annotations

from checkengine.dashboards.grafana.panel import Dashboard, Panel, Query, Row
from checkengine.dashboards.grafana.promql import gauge, quantiles, rate

ENGINE = Dashboard(
    "checkengine-engine",
    "checkengine / Engine",
    [
        Row(
            "What clients wait for",
            [
                Panel(
                    "Time to first token",
                    quantiles("time_to_first_token_seconds", "prefix"),
                    "s",
                    exemplars=True,
                    about="warm: part of the prompt was in the prefix cache.",
                ),
                Panel("Time between tokens", quantiles("inter_token_seconds"), "s"),
                Panel("Step", quantiles("step_seconds"), "s"),
            ],
        ),
        Row(
            "Load",
            [
                Panel(
                    "Sequences",
                    [Query(gauge("sequences_running"), "running"), Query(gauge("sequences_waiting"), "waiting")],
                ),
                Panel(
                    "KV blocks free",
                    [Query(f"{gauge('kv_blocks_free')} / {gauge('kv_blocks')}")],
                    "percentunit",
                    maximum=1,
                ),
                Panel(
                    "Tokens a second",
                    [
                        Query(rate("step_tokens_total"), "computed"),
                        Query(rate("output_tokens_total"), "answered"),
                        Query(rate("prompt_tokens_total"), "asked"),
                    ],
                ),
                Panel("Prompt tokens from the prefix cache", [Query(rate("prefix_hit_tokens_total"))]),
                Panel("Preemptions a second", [Query(rate("preemptions_total"))]),
                Panel("Speculation: drafts accepted", [Query(rate("speculative_tokens_total", "state"), "{{state}}")]),
            ],
        ),
        Row(
            "Distance to the physical limit",
            [
                Panel(
                    "Decode: bytes that had to be read, of the device's bandwidth",
                    [
                        Query(
                            'checkengine:decode_bandwidth:ratio_rate5m{job=~"$job",instance=~"$instance"}',
                            "{{instance}}",
                        )
                    ],
                    "percentunit",
                    width=12,
                    maximum=1,
                    about="Weights and KV, over the step's time. 1 is the wall.",
                ),
                Panel(
                    "Prefill: operations, of the device's speed",
                    [
                        Query(
                            'checkengine:prefill_flops:ratio_rate5m{job=~"$job",instance=~"$instance"}', "{{instance}}"
                        )
                    ],
                    "percentunit",
                    width=12,
                    maximum=1,
                ),
            ],
        ),
    ],
    "Latency, load, and how far steps are from what the device could do.",
)
