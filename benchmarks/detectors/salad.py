"""Word salad: what is found of each class within 64 tokens, alarms on healthy text, and what a token costs.

Generated classes come from `salad_runs` (the user's cache, or minutes of generation); the others are made here.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.corpus import hard_negatives
from checkengine.benchmarks.detectors.replies import Reply, instruct
from checkengine.benchmarks.detectors.tokenizer import encode, tokenizer
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.salad_classes import MADE, wheel_vocabularies
from checkengine.benchmarks.salad_data import SEEN_SHARE, Text, catalogues, is_held_out, is_reply_held_out
from checkengine.benchmarks.salad_runs import CLASSES, HEALTHY, SaladRun, cached_runs
from checkengine.detectors.language.expectation import expected_scripts
from checkengine.detectors.salad import SaladBatch, SaladTables, scan_texts, text_tables, text_tokenizer
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.settings import SaladSettings

TOKENS_EVIDENCE, TEXT_EVIDENCE = SaladSettings().evidence, SaladSettings().text_evidence
WITHIN = 64
COUNT, QUICK_COUNT = 200, 40
TIMED_ROWS, TIMED_STEPS = 256, 200
TEXT_PART = 4
"""Of the chunks, one in so many is read as text, which takes longer than tokens."""


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    tables = SaladTables(Vocabulary.from_tokenizer(tokenizer()))
    return [
        *generated(tables),
        *made(tables, QUICK_COUNT if options.quick else COUNT),
        *healthy(options, tables),
        cost(tables),
    ]


def generated(tables: SaladTables) -> Iterator[dict[str, Any]]:
    """The runs that the tables did not learn from: every other one. Runs are read from the cache only: making them
    takes minutes (`python -m checkengine.benchmarks.salad_runs`)."""
    for name in CLASSES:
        runs = cached_runs(name)[1::2]
        if not runs:
            print(f"no runs of {name!r} yet: python -m checkengine.benchmarks.salad_runs", file=sys.stderr)
        elif name in HEALTHY:
            found = sum(delay(tables, run, logits=True) is not None for run in runs)
            yield figure(f"salad.false, demo model, {name} ({len(runs)} runs)", found, "alarms", 0)
        else:
            yield from _recall(tables, name, [run for run in runs if len(run.tokens) >= run.first + WITHIN])


def _recall(tables: SaladTables, name: str, runs: Sequence[SaladRun]) -> Iterator[dict[str, Any]]:
    for logits, how in ((False, "tokens"), (True, "tokens and entropy")):
        delays = [delay(tables, run, logits=logits) for run in runs]
        yield recall(f"{name}, {how}", delays)
    yield recall(
        f"{name}, text",
        [text_delay(tokenizer().decode(run.tokens[run.first :]), len(run.tokens) - run.first) for run in runs],
    )


def recall(name: str, delays: Sequence[int | None]) -> dict[str, Any]:
    """Share found within 64 tokens; the peer value is the median delay of those found."""
    found = [each for each in delays if each is not None and each <= WITHIN]
    share = len(found) / max(len(delays), 1)
    peer = ("median delay, tokens", float(np.median(found)) if found else float("inf"))
    return figure(f"salad.recall, {name} ({len(delays)})", round(share, 3), "share", 0.95, at_least=True, peer=peer)


def delay(tables: SaladTables, run: SaladRun, *, logits: bool) -> int | None:
    """Tokens from the first corrupted one to the alarm; None without an alarm. The baseline is the healthy runs'."""
    batch = SaladBatch(tables, evidence_of(tables), slots=1)
    slot = np.array([batch.open(run.prompt_tokens)])
    entropies = np.asarray(run.entropy, np.float32)
    for at, token in enumerate(run.tokens):
        entropy = entropies[at : at + 1] if logits else entropies[:0]
        if len(batch.push(slot, np.array([token]), entropy)):
            return at - run.first + 1
    return None


def ids_delay(tables: SaladTables, ids: Sequence[int]) -> int | None:
    batch = SaladBatch(tables, evidence_of(tables), slots=1)
    fired = batch.push(np.full(len(ids), batch.open()), np.asarray(ids, np.int64))
    return int(fired[0]) + 1 if len(fired) else None


def text_delay(text: str, tokens: int = WITHIN) -> int | None:
    """In tokens of the model that wrote the text, `tokens` in all, taken as equally long."""
    ids = text_tokenizer().encode(text, add_special_tokens=False).ids
    found = ids_delay(text_tables(), ids)
    return None if found is None else max(1, round(found * tokens / len(ids)))


def made(tables: SaladTables, count: int) -> Iterator[dict[str, Any]]:
    for name, make in MADE.items():
        texts = [make(random.Random(seed)) for seed in range(count)]
        yield recall(f"{name}, tokens", [ids_delay(tables, ids.tolist()) for ids in encode(texts)])
        yield recall(f"{name}, text", [ids_delay(text_tables(), text_tokenizer().encode(text).ids) for text in texts])
    yield recall("control tokens, tokens", [ids_delay(tables, leaking(random.Random(seed))) for seed in range(count)])
    if importlib.util.find_spec("mistral_common") is None:
        print("mistral-common is not installed: its vocabularies are left out", file=sys.stderr)
    vocabularies = {"demo model": Vocabulary.from_tokenizer(tokenizer()), **wheel_vocabularies()}
    for name, vocabulary in vocabularies.items():
        known = SaladTables(vocabulary)
        drawn = np.random.default_rng(0).integers(0, len(vocabulary), (count, WITHIN))
        yield recall(f"random ids of {name}, tokens", [ids_delay(known, ids.tolist()) for ids in drawn])
        yield recall(f"random ids of {name}, text", [text_delay(vocabulary.text(ids.tolist())) for ids in drawn])


def leaking(draw: random.Random) -> list[int]:
    """An answer into which a control token of the demo model leaks every six to twelve tokens."""
    special = [1, *range(3, 17)]
    ids: list[int] = encode([" ".join(draw.sample(PLAIN, len(PLAIN)))])[0].tolist()
    at = 0
    while (at := at + draw.randint(6, 12)) < len(ids):
        ids.insert(at, draw.choice(special))
    return ids[:WITHIN]


PLAIN = (
    "The harbour is quiet in the morning before the boats come back.",
    "Nobody knows why the clock on the tower has stopped.",
    "We met at the station and walked along the river.",
    "Her brother sells bread and cakes in a small shop.",
    "It rained for three days and the road was closed.",
    "The teacher asked us to read the first two chapters.",
)


def healthy(options: DetectorOptions, tables: SaladTables) -> Iterator[dict[str, Any]]:
    """Only of files and replies that the tables did not learn from."""
    corpus = hard_negatives(options)
    alarms = alarmed(tables, corpus.tokens.astype(np.int64), corpus.first_token)
    held_out = np.array([is_held_out(str(path)) for path in corpus.sources])[corpus.source_of]
    alarms = alarms[held_out]
    yield rate(f"hard negatives, tokens ({len(alarms)} chunks, {alarms.sum()} alarms)", alarms)
    read = np.flatnonzero(held_out)[:: 1 if options.quick else TEXT_PART]
    yield _of_texts("hard negatives, text", [corpus.text_of(int(at)) for at in read])
    messages = list(catalogues(SEEN_SHARE, 1.0, most=QUICK_COUNT if options.quick else 1 << 30))
    if messages:
        yield _of_messages(messages)
    known = [reply for reply in instruct(options) if is_reply_held_out(reply.id, reply.source)]
    if known:
        yield from _of_replies(tables, known)


def _of_replies(tables: SaladTables, known: Sequence[Reply]) -> Iterator[dict[str, Any]]:
    """The language that was asked for is known, the prompt is not."""
    found: dict[str, list[NDArray[np.bool_]]] = {"tokens": [], "text": []}
    for language in sorted({reply.language for reply in known}):
        texts = [reply.completion for reply in known if reply.language == language]
        scripts = expected_scripts("", language)
        found["tokens"].append(alarmed(tables, *flat(encode(texts)), scripts))
        found["text"].append(alarmed(text_tables(), *flat(own_ids(texts)), scripts))
    for how, parts in found.items():
        alarms = np.concatenate(parts)
        yield rate(f"replies in 15 languages, {how} ({len(alarms)}, {alarms.sum()} alarms)", alarms)


def _of_messages(messages: Sequence[Text]) -> dict[str, Any]:
    """The language is known, as that of a request."""
    parts = []
    for kind in sorted({text.kind for text in messages}):
        language = kind.removeprefix("catalogue ").split("_")[0].split("@")[0]
        ids = own_ids([text.text for text in messages if text.kind == kind])
        parts.append(alarmed(text_tables(), *flat(ids), expected_scripts("", language)))
    alarms = np.concatenate(parts)
    return rate(f"translated messages in many languages, text ({len(alarms)}, {alarms.sum()} alarms)", alarms)


def own_ids(texts: Sequence[str]) -> list[NDArray[Any]]:
    read = text_tokenizer().encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.asarray(each.ids) for each in read]


def _of_texts(name: str, texts: Sequence[str]) -> dict[str, Any]:
    alarms = alarmed(text_tables(), *flat(own_ids(texts)))
    return rate(f"{name} ({len(texts)}, {alarms.sum()} alarms)", alarms)


def rate(name: str, alarms: NDArray[np.bool_]) -> dict[str, Any]:
    """Alarms per million; the peer value is the upper end of the 95 % interval where there was none."""
    bound = ("95 % bound", max(3.0, float(alarms.sum())) / max(len(alarms), 1) * 1e6)
    return figure(f"salad.false, {name}", float(alarms.mean() * 1e6), "per 10^6", 10, peer=bound)


def evidence_of(tables: SaladTables) -> float:
    """The default that these tables are read with."""
    return TEXT_EVIDENCE if tables is text_tables() else TOKENS_EVIDENCE


def alarmed(
    tables: SaladTables, ids: NDArray[np.int64], first: NDArray[np.int64], scripts: int = 0
) -> NDArray[np.bool_]:
    """Whether each text alarms."""
    found: NDArray[np.bool_] = scan_texts(tables, ids, first, scripts) >= evidence_of(tables)
    return found


def flat(ids: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first = np.concatenate([[0], np.cumsum([len(each) for each in ids])])
    return np.concatenate([*ids, np.empty(0, np.int64)]).astype(np.int64), first


def cost(tables: SaladTables) -> dict[str, Any]:
    """CPU time of a step of 256 rows over real text, guard's own work on rows included."""
    from checkengine.guards.salad import SaladGuard
    from checkengine.guards.step import SequenceStart, StepView

    ids = np.concatenate(encode(list(PLAIN) * 40))
    guard = SaladGuard(SaladSettings(), Vocabulary.from_tokenizer(tokenizer()))
    names = tuple(f"row {row}" for row in range(TIMED_ROWS))
    for row, name in enumerate(names):
        guard.begin(SequenceStart(row, name))
    prompts, taken = np.zeros(TIMED_ROWS, np.int32), []
    for step in range(TIMED_STEPS):
        rows = ids[(np.arange(TIMED_ROWS) * 7 + step) % len(ids)].tolist()
        view = StepView(step, 0.0, names, tuple([(token,) for token in rows]), None, prompts, prompts + step)
        began = time.process_time_ns()
        guard.observe(view)
        taken.append(time.process_time_ns() - began)
    return figure(f"salad.cost, batch {TIMED_ROWS}", float(np.median(taken[20:])) / TIMED_ROWS / 1000, "us/token", 0.4)
