"""Hostile bundles: 2,000 here, a million by `python -m checkengine.benchmarks.bundle_fuzz 1000000`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from checkengine.benchmarks.bundle_fuzz import Samples, fuzz, read_in_memory, signed
from checkengine.benchmarks.bundle_samples import small_capture
from checkengine.replay.bundle import BundleError, BundleReader, layout, write_bundle


@pytest.fixture(scope="module")
def samples() -> Samples:
    return Samples()


def test_2000_hostile_bundles_give_errors_of_ours_or_are_read(samples: Samples) -> None:
    told = fuzz(2000, seed=20261130, samples=samples)
    assert told.untyped == []
    assert told.read > 200
    assert told.refused > 1000
    assert min(told.kinds.values()) > 10


def test_a_hostile_bundle_takes_at_most_twice_the_memory_that_it_declares() -> None:
    told = fuzz(60, seed=5, samples=Samples(small_capture(dimension=2048)), traced=1.0)
    assert told.untyped == []
    assert 0 < told.largest_ratio <= 2.0


def changed_ring(samples: Samples, **columns: np.ndarray) -> dict[str, bytes]:
    ring = safetensors.numpy.load(samples.clear[layout.RING]) | columns
    return signed(samples.clear | {layout.RING: safetensors.numpy.save(ring)}, {layout.RING})


def test_counts_that_tell_of_more_tokens_than_there_is_memory_take_none(samples: Samples) -> None:
    """A core without content has no tokens: only their number is told."""
    ring = safetensors.numpy.load(samples.clear[layout.RING])
    huge = np.full_like(ring["prompt_counts"], 2**40)
    files = changed_ring(samples, prompt_counts=huge)
    with samples.known(), pytest.raises(BundleError):
        read_in_memory(files, clear=True, shut=False)
    for name in ("prompt_counts", "token_ids_counts", "sampled_counts"):
        for value in (2**62, -1):
            with samples.known(), pytest.raises(BundleError):
                read_in_memory(changed_ring(samples, **{name: np.full_like(ring[name], value)}), clear=True)


def test_undo_bytes_of_another_shape_are_refused(samples: Samples) -> None:
    undo = safetensors.numpy.load(samples.clear[layout.UNDO])
    undo["undo.kv.key"] = undo["undo.kv.key"][:, :1].copy()
    files = signed(samples.clear | {layout.UNDO: safetensors.numpy.save(undo)}, {layout.UNDO})
    with samples.known(), pytest.raises(BundleError, match=r"undo bytes of kv\.key"):
        read_in_memory(files, clear=True)


def test_the_sample_itself_is_read_whole_in_both_forms(samples: Samples) -> None:
    read_in_memory(samples.clear, clear=True)
    with samples.known():
        read_in_memory(samples.encrypted, clear=False)


def test_a_window_without_content_still_tells_how_long_prompts_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    path = write_bundle(small_capture(), tmp_path, content="none")
    window = BundleReader(path).window()
    start = next(iter(window.starts.values()))
    assert len(start.prompt_tokens) == 6
    assert list(start.prompt_tokens[1:3]) == [0, 0]
    assert start.prompt_tokens[-1] == 0
    with pytest.raises(IndexError):
        start.prompt_tokens[6]


def test_a_case_comes_again_from_its_seed(samples: Samples) -> None:
    first, second = (fuzz(50, seed=3, samples=samples) for _ in range(2))
    assert (first.read, first.refused, first.kinds) == (second.read, second.refused, second.kinds)
