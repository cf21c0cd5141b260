"""Row statistics and the guards that read them: cost, agreement, planted faults, flipped bits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.benchmarks import flips
from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.logit_faults import agreement_figures, fault_figures, fingerprint_figures
from checkengine.benchmarks.logits import interleaved
from checkengine.detectors.logits import row_stats, warm_up

MODEL = "smollm2-135m"
SHAPES = ((64, 128_256), (256, 128_256), (64, 151_936), (256, 151_936))
OVER_NAN_COUNT, OVER_LOGSUMEXP, OVER_SUM = 1.0, 1.5, 1.5
Figures = list[dict[str, Any]]


def figures(options: DetectorOptions) -> Figures:
    """Needs no data; the flips need the demo model, and are left out of a quick run."""
    with one_thread():
        found = speed_figures(SHAPES[::2] if options.quick else SHAPES, 3 if options.quick else 7)
        found += agreement_figures()
        found += fault_figures(200 if options.quick else 1000)
        found += fingerprint_figures(50_000 if options.quick else 1_000_000)
        return found + ([] if options.quick else flip_figures())


def speed_figures(shapes: tuple[tuple[int, int], ...], rounds: int) -> Figures:
    """CPU time on one thread, in interleaved pairs; the unit is a multiple of the peer's time."""
    warm_up((torch.float32,))
    found: Figures = []
    for rows, columns in shapes:
        logits = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 3
        actions = (
            lambda logits=logits: row_stats(logits, "full"),
            lambda logits=logits: row_stats(logits, "screen"),
            lambda logits=logits: logits.isnan().sum(-1),
            lambda logits=logits: logits.logsumexp(-1),
            lambda logits=logits: logits.sum(-1),
        )
        full, screen, nan, logsumexp, total = interleaved(actions, rounds, time.process_time)
        shape = f"{rows}x{columns}"
        found += [
            ratio(f"logits.full_to_nan_count.{shape}", full, OVER_NAN_COUNT, "torch isnan().sum(-1)", nan),
            ratio(f"logits.full_to_logsumexp.{shape}", full, OVER_LOGSUMEXP, "torch logsumexp(-1)", logsumexp),
            ratio(f"logits.screen_to_sum.{shape}", screen, OVER_SUM, "torch sum(-1)", total),
        ]
    return found


def ratio(name: str, value: float, target: float, peer: str, peer_value: float) -> dict[str, Any]:
    """The peer's figure is in microseconds."""
    return figure(name, round(value / peer_value, 2), f"x {peer}", target, peer=(peer, round(peer_value, 1)))


def flip_figures() -> Figures:
    """About a minute on a quiet core; left out, with a word on stderr, where there is no model."""
    loaded = model_and_tokenizer()
    if loaded is None:
        return []
    model, tokenizer = loaded
    tap = flips.HiddenTap(model)
    try:
        honest = flips.generate(model, tokenizer, tap, 96)
        guard, false = flips.taught_guard(honest)
        in_logits, in_hidden = flips.simulated_findings(honest, 1_000_000)
        rows = sum(map(len, honest.stats))
        found = [
            figure("magnitude.false.real", false, f"findings on {rows} honest rows, six times over", 0),
            figure("magnitude.false.simulated.logits", in_logits, "per 10^6 rows", 1),
            figure("magnitude.false.simulated.hidden", in_hidden, "per 10^6 rows", 1),
        ]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            seen, _ = flips.logit_flips(honest, guard, 200_000, dtype)
            name = f"magnitude.flips.logits.{str(dtype).removeprefix('torch.')}"
            found.append(share(name, seen))
        seen, alone, bits = flips.hidden_flips(model, tap, honest, guard, 16)
        found.append(share("magnitude.flips.hidden", seen) | peer("from row statistics alone", alone))
        return [*found, share("magnitude.flips.hidden.2^8_and_more", seen[bits >= 26])]
    finally:
        tap.remove()


def share(name: str, seen: NDArray[np.bool_]) -> dict[str, Any]:
    return figure(name, round(float(seen.mean()), 4), f"of {len(seen)} that change the token", 0.9, at_least=True)


def peer(name: str, seen: NDArray[np.bool_]) -> dict[str, Any]:
    return {"peer": name, "peer_value": round(float(seen.mean()), 4)}


def model_and_tokenizer() -> tuple[Any, Any] | None:
    from checkengine.engine_shim.engine.load import load_model
    from checkengine.engine_shim.models import model_directory
    from checkengine.guards.errors import UserError

    try:
        model, tokenizer = load_model(model_directory(MODEL))
    except UserError as error:
        print(f"flips are left out: {error}", file=sys.stderr)
        return None
    return model, tokenizer


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
