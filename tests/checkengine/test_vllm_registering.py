"""A vLLM engine core in the register of replicas, on doubles of vLLM's objects: it reports, and it obeys orders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.config import Settings
from checkengine.detectors import row_stats
from checkengine.engine_shim.condition import ConditionError
from checkengine.engine_shim.request_notes import RequestRecords
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.engine_shim.vllm.armed_orders import ArmedOrders
from checkengine.engine_shim.vllm.black_box import CaptureOrder
from checkengine.engine_shim.vllm.carried import StepReading, attach, orders_of
from checkengine.engine_shim.vllm.quarantine import Quarantine
from checkengine.engine_shim.vllm.scheduler import GuardedScheduler, SchedulerGuards
from checkengine.engine_shim.vllm.seen_steps import SchedulerNotes
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy
from checkengine.guards.events import SequenceEnded
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.settings import BrakeSettings, GuardsSettings
from checkengine.replay import orders
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.vllm_registering import register

REPLICA = "core-1"


class Plain:
    """vLLM's scheduler as far as it is called: each step a token for everybody, the end at `end_at`."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.end_at = 100

    def schedule(self) -> Any:
        counts = dict.fromkeys(self.requests, 1)
        return SimpleNamespace(
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=len(counts),
            scheduled_spec_decode_tokens={},
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(new_block_ids=[]),
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        for name, request in list(self.requests.items()):
            request.num_output_tokens += 1
            if request.num_output_tokens >= self.end_at:
                request.over = True
                del self.requests[name]
        return {}

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Any]:
        return [self.requests.pop(name) for name in list(request_ids)]

    def shutdown(self) -> None: ...


class Core(GuardedScheduler, Plain):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__()

    def make_guards(self) -> SchedulerGuards:
        settings = Settings.model_validate({"spool": {"directory": self.folder}})
        bus, self.spool = EventBus(), SpoolWriter(self.folder, replica=REPLICA)
        policy = Policy(GuardsSettings(), BrakeSettings(), IncidentBook(), publish=bus.publish)
        self.armed, notes = ArmedOrders(policy.incident_of), SchedulerNotes()
        records = RequestRecords(self.spool, notes, model="m", key=DeploymentKey(b"k" * 32))
        bus.subscribe(records.handle, name="requests", kinds=(SequenceEnded,))
        pipeline = Pipeline([NonFiniteGuard()], GuardsSettings(), publish=bus.publish)
        made = SchedulerGuards(pipeline, policy, bus, Quarantine(), [self.armed, notes], [bus])
        self.registered = register(made, self.armed, settings, self.spool, configuration())
        made.closers += [self.registered, self.spool]
        return made

    def ask(self, name: str) -> None:
        self.requests[name] = Request(name)

    def step(self) -> Any:
        """The message that left."""
        message = self.schedule()
        names = list(self.requests)
        output = SimpleNamespace(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[[5]] * len(names),
        )
        logits = torch.randn(len(names), 16, generator=torch.Generator().manual_seed(1))
        attach(output, StepReading(tuple(names), np.arange(len(names), dtype=np.int32), row_stats(logits)))
        self.update_from_output(message, output)
        return message

    def order(self, revision: int, subject: str, name: str, **desired: Any) -> None:
        """As the collector writes it, and looked at as twice a second."""
        told = orders.encode(REPLICA, [orders.Order(revision, subject, name, desired)])
        orders.write(orders.orders_path(self.folder, self.spool.boot), told)
        self.registered._watch.look()

    def told(self, kind: str) -> list[dict[str, Any]]:
        lines = [line for path in sorted(self.folder.glob("*")) for line in path.read_bytes().splitlines()]
        found = [json.loads(line[line.index(b"{") :]) for line in lines if b'"kind"' in line]
        return [record["data"] for record in found if record["kind"] == kind]


class Request:
    def __init__(self, name: str) -> None:
        self.request_id, self.over = name, False
        self.prompt_token_ids = [7, 8, 9]
        self.num_prompt_tokens, self.num_output_tokens, self.num_cached_tokens = 3, 0, 2
        self.arrival_time, self.sampling_params = 0.0, None
        self.drop_stale_output = False
        self.stop_reason: Any = None

    def is_finished(self) -> bool:
        return self.over

    def get_finished_reason(self) -> str | None:
        return "length" if self.over else None


def configuration() -> Any:
    model = SimpleNamespace(model="/models/tiny", revision=None, dtype=torch.float32, get_vocab_size=lambda: 16)
    return SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(block_size=16, cache_dtype="auto"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    monkeypatch.setenv("CHECKENGINE_REPLICA", REPLICA)
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    made = Core(tmp_path / "spool")
    assert made.guards is not None
    yield made
    made.shutdown()


def test_an_engine_core_is_in_the_register_with_its_guards_and_tells_when_it_goes(core: Core) -> None:
    (first,) = core.told("replica")
    assert (first["engine"], first["model"], first["state"]) == ("vllm", "tiny", "serving")
    assert {"nonfinite", "sidecar"} <= first["guards"].keys()
    core.shutdown()
    assert core.told("replica")[-1]["state"] == "gone"


def test_an_order_switches_a_guard_off_and_on_and_the_register_shows_that_it_was_obeyed(core: Core) -> None:
    core.order(3, "guard", "nonfinite", state="off")
    assert core.guards is not None
    assert not core.guards.pipeline.states()["nonfinite"].active
    core.order(4, "guard", "nonfinite", state="on")
    assert core.guards.pipeline.states()["nonfinite"].active
    core.order(5, "guard", "nonsense", state="off")
    assert core.registered._watch.refused == {5: "there is no guard 'nonsense'"}
    core.registered._reporter.tell()
    told = core.told("replica")[-1]
    assert (told["applied"], told["guards"]["nonfinite"]["active"]) == (5, True)


def test_an_order_to_switch_the_sidecar_off_holds_from_the_next_step_on_and_workers_hear_it(core: Core) -> None:
    core.ask("a")
    core.step()
    core.order(1, "sidecar", "", state="off")
    assert orders_of(core.step()).off
    core.order(2, "sidecar", "", state="on")
    assert not orders_of(core.step()).off


def test_an_armed_condition_sends_one_order_for_a_capture_to_the_workers(core: Core) -> None:
    core.ask("a")
    core.ask("b")
    core.order(1, "capture", "c", state="arm", when='length == 5 and request == "b"', level="L1", most=2)
    asked = [orders_of(core.step()).capture for _ in range(6)]
    (order,) = [order for capture in asked for order in capture]
    assert isinstance(order, CaptureOrder)
    assert (order.trigger[0].sequence, order.level, order.findings) == ("b", "L1", ())
    assert ForkingPickler.dumps(order), "vLLM packs its message for the workers' processes"
    assert order.armed == core.armed.armings.active(0)[0].identifier
    core.order(2, "capture", "c", state="disarm")
    assert not core.armed.armings


@pytest.mark.parametrize("when", ["prefix_hit", "tokens > 3"])
def test_a_condition_that_vllm_s_scheduler_cannot_tell_is_refused_by_name(core: Core, when: str) -> None:
    with pytest.raises(ConditionError, match="inside vLLM a condition cannot ask for"):
        core.armed.made(when, level="L1", seconds=60, most=1)


def test_an_engine_whose_router_is_elsewhere_refuses_to_be_drained(core: Core) -> None:
    core.order(1, "replica", "", state="drain")
    assert "drain it where its router is" in core.registered._watch.refused[1]


def test_a_request_that_ends_leaves_a_record_without_content(core: Core) -> None:
    core.ask("chat-1-0")
    core.end_at = 4
    for _ in range(4):
        core.step()
    core.ask("aborted-0")
    core.step()
    core.finish_requests(["aborted-0"], "FINISHED_ABORTED")
    core.shutdown()
    one, two = core.told("request")
    assert (one["request"], one["finish_reason"], one["prompt_tokens"], one["output_tokens"]) == (
        "chat-1",
        "length",
        3,
        4,
    )
    assert (one["cached_tokens"], one["model"]) == (2, "m")
    assert one["scores"]["entropy mean"] > 0
    assert len(one["fingerprint"]) > 8
    assert (two["request"], two["finish_reason"]) == ("aborted", "cancelled")
    assert one["fingerprint"] != two["fingerprint"]


def test_requests_that_run_while_the_sidecar_is_switched_off_and_on_are_no_ended_ones(core: Core) -> None:
    core.ask("a-0")
    core.step()
    core.order(1, "sidecar", "", state="off")
    core.step()
    core.order(2, "sidecar", "", state="on")
    core.step()
    core.shutdown()
    assert core.told("request") == []
