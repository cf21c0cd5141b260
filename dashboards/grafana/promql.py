"""The few forms that panels ask Prometheus in."""

from __future__ import annotations

from checkengine.dashboards.grafana.panel import Query

WHERE = 'job=~"$job",instance=~"$instance"'
RATE = "$__rate_interval"


def rate(metric: str, by: str = "", more: str = "", factor: str = "") -> str:
    chosen = f"{WHERE},{more}" if more else WHERE
    return f"sum{f' by ({by})' if by else ''} (rate(checkengine_{metric}{{{chosen}}}[{RATE}])){factor}"


def gauge(metric: str, by: str = "", how: str = "sum") -> str:
    return f"{how}{f' by ({by})' if by else ''} (checkengine_{metric}{{{WHERE}}})"


def quantile(histogram: str, share: float, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate(checkengine_{histogram}_bucket{{{WHERE}}}[{RATE}])))"


def quantiles(histogram: str, by: str = "") -> list[Query]:
    suffix = f" {{{{{by}}}}}" if by else ""
    return [Query(quantile(histogram, share, by), f"p{100 * share:g}{suffix}") for share in (0.5, 0.99)]
