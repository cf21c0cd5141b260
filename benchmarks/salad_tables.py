"""Makes and measures `detectors/transition_tables.py`.

    python -m checkengine.benchmarks.salad_tables record RUNS.jsonl --seed 1000
    python -m checkengine.benchmarks.salad_tables estimate TABLES.py --data DIR --files FOLDER… --runs RUNS.jsonl…
    python -m checkengine.benchmarks.salad_tables measure --data DIR --files FOLDER… --runs OTHER_RUNS.jsonl…

Healthy text is parted into kinds by hard expectation-maximisation over first-order Markov chains; salad is one
distribution over classes, since held-out salad was no likelier under any chain of higher order.
"""

from __future__ import annotations

import argparse
import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.salad_data import Run, Text, healthy_texts, read_runs
from checkengine.detectors.token_classes import CLASSES, FORMS, TokenClass, classes_of
from checkengine.detectors.transition_tables import STEPS_PER_NAT
from checkengine.detectors.transitions import TransitionTables, TransitionTest
from checkengine.detectors.vocabulary import Vocabulary

KINDS, ROUNDS, PRIOR, PER_KIND = 10, 12, 30.0, 900
PAIRS = len(TokenClass) * CLASSES
Floats = NDArray[np.float64]


def estimate(texts: Sequence[Text], runs: Sequence[Run], vocabulary: Vocabulary) -> tuple[Floats, Floats]:
    """P salad, shape (CLASSES,), and P healthy, shape (KINDS, forms, CLASSES)."""
    classes, forms = classes_of(vocabulary.pieces, vocabulary.special).astype(np.int64), np.array(FORMS)
    draw = np.random.default_rng(0)
    names = np.array([text.kind for text in texts])
    training = np.array([text.training for text in texts])
    kept = [draw.permutation(np.flatnonzero(training & (names == name)))[:PER_KIND] for name in sorted(set(names))]
    start = draw.permutation(len(kept)) % KINDS
    labels = np.concatenate([np.full(len(some), start[order]) for order, some in enumerate(kept)])
    rows = [classes[texts[index].tokens] for some in kept for index in some]
    pairs = np.concatenate([forms[row[:-1]] * CLASSES + row[1:] for row in rows])
    lengths = np.array([len(row) - 1 for row in rows])
    healthy = _kinds(pairs, lengths, labels)
    salad = np.ones(CLASSES)
    for run in runs:
        salad += np.bincount(classes[run.tokens[run.first :]], minlength=CLASSES)
    return salad / salad.sum(), healthy


def _kinds(pairs: NDArray[np.int64], lengths: NDArray[np.int64], labels: NDArray[np.int64]) -> Floats:
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    everywhere = np.bincount(pairs % CLASSES, minlength=CLASSES) + 1.0
    everywhere /= everywhere.sum()
    healthy = np.empty((KINDS, len(TokenClass), CLASSES))
    for _ in range(ROUNDS):
        owner = np.repeat(labels, lengths)
        for kind in range(KINDS):
            counts = np.bincount(pairs[owner == kind], minlength=PAIRS).reshape(-1, CLASSES).astype(np.float64)
            usual = (counts.sum(axis=0) + 0.05) / (counts.sum() + 0.05 * CLASSES)
            counts += PRIOR * (0.7 * usual + 0.3 * everywhere) + 0.02
            healthy[kind] = counts / counts.sum(axis=1, keepdims=True)
        fits = [np.add.reduceat(np.log(kind).ravel()[pairs], starts) for kind in healthy]
        labels = np.argmax(fits, axis=0)
    return healthy


def write(salad: Floats, healthy: Floats, out: Path) -> None:
    """As steps of log probability, packed; replaces the lines of text in the tables' file."""
    steps = np.concatenate([salad.ravel(), healthy.ravel()])
    levels = np.clip(np.round(-STEPS_PER_NAT * np.log(steps)), 0, 63).astype(np.uint8)
    text = base64.b85encode(zlib.compress(levels.tobytes(), 9)).decode()
    lines = "\n".join(f'    "{text[at : at + 110]}"' for at in range(0, len(text), 110))
    head, _, rest = out.read_text().partition("_PACKED = (\n")
    out.write_text(f"{head}_PACKED = (\n{lines}\n){rest.partition(chr(10) + ')')[2]}")


def measure(texts: Sequence[Text], runs: Sequence[Run], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """False findings on texts held out, and delays in tokens from the first corrupted one, by threshold."""
    tables = TransitionTables(vocabulary)
    held_out = [text for text in texts if not text.training]
    peaks = np.array([_peaks(tables, text.tokens, text.prompt)[-1] for text in held_out])
    files = np.array([text.prompt > 0 for text in held_out])
    traces = [_peaks(tables, [*run.prompt_tokens, *run.tokens], len(run.prompt_tokens))[run.first :] for run in runs]
    figures = []
    for threshold in (12.0, 14.0, 16.0, 18.0):
        delays = np.array([_delay(trace, threshold) for trace in traces])
        strong = np.array([run.scale >= 5 for run in runs])
        long = np.array([len(trace) >= 32 for trace in traces])
        figures.append(
            {
                "threshold": threshold,
                "completions": int((~files).sum()),
                "findings_in_completions": int((peaks[~files] >= threshold).sum()),
                "file_slices": int(files.sum()),
                "findings_in_file_slices": int((peaks[files] >= threshold).sum()),
                "runs": len(runs),
                "median_delay": float(np.median(delays)),
                "p90_delay": float(np.quantile(delays, 0.9)),
                "within_32": float((delays[long] <= 32).mean()),
                "median_delay_from_scale_5": float(np.median(delays[strong])),
                "p90_delay_from_scale_5": float(np.quantile(delays[strong], 0.9)),
                "within_32_from_scale_5": float((delays[long & strong] <= 32).mean()),
            }
        )
    return figures


def _peaks(tables: TransitionTables, tokens: Sequence[int], prompt: int) -> Floats:
    """Highest evidence up to each token behind the prompt."""
    test = TransitionTest(tables, tokens[:prompt], np.inf)
    evidence = []
    for token in tokens[prompt:]:
        test.push(token)
        evidence.append(test.evidence)
    return np.maximum.accumulate(np.array(evidence))


def _delay(trace: Floats, threshold: float) -> float:
    over = np.flatnonzero(trace >= threshold)
    return float(over[0] + 1) if len(over) else np.inf


def record(out: Path, model_path: Path, seed: int) -> None:
    """Runs of the demo model over garbage of several scales, a line of JSON each."""
    from checkengine.drills.requests import CHATS, to_request
    from checkengine.engine_shim.engine.engine import Engine
    from checkengine.engine_shim.engine.load import load_model
    from checkengine.engine_shim.faults import OverRead
    from checkengine.engine_shim.settings import EngineSettings

    model, tokenizer = load_model(model_path)
    with out.open("w") as lines:
        for scale, temperature in ((s, t) for s in (2.0, 5.0, 10.0, 20.0) for t in (0.0, 0.7)):
            seed += 1
            engine = Engine(model, tokenizer, EngineSettings(garbage_scale=scale, blocks=300), faults=[OverRead()])
            engine.memory.fill_garbage(kind="recycled", scale=scale, seed=seed)
            requests = [to_request(chat, tokenizer) for chat in CHATS]
            outputs: dict[str, list[int]] = {request.name: [] for request in requests}
            for order, request in enumerate(requests):
                changed = {"temperature": temperature, "max_tokens": 56, "seed": seed * 100 + order}
                request.sampling = request.sampling.model_copy(update=changed)
                engine.submit(request)
            while engine.has_work:
                for output in engine.step():
                    outputs[output.name] += output.tokens
            for request in requests:
                line = {"prompt_tokens": list(request.prompt_tokens), "tokens": outputs[request.name], "first": 1}
                lines.write(json.dumps(line | {"scale": scale, "temperature": temperature}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "estimate", "measure"))
    parser.add_argument("out", type=Path, nargs="?", help="record: runs; estimate: detectors/transition_tables.py")
    parser.add_argument("--model", type=Path, default=Path("~/.cache/checkengine/models/smollm2-135m").expanduser())
    parser.add_argument("--data", type=Path)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=1000)
    given = parser.parse_args()
    if given.what == "record":
        record(given.out, given.model, given.seed)
        return
    if given.data is None or not given.runs:
        parser.error(f"{given.what} needs --data and --runs")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    texts, runs = healthy_texts(given.data, given.files, tokenizer), read_runs(given.runs)
    if given.what == "estimate":
        write(*estimate(texts, runs, vocabulary), given.out)
    else:
        print(json.dumps(measure(texts, runs, vocabulary), indent=2))


if __name__ == "__main__":
    main()
