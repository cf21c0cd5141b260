"""Re-score: does it tell outputs of planted faults from the model's own oddities?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.rescore_runs import KINDS, MODEL, SALAD, runs_of
from checkengine.engine_shim.models import model_directory
from checkengine.replay.rescore import Sampling, rescored
from checkengine.replay.rescore.evidence import ALARM, Outcome
from checkengine.replay.rescore.in_process import ModelScorer

COUNT, QUICK = 16, 4


def rescore_figures(count: int = COUNT) -> list[dict[str, Any]]:
    """ROC over all classes; `peer` of each class's figure is its AUC against all natural outputs."""
    runs = {name: runs_of(name, count) for name in (*KINDS, *SALAD)}
    # Another copy: the one that the runs came from belongs to the engine, and so does its attention.
    scorer = ModelScorer(AutoModelForCausalLM.from_pretrained(model_directory(MODEL), local_files_only=True).eval())
    faulty = {name for name, kind in KINDS.items() if kind.faulty} | {name for name, each in SALAD.items() if each[1]}
    scores: dict[str, list[float]] = {}
    alarms: dict[str, int] = {}
    for name, own in runs.items():
        found = [judged(scorer, run) for run in own]
        scores[name] = [each.score for each in found]
        alarms[name] = sum(each.outcome is Outcome.CORRUPTION for each in found)
    return figures_of(scores, alarms, faulty)


def judged(scorer: ModelScorer, run: Any) -> Any:
    sampling = Sampling(run.temperature, run.top_p)
    return rescored("", scorer.score(run.prompt, run.tokens, sampling), sampling, scorer.vocabulary)


def figures_of(
    scores: Mapping[str, Sequence[float]], alarms: Mapping[str, int], faulty: set[str]
) -> list[dict[str, Any]]:
    bad = np.concatenate([values for name, values in scores.items() if name in faulty])
    good = np.concatenate([values for name, values in scores.items() if name not in faulty])
    false = sum(count for name, count in alarms.items() if name not in faulty)
    found = [
        figure("rescore.auc", auc(bad, good), "", 0.95, at_least=True, peer=("faulty outputs", len(bad))),
        figure("rescore.found_at_1%_false", found_at(bad, good), "share", 0.9, at_least=True),
        figure("rescore.false_corruption", false, "outputs", ALARM * len(good) + 1, peer=("natural", len(good))),
    ]
    for name, values in scores.items():
        if name in faulty:
            own = auc(np.array(values), good)
            found.append(
                figure(
                    f"rescore.corruption, {name}",
                    alarms[name] / len(values),
                    "share",
                    0.0,
                    at_least=True,
                    peer=("AUC", own),
                )
            )
    return found


def auc(bad: np.ndarray, good: np.ndarray) -> float:
    """Probability that a faulty output scores above a natural one; ties count half."""
    above = (bad[:, None] > good[None]).mean() + 0.5 * (bad[:, None] == good[None]).mean()
    return float(above)


def found_at(bad: np.ndarray, good: np.ndarray, false: float = 0.01) -> float:
    """Share of faulty outputs above the score that at most this share of the natural ones reaches."""
    allowed = int(false * len(good))
    return float((bad > np.sort(good)[::-1][allowed]).mean())
