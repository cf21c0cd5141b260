"""Guards in SGLang, on doubles of what 0.5.23 calls them with, in the order that it does."""

from __future__ import annotations

import inspect
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from checkengine import sglang_plugin
from checkengine.engine_shim.sglang.observer import (
    DeviceReading,
    HostReading,
    LogitsObserver,
    SchedulerGuards,
    sequence_start,
)
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.settings import BrakeSettings, GuardsSettings
from checkengine.sglang_guarding import build_observer
from checkengine.tiny import WORDS, tiny_tokenizer


class Req:
    """SGLang's Req as far as it is read."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.origin_input_ids = [3, 4]
        self.output_ids: list[int] = []
        self.eos_token_ids = {1}
        self.sampling_params = SimpleNamespace(temperature=0.0, stop_token_ids=[9], ignore_eos=False, regex=None)
        self.to_finish: Any = None
        self.skip_radix_cache_insert = False
        self.ended = False

    def finished(self) -> bool:
        return self.ended


def guards(*, stops: bool = True) -> SchedulerGuards:
    settings = GuardsSettings()
    policy = Policy(settings, BrakeSettings(), IncidentBook())
    return SchedulerGuards(Pipeline([NonFiniteGuard()], settings), policy, EventBus(), lambda text: text, stops=stops)


def serve(observer: Any, requests: list[Req], logits: torch.Tensor, tokens: list[int | None]) -> None:
    """One step as SGLang does it: observe, mask, sample, copy, commit, consume."""
    assert observer.is_active(None)
    state = observer.before_grammar(logits, None)
    logits.fill_(-torch.inf)
    if state is None:
        return
    host = observer.after_sample(state, torch.zeros(len(requests))).copy_to_host(lambda tensor: tensor.cpu())
    commits = []
    for request, token in zip(requests, tokens, strict=True):
        if token is not None:
            request.output_ids.append(token)
        commits.append(None if token is None else SimpleNamespace(output_index=0, token_ids=(token,)))
    host.consume(SimpleNamespace(reqs=requests), commits)


def logits_with_nan(rows: int, row: int) -> torch.Tensor:
    logits = torch.randn(rows, WORDS)
    logits[row, 2] = torch.nan
    return logits


def test_a_bad_row_asks_sglang_to_finish_its_request_and_to_keep_it_out_of_the_cache() -> None:
    requests = [Req("a"), Req("b")]
    observer = LogitsObserver(guards())
    serve(observer, requests, torch.randn(2, WORDS), [5, 6])
    assert [request.to_finish for request in requests] == [None, None]
    serve(observer, requests, logits_with_nan(2, 1), [5, 6])
    assert [request.to_finish for request in requests] == [None, "checkengine:logits.nonfinite"]
    assert [request.skip_radix_cache_insert for request in requests] == [False, True]


def test_a_prompt_in_chunks_has_a_row_and_no_token() -> None:
    requests = [Req("chunked"), Req("b")]
    serve(LogitsObserver(guards()), requests, logits_with_nan(2, 1), [None, 6])
    assert [request.to_finish for request in requests] == [None, "checkengine:logits.nonfinite"]


def test_rows_that_are_not_one_a_request_are_nobody_s() -> None:
    requests = [Req("a")]
    serve(LogitsObserver(guards()), requests, logits_with_nan(3, 0), [5])
    assert requests[0].to_finish is None


def test_where_ranks_could_decide_apart_nothing_is_stopped() -> None:
    requests = [Req("a")]
    serve(LogitsObserver(guards(stops=False)), requests, logits_with_nan(1, 0), [5])
    assert requests[0].to_finish is None


def test_requests_that_are_over_are_forgotten() -> None:
    request, made = Req("a"), guards()
    observer = LogitsObserver(made)
    serve(observer, [request], torch.randn(1, WORDS), [5])
    request.ended = True
    serve(observer, [Req("b")], torch.randn(1, WORDS), [5])
    assert set(made._live) == {"b"}


def test_logits_that_cannot_be_measured_switch_the_observer_off_and_no_step_fails() -> None:
    observer = LogitsObserver(guards())
    for _ in range(3):
        assert observer.before_grammar(torch.zeros(2, 3, 4), None) is None
    assert not observer.is_active(None)


def test_end_tokens_and_masks_reach_the_guards() -> None:
    request = Req("a")
    request.sampling_params.regex = "a|b"
    start = sequence_start(1, request)
    assert start.stop_tokens == (1, 9)
    assert start.sampling == {"temperature": 0.0, "allowed_token_ids": True}


def test_the_plugin_waits_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry = SimpleNamespace(register=lambda *given: registered.append(given))  # type: ignore[attr-defined]
    registry.HookType = SimpleNamespace(AFTER="after")  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    monkeypatch.delenv(sglang_plugin.VARIABLE, raising=False)
    sglang_plugin.register()
    assert registered == []
    monkeypatch.setenv(sglang_plugin.VARIABLE, "1")
    sglang_plugin.register()
    assert [given[0] for given in registered] == [sglang_plugin.RUNNER]


class Runner:
    """SGLang's ModelRunner: refuses observers on special sampling paths."""

    is_draft_worker = False
    supports = True
    dtype, device, tp_size = torch.float32, "cpu", 1
    model_config = SimpleNamespace(vocab_size=WORDS)

    def __init__(self) -> None:
        self.observer: Any = None

    @property
    def sampling_observer(self) -> Any:
        return self.observer

    @sampling_observer.setter
    def sampling_observer(self, observer: Any) -> None:
        if not self.supports:
            raise ValueError("sampling observers are not supported by the configured sampling path")
        self.observer = observer


@pytest.fixture
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHECKENGINE_CONFIG", raising=False)


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_runner_gets_an_observer_that_stops_alone_and_only_observes_among_ranks() -> None:
    requests = [Req("a")]
    observer = build_observer(Runner(), tiny_tokenizer(), lambda text: text)
    serve(observer, requests, logits_with_nan(1, 0), [5])
    assert requests[0].to_finish == "checkengine:logits.nonfinite"
    parallel = Runner()
    parallel.tp_size = 2  # type: ignore[misc]
    others = [Req("a")]
    serve(build_observer(parallel, tiny_tokenizer(), lambda text: text), others, logits_with_nan(1, 0), [5])
    assert others[0].to_finish is None


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_sampling_path_that_takes_no_observer_is_served_without_guards(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("checkengine.sglang_guarding.tokenizer_of", lambda runner: tiny_tokenizer())
    monkeypatch.setattr(Runner, "supports", False)
    runner = Runner()
    sglang_plugin.runner_made(None, runner)
    assert runner.observer is None
    assert "serves without guards" in caplog.text


@pytest.mark.parametrize(
    ("ours", "module", "theirs", "methods"),
    [
        (
            LogitsObserver,
            "sampling.sampling_observer",
            "SamplingObserver",
            ("is_active", "before_grammar", "after_sample"),
        ),
        (DeviceReading, "managers.auxiliary_output", "DeviceAuxiliaryOutput", ("copy_to_host",)),
        (HostReading, "managers.auxiliary_output", "HostAuxiliaryOutput", ("consume",)),
    ],
)
def test_our_classes_have_the_methods_of_sglang_s_protocols(
    ours: type, module: str, theirs: str, methods: tuple[str, ...]
) -> None:
    """Where SGLang is installed; these of its modules need no GPU."""
    protocol = getattr(pytest.importorskip(f"sglang.srt.{module}"), theirs)
    for method in methods:
        ours_takes = list(inspect.signature(getattr(ours, method)).parameters)
        assert ours_takes == list(inspect.signature(getattr(protocol, method)).parameters), method
