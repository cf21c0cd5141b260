"""The V2 model runner's own classes, as far as they work without a GPU: its batch, its state, its `sample`. No engine.

What samples after the raw logits (Triton kernels, copies on streams) stands in as a double.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.model_runner import ExecuteModelState, GPUModelRunner

from checkengine.engine_shim.vllm.carried import reading_of
from checkengine.engine_shim.vllm.reading import rows_v2
from checkengine.engine_shim.vllm.worker import ObservingWorker

VOCABULARY, HIDDEN, REQUESTS, TOKENS = 64, 8, 3, 10
WEIGHTS = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(0))


def batch_of(drafts: tuple[int, ...] = (0, 0, 0)) -> InputBatch:
    made = InputBatch.make_dummy(REQUESTS, TOKENS, InputBuffers(REQUESTS + 1, TOKENS, torch.device("cpu")))
    made.cu_num_logits_np = np.cumsum([0, *(count + 1 for count in drafts)], dtype=np.int32)
    made.logits_indices = torch.arange(int(made.cu_num_logits_np[-1]))
    return made


class Masks:
    """In place, as vLLM's kernel does."""

    def apply_grammar_bitmask(self, logits: torch.Tensor, *_: Any) -> None:
        logits.fill_(-torch.inf)


class Runner:
    """vLLM's own `sample` and state; a model of one matrix; `sample_tokens` as far as logits are computed in it."""

    sample = GPUModelRunner.sample

    def __init__(self, batch: InputBatch, hidden: torch.Tensor) -> None:
        self.device = torch.device("cpu")
        self.model = SimpleNamespace(compute_logits=lambda states: states @ WEIGHTS.T)
        self.batch_sharder = self.rejection_sampler = None
        self.structured_outputs_worker = Masks()
        self.sampler = lambda logits, _: SimpleNamespace(num_sampled=len(logits), num_rejected=0)
        self.execute_model_state: ExecuteModelState | None = None
        self._batch, self._hidden = batch, hidden

    def execute_model(self, message: Any) -> None:
        self.model.compute_logits(torch.full((1, HIDDEN), torch.nan))
        self.execute_model_state = ExecuteModelState(
            self._batch, None, None, self._hidden, None, None, set(), None, None, 0
        )

    def sample_tokens(self, grammar: GrammarOutput | None) -> Any:
        state, self.execute_model_state = self.execute_model_state, None
        assert state is not None
        self.sample(state.hidden_states, state.input_batch, grammar)
        # Prompt logprobs come after it, through the same method of the model.
        self.model.compute_logits(torch.full((5, HIDDEN), torch.nan))
        return SimpleNamespace(req_ids=state.input_batch.req_ids, sampled_token_ids=[[1]] * state.input_batch.num_reqs)


class PlainWorker:
    use_v2_model_runner = True

    def __init__(self, runner: Runner) -> None:
        self.model_runner = runner
        self.model_config = SimpleNamespace(dtype=torch.float32, get_vocab_size=lambda: VOCABULARY)

    def load_model(self) -> None:
        """Nothing to load."""

    def execute_model(self, message: Any) -> Any:
        return self.model_runner.execute_model(message)

    def sample_tokens(self, grammar: Any) -> Any:
        return self.model_runner.sample_tokens(grammar)


class Worker(ObservingWorker, PlainWorker):
    """As the face derives it."""


def reading_after(batch: InputBatch, hidden: torch.Tensor, grammar: GrammarOutput | None = None) -> Any:
    made = Worker(Runner(batch, hidden))
    made.load_model()
    made.execute_model(SimpleNamespace())
    return reading_of(made.sample_tokens(grammar))


def hidden_states(bad_row: int | None = None) -> torch.Tensor:
    found = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    if bad_row is not None:
        found[bad_row] = torch.nan
    return found


@pytest.mark.parametrize(("drafts", "rows"), [((0, 0, 0), [0, 1, 2]), ((0, 2, 1), [0, 1, 1, 1, 2, 2])])
def test_rows_of_v2_s_own_batch_belong_to_their_requests(drafts: tuple[int, ...], rows: list[int]) -> None:
    assert rows_v2(batch_of(drafts)).tolist() == rows


@pytest.mark.parametrize("bad_row", range(6))
def test_a_bad_row_of_v2_is_found_at_its_own_request(bad_row: int) -> None:
    batch = batch_of((0, 2, 1))
    found = reading_after(batch, hidden_states(bad_row))
    assert found.requests == tuple(batch.req_ids)
    assert found.stats.nonfinite.tolist() == [row == bad_row for row in range(6)]
    assert found.of.tolist() == [0, 1, 1, 1, 2, 2]


def test_v2_s_grammar_mask_raises_nothing() -> None:
    batch = batch_of()
    grammar = GrammarOutput(list(batch.req_ids), np.zeros((REQUESTS, 2), np.int32))
    found = reading_after(batch, hidden_states(), grammar)
    assert found.stats.nonfinite.tolist() == [False] * REQUESTS
    assert found.stats.negative_infinite.tolist() == [0] * REQUESTS
    plain = reading_after(batch_of(), hidden_states())
    assert np.array_equal(found.stats.maximum, plain.stats.maximum)
