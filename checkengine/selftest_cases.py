"""How each planted fault is set up, and who is to find it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import FAULTS, Fault, FaultClass
from checkengine.engine_shim.faults.blind import BLIND_FAULTS, STRIKES, Strike, requests_of, settings_of
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS, FRESH_STRIKES

BLOCK, TOKENS, LONG_PROMPT = 8, 24, 70
PENALISED = (1, 3)
"""Requests with penalties."""
LAYER = 1
"""Of the tiny model's three: where a fault acts that can be kept to one."""

PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "nan_attention": {"modulus": BLOCK, "remainder": 1, "layer": LAYER},
    "half_overflow": {"gain": 8.0},
    "skipped_slot": {"tile": BLOCK},
    "stale_rotary_table": {"rows": 16},
    "masked_row_softmax": {"shorter_than": 16},
    "approximate_top_k": {"rate": 0.2},
    "masked_stop": {"after": ()},
}
"""Where the defaults are made for a real model."""
FAMILIES: Mapping[str, str] = {
    "window_too_wide": "mistral",
    "window_too_narrow": "mistral",
    "no_softcap": "gemma2",
    "no_sinks": "gpt_oss",
}
"""Where the tiny Llama has nothing that could go wrong so."""

BY_GUARDS = (FaultClass.SAMPLER,)
"""Numbers are right up to the logits: guards see it on tokens, the judge has nothing to say."""

UNDECIDABLE: Mapping[str, str] = {}
"""Faults that no exact test and no rigorous bound can tell, and why: the right verdict is none."""


@dataclass(frozen=True, slots=True)
class Case:
    """One planted fault on one tiny model."""

    fault: Fault
    requests: Sequence[GenerationRequest]
    family: str = "llama"
    layer: int | None = None
    """The one layer where it acts; None: several, or none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine, beside the self-test's own."""
    dirty: bool = False
    """Memory holds NaN where nobody wrote yet."""
    blind: bool = False
    """Not by who tuned the judge on it, or judged as the judge was before."""

    @property
    def name(self) -> str:
        return self.fault.name

    @property
    def fault_class(self) -> FaultClass:
        return self.fault.fault_class


def case_of(name: str, **parameters: Any) -> Case:
    """The fault as it is planted by default: on pages of BLOCK slots, and in one layer where it can be."""
    if name in BLIND_FAULTS:
        return struck_case(BLIND_FAULTS[name], STRIKES[name])
    if name in FRESH_FAULTS:
        return struck_case(FRESH_FAULTS[name], FRESH_STRIKES[name])
    made = FAULTS[name]
    known = inspect.signature(made).parameters
    usual = {"block_size": BLOCK, "layers": (LAYER,), **PARAMETERS.get(name, {})}
    fault = made(**{key: value for key, value in usual.items() if key in known} | parameters)
    requests = [greedy_request(())] if name in ("approximate_top_k", "masked_stop") else sampled_requests()
    return Case(fault, requests, FAMILIES.get(name, "llama"), the_layer(fault))


def the_layer(fault: Fault) -> int | None:
    """The one layer that a fault's parameters keep it to."""
    layers: tuple[int, ...] = getattr(fault, "layers", ())
    return layers[0] if len(layers) == 1 else getattr(fault, "layer", None)


def struck_case(made: type[Fault], strike: Strike) -> Case:
    fault = made(**strike.parameters)
    requests = requests_of(strike.workload)
    return Case(fault, requests, "llama", the_layer(fault), settings_of(strike), strike.dirty_memory, blind=True)


def sampled_requests() -> list[GenerationRequest]:
    """Sampled: a random model that decodes greedily goes round in circles, and that is a finding. Two have
    penalties, and one a prompt that takes two chunks."""
    prompts = [list(range(3 + number, 14 + 3 * number)) for number in range(4)]
    prompts.append([(7 * position) % 151 + 3 for position in range(LONG_PROMPT)])
    return [
        GenerationRequest(
            f"request-{number}",
            prompt,
            SamplingParameters(
                temperature=1.0,
                seed=number,
                max_tokens=TOKENS,
                ignore_eos=True,
                presence_penalty=2.0 * (number in PENALISED),
                frequency_penalty=2.0 * (number in PENALISED),
            ),
        )
        for number, prompt in enumerate(prompts)
    ]


def greedy_request(stops: tuple[int, ...]) -> GenerationRequest:
    sampling = SamplingParameters(temperature=0.0, max_tokens=TOKENS, stop_token_ids=stops)
    return GenerationRequest("request", list(range(20, 31)), sampling)
