"""Embedding vectors that carry nothing are told apart from all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkengine.detectors.embeddings import read_embeddings


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_kind_is_told_and_excludes_the_others(dtype: type) -> None:
    healthy = np.random.default_rng(0).standard_normal(64)
    vectors = np.array([healthy, np.zeros(64), np.full(64, -0.125), healthy, healthy], dtype)
    vectors[3, 5], vectors[4, :2] = np.nan, np.inf
    reading = read_embeddings(vectors)
    assert reading.nonfinite.tolist() == [0, 0, 0, 1, 2]
    assert reading.zero.tolist() == [False, True, False, False, False]
    assert reading.constant.tolist() == [False, False, True, False, False]


def test_a_norm_that_underflows_in_its_own_precision_is_zero() -> None:
    assert read_embeddings(np.array([[1e-30, -2e-30]], np.float32)).zero[0]
    assert not read_embeddings(np.array([[1e-30, -2e-30]], np.float64)).zero[0]


def test_a_single_dimension_is_never_constant_and_no_rows_are_no_error() -> None:
    assert not read_embeddings(np.array([[2.0]])).constant[0]
    assert len(read_embeddings(np.empty((0, 8), np.float32)).zero) == 0


@pytest.mark.parametrize("vectors", [np.zeros(4), np.zeros((2, 3), np.int64)])
def test_another_shape_or_dtype_is_one_clear_error(vectors: np.ndarray) -> None:
    with pytest.raises(ValueError, match="embeddings must be floats of shape"):
        read_embeddings(vectors)


@given(st.integers(2, 512), st.integers(0, 10**6), st.floats(-6, 6), st.sampled_from([np.float32, np.float16]))
def test_random_vectors_of_any_scale_are_healthy_and_order_of_rows_does_not_matter(
    dimensions: int, seed: int, scale: float, dtype: type
) -> None:
    vectors = np.random.default_rng(seed).standard_normal((6, dimensions))
    vectors = (vectors * 10.0 ** (scale / (3 if dtype is np.float16 else 1))).astype(dtype)
    vectors[:, 0] += vectors[:, 1:].max() + dtype(1)
    reading, turned = read_embeddings(vectors), read_embeddings(vectors[::-1])
    assert not reading.nonfinite.any()
    assert not reading.zero.any()
    assert not reading.constant.any()
    np.testing.assert_array_equal(reading.norm[::-1], turned.norm)
