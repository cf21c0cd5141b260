from __future__ import annotations

from collections import Counter

import numpy as np

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.auditing import AuditSteps
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import OverRead
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.events import AuditCoverage, AuditJudged
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.audit import Auditor, AuditSchedule, Strata
from checkengine.replay.audit.budget import FixedPace
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.recorder import Recorder
from checkengine.replay.undo import UndoRing
from checkengine.tiny import tiny_model


class AuditedShim:
    """Records and tells the audit of every step, as the shim does."""

    def __init__(self) -> None:
        self.recorder = Recorder(256, 2 << 20)
        self.audits: AuditSteps | None = None
        self.findings: list[Finding] = []

    def step(self, record):
        self.record = record
        self.recorder.begin(record)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def logits(self, logits) -> None:
        self.prints = row_stats(logits, "full").fingerprint if len(logits) else None

    def tokens(self, tokens):
        self.recorder.finish(self.record.step, self.prints, tokens)
        self.audits.step_done(self.record, self.findings, [])
        return []


def served(faults=(), *, auditor=None, findings=(), pace=None, rows=2):
    """Serve with an audit of every few steps; returns events, filed findings, written captures and the audits."""
    shim = AuditedShim()
    shim.findings = list(findings)
    settings = EngineSettings(block_size=8, blocks=40, threads=1)
    engine = Engine(tiny_model(layers=2), None, settings, shim, UndoRing(32, 8 << 20), faults)
    events, filed, written = [], [], []

    def convict(finding: Finding) -> str:
        filed.append(finding)
        return "incident-1"

    auditor = auditor or Auditor(EmbeddedExecutor.over(engine.model, engine.environment()))
    schedule = AuditSchedule(Strata(8, tile=16), pace or FixedPace(4), seed=1, rows_per_audit=rows)
    shim.audits = AuditSteps(
        engine,
        shim.recorder,
        auditor,
        schedule,
        publish=events.append,
        convict=convict,
        write=written.append,
        waiting=64,
    )
    random = np.random.default_rng(2)
    for number in range(4):
        prompt = random.integers(0, 150, 12).tolist()
        sampling = SamplingParameters(temperature=0.0, max_tokens=24)
        engine.submit(GenerationRequest(f"r{number}", prompt, sampling))
    while engine.has_work:
        engine.step()
    shim.audits.close()
    shim.coverage = [event for event in events if isinstance(event, AuditCoverage)]
    judged = [event for event in events if isinstance(event, AuditJudged)]
    return judged, filed, written, shim.audits


def test_a_quiet_over_read_becomes_an_incident_while_the_engine_serves():
    events, filed, written, _ = served([OverRead(minimum_length=14, block_size=8)])
    convicted = [event for event in events if event.verdict == "code defect"]
    assert convicted
    assert all(isinstance(event, AuditJudged) and event.incident == "incident-1" for event in convicted)
    assert {finding.kind for finding in filed} == {"audit.defect"}
    assert filed[0].severity is Severity.ERROR
    assert filed[0].evidence["slots"] >= 1
    assert written[0].findings == (filed[0],)
    assert written[0].incident == "incident-1"


def test_audits_of_a_right_engine_tell_of_no_fault_and_file_nothing():
    events, filed, written, audits = served()
    assert {event.verdict for event in events} == {"no fault found"}
    assert all(event.incident is None for event in events)
    assert (filed, written) == ([], [])
    assert audits.judged == len(events) > 2


def test_a_fault_of_every_step_is_on_record_each_time_and_its_bundles_leave_room_for_those_of_another_fault():
    class Convinced:
        """Finds the same masked read in each step, and once something else."""

        judged = 0

        def audit(self, capture, prints):
            self.judged += 1
            kind = VerdictKind.CODE_DEFECT if self.judged == 5 else VerdictKind.NAN_UNSAFE
            return Verdict(kind, "as it says", sequence="r0")

    events, filed, written, _ = served(auditor=Convinced())
    assert len(filed) == len(events) >= 5
    severities = [capture.findings[0].severity for capture in written]
    assert severities == [Severity.WARNING] * 3 + [Severity.ERROR]
    assert Counter(finding.kind for finding in filed) == {"audit.masked_read": len(filed) - 1, "audit.defect": 1}


def test_an_audit_that_fails_is_counted_and_serving_goes_on():
    class Broken:
        def audit(self, capture, prints):
            raise RuntimeError("no judge today")

    events, filed, _, audits = served(auditor=Broken())
    assert audits.dropped > 0
    assert (events, filed) == ([], [])


def test_a_step_with_a_finding_is_left_to_its_capture():
    finding = Finding("logits.nonfinite", "r0", Severity.ERROR, 0, 0, "nonfinite")
    events, _, _, audits = served(findings=[finding])
    assert (events, audits.judged) == ([], 0)
