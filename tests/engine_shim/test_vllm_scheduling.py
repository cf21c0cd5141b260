"""vLLM's scheduler with guards, on doubles of vLLM's own objects."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.detectors import row_stats
from checkengine.engine_shim.vllm.carried import StepReading, ToWorkers, attach, orders_of, reading_of
from checkengine.engine_shim.vllm.quarantine import Quarantine
from checkengine.engine_shim.vllm.request_ends import answered_as
from checkengine.engine_shim.vllm.scheduler import GuardedScheduler, SchedulerGuards
from checkengine.engine_shim.vllm.stopping import Stop, end_in
from checkengine.engine_shim.vllm.switch_file import Switch, SwitchFile
from checkengine.engine_shim.vllm.views import produced, sequence_start, step_view
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy
from checkengine.guards.events import ActionTaken, Event, FindingRaised
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.settings import BrakeSettings, GuardsSettings
from checkengine.guards.step import StepView

VOCABULARY = 16
STOP = "stop"


@dataclass
class Request:
    """As far as vLLM's Request is read."""

    request_id: str
    prompt_token_ids: list[int] = field(default_factory=lambda: [5, 6, 7])
    num_output_tokens: int = 0
    arrival_time: float = 0.0
    sampling_params: Any = None
    drop_stale_output: bool = False
    num_stale_output_tokens: int = 0
    stop_reason: Any = None
    resumable: bool = False
    finished: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    def is_finished(self) -> bool:
        return self.finished


@dataclass
class Output:
    """vLLM's EngineCoreOutput."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    new_sampling_mask: Any = None
    finish_reason: Any = None
    stop_reason: Any = None
    trace_headers: Any = None


class KVCacheManager:
    def __init__(self) -> None:
        self.blocks: dict[str, tuple[list[int], ...]] = {}
        self.evicted: list[set[int]] = []

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.blocks[request_id]

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.evicted.append(block_ids)


class PlainScheduler:
    """vLLM's scheduler, as far as ours calls it: takes tokens, ends requests at `end_at` output tokens."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.kv_cache_manager = KVCacheManager()
        self.statuses: dict[str, Any] = {}
        self.end_at = 100
        self.next: Any = None

    def schedule(self) -> Any:
        return self.next

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        outputs = []
        for name, row in model_runner_output.req_id_to_index.items():
            request = self.requests.get(name)
            tokens = model_runner_output.sampled_token_ids[row]
            if request is None or request.finished or not tokens:
                continue
            request.num_output_tokens += len(tokens)
            outputs.append(Output(name, list(tokens)))
            if request.num_output_tokens >= self.end_at:
                request.finished = True
                outputs[-1].finish_reason = "length"
                del self.requests[name]
        return {0: SimpleNamespace(outputs=outputs)}

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Request]:
        ended = [self.requests.pop(name) for name in list(request_ids) if name in self.requests]
        for request in ended:
            request.finished = True
            self.statuses[request.request_id] = finished_status
        return ended


class Guarded(GuardedScheduler, PlainScheduler):
    made: SchedulerGuards

    def make_guards(self) -> SchedulerGuards:
        return type(self).made


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def scheduler(told: list[Event], monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    engine = types.ModuleType("vllm.v1.engine")
    engine.FinishReason = SimpleNamespace(STOP=STOP)  # type: ignore[attr-defined]
    request = types.ModuleType("vllm.v1.request")
    request.RequestStatus = SimpleNamespace(FINISHED_STOPPED="FINISHED_STOPPED")  # type: ignore[attr-defined]
    for name, module in {
        "vllm": types.ModuleType("vllm"),
        "vllm.v1": types.ModuleType("vllm.v1"),
        "vllm.v1.engine": engine,
        "vllm.v1.request": request,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    bus = EventBus()
    bus.subscribe_sync(told.append, name="test")
    settings = GuardsSettings()
    quarantine = Quarantine()
    policy = Policy(settings, BrakeSettings(), IncidentBook(), publish=bus.publish)
    Guarded.made = SchedulerGuards(
        Pipeline([NonFiniteGuard()], settings, publish=bus.publish), policy, bus, quarantine, closers=[bus]
    )
    made = Guarded()
    yield made
    Guarded.made.close()


def message(
    names: dict[str, int], drafts: dict[str, list[int]] | None = None, blocks: dict[str, Any] | None = None
) -> Any:
    """vLLM's SchedulerOutput; `blocks`: what each request is given as a new one."""
    new = [SimpleNamespace(req_id=name, block_ids=groups) for name, groups in (blocks or {}).items()]
    return SimpleNamespace(
        num_scheduled_tokens=names,
        total_num_scheduled_tokens=sum(names.values()),
        scheduled_spec_decode_tokens=drafts or {},
        scheduled_new_reqs=new,
        scheduled_cached_reqs=SimpleNamespace(new_block_ids=[None]),
    )


def answer(tokens: dict[str, list[int]], logits: torch.Tensor | None = None, of: list[int] | None = None) -> Any:
    """vLLM's ModelRunnerOutput, with a reading of `logits` on it."""
    names = list(tokens)
    output = SimpleNamespace(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampled_token_ids=list(tokens.values()),
    )
    if logits is not None:
        rows = np.array(range(len(names)) if of is None else of, np.int32)
        attach(output, StepReading(tuple(names), rows, row_stats(logits)))
    return output


def healthy(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(rows))


def poisoned(rows: int, row: int) -> torch.Tensor:
    logits = healthy(rows)
    logits[row, 3] = float("nan")
    return logits


def step(scheduler: Guarded, tokens: dict[str, list[int]], logits: torch.Tensor | None, **more: Any) -> dict[int, Any]:
    drafts = more.pop("drafts", None)
    scheduler.next = message({name: 1 + len((drafts or {}).get(name, [])) for name in tokens}, drafts)
    outputs: dict[int, Any] = scheduler.update_from_output(scheduler.schedule(), answer(tokens, logits, **more))
    return outputs


def running(scheduler: Guarded, *names: str) -> None:
    for number, name in enumerate(names):
        scheduler.requests[name] = Request(name)
        scheduler.kv_cache_manager.blocks[name] = ([10 * number + 1, 10 * number + 2],)


def test_a_bad_row_ends_its_request_as_a_normal_stop_in_the_same_step(scheduler: Guarded) -> None:
    running(scheduler, "a", "b")
    step(scheduler, {"a": [4], "b": [5]}, healthy(2))
    victim = scheduler.requests["b"]
    outputs = step(scheduler, {"a": [6], "b": [7]}, poisoned(2, 1))[0].outputs
    assert [(each.request_id, each.new_token_ids, each.finish_reason, each.stop_reason) for each in outputs] == [
        ("a", [6], None, None),
        ("b", [], STOP, "checkengine:logits.nonfinite"),
    ]
    assert scheduler.statuses == {"b": "FINISHED_STOPPED"}
    assert victim.finished
    assert list(scheduler.requests) == ["a"]


def test_statistics_follow_their_request_whatever_the_order_of_the_rows(scheduler: Guarded) -> None:
    running(scheduler, "a", "b", "c")
    output = answer({"c": [1], "a": [], "b": [2]}, poisoned(3, 0))
    outputs = scheduler.update_from_output(message({"a": 4, "b": 1, "c": 1}), output)[0].outputs
    assert {each.request_id: each.stop_reason for each in outputs} == {"c": "checkengine:logits.nonfinite", "b": None}


def test_a_prompt_that_is_not_yet_whole_has_no_row_in_the_view(scheduler: Guarded) -> None:
    running(scheduler, "a", "b")
    made = produced(scheduler.requests, message({"a": 64, "b": 1}), answer({"a": [], "b": [3]}))
    view = step_view(7, made, None)
    assert (view.sequences, view.tokens, view.step) == (("b",), ((3,),), 7)


def test_verified_drafts_give_several_rows_of_statistics_to_their_request(scheduler: Guarded) -> None:
    running(scheduler, "a", "b")
    reading = reading_of(answer({"a": [1], "b": [2, 3]}, poisoned(4, 2), of=[0, 1, 1, 1]))
    made = produced(
        scheduler.requests,
        message({"a": 1, "b": 3}, {"b": [8, 9]}),
        answer({"a": [1], "b": [2, 3]}),
    )
    view = step_view(0, made, reading)
    assert view.stats_of is not None
    assert view.stats_of.tolist() == [0, 1, 1, 1]
    assert (view.proposed.tolist(), view.accepted.tolist()) == ([0, 2], [0, 1])  # type: ignore[union-attr]


def test_a_bad_second_token_of_a_speculative_step_leaves_the_first_one(scheduler: Guarded) -> None:
    running(scheduler, "b")
    outputs = step(scheduler, {"b": [2, 3]}, poisoned(3, 1), of=[0, 0, 0], drafts={"b": [8, 9]})[0].outputs
    assert [(each.new_token_ids, each.finish_reason, each.stop_reason) for each in outputs] == [
        ([2], None, None),
        ([], STOP, "checkengine:logits.nonfinite"),
    ], "the end has a message of its own: vLLM shows no text of the last token of one that ends by stop"


def test_a_request_that_ends_by_itself_on_a_bad_row_is_told_as_stopped_and_its_blocks_are_quarantined(
    scheduler: Guarded,
) -> None:
    running(scheduler, "a")
    scheduler.end_at = 1
    outputs = step(scheduler, {"a": [4]}, poisoned(1, 0))[0].outputs
    assert (outputs[0].new_token_ids, outputs[0].stop_reason) == ([], "checkengine:logits.nonfinite")
    assert scheduler.kv_cache_manager.evicted == [{1, 2}]


def test_blocks_of_a_stopped_request_leave_the_prefix_cache_and_are_refilled_when_they_are_handed_on(
    scheduler: Guarded,
) -> None:
    running(scheduler, "a", "b")
    step(scheduler, {"a": [4], "b": [5]}, poisoned(2, 0))
    assert scheduler.kv_cache_manager.evicted == [{1, 2}]
    assert scheduler.guards is not None
    assert len(scheduler.guards.quarantine) == 2
    scheduler.next = message({"c": 3}, blocks={"c": ([2, 50],)})
    assert orders_of(scheduler.schedule()).refill == (2,)
    scheduler.next = message({"d": 3}, blocks={"d": ([2, 51],)})
    assert orders_of(scheduler.schedule()).refill == ()
    assert len(scheduler.guards.quarantine) == 1


def test_messages_are_numbered_and_findings_bear_the_number_of_their_step(
    scheduler: Guarded, told: list[Event]
) -> None:
    running(scheduler, "a")
    for _ in range(3):
        step(scheduler, {"a": [4]}, healthy(1))
    step(scheduler, {"a": [4]}, poisoned(1, 0))
    found = [event.finding for event in told if isinstance(event, FindingRaised)]
    assert [(finding.step, finding.token) for finding in found] == [(3, 3)]
    assert [event.action.kind.value for event in told if isinstance(event, ActionTaken)] == ["quarantine", "stop"]


def test_tokens_of_a_request_that_is_over_are_nobodys(scheduler: Guarded) -> None:
    """Under async scheduling a step is in flight when its request ends."""
    running(scheduler, "a")
    step(scheduler, {"a": [4]}, poisoned(1, 0))
    assert step(scheduler, {"a": [5]}, poisoned(1, 0))[0].outputs == []
    running(scheduler, "b")
    scheduler.requests["b"].drop_stale_output, scheduler.requests["b"].num_stale_output_tokens = True, 1
    assert produced(scheduler.requests, message({"b": 1}), answer({"b": [5]})).requests == ()


def test_an_aborted_request_is_forgotten(scheduler: Guarded) -> None:
    running(scheduler, "a")
    step(scheduler, {"a": [4]}, healthy(1))
    assert scheduler.guards is not None
    assert set(scheduler.guards._live) == {"a"}
    scheduler.finish_requests(["a"], "FINISHED_ABORTED")
    assert not scheduler.guards._live


def test_a_guard_that_raises_costs_no_token(scheduler: Guarded) -> None:
    running(scheduler, "a")

    def broken(view: StepView) -> list[Any]:
        raise RuntimeError("broken")

    assert scheduler.guards is not None
    scheduler.guards.pipeline.observe = broken  # type: ignore[method-assign, assignment]
    for token in range(5):
        assert step(scheduler, {"a": [token]}, poisoned(1, 0))[0].outputs[0].new_token_ids == [token]


def test_guards_that_cannot_be_made_leave_a_plain_scheduler() -> None:
    class Unmade(GuardedScheduler, PlainScheduler):
        def make_guards(self) -> SchedulerGuards:
            raise OSError("no tokenizer")

    made = Unmade()
    made.requests["a"] = Request("a")
    made.next = message({"a": 1})
    assert made.update_from_output(made.schedule(), answer({"a": [4]}))[0].outputs[0].new_token_ids == [4]
    assert made.finish_requests(["a"], "FINISHED_ABORTED")


def test_a_reading_that_does_not_name_a_row_s_request_is_left_out(scheduler: Guarded) -> None:
    running(scheduler, "a", "b")
    reading = reading_of(answer({"a": [1]}, poisoned(1, 0)))
    made = produced(scheduler.requests, message({"a": 1, "b": 1}), answer({"a": [1], "b": [2]}))
    assert step_view(0, made, reading).stats is None


def test_what_we_hang_on_a_message_is_taken_for_nothing_else() -> None:
    bare = SimpleNamespace(checkengine="of somebody else")
    assert reading_of(bare) is None
    assert orders_of(bare) == ToWorkers()


def test_sampling_parameters_reach_guards_under_their_names() -> None:
    given = SimpleNamespace(
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=None,
        min_tokens=0,
        max_tokens=9,
        logit_bias=None,
        structured_outputs=object(),
        stop_token_ids=[9],
        eos_token_id=2,
        ignore_eos=False,
    )
    start = sequence_start(1, Request("a", sampling_params=given, arrival_time=100.0), now=103.0)
    assert start.stop_tokens == (2, 9)
    assert start.sampling["structured_outputs"] is True
    assert "logit_bias" not in start.sampling
    assert (start.handle, start.name, start.prompt_tokens) == (1, "a", (5, 6, 7))


def test_logprobs_of_tokens_that_are_taken_back_go_with_them() -> None:
    class Logprobs:
        def slice_request(self, row: int, count: int) -> tuple[int, int]:
            return row, count

    output = Output("a", [1, 2, 3], Logprobs())
    client = SimpleNamespace(outputs=[output])
    assert end_in({0: client}, {"a": Stop("a", "token.impossible", 2)}, STOP) == {"a"}
    assert (client.outputs[0].new_token_ids, client.outputs[0].new_logprobs) == ([1, 2], (0, 2))
    gone = Output("a", [1], Logprobs())
    end_in({0: SimpleNamespace(outputs=[gone])}, {"a": Stop("a", "token.impossible", 0)}, STOP)
    assert gone.new_logprobs is None


def test_the_sidecar_and_its_guards_are_switched_while_the_engine_runs(scheduler: Guarded, tmp_path: Path) -> None:
    running(scheduler, "a", "b", "c")
    switches = SwitchFile(tmp_path)
    guards = scheduler.guards
    assert guards is not None
    guards._switches = switches

    def changed(name: str, switch: Switch) -> None:
        switches.put(name, switch)
        switches._next = 0.0

    changed("sidecar", "disable")
    assert step(scheduler, {"a": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason is None
    assert orders_of(scheduler.next).off
    assert not guards._live
    changed("sidecar", "enable")
    changed("nonfinite", "disable")
    assert step(scheduler, {"b": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason is None
    changed("nonfinite", "rearm")
    assert step(scheduler, {"c": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason == "checkengine:logits.nonfinite"


def test_a_switch_that_makes_no_sense_changes_nothing(scheduler: Guarded, tmp_path: Path) -> None:
    running(scheduler, "a")
    assert scheduler.guards is not None
    scheduler.guards._switches = SwitchFile(tmp_path)
    scheduler.guards._switches.put("no such guard", "disable")
    assert step(scheduler, {"a": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason == "checkengine:logits.nonfinite"


def test_a_switch_for_a_guard_that_is_not_there_does_not_hold_up_the_others(
    scheduler: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running(scheduler, "a")
    assert scheduler.guards is not None
    scheduler.guards._switches = SwitchFile(tmp_path)
    scheduler.guards._switches.put("no such guard", "disable")
    scheduler.guards._switches.put("nonfinite", "disable")
    assert step(scheduler, {"a": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason is None
    assert "there is no guard of that name" in caplog.text


def test_every_broken_switch_file_is_told_in_one_line_and_a_good_one_counts_again(
    scheduler: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running(scheduler, "a")
    switches = SwitchFile(tmp_path)
    assert scheduler.guards is not None
    scheduler.guards._switches = switches
    for content in ("{", "[]"):
        switches.path.write_text(content)
        switches._seen, switches._next = None, 0.0
        step(scheduler, {"a": [4]}, healthy(1))
    assert caplog.text.count("switches are left as they are") == 2
    assert "Traceback" not in caplog.text
    switches.path.write_text('{"nonfinite": "disable"}')
    switches._seen, switches._next = None, 0.0
    assert step(scheduler, {"a": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason is None


def test_parts_that_failed_and_went_off_try_again_when_the_sidecar_is_switched_on(
    scheduler: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(scheduler, "a")
    guards = scheduler.guards
    assert guards is not None
    switches = guards._switches = SwitchFile(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(guards, "_guard", None)
        for _ in range(3):
            step(scheduler, {"a": [4]}, healthy(1))
    assert guards.failed_parts() == ["the guards in vLLM"]
    switches.put("sidecar", "rearm")
    switches._next = 0.0
    assert step(scheduler, {"a": [4]}, poisoned(1, 0))[0].outputs[0].stop_reason == "checkengine:logits.nonfinite"
    assert orders_of(scheduler.next).arm, "workers hear it with the message"
    assert guards.failed_parts() == []


def test_a_name_that_a_client_chose_writes_no_line_of_its_own_into_the_log(
    scheduler: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    name = "a\nERROR all is lost\x1b[31m" + "x" * 300_000
    running(scheduler, name)
    assert step(scheduler, {name: [4]}, poisoned(1, 0))[0].outputs[0].stop_reason == "checkengine:logits.nonfinite"
    told = [record.getMessage() for record in caplog.records]
    assert any("a\\nERROR all is lost\\x1b[31m" in line for line in told)
    assert all(len(line) < 400 and line.isprintable() for line in told)


@pytest.mark.parametrize(
    ("sequence", "answered"),
    [
        ("chatcmpl-832269e61b0fa3d6-85d79f8d", "chatcmpl-832269e61b0fa3d6"),
        ("12_chatcmpl-832269e61b0fa3d6-85d79f8d", "chatcmpl-832269e61b0fa3d6"),
        ("cmpl-ac8fc883db24b17e-39-0a1b2c3d", "cmpl-ac8fc883db24b17e"),
        ("1_cmpl-ac8fc883db24b17e-0-0a1b2c3d", "cmpl-ac8fc883db24b17e"),
        ("7", "7"),
        ("chatcmpl-of a client's own-1-85d79f8d", "chatcmpl-of a client's own-1"),
    ],
)
def test_a_complaint_is_looked_up_by_the_id_that_the_client_was_answered_with(sequence: str, answered: str) -> None:
    assert answered_as(sequence) == answered
