from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
import torch
from small_engine import SmallEngine
from transformers import LlamaConfig, LlamaForCausalLM

from checkengine.replay.rescore import Sampling, ScoreError, rescored
from checkengine.replay.rescore.evidence import Outcome, TokenVerdict, best_stretch
from checkengine.replay.rescore.in_process import ModelScorer
from checkengine.replay.rescore.of_capture import written_in
from checkengine.replay.rescore.over_http import HttpScorer
from checkengine.replay.rescore.scoring import edge_of, score_of_listed, totals

WORDS = 160
PROMPT = [3, 5, 8, 13, 21]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def written(model: Any, sampling: Sampling, tokens: int, seed: int = 0, lost: float = 0.0) -> list[int]:
    """By the model itself; in a share `lost` of the draws the likeliest token is not there."""
    random, found = np.random.default_rng(seed), []
    for _ in range(tokens):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([PROMPT + found])).logits[0, -1].double().numpy()
        if random.random() < lost:
            logits[logits.argmax()] = -np.inf
        if sampling.temperature == 0:
            found.append(int(logits.argmax()))
            continue
        p = np.exp((logits - logits.max()) / sampling.temperature)
        order = np.argsort(-p)
        p[order[np.searchsorted(np.cumsum(p[order] / p.sum()), sampling.top_p) + 1 :]] = 0
        found.append(int(random.choice(WORDS, p=p / p.sum())))
    return found


def judged(model: Any, output: list[int], sampling: Sampling):
    scorer = ModelScorer(model)
    return rescored("r", scorer.score(PROMPT, output, sampling), sampling, scorer.vocabulary)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_what_the_model_wrote_itself_is_its_habit(model: Any, temperature: float, top_p: float) -> None:
    sampling = Sampling(temperature, top_p)
    for seed in range(4):
        found = judged(model, written(model, sampling, 40, seed), sampling)
        assert found.outcome is Outcome.HABIT, found.sentence
        assert TokenVerdict.NEVER not in found.verdicts


def test_salad_from_some_token_on_is_corruption_and_the_stretch_begins_there(model: Any) -> None:
    sampling = Sampling(0.7, 0.9)
    output = written(model, sampling, 30) + np.random.default_rng(1).integers(0, WORDS, 12).tolist()
    found = judged(model, output, sampling)
    assert found.outcome is Outcome.CORRUPTION
    assert 29 <= found.stretch[0] <= 34
    assert all(index >= 30 for index, verdict in enumerate(found.verdicts) if verdict is TokenVerdict.NEVER)


def test_one_greedy_token_that_is_not_the_likeliest_is_corruption(model: Any) -> None:
    sampling = Sampling(temperature=0.0)
    output = written(model, sampling, 20)
    scores = ModelScorer(model).score(PROMPT, [*output[:10], (output[10] + 1) % WORDS, *output[11:]], sampling)
    assert scores[10].rank is not None
    assert scores[10].rank > 1
    found = rescored("r", scores[:11], sampling, WORDS)
    assert found.outcome is Outcome.CORRUPTION
    assert found.verdicts[10] is TokenVerdict.NEVER


def test_a_lost_likeliest_token_is_told_although_no_single_token_is_odd(model: Any) -> None:
    sampling = Sampling(temperature=0.5)
    found = judged(model, written(model, sampling, 120, seed=3, lost=0.5), sampling)
    assert found.outcome is Outcome.CORRUPTION
    assert TokenVerdict.NEVER not in found.verdicts


def test_penalties_that_the_scorer_does_not_know_make_it_abstain(model: Any) -> None:
    sampling = Sampling.of({"temperature": 0.7, "repetition_penalty": 1.3})
    output = np.random.default_rng(1).integers(0, WORDS, 30).tolist()
    assert judged(model, output, sampling).outcome is Outcome.INCONCLUSIVE


def test_healthy_outputs_alarm_no_more_often_than_promised(model: Any) -> None:
    """Drawn from exact random distributions, 3,000 outputs: at one in a thousand, 12 alarms come once in 10^4 times."""
    random, alarms = np.random.default_rng(0), 0
    sampling = Sampling(temperature=1.0)
    for _ in range(3000):
        scores = []
        for _ in range(20):
            p = random.dirichlet(np.full(30, 0.1)) + 1e-9
            token = int(random.choice(30, p=p / p.sum()))
            logs = np.log(p / p.sum())
            listed = np.sort(logs)[::-1].tolist()
            rank = int((logs > logs[token]).sum()) + 1
            scores.append(score_of_listed(token, float(logs[token]), rank, listed, sampling, 30, 0.0))
        alarms += rescored("r", scores, sampling, 30).outcome is Outcome.CORRUPTION
    assert alarms < 12


def test_bounds_from_a_short_list_hold_what_the_whole_distribution_says() -> None:
    random = np.random.default_rng(0)
    for heat in (0.05, 0.5, 1.0, 1.5):
        for _ in range(50):
            logs = np.sort(np.log(random.dirichlet(np.full(200, 0.2)) + 1e-12))[::-1]
            logs -= np.log(np.exp(logs).sum())
            truth = math.log(np.exp(logs / heat - logs[0] / heat).sum()) + logs[0] / heat
            low, high = totals(float(logs[50]), logs[:10].tolist(), heat, 200)
            assert low <= truth + 1e-9
            assert high >= truth - 1e-9


def test_the_edge_of_truncation_is_that_of_the_engines_sampler() -> None:
    listed = np.log([0.5, 0.3, 0.1, 0.06, 0.04]).tolist()
    assert edge_of(listed, Sampling(1.0, top_p=0.75), 0.0) == listed[1]
    assert edge_of(listed, Sampling(1.0, top_k=3), 0.0) == listed[2]
    assert edge_of(listed, Sampling(1.0, min_p=0.19), 0.0) == listed[2]
    assert edge_of(listed, Sampling(1.0), 0.0) is None


def test_the_best_stretch_is_found() -> None:
    assert best_stretch([-1, 3, -1, 4, -9, 5]) == (6, 1, 4)
    assert best_stretch([-1, -2]) == (0.0, 0, 0)


def test_a_capture_gives_each_sequences_whole_output() -> None:
    engine = SmallEngine(seed=4)
    engine.run(20)
    record = engine.records[18]
    handle = int(record.handles[np.flatnonzero(record.samples)[0]])
    capture = engine.capture([handle], first=15, last=18)
    (found,) = written_in(capture)
    whole = [*engine.histories[18][handle].tolist(), int(record.sampled[list(record.sampling_handles).index(handle)])]
    assert found.output == whole
    assert found.prompt == list(engine.starts[handle].prompt_tokens)


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"temperature": float("nan")}])
def test_impossible_sampling_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="range"):
        Sampling.of(bad)


class Sibling(BaseHTTPRequestHandler):
    """Not an engine: a tiny model's own log-probabilities in the words of vLLM (`prompt_logprobs`) or of OpenAI's older
    API (`echo`)."""

    model: Any
    dialect = "prompt_logprobs"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.dialect == "none" or (self.dialect == "echo" and "prompt_logprobs" in body):
            return self.answer(400, {"error": {"message": "prompt_logprobs is not supported"}})
        tokens = body["prompt"]
        with torch.no_grad():
            logprobs = torch.log_softmax(self.model(input_ids=torch.tensor([tokens])).logits[0].float(), -1)
        if self.dialect == "echo":
            top = [dict(self.likeliest(row, body["logprobs"])) for row in logprobs[:-1]]
            own = [float(row[token]) for row, token in zip(logprobs, tokens[1:], strict=False)]
            found: dict[str, Any] = {"logprobs": {"token_logprobs": [None, *own], "top_logprobs": [None, *top]}}
        else:
            found = {"prompt_logprobs": [None, *map(self.entry, logprobs[:-1], tokens[1:])]}
        return self.answer(200, {"choices": [found]})

    def likeliest(self, row: torch.Tensor, count: int) -> list[tuple[str, float]]:
        values, tokens = torch.topk(row, count)
        return [(f"w{token}", value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True)]

    def entry(self, row: torch.Tensor, token: int) -> dict[str, Any]:
        values, tokens = torch.topk(row, 20)
        listed = zip(tokens.tolist(), values.tolist(), strict=True)
        found = {str(t): {"logprob": value, "rank": rank} for rank, (t, value) in enumerate(listed, 1)}
        own = float(row[token])
        return found | {str(token): {"logprob": own, "rank": int((row > own).sum()) + 1}}

    def answer(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def sibling(model: Any) -> Iterator[tuple[type[Sibling], str]]:
    handler = type("Here", (Sibling,), {"model": model})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo"])
def test_a_sibling_over_http_tells_habit_from_corruption(model: Any, sibling: Any, dialect: str) -> None:
    handler, url = sibling
    handler.dialect = dialect
    scorer = HttpScorer(url, "tiny", vocabulary=WORDS)
    sampling = Sampling(0.7, 0.9)
    healthy = written(model, sampling, 30)
    salad = healthy[:20] + np.random.default_rng(1).integers(0, WORDS, 10).tolist()
    here = ModelScorer(model).score(PROMPT, healthy, sampling)
    there = scorer.score(PROMPT, healthy, sampling)
    assert [each.logprob for each in there] == pytest.approx([each.logprob for each in here], abs=1e-4)
    assert rescored("a", there, sampling, WORDS).outcome is Outcome.HABIT
    assert rescored("b", scorer.score(PROMPT, salad, sampling), sampling, WORDS).outcome is Outcome.CORRUPTION


def test_a_server_that_serves_neither_dialect_is_named_once(sibling: Any) -> None:
    handler, url = sibling
    handler.dialect = "none"
    with pytest.raises(ScoreError, match="answers 400"):
        HttpScorer(url, "tiny").score([1], [2], Sampling())


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(ScoreError, match="cannot be asked"):
        HttpScorer("http://127.0.0.1:9", "tiny").score([1], [2], Sampling())


def test_an_output_of_another_vocabulary_is_refused(model: Any) -> None:
    with pytest.raises(ScoreError, match="vocabulary"):
        ModelScorer(model).score([1], [WORDS], Sampling())
