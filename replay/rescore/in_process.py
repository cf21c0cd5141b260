"""Score with a transformers model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from checkengine.replay.rescore.scoring import Sampling, ScoreError, TokenScore, score_of_listed

CHUNK = 64
"""Output tokens that are scored at once."""
LISTED = 1024
"""Likeliest tokens among which the edge of a nucleus is looked for; one that lies behind them cuts off nothing."""


class ModelScorer:
    """`model`: a causal language model of transformers, on any device. The whole distribution is known."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)

    def score(self, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> list[TokenScore]:
        """See Scorer."""
        if not prompt or not output:
            raise ScoreError("a prompt and an output of at least one token each are needed to score")
        if not 0 <= min(*prompt, *output) <= max(*prompt, *output) < self.vocabulary:
            raise ScoreError(f"a token id is outside the model's vocabulary of {self.vocabulary}: is it another model?")
        logits = self._logits([*prompt, *output], len(output))
        scores: list[TokenScore] = []
        for first in range(0, len(output), CHUNK):
            scores += self._chunk(logits[first : first + CHUNK].float(), output[first : first + CHUNK], sampling)
        return scores

    def _logits(self, tokens: Sequence[int], wanted: int) -> torch.Tensor:
        """Before each of the last `wanted` tokens: shape (wanted, vocabulary)."""
        device = self.model.get_input_embeddings().weight.device
        ids = torch.tensor([list(tokens[:-1])], device=device)
        with torch.no_grad():
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False, logits_to_keep=wanted).logits[0]
        return logits

    def _chunk(self, logits: torch.Tensor, tokens: Sequence[int], sampling: Sampling) -> list[TokenScore]:
        logprobs = torch.log_softmax(logits, -1)
        if not bool(torch.isfinite(logprobs.amax(-1)).all()):
            raise ScoreError("the model gives NaN or infinity on this output: it is not a healthy executor for it")
        own = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
        ranks = ((logprobs > own).sum(-1) + 1).tolist()
        totals = torch.logsumexp(logprobs.double() / sampling.heat, -1).tolist()
        listed = torch.topk(logprobs, min(LISTED, self.vocabulary)).values.tolist()
        return [
            score_of_listed(token, logprob, rank, likeliest, sampling, self.vocabulary, total)
            for token, logprob, rank, likeliest, total in zip(
                tokens, own.flatten().tolist(), ranks, listed, totals, strict=True
            )
        ]
