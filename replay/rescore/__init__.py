"""Re-score: would the model have written it? Log-probabilities of prompt and output on a healthy executor."""

from checkengine.replay.rescore.evidence import Rescored, TokenVerdict, rescored
from checkengine.replay.rescore.scoring import Sampling, ScoreError, Scorer, TokenScore

__all__ = ["Rescored", "Sampling", "ScoreError", "Scorer", "TokenScore", "TokenVerdict", "rescored"]
