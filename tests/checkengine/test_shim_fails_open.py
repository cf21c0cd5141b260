"""Whatever fails in the shim, serving goes on with the same tokens, and it is told: one log line, one event."""

from __future__ import annotations

import errno
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkengine.assemble import EngineShim, embed
from checkengine.config import ConfigurationError, Settings
from checkengine.engine_shim import bundles
from checkengine.engine_shim import shim as shim_module
from checkengine.engine_shim.adapter import Capabilities
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import NanAttention
from checkengine.engine_shim.possible import PossibleActions
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.events import BundleWritten, Event, GuardDisabled
from checkengine.guards.settings import BrakeSettings, LogitsSettings
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings
from checkengine.selftest_faults import tiny_model, tiny_tokenizer

MODEL, TOKENIZER = tiny_model(), tiny_tokenizer()
Prepare = Callable[[Any, EngineShim], None]


def settings(tmp_path: Path, *, spool: bool = False, content: str = "none") -> Settings:
    return Settings(
        engine=EngineSettings(block_size=8, blocks=64, tokens_per_step=40, threads=1),
        logits=LogitsSettings(level="full"),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(directory=tmp_path / "bundles", content=content),  # type: ignore[arg-type]
        spool=SpoolSettings(enabled=spool, directory=tmp_path / "spool"),
    )


def submit(engine: Any, tokens: int = 24, rows: int = 3) -> None:
    for number in range(rows):
        sampling = SamplingParameters(temperature=1.0, seed=number, max_tokens=tokens, ignore_eos=True)
        engine.submit(GenerationRequest(f"r{number}", list(range(3 + number, 14 + 3 * number)), sampling))


def drain(engine: Any) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.name, []).extend(output.tokens)
    return tokens


class Outcome:
    def __init__(self, tokens: dict[str, list[int]], shim: EngineShim, events: list[Event]) -> None:
        self.tokens, self.shim, self.events = tokens, shim, events

    def off(self) -> list[str]:
        return [event.guard for event in self.events if isinstance(event, GuardDisabled)]


def serve(chosen: Settings, prepare: Prepare = lambda engine, shim: None, faults: Any = ()) -> Outcome:
    engine, shim = embed(MODEL, TOKENIZER, chosen, faults)
    assert shim is not None
    events: list[Event] = []
    shim.assembly.bus.subscribe_sync(events.append, name="test")
    prepare(engine, shim)
    submit(engine)
    tokens = drain(engine)
    shim.close()
    return Outcome(tokens, shim, events)


@pytest.fixture(scope="module")
def bare() -> dict[str, list[int]]:
    engine, _ = embed(MODEL, TOKENIZER, settings(Path("nowhere")), watched=False)
    submit(engine)
    return drain(engine)


def raises(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("planted in a test")


class Listener:
    step_done = staticmethod(raises)


BROKEN: dict[str, tuple[Prepare, str]] = {
    "recorder": (lambda engine, shim: setattr(shim.parts.recorder, "begin", raises), "the recorder"),
    "policy": (lambda engine, shim: setattr(shim.parts.pipeline, "observe", raises), "the guards"),
    "sequences": (lambda engine, shim: setattr(shim.parts.policy, "begin", raises), ""),
    "listener": (lambda engine, shim: shim.parts.listeners.append(Listener()), "listener Listener"),
    "bus": (lambda engine, shim: setattr(shim.parts.bus, "publish", raises), "the event bus"),
}


@pytest.mark.parametrize("part", sorted(BROKEN))
def test_a_part_that_raises_goes_off_and_serving_goes_on(
    part: str, bare: dict[str, list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare, name = BROKEN[part]
    with caplog.at_level(logging.ERROR, logger="checkengine.shim"):
        outcome = serve(settings(tmp_path), prepare)
    assert outcome.tokens == bare
    assert outcome.shim.failed_parts() == ([name] if name else [])
    failures = [record.message for record in caplog.records if "serving goes on" in record.message]
    assert len(failures) == 1
    if name and part != "bus":
        assert name in outcome.off()


def test_row_statistics_that_raise_go_off_and_guards_on_tokens_go_on(
    bare: dict[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_module, "row_stats", raises)
    outcome = serve(settings(tmp_path))
    assert outcome.tokens == bare
    assert outcome.shim.failed_parts() == ["measuring logits"]
    assert outcome.shim.parts.pipeline.states()["impossible_token"].active


def test_a_guard_that_raises_goes_off_alone(bare: dict[str, list[int]], tmp_path: Path) -> None:
    def prepare(engine: Any, shim: EngineShim) -> None:
        shim.parts.pipeline._seats["language"].guard.observe = raises  # type: ignore[method-assign]

    outcome = serve(settings(tmp_path), prepare)
    assert outcome.tokens == bare
    assert outcome.off() == ["language"]
    assert outcome.shim.failed_parts() == []


def test_a_listener_that_blocks_goes_off(
    bare: dict[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        calls = 0

        def step_done(self, *arguments: Any) -> None:
            self.calls += 1

    slow = Slow()
    monkeypatch.setattr(shim_module, "LISTENER_SECONDS", -1.0)
    outcome = serve(settings(tmp_path), lambda engine, shim: shim.parts.listeners.append(slow))
    assert outcome.tokens == bare
    assert "listener Slow" in outcome.shim.failed_parts()
    assert slow.calls == 3


def test_a_subscriber_that_raises_is_detached_and_the_others_go_on(bare: dict[str, list[int]], tmp_path: Path) -> None:
    heard: list[Event] = []

    def prepare(engine: Any, shim: EngineShim) -> None:
        shim.assembly.bus.subscribe(raises, name="raising")
        shim.assembly.bus.subscribe(heard.append, name="hearing")

    outcome = serve(settings(tmp_path), prepare)
    assert outcome.tokens == bare
    assert len(heard) >= 20


NAN = [NanAttention(modulus=8, remainder=1, layer=1, minimum_length=17)]


def test_an_incident_has_one_bundle_however_many_sequences_it_strikes(tmp_path: Path) -> None:
    outcome = serve(settings(tmp_path), faults=NAN)
    written = [event for event in outcome.events if isinstance(event, BundleWritten)]
    (incident,) = outcome.shim.assembly.book.incidents(0.0)
    assert incident.sequences > 1
    assert {event.incident for event in written} == {incident.id}
    reproducers = [event for event in written if has_parent(Path(event.path))]
    # With content off a content-free reproducer stands beside the bundle that it was made from.
    assert (len(written) - len(reproducers), len(reproducers)) == (1, 1)
    assert len(list((tmp_path / "bundles").iterdir())) == len(written)


def has_parent(bundle: Path) -> bool:
    lineage = json.loads((bundle / "lineage.json").read_text())
    return lineage["parent"] is not None


def test_a_snapshot_that_raises_costs_the_bundle_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = serve(settings(tmp_path / "wanted"), faults=NAN).tokens
    outcome = serve(settings(tmp_path), lambda engine, shim: setattr(engine, "snapshot", raises), NAN)
    assert outcome.tokens == wanted
    assert not (tmp_path / "bundles").exists()
    assert sum("CaptureOnFinding failed" in record.message for record in caplog.records) == 1


def test_a_full_disk_costs_the_bundle_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any, **keywords: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    wanted = serve(settings(tmp_path / "wanted"), faults=NAN).tokens
    monkeypatch.setattr(bundles, "write_bundle", full)
    outcome = serve(settings(tmp_path), faults=NAN)
    assert outcome.tokens == wanted
    assert sum("could not be written" in record.message for record in caplog.records) == 1


def test_a_spool_on_a_full_disk_costs_records_only(bare: dict[str, list[int]], tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file where the folder should be")
    outcome = serve(settings(tmp_path, spool=True))
    assert outcome.tokens == bare


def test_a_hanging_writer_makes_captures_drop_and_never_a_step_wait(tmp_path: Path) -> None:
    release, hold = threading.Event(), 3
    engine, shim = embed(MODEL, TOKENIZER, settings(tmp_path), NAN)
    assert shim is not None
    captures = shim.assembly.captures
    assert captures is not None
    captures._write = lambda capture: release.wait(60)  # type: ignore[assignment]
    # Every finding is an incident of its own here, so that the queue fills.
    captures._incident_of = lambda sequence: f"incident of {sequence}"
    submit(engine, rows=6)
    drain(engine)
    assert captures.dropped >= 6 - hold
    captures.close(timeout=0.01)
    release.set()
    shim.close()


def test_switched_off_it_leaves_the_engine_alone(tmp_path: Path) -> None:
    unguarded, _ = embed(MODEL, TOKENIZER, settings(tmp_path), NAN, watched=False)
    submit(unguarded)
    wanted = drain(unguarded)
    outcome = serve(settings(tmp_path), lambda engine, shim: setattr(shim, "enabled", False), NAN)
    assert outcome.tokens == wanted
    assert outcome.events == []


def test_sequences_that_begin_while_it_is_off_are_guarded_once_it_is_on(tmp_path: Path) -> None:
    engine, shim = embed(MODEL, TOKENIZER, settings(tmp_path), NAN)
    assert shim is not None
    shim.enabled = False
    submit(engine)
    engine.step()
    engine.step()
    shim.arm()
    drain(engine)
    (incident,) = shim.assembly.book.incidents(0.0)
    assert set(incident.sequence_sample) <= {"r0", "r1", "r2"}
    shim.close()


def test_arming_switches_a_failed_part_on_again(bare: dict[str, list[int]], tmp_path: Path) -> None:
    engine, shim = embed(MODEL, TOKENIZER, settings(tmp_path))
    assert shim is not None
    assert shim.parts.recorder is not None
    begin = shim.parts.recorder.begin
    shim.parts.recorder.begin = raises  # type: ignore[method-assign]
    submit(engine)
    for _ in range(4):
        engine.step()
    assert shim.failed_parts() == ["the recorder"]
    shim.parts.recorder.begin = begin  # type: ignore[method-assign]
    shim.arm()
    drain(engine)
    assert shim.failed_parts() == []
    assert len(shim.parts.recorder.window()) > 0
    shim.close()


def test_a_missing_configuration_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: cannot be read"):
        EngineShim(object(), tokenizer=TOKENIZER, config=tmp_path / "none.toml")  # type: ignore[arg-type]


def test_after_close_the_engine_may_go_on(bare: dict[str, list[int]], tmp_path: Path) -> None:
    engine, shim = embed(MODEL, TOKENIZER, settings(tmp_path))
    assert shim is not None
    shim.close()
    submit(engine)
    assert drain(engine) == bare


def test_what_the_guards_keep_of_a_sequence_is_freed_when_it_ends(tmp_path: Path) -> None:
    engine, shim = embed(MODEL, TOKENIZER, settings(tmp_path))
    assert shim is not None
    for _ in range(3):
        submit(engine)
        drain(engine)
    # The last ends are told by the next step.
    assert len(shim._live) <= 3
    shim.end(list(shim._live))
    assert shim._live == shim._handles == shim.parts.pipeline._live == {}
    assert shim.parts.policy._live == set()
    shim.close()


def test_a_retried_sequence_is_guarded_again_under_its_name(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    guards = chosen.guards.model_validate({"nonfinite": {"action": "retry"}, "maximum_retries": 1})
    chosen = chosen.model_copy(update={"guards": guards})
    chosen = chosen.model_copy(update={"engine": chosen.engine.model_copy(update={"hold_back_tokens": 8})})
    outcome = serve(chosen, faults=NAN)
    (incident,) = outcome.shim.assembly.book.incidents(0.0)
    # The fault depends on the length only: it strikes each of the three again, and then they are stopped.
    assert (incident.actions["retry"], incident.actions["stop"]) == (3, 3)


def test_sequences_that_were_preempted_are_guarded_throughout(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    small = chosen.engine.model_copy(update={"blocks": 8, "prefix_cache": False})
    outcome_engine, shim = embed(MODEL, TOKENIZER, chosen.model_copy(update={"engine": small}))
    assert shim is not None
    seen: dict[str, list[int]] = {}
    observe = shim.parts.pipeline.observe

    def noting(step: Any) -> Any:
        for name, tokens, before in zip(step.sequences, step.tokens, step.output_lengths.tolist(), strict=True):
            assert before == len(seen.setdefault(name, []))
            seen[name] += tokens
        return observe(step)

    shim.parts.pipeline.observe = noting  # type: ignore[method-assign]
    submit(outcome_engine)
    tokens = drain(outcome_engine)
    assert outcome_engine.stats.preemptions > 0
    assert seen == tokens
    assert shim.failed_parts() == []
    shim.close()


def test_statistics_are_of_the_rows_that_sample_when_prompts_come_in_chunks(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    chunked = chosen.engine.model_copy(update={"tokens_per_step": 12, "prefix_cache": False})
    engine, shim = embed(MODEL, TOKENIZER, chosen.model_copy(update={"engine": chunked}))
    assert shim is not None
    mixed = []

    class Listener:
        def step_done(self, record: Any, findings: Any, actions: Any) -> None:
            assert len(record.fingerprints) == len(record.sampled) == int(record.samples.sum())
            mixed.append(0 < len(record.sampled) < len(record.handles))

    shim.parts.listeners.append(Listener())
    submit(engine)
    drain(engine)
    assert any(mixed)
    assert shim.failed_parts() == []
    shim.close()


def test_logits_of_another_number_of_rows_are_left_out_with_one_clear_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, shim = embed(MODEL, TOKENIZER, settings(tmp_path))
    assert shim is not None
    engine.shim = MoreRows(shim)
    submit(engine)
    drain(engine)
    assert shim.failed_parts() == ["measuring logits"]
    assert "4 rows of logits for 3 rows that sample" in caplog.text
    shim.close()


class MoreRows:
    """An engine that hands over one row too many."""

    def __init__(self, shim: EngineShim) -> None:
        self._shim = shim

    def step(self, record: Any) -> Any:
        scope = self._shim.step(record)
        given = scope.logits

        class Wrapped:
            def __enter__(self) -> Wrapped:
                scope.__enter__()
                return self

            def __exit__(self, *error: Any) -> None:
                scope.__exit__(*error)

            def logits(self, logits: Any) -> None:
                given(torch.cat([logits, logits[:1]]))

            def tokens(self, tokens: Any) -> Any:
                return scope.tokens(tokens)

        return Wrapped()


def test_an_engine_that_cannot_stop_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    possible = PossibleActions(Capabilities(stop=False))
    stop = Action(ActionKind.STOP, "a", "logits.nonfinite", "inc-1", 3)
    assert possible.of([stop]) == possible.of([stop]) == []
    assert [record.message for record in caplog.records] == [
        "this engine cannot stop a sequence: it is left out, now and later"
    ]


def test_a_retry_on_an_engine_that_can_only_stop_is_a_stop() -> None:
    possible = PossibleActions(Capabilities(stop=True))
    retry = Action(ActionKind.RETRY, "a", "logits.nonfinite", "inc-1", 3)
    assert possible.of([retry]) == [Action(ActionKind.STOP, "a", "logits.nonfinite", "inc-1", 3)]


def test_quarantine_takes_its_share_of_the_blocks_and_then_only_warns(tmp_path: Path) -> None:
    chosen = settings(tmp_path).model_copy(update={"brake": BrakeSettings(minimum_stopped=100)})
    engine, shim = embed(MODEL, TOKENIZER, chosen, [NanAttention(modulus=1, remainder=0, layer=0)])
    assert shim is not None
    submit(engine, rows=12)
    drain(engine)
    (incident,) = shim.assembly.book.incidents(0.0)
    shim.close()
    # What one step finds is decided at once, so its sequences go beyond the share; those of later steps do not.
    first = incident.actions["quarantine"]
    assert 1 <= first < 12
    assert incident.actions["warn"] == 12 - first
    assert chosen.brake.maximum_quarantined_fraction < engine.quarantined_fraction() < 0.3
