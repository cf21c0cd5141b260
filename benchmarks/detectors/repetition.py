"""Repetition: what is found of degenerate replies and planted loops, how soon, what healthy text sets off, its cost.

Peer: vLLM's opt-in rule, written anew from its documentation: the last pattern x count tokens are `count` equal copies,
for any pattern size from a smallest to a largest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.corpus import CHUNKS, QUICK_CHUNKS, hard_negatives
from checkengine.benchmarks.detectors.repetition_hard import hard_figures
from checkengine.benchmarks.detectors.repetition_loops import exact_loop, near_loop
from checkengine.benchmarks.detectors.repetition_reader import Reader
from checkengine.benchmarks.detectors.replies import degenerate, healthy
from checkengine.benchmarks.detectors.tokenizer import encode, tokenizer
from checkengine.benchmarks.figure import figure
from checkengine.detectors.compiled import compiled
from checkengine.detectors.repetition import (
    RepetitionLimits,
    RepetitionStreams,
    plain_units,
    token_units,
    warm_up,
)
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Severity
from checkengine.guards.settings import RepetitionSettings
from checkengine.guards.text import TextStart
from checkengine.guards.text_repetition import TextRepetitionGuard

Tokens = NDArray[np.int32]
STREAMS = 256
PERIODS = (1, 2, 4, 8, 12, 16, 24, 50, 100, 300, 1000, 2500, 4096)
LATIN = ("en", "es", "fr", "de")
NEAR_PERIODS = (12, 20, 30, 50, 88, 150)
NEAR_KINDS = {
    "counter": (0.0,),
    "drifting": (0.05, 0.1, 0.2),
    "substituted": (0.05, 0.1, 0.15, 0.2),
    "shifted": (0.05, 0.1),
}
"""Kinds of near-copies and their rates of change."""
PEERS = ((1, 20, 3), (4, 128, 4))
"""vLLM's rule as it was proposed for every structured answer, and for reasoning."""


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    warm_up()
    units = token_units(Vocabulary.from_tokenizer(tokenizer()).pieces)
    found = [*exact_figures(options), *cost_figures(options)]
    if options.data is not None and healthy(options):
        found += [*near_figures(options, units), *reply_figures(options, units)]
    return found + hard_figures(hard_negatives(options), units, QUICK_CHUNKS if options.quick else CHUNKS)


def exact_figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """Repeated tokens at the warning, less what is allowed: one period and 16 tokens, and 24 at least."""
    draw, reader = np.random.default_rng(0), Reader()
    late, early, missed = 0, 0, 0
    for period in PERIODS:
        for _ in range(2 if options.quick else 10):
            tokens, second = exact_loop(draw, period)
            warned = reader.read(tokens)
            repeated = warned[0].offset + 1 - second if warned else 0
            missed += not warned
            late = max(late, repeated - max(24, period + 16))
            early += bool(warned) and repeated < 24
    return [
        figure("repetition.exact.late", late, "tokens beyond period + 16, periods 1 … 4,096", 0),
        figure("repetition.exact.missed", missed, "loops", 0),
        figure("repetition.exact.early", early, "loops told before 24 repeated tokens", 0),
    ]


def near_figures(options: DetectorOptions, units: Tokens) -> list[dict[str, Any]]:
    """Share of near-copies of prose that are told within 3 periods of the second copy."""
    draw, reader = np.random.default_rng(1), Reader(units)
    prose = np.concatenate(encode([reply.completion for reply in healthy(options) if reply.language in LATIN][:800]))
    each, found = (12 if options.quick else 40), []
    for kind, rates in NEAR_KINDS.items():
        hits = [
            is_in_time(reader, *near_loop(draw, prose, kind, period, rate), period)
            for period in NEAR_PERIODS
            for rate in rates
            for _ in range(each)
        ]
        found.append(figure(f"repetition.near.{kind}", float(np.mean(hits)), "recall", 0.9, at_least=True))
        if kind == "substituted":
            shortest = hits[: len(rates) * each]
            found.append(
                figure("repetition.near.substituted, 12 tokens", float(np.mean(shortest)), "recall", 0.9, at_least=True)
            )
    return found


def is_in_time(reader: Reader, tokens: Tokens, second: int, period: int) -> bool:
    warned = reader.read(tokens)
    return bool(warned) and second <= warned[0].offset <= second + 3 * period


def reply_figures(options: DetectorOptions, units: Tokens) -> list[dict[str, Any]]:
    bad, good = degenerate(options), healthy(options)
    if options.quick:
        bad, good = bad[::4], good[::8]
    reader = Reader(units)
    bad_tokens, good_tokens = (encode([reply.completion for reply in replies]) for replies in (bad, good))
    recall = float(np.mean([bool(reader.read(tokens)) for tokens in bad_tokens]))
    alarms = sum(bool(reader.read(tokens)) for tokens in good_tokens)
    peers = {peer: share_found(peer, bad_tokens) for peer in PEERS}
    false = {peer: share_found(peer, good_tokens) * len(good_tokens) for peer in PEERS}
    best = max(PEERS, key=lambda peer: peers[peer])
    text_recall = float(np.mean([is_told_in_text(reply.completion) for reply in bad]))
    text_alarms = sum(is_told_in_text(reply.completion) for reply in good)
    of_replies = f"of {len(good_tokens)} healthy replies (95 %: at most {3e6 / len(good_tokens):.0f} per million)"
    return [
        figure("repetition.replies.recall", recall, f"of {len(bad_tokens)} degenerate replies", 0.92, at_least=True,
               peer=(name_of(best), peers[best])),
        figure("repetition.replies.alarms", alarms, of_replies, 0, peer=(name_of(best), false[best])),
        figure("repetition.replies.text_recall", text_recall, "as above, from text alone", 0.92, at_least=True,
               peer=(name_of(PEERS[1]), peers[PEERS[1]])),
        figure("repetition.replies.text_alarms", text_alarms, of_replies, 0, peer=(name_of(PEERS[1]), false[PEERS[1]])),
    ]  # fmt: skip


def is_told_in_text(text: str) -> bool:
    guard = TextRepetitionGuard(TextStart("benchmark"), RepetitionSettings())
    return any(finding.severity > Severity.INFO for finding in [*guard.push(text), *guard.end()])


def cost_figures(options: DetectorOptions) -> list[dict[str, Any]]:
    steps = 200 if options.quick else 1500
    draw = np.random.default_rng(2)
    cases: dict[str, Callable[[int], Tokens]] = {"noise": lambda step: draw.integers(0, 49_000, STREAMS, np.int32)}
    for period in (8, 128, 4096):
        cases[f"period {period}"] = partial(at_step, draw.integers(0, 49_000, (period, STREAMS), np.int32))
    cases["near-copies"] = partial(at_step, near_copies(draw, 50, steps // 50 + 1))
    cycles = {name: step_cost(make, RepetitionLimits(cycles_only=True), steps) for name, make in cases.items()}
    everything = {name: step_cost(make, RepetitionLimits(), steps) for name, make in cases.items()}
    worst, worst_of_all = max(cycles, key=cycles.__getitem__), max(everything, key=everything.__getitem__)
    peer = peer_cost((4, 128, 4), draw.integers(0, 49_000, 800).tolist())
    return [
        figure(f"repetition.cost.cycles, {worst}", cycles[worst], "ns/token at 256 streams", 100,
               peer=("vLLM's rule 4-128 x 4 in Python", peer)),
        figure(f"repetition.cost.all, {worst_of_all}", everything[worst_of_all], "ns/token at 256 streams", 250,
               peer=("vLLM's rule 4-128 x 4 in Python", peer)),
        figure("repetition.cost.single", single_cost(steps), "us/call of one stream", 5.0),
    ]  # fmt: skip


def at_step(tokens: Tokens, step: int) -> Tokens:
    found: Tokens = tokens[step % len(tokens)]
    return found


def near_copies(draw: np.random.Generator, period: int, copies: int) -> Tokens:
    """One token in five of each copy is another one, shape (period * copies, streams)."""
    tokens = np.tile(draw.integers(0, 49_000, (period, STREAMS), np.int32), (copies, 1))
    struck = draw.random(tokens.shape) < 0.2
    tokens[struck] = draw.integers(0, 49_000, int(struck.sum()))
    return tokens


def step_cost(make: Callable[[int], Tokens], limits: RepetitionLimits, steps: int) -> float:
    """Median CPU nanoseconds a token of one step of 256 streams."""
    streams = RepetitionStreams(limits, STREAMS)
    slots, ends = np.array([streams.open() for _ in range(STREAMS)]), np.arange(1, STREAMS + 1)
    taken = []
    for step in range(steps):
        units = plain_units(make(step))
        began = time.process_time_ns()
        streams.push(slots, ends, units)
        taken.append((time.process_time_ns() - began) / STREAMS)
    return statistics.median(taken[len(taken) // 4 :])


def single_cost(steps: int) -> float:
    streams, draw = RepetitionStreams(), np.random.default_rng(3)
    slot, end = np.array([streams.open()]), np.array([1])
    units = [plain_units(draw.integers(0, 49_000, 1, np.int32)) for _ in range(10 * steps)]
    began = time.process_time_ns()
    for unit in units:
        streams.push(slot, end, unit)
    return (time.process_time_ns() - began) / len(units) / 1000


def name_of(peer: tuple[int, int, int]) -> str:
    return f"vLLM's rule {peer[0]}-{peer[1]} x {peer[2]}"


def share_found(peer: tuple[int, int, int], replies: Sequence[Tokens]) -> float:
    return float(np.mean([peer_rule(tokens, *peer) for tokens in replies if len(tokens)]))


def peer_cost(peer: tuple[int, int, int], tokens: list[int]) -> float:
    """CPU nanoseconds a token, in Python, as an engine's scheduler runs it: on tokens that do not repeat."""
    began = time.process_time_ns()
    for end in range(400, len(tokens)):
        peer_rule_in_python(tokens[:end], *peer)
    return (time.process_time_ns() - began) / (len(tokens) - 400)


def peer_rule_in_python(tokens: list[int], smallest: int, largest: int, count: int) -> bool:
    """Does the output end in `count` equal copies of a pattern of any allowed size?"""
    length = len(tokens)
    for size in range(smallest, largest + 1):
        if size * count > length:
            break
        if all(tokens[-1 - at] == tokens[-1 - at - size] for at in range(size * (count - 1))):
            return True
    return False


@compiled
def peer_rule(tokens: Tokens, smallest: int, largest: int, count: int) -> bool:
    """True where the rule fires at any token: some lag agrees with itself for (count - 1) patterns."""
    for size in range(smallest, largest + 1):
        run = 0
        for at in range(size, len(tokens)):
            run = run + 1 if tokens[at] == tokens[at - size] else 0
            if run >= size * (count - 1):
                return True
    return False
