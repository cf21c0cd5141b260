"""Every planted fault on a tiny random model: do guards and judge find each, and nothing where there is none?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import FAULTS, ApproximateTopK, Fault, MaskedStop, NanAttention, OverRead
from checkengine.engine_shim.settings import EngineSettings
from checkengine.figures import Figure
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.guards.settings import LogitsSettings
from checkengine.replay.audit import Auditor
from checkengine.replay.capture import Capture
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.record import StepRecord
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings

BLOCK, TOKENS, WORDS = 8, 24, 160
MOST_JUDGED = 12
CONVICTIONS = (VerdictKind.CODE_DEFECT, VerdictKind.NAN_UNSAFE)


def fault_figures() -> list[Figure]:
    """One figure for each fault of engine_shim/faults, and the clean run."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    clean = run(model, tokenizer, sampled_requests())
    figures = [
        _figure("findings on a clean run", len(clean.findings), "findings"),
        _figure("audited steps of a clean run that were convicted", convicted(clean), "steps"),
    ]
    for name in FAULTS:
        missed = [what for what, found in planted(name, model, tokenizer).items() if not found]
        figure = _figure(f"watchers that missed a planted {name}", len(missed), "watchers")
        figures.append({**figure, "missed_by": missed})
    return figures


def planted(name: str, model: Any, tokenizer: Any) -> dict[str, bool]:
    """Who is expected to find the fault, and whether each of them did."""
    if name == NanAttention.name:
        seen = run(model, tokenizer, sampled_requests(), [NanAttention(modulus=BLOCK, remainder=1, layer=1)])
        by_guard = any(finding.kind == "logits.nonfinite" for finding in seen.findings)
        return {"the guards": by_guard, "the judge": convicted(seen) > 0}
    if name == OverRead.name:
        seen = run(model, tokenizer, sampled_requests(), [OverRead(block_size=BLOCK)])
        return {"the audit": convicted(seen) > 0}
    if name == ApproximateTopK.name:
        seen = run(model, tokenizer, [greedy_request(())], [ApproximateTopK(rate=0.2)])
        return {"the guards": any(finding.kind == "sampler.inconsistent" for finding in seen.findings)}
    if name == MaskedStop.name:
        return {"the judge": convicted(masked_stop(model, tokenizer)) > 0}
    raise ValueError(f"no self-test for the fault {name!r}")


class Seen:
    """A step listener: findings, and captures of steps with a finding and of every third one."""

    def __init__(self, engine: Any, shim: Any) -> None:
        self.findings: list[Finding] = []
        self.captures: list[Capture] = []
        self.tokens: list[int] = []
        self.engine = engine
        self._recorder = shim.assembly.recorder

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        self.findings += findings
        self.tokens.append(int(record.sampled[0]) if len(record.sampled) else -1)
        struck = {finding.sequence for finding in findings}
        names = self._recorder.window(record.step).starts if struck else {}
        handles = [handle for handle, start in names.items() if start.name in struck]
        if not handles and record.step % 3 == 0 and len(record.sampled):
            handles = record.sampling_handles.tolist()[:2]
        if handles:
            self.captures.append(take_capture(self.engine, self._recorder, handles, first_step=record.step))


def run(model: Any, tokenizer: Any, requests: Sequence[GenerationRequest], faults: Sequence[Fault] = ()) -> Seen:
    settings = Settings(
        engine=EngineSettings(block_size=BLOCK, blocks=64, tokens_per_step=40, threads=1),
        logits=LogitsSettings(level="full"),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
    engine, shim = embed(model, tokenizer, settings, faults)
    assert shim is not None
    seen = Seen(engine, shim)
    shim.parts.listeners.append(seen)
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    shim.close()
    return seen


def convicted(seen: Seen) -> int:
    """How many of the last captures the judge convicts; one is enough."""
    auditor = Auditor(EmbeddedExecutor.over(seen.engine.model, seen.engine.environment()))
    return sum(auditor.audit(capture).kind in CONVICTIONS for capture in seen.captures[-MOST_JUDGED:])


def sampled_requests() -> list[GenerationRequest]:
    """Sampled: a random model that decodes greedily goes round in circles, and that is a finding."""
    return [
        GenerationRequest(
            f"request-{number}",
            list(range(3 + number, 14 + 3 * number)),
            SamplingParameters(temperature=1.0, seed=number, max_tokens=TOKENS, ignore_eos=True),
        )
        for number in range(4)
    ]


def masked_stop(model: Any, tokenizer: Any) -> Seen:
    """The clean run tells which token comes when; one of them is then an end token that the engine masks."""
    tokens = run(model, tokenizer, [greedy_request(())]).tokens
    index = next(i for i in range(3, len(tokens), 3) if tokens[i] not in tokens[:i])
    return run(model, tokenizer, [greedy_request((tokens[index],))], [MaskedStop([tokens[1]])])


def greedy_request(stops: tuple[int, ...]) -> GenerationRequest:
    sampling = SamplingParameters(temperature=0.0, max_tokens=TOKENS, stop_token_ids=stops)
    return GenerationRequest("request", list(range(20, 31)), sampling)


def tiny_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def tiny_tokenizer() -> Any:
    """A word for every id of the tiny model."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({f"w{token}": token for token in range(WORDS)}, unk_token="w0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))


def _figure(name: str, value: float, unit: str) -> Figure:
    return {"name": name, "value": value, "unit": unit, "target": 0, "ok": value <= 0}
