"""checkengine.watch on a tiny random model: every way of generating that it follows, and what it does to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import checkengine
from checkengine.config import Settings
from checkengine.engine_shim.transformers import UnwatchableError
from checkengine.guards.settings import GuardsSettings

VOCABULARY, NAMED, END, PAD = 160, 150, 2, 0


def make_model() -> Any:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        # Ids beyond the tokenizer's are padding of the head, as real models have it: never sampled unless planted.
        model.lm_head.weight[NAMED:] = 0
        model.lm_head.weight[END] = 0
    return model


@pytest.fixture
def model() -> Iterator[Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_model()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    names = {"<pad>": PAD, "<s>": 1, "</s>": END} | {f"w{i}": i for i in range(3, NAMED)}
    plain = Tokenizer(models.WordLevel(names, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


@pytest.fixture
def prompts() -> dict[str, torch.Tensor]:
    """Three rows, left-padded."""
    ids = torch.tensor([[PAD, PAD, 1, 5, 9], [1, 7, 8, 9, 10], [PAD, 1, 20, 21, 22]])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


@contextmanager
def planted(model: Any, change: Callable[[torch.Tensor, int], None]) -> Iterator[None]:
    """`change(logits, step)` acts on the model's own logits, shape (rows, positions, vocabulary)."""
    steps = iter(range(10_000))

    def hook(module: Any, inputs: Any, output: Any) -> None:
        change(output.logits, next(steps))

    handle = model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def nan_in_row_1_at_step_3(logits: torch.Tensor, step: int) -> None:
    if step == 3:
        logits[1, -1, 40] = float("nan")


def new_tokens(result: torch.Tensor, row: int, width: int = 5) -> list[int]:
    return result[row, width:].tolist()


GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


def test_a_row_with_nan_ends_at_its_last_good_token_and_its_neighbours_do_not_change(
    model: Any, tokenizer: Any, prompts: Any
) -> None:
    clean = model.generate(**prompts, **GREEDY)
    with planted(model, nan_in_row_1_at_step_3), checkengine.watch(model, tokenizer) as watch:
        guarded = model.generate(**prompts, **GREEDY)
    assert torch.equal(guarded[[0, 2]], clean[[0, 2]])
    assert new_tokens(guarded, 1) == [*new_tokens(clean, 1)[:3], *[PAD] * 9]
    (incident,) = watch.incidents()
    assert (incident.kind, incident.sequence_sample, incident.actions["stop"]) == (
        "logits.nonfinite",
        ["generate-0/1"],
        1,
    )
    (raised,) = watch.findings()
    assert (raised.finding.token, dict(raised.finding.evidence)["nan"]) == (3, 1)


def test_sampling_goes_on_for_the_neighbours_where_torch_alone_would_raise(
    model: Any, tokenizer: Any, prompts: Any
) -> None:
    sampled: dict[str, Any] = {"do_sample": True, "max_new_tokens": 8, "top_k": 0}
    with planted(model, nan_in_row_1_at_step_3), pytest.raises(RuntimeError):
        model.generate(**prompts, **sampled)
    with planted(model, nan_in_row_1_at_step_3), checkengine.watch(model, tokenizer) as watch:
        result = model.generate(**prompts, **sampled)
    assert new_tokens(result, 1)[3:] == [PAD] * 5
    assert PAD not in new_tokens(result, 0) + new_tokens(result, 2)
    assert [incident.kind for incident in watch.incidents()] == ["logits.nonfinite"]


def test_logits_are_read_before_transformers_own_processors_launder_them(
    model: Any, tokenizer: Any, prompts: Any
) -> None:
    with planted(model, nan_in_row_1_at_step_3), checkengine.watch(model, tokenizer) as watch:
        model.generate(**prompts, **GREEDY, remove_invalid_values=True, repetition_penalty=1.2)
    assert [event.finding.kind for event in watch.findings()] == ["logits.nonfinite"]


def test_masks_of_transformers_are_no_finding(model: Any, tokenizer: Any, prompts: Any) -> None:
    with checkengine.watch(model, tokenizer) as watch:
        model.generate(**prompts, **GREEDY, suppress_tokens=[11, 12], min_new_tokens=4, repetition_penalty=1.3)
    assert watch.findings() == []


def test_an_impossible_token_is_found_and_dropped(model: Any, tokenizer: Any, prompts: Any) -> None:
    def choose_padding_of_the_head(logits: torch.Tensor, step: int) -> None:
        if step == 2:
            logits[2, -1, NAMED + 3] = 1000.0

    clean = model.generate(**prompts, **GREEDY)
    with planted(model, choose_padding_of_the_head), checkengine.watch(model, tokenizer) as watch:
        guarded = model.generate(**prompts, **GREEDY)
    assert [(event.finding.kind, event.finding.token) for event in watch.findings()] == [("token.impossible", 2)]
    assert new_tokens(guarded, 2) == [*new_tokens(clean, 2)[:2], *[PAD] * 10]
    assert torch.equal(guarded[:2], clean[:2])


def loop(logits: torch.Tensor, step: int) -> None:
    logits[0, -1, 30 + step % 5] = 1000.0


def test_a_loop_is_watched_by_default_and_stopped_where_the_configuration_says_so(
    model: Any, tokenizer: Any, prompts: Any
) -> None:
    long: dict[str, Any] = {"do_sample": False, "max_new_tokens": 80}
    with planted(model, loop), checkengine.watch(model, tokenizer) as watch:
        watched = model.generate(**prompts, **long)
    assert "repetition.loop" in {event.finding.kind for event in watch.findings()}
    assert PAD not in new_tokens(watched, 0)
    stopping = Settings(guards=GuardsSettings.model_validate({"repetition": {"action": "stop"}}))
    with planted(model, loop), checkengine.watch(model, tokenizer, stopping):
        stopped = model.generate(**prompts, **long)
    assert new_tokens(stopped, 0) == [30, 31, 32, 33, 34, *[PAD] * (stopped.shape[1] - 10)]


def test_a_row_that_ended_is_watched_no_more(model: Any, tokenizer: Any, prompts: Any) -> None:
    def end_then_nan(logits: torch.Tensor, step: int) -> None:
        if step == 1:
            logits[1, -1, END] = 1000.0
        if step > 1:
            logits[1] = float("nan")

    with planted(model, end_then_nan), checkengine.watch(model, tokenizer) as watch:
        result = model.generate(**prompts, **GREEDY)
    assert watch.findings() == []
    assert new_tokens(result, 1)[1:] == [END, *[PAD] * 10]


def test_an_end_token_that_generate_does_not_honour_is_an_ignored_stop(
    model: Any, tokenizer: Any, prompts: Any
) -> None:
    def end(logits: torch.Tensor, step: int) -> None:
        if step == 1:
            logits[1, -1, END] = 1000.0

    model.generation_config.eos_token_id = 149
    with planted(model, end), checkengine.watch(model, tokenizer) as watch:
        model.generate(**prompts, **GREEDY)
    assert [(event.finding.kind, event.finding.token) for event in watch.findings()] == [("stop.ignored", 2)]


def test_every_returned_sequence_is_a_row_of_its_own(model: Any, tokenizer: Any, prompts: Any) -> None:
    def nan_in_row_4(logits: torch.Tensor, step: int) -> None:
        if step == 2:
            logits[4, -1] = float("nan")

    with planted(model, nan_in_row_4), checkengine.watch(model, tokenizer) as watch:
        result = model.generate(**prompts, do_sample=True, max_new_tokens=6, num_return_sequences=2)
    assert [event.finding.sequence for event in watch.findings()] == ["generate-0/4"]
    assert new_tokens(result, 4)[2:] == [PAD] * 4


@pytest.mark.parametrize("extra", [{"num_beams": 2}, {"num_beams": 2, "do_sample": True}])
def test_beams_are_refused_with_a_clear_message(model: Any, tokenizer: Any, prompts: Any, extra: Any) -> None:
    with checkengine.watch(model, tokenizer), pytest.raises(UnwatchableError, match="num_beams=1"):
        model.generate(**prompts, max_new_tokens=4, **extra)


def test_beams_of_a_configuration_object_are_refused_too(model: Any, tokenizer: Any, prompts: Any) -> None:
    config = transformers.GenerationConfig(num_beams=3, max_new_tokens=4)
    with checkengine.watch(model, tokenizer), pytest.raises(UnwatchableError):
        model.generate(**prompts, generation_config=config)


def test_an_assistant_model_is_refused(model: Any, tokenizer: Any, prompts: Any) -> None:
    with checkengine.watch(model, tokenizer), pytest.raises(UnwatchableError, match="assistant"):
        model.generate(prompts["input_ids"][1:2], assistant_model=make_model(), max_new_tokens=4)


def test_closing_gives_the_model_its_own_generate_back(model: Any, tokenizer: Any) -> None:
    watch = checkengine.watch(model, tokenizer)
    assert "generate" in vars(model)
    watch.close()
    watch.close()
    assert "generate" not in vars(model)
    assert not model._forward_hooks


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nested_watches_both_see_and_can_be_closed_in_any_order(
    model: Any, tokenizer: Any, prompts: Any, order: tuple[int, int]
) -> None:
    clean = model.generate(**prompts, **GREEDY)
    watches = [checkengine.watch(model, tokenizer), checkengine.watch(model, tokenizer)]
    with planted(model, nan_in_row_1_at_step_3):
        model.generate(**prompts, **GREEDY)
    assert [[event.finding.kind for event in watch.findings()] for watch in watches] == [["logits.nonfinite"]] * 2
    watches[order[0]].close()
    with planted(model, nan_in_row_1_at_step_3):
        guarded = model.generate(**prompts, **GREEDY)
    assert [len(watches[order[0]].findings()), len(watches[order[1]].findings())] == [1, 2]
    assert new_tokens(guarded, 1) == [*new_tokens(clean, 1)[:3], *[PAD] * 9]
    watches[order[1]].close()
    assert "generate" not in vars(model)
    assert not model._forward_hooks


def test_a_generate_that_the_user_replaced_meanwhile_is_left_alone(model: Any, tokenizer: Any) -> None:
    watch = checkengine.watch(model, tokenizer)
    mine = model.generate = lambda: "mine"
    watch.close()
    assert model.generate is mine


def test_calls_in_several_threads_are_told_apart(model: Any, tokenizer: Any, prompts: Any) -> None:
    barrier = threading.Barrier(3)
    clean = model.generate(**prompts, **GREEDY)
    results: dict[int, torch.Tensor] = {}

    def plant(logits: torch.Tensor, step: int) -> None:
        if threading.current_thread().name == "bad":
            logits[0, -1] = float("nan")

    def run(index: int) -> None:
        barrier.wait(30)
        results[index] = model.generate(**prompts, **GREEDY)

    with planted(model, plant), checkengine.watch(model, tokenizer) as watch:
        threads = [threading.Thread(target=run, args=(i,), name="bad" if i == 1 else f"good-{i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert torch.equal(results[0], clean)
    assert torch.equal(results[2], clean)
    assert new_tokens(results[1], 0) == [PAD] * 12
    assert torch.equal(results[1][1:], clean[1:])
    assert len(watch.findings()) == 1


def test_callers_own_processors_and_criteria_still_work(model: Any, tokenizer: Any, prompts: Any) -> None:
    seen: list[int] = []

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids.shape[1])
        return scores

    def criterion(input_ids: torch.Tensor, scores: Any, **rest: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 9)

    with checkengine.watch(model, tokenizer):
        result = model.generate(
            **prompts,
            **GREEDY,
            logits_processor=transformers.LogitsProcessorList([processor]),
            stopping_criteria=transformers.StoppingCriteriaList([criterion]),
        )
    assert seen == [5, 6, 7, 8]
    assert result.shape == (3, 9)


def test_a_result_object_is_trimmed_too(model: Any, tokenizer: Any, prompts: Any) -> None:
    with planted(model, nan_in_row_1_at_step_3), checkengine.watch(model, tokenizer):
        result = model.generate(**prompts, **GREEDY, return_dict_in_generate=True, output_logits=True)
    assert new_tokens(result.sequences, 1)[3:] == [PAD] * 9


def test_a_stopped_row_is_padded_where_the_model_knows_no_end_token(model: Any, tokenizer: Any, prompts: Any) -> None:
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    with planted(model, nan_in_row_1_at_step_3), checkengine.watch(model, tokenizer):
        result = model.generate(**prompts, **GREEDY)
    assert new_tokens(result, 1)[3:] == [PAD] * 9


def test_a_failure_of_ours_costs_the_guards_of_one_call_and_one_log_line(
    model: Any, tokenizer: Any, prompts: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = model.generate(**prompts, **GREEDY)
    with checkengine.watch(model, tokenizer) as watch:

        def fails(record: Any) -> Any:
            raise RuntimeError("ours")

        monkeypatch.setattr(watch.shim, "step", fails)
        with caplog.at_level(logging.ERROR):
            result = model.generate(**prompts, **GREEDY)
        assert torch.equal(result, clean)
        assert [record.message for record in caplog.records] == [
            "watching generate-0 failed; it goes on without guards"
        ]


def test_nothing_is_kept_of_calls_that_are_over(model: Any, tokenizer: Any, prompts: Any) -> None:
    with checkengine.watch(model, tokenizer) as watch:
        for _ in range(3):
            model.generate(**prompts, **GREEDY)
        assert watch.shim._live == {}
        assert watch.assembly.pipeline._live == {}


def test_watching_writes_no_files_unless_the_configuration_names_a_spool(
    model: Any, tokenizer: Any, prompts: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with planted(model, nan_in_row_1_at_step_3), checkengine.watch(model, tokenizer):
        model.generate(**prompts, **GREEDY)
    assert list(tmp_path.iterdir()) == []
