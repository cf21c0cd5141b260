"""Alerts on what must not happen at all, and on the watcher itself."""

from __future__ import annotations

from checkengine.dashboards.rules.rule import Alert

EXACT_KINDS = (
    "logits.nonfinite",
    "logits.uniform",
    "embedding.nonfinite",
    "embedding.zero",
    "token.impossible",
    "sampler.inconsistent",
    "kv.integrity",
    "audit.defect",
)
"""Kinds that no healthy engine shows even once."""
SIBLING_DIMENSIONS = ("replica", "device", "driver", "kernel")


def matching(names: tuple[str, ...], prefix: str = "") -> str:
    """A regular expression for PromQL, whose strings take a backslash twice."""
    return "|".join(prefix + name.replace(".", "\\\\.") for name in names)


def appeared_or_grew(series: str, window: str) -> str:
    """Of counters that nobody can name before their first event, and that therefore have no zero before it."""
    by = "sum by (job, kind)"
    return f"{by} (increase({series}[{window}])) > 0\nor\n{by} ({series} unless {series} offset {window}) > 0"


ACCUSED = matching(SIBLING_DIMENSIONS, "drift\\\\.")

FAULTS = (
    Alert(
        "CheckengineExactFault",
        f'sum by (job, kind) (increase(checkengine_incidents_total{{kind=~"{matching(EXACT_KINDS)}"}}[15m])) > 0',
        "critical",
        "An engine produced what no healthy engine produces.",
        "{{ $labels.job }} opened an incident of kind {{ $labels.kind }}; one is enough: it is no matter of taste.",
        "/incidents?kind={{ $labels.kind }}",
    ),
    Alert(
        "CheckengineIncidentBurst",
        "sum by (job) (increase(checkengine_incidents_total[10m])) > 5",
        "warning",
        "Many incidents have opened within minutes.",
        "{{ $labels.job }} opened more than 5 incidents in 10 minutes: look for what they have in common.",
        "/incidents?status=open",
    ),
    Alert(
        "CheckengineReplicaAccused",
        f'sum by (job, kind) (increase(checkengine_incidents_total{{kind=~"{ACCUSED}"}}[30m])) > 0',
        "critical",
        "A replica, device, driver or kernel differs from its siblings.",
        "A sequential test ({{ $labels.kind }}) accuses one member of {{ $labels.job }}: drain it, then replay.",
        "/incidents?kind={{ $labels.kind }}",
    ),
    Alert(
        "CheckengineDrift",
        appeared_or_grew(f'checkengine_incidents_total{{kind=~"drift\\\\..+",kind!~"{ACCUSED}"}}', "1h"),
        "warning",
        "What the engine is asked or answers has changed.",
        "The series {{ $labels.kind }} of {{ $labels.job }} is no longer as it was.",
        "/drift",
        labels={"statistical": "true"},
    ),
    Alert(
        "CheckengineCanaryFailing",
        'sum by (job) (increase(checkengine_canaries_total{outcome="failed"}[10m])) > 0',
        "critical",
        "A canary request was answered wrongly or not at all.",
        "An upstream of {{ $labels.job }} fails requests whose answers are known.",
        "/replicas",
    ),
)

WATCHER = (
    Alert(
        "CheckengineAbsent",
        "absent(checkengine_build_info)",
        "warning",
        "Prometheus sees no checkengine.",
        "No target exposes checkengine's metrics: no guard is known to look at anything.",
        "/replicas",
        "10m",
    ),
    Alert(
        "CheckengineGuardDisabled",
        "max by (job, guard) (1 - checkengine_guard_active) > 0",
        "warning",
        "A guard is switched off.",
        "The guard {{ $labels.guard }} of {{ $labels.job }} looks at nothing: it raised, was too slow, or was switched "
        "off.",
        "/controls",
        "5m",
    ),
    Alert(
        "CheckengineBrakePulled",
        "max by (job, guard) (checkengine_guard_braked) > 0",
        "critical",
        "A guard has stopped too many sequences and only observes now.",
        "The guard {{ $labels.guard }} of {{ $labels.job }} reached the brake: either the engine is broken, or the "
        "guard is.",
        "/controls",
    ),
    Alert(
        "CheckengineCaptureFailing",
        'sum by (job, outcome) (increase(checkengine_captures_total{outcome=~"failed|dropped|torn|skipped"}[15m])) > 0',
        "warning",
        "Captures of incidents are lost.",
        "Captures of {{ $labels.job }} end as {{ $labels.outcome }}: incidents have no bundle to replay.",
        "/bundles",
    ),
    Alert(
        "CheckengineRecordsLost",
        "sum by (job) (increase(checkengine_spool_dropped_total[15m])) > 0\n"
        "or\nsum by (job) (increase(checkengine_events_dropped_total[15m])) > 0\n"
        "or\nsum by (job) (increase(checkengine_recorder_dropped_total[15m])) > 0",
        "warning",
        "Findings or steps are lost on their way to the catalog.",
        "A queue or a spool of {{ $labels.job }} is full: is the collector running, and is there room on the disk?",
        "/replicas",
    ),
    Alert(
        "CheckengineCatalogBehind",
        "time() - max by (job) (checkengine_collector_last_round_timestamp_seconds) > 120",
        "warning",
        "The catalog has taken in nothing for minutes.",
        "The collector of {{ $labels.job }} cannot write the catalog; the spools keep what they hold until it can.",
        "/",
        "2m",
    ),
    Alert(
        "CheckengineNumbersMissing",
        "sum by (job) (increase(checkengine_scrape_failures_total[10m])) > 0",
        "warning",
        "Some of checkengine's metrics cannot be read.",
        "A callback of {{ $labels.job }} raises when Prometheus asks: panels and alerts that need it are blind.",
        "/replicas",
        "10m",
    ),
    Alert(
        "CheckengineQuarantineFilling",
        "max by (job) (checkengine_kv_blocks_quarantined / checkengine_kv_blocks) > 0.02",
        "warning",
        "Quarantined KV blocks take room from requests.",
        "More than 2% of the KV blocks of {{ $labels.job }} are held back because a poisoned sequence used them.",
        "/replicas",
        "5m",
    ),
    Alert(
        "CheckengineNotificationsLost",
        'sum by (job, channel) (increase(checkengine_notifications_total{outcome=~"failed|dropped"}[15m])) > 0',
        "warning",
        "Spans or webhooks do not arrive.",
        "What {{ $labels.job }} sends by {{ $labels.channel }} is refused or lost.",
        "/",
        "5m",
    ),
)
