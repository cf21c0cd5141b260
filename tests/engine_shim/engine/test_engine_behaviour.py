"""Requests come, go, stop, and are stopped; memory is accounted for throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.engine_shim.engine.block_pool import BlockState
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.kv_memory import LOUD
from checkengine.engine_shim.engine.request import GenerationRequest, Output, SamplingParameters
from checkengine.engine_shim.faults import MaskedStop, NanAttention, OverRead
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action, ActionKind
from checkengine.replay.record import StepRecord
from checkengine.replay.undo import UndoRing

SETTINGS = EngineSettings(block_size=8, blocks=40, tokens_per_step=32, threads=1)
PROMPT = list(range(3, 24))


def greedy(name: str, prompt: Sequence[int] = PROMPT, **parameters: Any) -> GenerationRequest:
    parameters = {"temperature": 0, "max_tokens": 12, "ignore_eos": True} | parameters
    return GenerationRequest(name, list(prompt), SamplingParameters(**parameters))


def drain(engine: Engine) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.name, []).append(output)
    return outputs


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


class Doctor:
    """A shim that does what a test says, and keeps what it saw."""

    def __init__(self, decide: Callable[[int, list[int]], list[Action]] = lambda step, tokens: []) -> None:
        self.decide = decide
        self.records: list[StepRecord] = []
        self.logits_seen: list[torch.Tensor] = []

    @contextmanager
    def step(self, record: StepRecord) -> Iterator[Doctor]:
        self.records.append(record)
        yield self

    def logits(self, logits: torch.Tensor) -> None:
        self.logits_seen.append(logits.clone())

    def tokens(self, tokens: np.ndarray) -> list[Action]:
        return self.decide(len(self.records) - 1, tokens.tolist())


def order(kind: ActionKind, keep: int, name: str = "a") -> Action:
    return Action(kind, name, "logits.nonfinite", "incident-1", keep)


def test_cancel_frees_all_blocks_at_once(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(greedy("a"))
    engine.submit(greedy("b", PROMPT[::-1]))
    engine.step()
    engine.step()
    assert engine.stats.free_blocks < 40
    assert {engine.cancel("a").finish, engine.cancel("b").finish} == {"abort"}  # type: ignore[union-attr]
    assert engine.stats.free_blocks == 40
    assert not engine.has_work
    assert engine.cancel("a") is None


def test_a_request_cancelled_while_it_waits_never_ran(tiny_llama: Any) -> None:
    doctor = Doctor()
    engine = Engine(tiny_llama, None, SETTINGS, shim=doctor)
    engine.submit(greedy("a"))
    engine.cancel("a")
    assert engine.step() == []
    engine.submit(greedy("b"))
    engine.step()
    assert [start.name for start in doctor.records[0].begun] == ["b"]
    assert doctor.records[0].ended == ()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([1] * 400, "400 tokens"), ([1, 160], "outside 0"), ([-1], "outside 0")],
)
def test_a_request_that_cannot_run_is_refused_with_the_reason(tiny_llama: Any, prompt: list[int], message: str) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    with pytest.raises(ValueError, match=message):
        engine.submit(greedy("a", prompt))
    assert not engine.has_work


def test_two_live_requests_cannot_have_one_name(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(greedy("a"))
    with pytest.raises(ValueError, match="'a'"):
        engine.submit(greedy("a"))


def test_a_sampled_request_says_the_same_alone_and_in_company(tiny_llama: Any) -> None:
    sampled = SamplingParameters(temperature=0.8, top_p=0.95, seed=11, max_tokens=20, ignore_eos=True)
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(GenerationRequest("a", PROMPT, sampled))
    alone = tokens_of(drain(engine)["a"])
    company = Engine(tiny_llama, None, SETTINGS)
    for i in range(5):
        company.submit(greedy(f"other {i}", PROMPT[i:] * 3))
        company.step()
    company.submit(GenerationRequest("a", PROMPT, sampled))
    assert tokens_of(drain(company)["a"]) == alone
    assert len(set(alone)) > 5


def test_a_stop_token_ends_and_an_ignored_one_does_not(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(greedy("free"))
    free = tokens_of(drain(engine)["free"])
    stop = free[5]
    engine.submit(greedy("stopped", stop_token_ids=(stop,)))
    outputs = drain(engine)["stopped"]
    assert tokens_of(outputs) == free[: free.index(stop) + 1]
    assert outputs[-1].finish == "stop"


def test_max_tokens_ends_with_length(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(greedy("a", max_tokens=3))
    outputs = drain(engine)["a"]
    assert (len(tokens_of(outputs)), outputs[-1].finish) == (3, "length")


def test_a_stop_ends_one_sequence_without_its_bad_token_and_leaves_the_others(tiny_llama: Any) -> None:
    calm = Engine(tiny_llama, None, SETTINGS)
    for name, prompt in (("a", PROMPT), ("b", PROMPT[::-1])):
        calm.submit(greedy(name, prompt))
    wanted = {name: tokens_of(outputs) for name, outputs in drain(calm).items()}
    doctor = Doctor(lambda step, tokens: [order(ActionKind.STOP, keep=5)] if step == 5 else [])
    engine = Engine(tiny_llama, None, SETTINGS, shim=doctor)
    for name, prompt in (("a", PROMPT), ("b", PROMPT[::-1])):
        engine.submit(greedy(name, prompt))
    outputs = drain(engine)
    last = outputs["a"][-1]
    assert tokens_of(outputs["a"]) == wanted["a"][:5]
    assert last.finish == "content_filter"
    assert last.note is not None
    assert last.note.incident == "incident-1"
    assert tokens_of(outputs["b"]) == wanted["b"]


def test_a_retry_of_unseen_tokens_goes_on_from_the_last_good_one_on_clean_blocks(tiny_llama: Any) -> None:
    calm = Engine(tiny_llama, None, SETTINGS)
    calm.submit(greedy("a"))
    wanted = tokens_of(drain(calm)["a"])
    doctor = Doctor(lambda step, tokens: [order(ActionKind.RETRY, keep=3)] if step == 5 else [])
    engine = Engine(tiny_llama, None, SETTINGS.model_copy(update={"hold_back_tokens": 4}), shim=doctor)
    engine.submit(greedy("a"))
    for _ in range(5):
        engine.step()
    bad = set(doctor.records[0].tables().blocks.tolist())  # type: ignore[misc]
    engine.step()
    assert {engine.pool.owner(block).state for block in bad} == {BlockState.QUARANTINED}
    outputs = drain(engine)["a"]
    assert wanted[-len(tokens_of(outputs)) :] == tokens_of(outputs)
    assert outputs[-1].finish == "length"
    again = [start for record in doctor.records for start in record.begun]
    assert [start.name for start in again] == ["a", "a"]
    assert again[0].handle != again[1].handle
    after = {block for record in doctor.records[6:] for block in record.block_changes[:, 2].tolist()}
    assert not after & bad


def test_a_retry_of_tokens_already_sent_is_a_stop(tiny_llama: Any) -> None:
    doctor = Doctor(lambda step, tokens: [order(ActionKind.RETRY, keep=2)] if step == 5 else [])
    engine = Engine(tiny_llama, None, SETTINGS, shim=doctor)
    engine.submit(greedy("a"))
    outputs = drain(engine)["a"]
    assert outputs[-1].finish == "content_filter"
    assert len(tokens_of(outputs)) == 5


def test_a_retry_that_fails_again_can_be_stopped_with_nothing_sent(tiny_llama: Any) -> None:
    kinds = iter([ActionKind.RETRY, ActionKind.STOP])
    doctor = Doctor(lambda step, tokens: [order(next(kinds), keep=0)])
    engine = Engine(tiny_llama, None, SETTINGS, shim=doctor)
    engine.submit(greedy("a"))
    outputs = drain(engine)["a"]
    assert outputs[-1].finish == "content_filter"
    assert tokens_of(outputs) == []
    assert engine.steps == 2
    assert engine.stats.running == engine.stats.waiting == 0


class Broken(Doctor):
    """A shim that raises at one of its seams."""

    def __init__(self, seam: str) -> None:
        super().__init__()
        self.seam = seam

    def _raise_at(self, seam: str) -> None:
        if seam == self.seam:
            raise RuntimeError(f"broken at {seam}")

    @contextmanager
    def step(self, record: StepRecord) -> Iterator[Doctor]:
        self._raise_at("step")
        yield self
        self._raise_at("end")

    def logits(self, logits: torch.Tensor) -> None:
        self._raise_at("logits")

    def tokens(self, tokens: np.ndarray) -> list[Action]:
        self._raise_at("tokens")
        return []


@pytest.mark.parametrize("seam", ["step", "logits", "tokens", "end"])
def test_a_shim_that_raises_never_takes_the_engine_down(
    tiny_llama: Any, seam: str, caplog: pytest.LogCaptureFixture
) -> None:
    calm = Engine(tiny_llama, None, SETTINGS)
    calm.submit(greedy("a"))
    wanted = tokens_of(drain(calm)["a"])
    engine = Engine(tiny_llama, None, SETTINGS, shim=Broken(seam))
    engine.submit(greedy("a"))
    assert tokens_of(drain(engine)["a"]) == wanted
    assert f"broken at {seam}" in caplog.text


def test_an_error_of_the_model_itself_is_not_swallowed(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(greedy("a"))
    engine.runner.memory.layers.clear()
    with pytest.raises(KeyError):
        engine.step()


def test_quarantined_blocks_are_not_found_nor_handed_on_before_they_are_refilled(tiny_llama: Any) -> None:
    actions = [order(ActionKind.QUARANTINE, 2), order(ActionKind.STOP, 2)]
    doctor = Doctor(lambda step, tokens: actions if step == 3 else [])
    undo = UndoRing()
    engine = Engine(tiny_llama, None, SETTINGS, shim=doctor, undo=undo)
    engine.submit(greedy("a"))
    drain(engine)
    bad = engine.pool.quarantined
    assert len(bad) == 3
    assert engine.stats.free_blocks == 37
    before = engine.memory.gather(np.array([bad[0] * 8], np.int32))
    engine.submit(greedy("b"))
    assert drain(engine)["b"][0].cached_tokens == 0
    assert engine.pool.quarantined == bad
    assert engine.release_quarantine()
    after = engine.memory.gather(np.array([bad[0] * 8], np.int32))
    assert not torch.equal(before["kv0.key"], after["kv0.key"])
    assert engine.stats.free_blocks == 40
    saved = undo.entries(engine.steps - 1)[-1]
    assert sorted(set((saved.slots // 8).tolist())) == list(bad)


def test_quarantine_gives_way_before_a_request_has_to_wait(tiny_llama: Any) -> None:
    actions = [order(ActionKind.QUARANTINE, 2), order(ActionKind.STOP, 2)]
    doctor = Doctor(lambda step, tokens: actions if step == 3 else [])
    engine = Engine(tiny_llama, None, SETTINGS.model_copy(update={"blocks": 5}), shim=doctor)
    engine.submit(greedy("a"))
    drain(engine)
    engine.submit(greedy("b", PROMPT + PROMPT[:8]))
    assert len(tokens_of(drain(engine)["b"])) == 11


def test_what_a_step_overwrites_is_saved_before_it(tiny_llama: Any) -> None:
    undo = UndoRing()
    engine = Engine(tiny_llama, None, SETTINGS, undo=undo)
    everything = np.arange(41, dtype=np.int32)
    before = engine.snapshot(everything)
    engine.submit(greedy("a"))
    engine.submit(greedy("b", PROMPT[::-1]))
    drain(engine)
    rebuilt = engine.snapshot(everything).undo(engine.undo_entries(0))
    for name, tensor in rebuilt.tensors.items():
        assert torch.equal(tensor, before.tensors[name])


def test_a_right_kernel_gives_the_same_bits_whatever_unowned_memory_holds(tiny_llama: Any) -> None:
    seen = []
    for memory in ("recycled", "loud"):
        doctor = Doctor()
        engine = Engine(tiny_llama, None, SETTINGS.model_copy(update={"memory": memory}), shim=doctor)
        engine.submit(greedy("a"))
        engine.submit(greedy("b", PROMPT[::-1]))
        drain(engine)
        seen.append(doctor.logits_seen)
    assert (engine.memory.tensors["kv0.key"][-1] == LOUD).all()
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_a_kernel_that_reads_past_the_end_depends_on_unowned_memory(tiny_llama: Any) -> None:
    seen = []
    for memory in ("recycled", "loud"):
        doctor = Doctor()
        settings = SETTINGS.model_copy(update={"memory": memory})
        engine = Engine(tiny_llama, None, settings, shim=doctor, faults=[OverRead(block_size=8)])
        engine.submit(greedy("a"))
        drain(engine)
        seen.append(doctor.logits_seen)
    assert torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][1], seen[1][1])


def test_an_over_read_past_the_last_block_of_all_stays_in_memory(tiny_llama: Any) -> None:
    settings = SETTINGS.model_copy(update={"blocks": 5})
    engine = Engine(tiny_llama, None, settings, faults=[OverRead(block_size=8)])
    engine.submit(greedy("a", max_tokens=19))
    assert len(tokens_of(drain(engine)["a"])) == 19


def test_a_planted_nan_poisons_one_row_and_never_the_process(tiny_llama: Any) -> None:
    doctor = Doctor()
    faults = [NanAttention(modulus=8, remainder=1, layer=1, minimum_length=24)]
    engine = Engine(tiny_llama, None, SETTINGS, shim=doctor, faults=faults)
    engine.submit(greedy("a"))
    engine.submit(greedy("b", PROMPT[:4]))
    tokens = tokens_of(drain(engine)["a"])
    # 21 prompt tokens; the row of length 25 gives the fifth output token.
    assert tokens[4:] == [0] * (len(tokens) - 4)
    assert torch.isnan(doctor.logits_seen[4][0]).all()
    assert torch.isfinite(doctor.logits_seen[4][1]).all()


def test_the_reference_kernel_has_none_of_the_planted_faults(tiny_llama: Any) -> None:
    settings = SETTINGS.model_copy(update={"kernel": "reference"})
    right = Engine(tiny_llama, None, settings)
    planted = Engine(tiny_llama, None, settings, faults=[NanAttention(modulus=2, layer=1), OverRead(block_size=8)])
    for engine in (right, planted):
        engine.submit(greedy("a"))
    assert tokens_of(drain(right)["a"]) == tokens_of(drain(planted)["a"])


def test_a_masked_stop_token_is_replaced_by_the_runner_up(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    engine.submit(greedy("free"))
    free = tokens_of(drain(engine)["free"])
    stop = next(token for i, token in enumerate(free) if i and token not in free[:i])
    at = free.index(stop)
    faulty = Engine(tiny_llama, None, SETTINGS, faults=[MaskedStop(after=[free[at - 1]])])
    faulty.submit(greedy("a", stop_token_ids=(stop,)))
    tokens = tokens_of(drain(faulty)["a"])
    assert tokens[:at] == free[:at]
    assert len(tokens) > at
    assert stop not in tokens


def test_two_runners_share_weights_in_two_threads(tiny_llama: Any) -> None:
    """The judge re-runs steps on other memory while the engine serves."""
    from concurrent.futures import ThreadPoolExecutor

    def serve(i: int) -> list[int]:
        engine = engines[i]
        engine.submit(greedy("a", PROMPT[i:], max_tokens=30))
        return tokens_of(drain(engine)["a"])

    engines = [Engine(tiny_llama, None, SETTINGS) for _ in range(4)]
    wanted = [serve(i) for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        engines = engines[2:]
        assert list(pool.map(serve, range(2))) == wanted


def test_the_environment_names_everything_constant_and_no_path(tiny_llama: Any) -> None:
    environment = Engine(tiny_llama, None, SETTINGS, faults=[OverRead(block_size=8)]).environment()
    assert environment["engine"] == "embedded"
    assert environment["kernel"] == "paged"
    assert environment["faults"][0]["name"] == "over_read"
    assert len(environment["weights_digest"]) == 64
    assert "/" not in str(environment["model"])
