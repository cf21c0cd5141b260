"""Catalogs to show: one of an ordinary day, and one in which every text is hostile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from checkengine.replay.catalog import Catalog, controls, jobs, marks
from checkengine.replay.catalog.ingest import ingest, record_replay
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.people import SavedViewRow
from checkengine.replay.spool_format import SpoolRecord

BOOT = "b" * 16
NOW = 1_790_000_000.0
HOSTILE = (
    '"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
    "'-alert(1)-'{{7*7}}${7*7}\u202egnp.exe\u200b\u2066\ufeff\x1b[31m"
    "javascript:window.hacked=1;}body{display:none}/*&lt;!--]]>"
)
"""Script, attribute, style and address injections, templates, directions, zero widths, terminal codes."""
LONG = "x" * (1 << 20)
"""A token of a megabyte."""
VISIBLE = "window.hacked"
ME = Actor("anna", "operator", "127.0.0.1")
GUARDS = ("nonfinite", "repetition", "salad", "tool_calls", "language")
KINDS = ("logits.nonfinite", "repetition.loop", "text.salad", "tool_call.loop", "language.switch")


class Spool:
    """Records of one process, numbered."""

    def __init__(self, boot: str = BOOT) -> None:
        self.boot, self.number = boot, 0

    def record(self, kind: str, time: float, replica: str, sequence: str, data: dict[str, Any]) -> SpoolRecord:
        self.number += 1
        return SpoolRecord(self.boot, self.number, kind, time, replica, sequence, data)

    def finding(self, incident: str, time: float, replica: str, sequence: str, **changes: Any) -> SpoolRecord:
        told: dict[str, Any] = {
            "incident": incident, "primary": True, "kind": "logits.nonfinite", "severity": 2, "step": 412, "token": 17,
            "guard": "nonfinite", "version": 1, "evidence": {"nan": 3, "share": 0.5},
        }  # fmt: skip
        return self.record("finding", time, replica, sequence, told | changes)

    def replica(self, name: str, time: float, **changes: Any) -> SpoolRecord:
        guards = {
            guard: {"active": True, "action": "stop" if guard == "nonfinite" else "observe", "braked": False,
                    "would_have_stopped": place}
            for place, guard in enumerate((*GUARDS, "sidecar"))
        }  # fmt: skip
        told: dict[str, Any] = {
            "host": name.partition(":")[0], "engine": "embedded", "model": "smollm2-135m", "device": f"GPU-{name}",
            "device_name": "NVIDIA H200", "driver": "570.86", "image": "registry/serve:1.4", "kernel": "paged",
            "versions": {"torch": "2.13.0", "transformers": "5.24.0"}, "kernels": {"attention": "paged", "threads": 8},
            "counters": {"ecc_uncorrected": 0, "nvlink_errors": 0}, "guards": guards, "started": time - 7200,
        }  # fmt: skip
        return self.record("replica", time, name, "", told | changes)

    def request(self, sequence: str, time: float, replica: str, **changes: Any) -> SpoolRecord:
        told: dict[str, Any] = {
            "request": sequence.rpartition("-")[0] or sequence, "response": "resp-1", "trace_id": "ab" * 16,
            "model": "smollm2-135m", "configuration": "c0ffee", "finish_reason": "stop", "prompt_tokens": 120,
            "output_tokens": 40, "cached_tokens": 64, "ttft_seconds": 0.12, "total_seconds": 1.4,
            "scores": {"entropy max": 3.1, "margin min": 0.2}, "fingerprint": "0f" * 16,
        }  # fmt: skip
        return self.record("request", time, replica, sequence, told | changes)


def write(catalog: Catalog, records: list[SpoolRecord]) -> None:
    with catalog.writing() as session:
        assert ingest(session, records).rejected == 0


def ordinary_day(catalog: Catalog, now: float, requests: int = 600) -> str:
    """Three replicas, a day of requests, incidents of several guards; returns the newest open incident's id."""
    spool = Spool()
    fleet = ["gpu-1:100", "gpu-2:100", "gpu-3:100"]
    records = [spool.replica(name, now - 3) for name in fleet[:2]]
    old = {"driver": "550.54", "counters": {"ecc_uncorrected": 2, "nvlink_errors": 0}}
    records.append(spool.replica(fleet[2], now - 2, **old))
    records += list(day_of_requests(spool, fleet, now, requests))
    for place, (guard, kind) in enumerate(zip(GUARDS, KINDS, strict=True)):
        for number in range(6 - place):
            time = now - 400 - 3000 * place - 40 * number
            severity = 2 if place < 2 else 1
            told = {"guard": guard, "kind": kind, "severity": severity, "step": 400 + number}
            records.append(spool.finding(f"inc-{place}", time, fleet[2 - place % 3], f"chat-{place}{number}-0", **told))
    action = {"kind": "stop", "finding": KINDS[0], "incident": "inc-0", "keep_tokens": 17}
    records.append(spool.record("action", now - 400, fleet[2], "chat-00-0", action))
    write(catalog, records)
    return "inc-0"


def day_of_requests(spool: Spool, fleet: list[str], now: float, requests: int) -> Iterator[SpoolRecord]:
    chance = random.Random(1)
    for number in range(requests):
        time = now - 86400 * (1 - (number + 1) / requests)
        tokens, slow = chance.randint(20, 200), 0.05 + chance.random() * 0.2
        told = {"prompt_tokens": chance.randint(20, 900), "output_tokens": tokens, "ttft_seconds": slow}
        told |= {"total_seconds": slow + tokens * 0.02, "cached_tokens": chance.choice((0, 0, 64, 256))}
        yield spool.request(f"chat-{number:05d}-0", time, fleet[number % 3], **told)


def hostile_everywhere(catalog: Catalog, now: float, text: str = HOSTILE) -> str:
    """Every text that an engine, a user or a stranger can put anywhere; returns the incident's id."""
    spool = Spool()
    records = [
        spool.replica(
            text, now - 3, host=text, engine=text, model=text, device=text, device_name=text, driver=text, image=text,
            kernel=text, versions={text[:300]: text}, kernels={text[:300]: text},
            counters={text[:300]: 1, "xid": 3},
            guards={text[:100]: {"active": False, "reason": text, "action": text, "braked": True}},
        ),
        spool.finding(text, now - 5, text, text, kind=text, guard=text, evidence={text[:300]: 1.5}),
        spool.finding(text, now - 4, text, text + "2", kind=f"drift.{text}", guard=text, evidence={text[:300]: text}),
        spool.record(
            "action", now - 4, text, text, {"kind": "stop", "finding": text, "incident": text, "keep_tokens": 1}
        ),
        spool.record(
            "bundle", now - 3, text, "",
            {"bundle": text, "incident": text, "path": text, "size_bytes": 9, "content": text},
        ),
        spool.request(
            text, now - 2, text, request=text, response=text, trace_id=text, model=text, configuration=text,
            finish_reason=text, error=text, scores={text[:300]: 1.0}, fingerprint=text,
        ),
    ]  # fmt: skip
    write(catalog, records)
    with catalog.writing() as session:
        incident = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()[:64]
        bundle = text.encode("utf-8", "replace").decode()[:256]
        stranger = Actor(text, text, text)
        marks.comment(session, stranger, incident, text[:5000], now)
        marks.assign(session, stranger, [incident], text, now)
        result = {"verdict": {"kind": text[:300], "sentence": text[:5000], "tests": []}}
        record_replay(session, bundle=bundle, time=now, verdict=text[:64], exit_code=1, result=result)
        job = jobs.submit(session, stranger, bundle=bundle, time=now, incident_id=incident, target=text[:200])
        claimed = jobs.claim(session, "w", [text[:200]], now)
        assert claimed is not None
        jobs.fail(session, job, "w", text[:5000], now)
        desired = {"state": "arm", "when": text[:500], "level": text[:50], "seconds": 600.0, "most": 3}
        controls.ask(
            session, stranger, replica=text[:256], subject="capture", name=text[:128], desired=desired, time=now
        )
        session.add(SavedViewRow(owner="local", name=text[:128], query=f"?guard={text[:50]}", time=now, shared=True))
        (fingerprint,) = {row.cause.fingerprint for row in [session.get_one(marks.IncidentRow, incident)] if row.cause}
        marks.mute(session, stranger, fingerprint, expires=now + 3600, time=now, reason=text[:5000])
    return incident
