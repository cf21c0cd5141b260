"""What users combine guards with: each feature of vLLM works as without them, and the guard finds its request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import CHATS, VICTIM, ask, chat_parameters, difference, findings, prompt_length, tokens
from conftest import Switches
from safetensors.torch import save_file

pytestmark = pytest.mark.timeout(900)
NAN = "checkengine:logits.nonfinite"
WIDTH, KEYS, RANK, LAYERS = 576, 192, 4, 30
"""Of SmolLM2, and of an adapter for it."""


@pytest.fixture(scope="module")
def clean(engine: Any) -> dict[str, Any]:
    engine.reset_prefix_cache()
    return ask(engine)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(LAYERS):
        for name, width in (("q_proj", WIDTH), ("v_proj", KEYS)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, WIDTH, generator=generator) / 8
            weights[f"{place}.lora_B.weight"] = torch.randn(width, RANK, generator=generator) / 8
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    settings |= {"target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "m"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def test_a_grammar_s_mask_raises_nothing(engine: Any) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    known = len(findings(engine.spool))
    answer = ask(engine, ["moon"], structured_outputs=StructuredOutputsParams(choice=["near", "far"]))["moon"]
    assert answer.outputs[0].text in ("near", "far")
    assert answer.outputs[0].stop_reason is None
    assert findings(engine.spool)[known:] == []


def test_logprobs_of_prompt_and_output_are_as_without_guards(engine: Any) -> None:
    answer = ask(engine, ["moon"], prompt_logprobs=1)["moon"]
    assert len(answer.prompt_logprobs) == prompt_length(answer)
    assert len(answer.outputs[0].logprobs) == len(tokens(answer))


def test_each_of_several_answers_to_a_prompt_is_a_sequence_of_its_own(engine: Any, switches: Switches) -> None:
    names = [VICTIM]
    length = prompt_length(ask(engine, names, max_tokens=1)[VICTIM]) + 4
    known = len(findings(engine.spool))
    with switches.on("nan_row", length=length):
        outputs = ask(engine, names, n=3, temperature=0.8)[VICTIM].outputs
    assert [(len(each.token_ids), each.stop_reason) for each in outputs] == [(4, NAN)] * 3
    assert len({finding["incident"] for finding in findings(engine.spool)[known:]}) == 1


def test_requests_with_an_adapter_go_on_when_one_of_them_is_stopped(
    engine: Any, clean: dict[str, Any], adapter: Path, switches: Switches
) -> None:
    """All of them have it: on CPUs vLLM 0.32.0 applies the last adapter to rows without one (it indexes weights by
    -1), so that a row without one changes when its neighbour with one ends."""
    from vllm.lora.request import LoRARequest

    lora = LoRARequest("adapter", 1, str(adapter))

    def asked() -> dict[str, Any]:
        engine.reset_prefix_cache()
        answers = engine.chat(list(CHATS.values()), chat_parameters(), use_tqdm=False, lora_request=lora)
        return dict(zip(CHATS, answers, strict=True))

    undisturbed = asked()
    assert tokens(undisturbed[VICTIM]) != tokens(clean[VICTIM]), "the adapter does something"
    with switches.on("nan_row", length=prompt_length(clean[VICTIM]) + 4):
        struck = asked()
    assert struck[VICTIM].outputs[0].stop_reason == NAN
    for name in CHATS.keys() - {VICTIM}:
        assert difference(undisturbed[name], struck[name]) == "", name


def test_a_prefix_hit_is_still_a_hit(engine: Any) -> None:
    ask(engine, [VICTIM])
    assert ask(engine, [VICTIM])[VICTIM].num_cached_tokens > 0
