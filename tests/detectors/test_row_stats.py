"""Row statistics: what they find, and that every backend finds the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import RowStats, compile_backend, row_stats, warm_up
from checkengine.detectors.logits import pending_row_stats

HALVES = (torch.float16, torch.bfloat16)
CLOSE = ("logsumexp", "entropy", "log_total")
SPECIAL = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-42, 3.4e38)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_same(a: RowStats, b: RowStats) -> None:
    assert a.level == b.level
    for field in RowStats.__dataclass_fields__:
        left, right = getattr(a, field), getattr(b, field)
        if left is None or field == "level":
            assert right is None or field == "level"
        elif field in CLOSE:
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5, err_msg=field)
        else:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, err_msg=field)


def assert_backends_agree(logits: torch.Tensor) -> None:
    for level in ("screen", "full"):
        assert_same(row_stats(logits, level, "numba"), row_stats(logits, level, "torch"))


@pytest.mark.parametrize("columns", [1, 2, 15, 2047, 2048, 2049, 49_152, 151_936])
@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_backends_agree_on_every_size_and_scale(columns, scale):
    logits = torch.randn(3, columns, generator=torch.Generator().manual_seed(columns)) * scale
    assert_backends_agree(logits)
    for dtype in HALVES:
        assert_backends_agree(logits.to(dtype))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(SPECIAL), st.floats(width=32, min_value=-(2.0**99), max_value=2.0**99)),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 3000),
)
def test_backends_agree_on_any_mixture_of_special_values(values, padding):
    row = torch.full((1, len(values) + padding), -3.0)
    row[0, padding:] = torch.tensor(values)
    assert_backends_agree(row)
    for dtype in HALVES:
        assert_backends_agree(row.to(dtype))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_injected_nan_and_infinity_is_counted_in_its_row(data):
    columns = data.draw(st.sampled_from([3, 100, 2048, 5000]))
    logits = torch.randn(3, columns)
    row = data.draw(st.integers(0, 2))
    places = data.draw(st.lists(st.integers(0, columns - 1), min_size=1, max_size=min(20, columns), unique=True))
    injected = [data.draw(st.sampled_from([math.nan, math.inf, -math.inf])) for _ in places]
    for place, value in zip(places, injected, strict=True):
        logits[row, place] = value
    for backend in ("numba", "torch"):
        stats = row_stats(logits, "full", backend)
        screen = row_stats(logits, "screen", backend)
        assert stats.nonfinite.tolist() == screen.nonfinite.tolist() == [r == row for r in range(3)]
        assert stats.nan[row] == sum(math.isnan(v) for v in injected)
        assert stats.positive_infinite[row] == injected.count(math.inf)
        assert stats.negative_infinite[row] == injected.count(-math.inf)
        assert not stats.nan[[r for r in range(3) if r != row]].any()


def test_a_grammar_mask_counts_as_minus_infinity_only_and_leaves_the_distribution_defined():
    logits = torch.randn(2, 4096)
    allowed = torch.tensor([7, 99, 3000])
    masked = torch.full_like(logits, -torch.inf)
    masked[:, allowed] = logits[:, allowed]
    stats = row_stats(masked)
    assert stats.negative_infinite.tolist() == [4093, 4093]
    assert not stats.nan.any()
    assert not stats.positive_infinite.any()
    expected = torch.distributions.Categorical(logits=logits[:, allowed]).entropy()
    np.testing.assert_allclose(stats.entropy, expected, atol=1e-5)
    np.testing.assert_allclose(stats.logsumexp, logits[:, allowed].logsumexp(-1), atol=1e-5)


def test_a_row_of_nan_only_has_no_maximum_no_argmax_and_no_distribution():
    for backend in ("numba", "torch"):
        stats = row_stats(torch.full((1, 3000), math.nan), "full", backend)
        assert (stats.maximum[0], stats.minimum[0], stats.argmax[0]) == (-math.inf, math.inf, -1)
        assert np.isnan([stats.margin[0], stats.entropy[0], stats.logsumexp[0]]).all()


def test_a_fully_masked_row_has_logsumexp_minus_infinity_and_no_entropy():
    for backend in ("numba", "torch"):
        stats = row_stats(torch.full((1, 3000), -math.inf), "full", backend)
        assert stats.logsumexp[0] == -math.inf
        assert math.isnan(stats.entropy[0])
        assert stats.margin[0] == 0


def test_a_row_of_nan_and_minus_infinity_names_the_column_that_is_a_number():
    for backend in ("numba", "torch"):
        assert row_stats(torch.tensor([[math.nan, -math.inf]]), "full", backend).argmax[0] == 1


def test_a_uniform_row_has_the_largest_entropy_no_margin_and_its_first_column_as_argmax():
    stats = row_stats(torch.full((1, 49_152), 2.5))
    assert stats.entropy[0] == pytest.approx(math.log(49_152), abs=1e-5)
    assert (stats.margin[0], stats.argmax[0]) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6000), st.data())
def test_ties_take_the_lowest_index_and_a_margin_of_zero(columns, data):
    logits = torch.zeros(1, columns) - torch.rand(1, columns) - 1
    first = data.draw(st.integers(0, columns - 2))
    second = data.draw(st.integers(first + 1, columns - 1))
    logits[0, first], logits[0, second] = -0.0, 0.0
    stats = row_stats(logits)
    assert stats.argmax[0] == first
    assert stats.margin[0] == 0


@pytest.mark.parametrize("columns", [49_152, 151_936])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_logsumexp_and_entropy_are_right_to_1e_5(columns, scale):
    logits = torch.randn(4, columns, generator=torch.Generator().manual_seed(1)) * scale
    stats = row_stats(logits, "full", "numba")
    reference = torch.distributions.Categorical(logits=logits.double())
    np.testing.assert_allclose(stats.entropy, reference.entropy(), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(stats.logsumexp, logits.double().logsumexp(-1), rtol=1e-6, atol=1e-5)


def test_strided_transposed_and_broadcast_rows_read_as_their_copies():
    logits = torch.randn(6, 5000)
    for view in (logits[::2], logits[:, 7:3333], logits[:, ::3], logits.t().contiguous().t(), logits[:1].expand(3, -1)):
        for dtype in (torch.float32, torch.bfloat16):
            cast = view if dtype == torch.float32 else logits.to(dtype)[::2]
            assert_same(row_stats(cast), row_stats(cast.clone(memory_format=torch.contiguous_format)))


def test_rows_do_not_depend_on_their_neighbours():
    logits = torch.randn(5, 3000)
    logits[2, 5] = math.nan
    alone = [row_stats(logits[r : r + 1]).fingerprint[0] for r in range(5)]
    assert row_stats(logits).fingerprint.tolist() == alone


def test_float64_agrees_on_every_backend_and_with_float32_on_equal_values():
    logits = torch.randn(4, 3000)
    logits[1, 5], logits[2, 7], logits[3] = math.nan, math.inf, -math.inf
    assert_backends_agree(logits.double())
    wide, narrow = row_stats(logits.double()), row_stats(logits)
    for field in set(RowStats.__dataclass_fields__) - {"level", "fingerprint", "logsumexp", "entropy", "log_total"}:
        np.testing.assert_array_equal(getattr(wide, field), getattr(narrow, field), err_msg=field)
    np.testing.assert_allclose(wide.entropy, narrow.entropy, atol=1e-5)


def test_logits_that_need_a_gradient_are_read_all_the_same():
    logits = torch.randn(2, 64, requires_grad=True)
    assert len(row_stats(logits)) == 2


def test_no_rows_give_empty_statistics():
    for level in ("screen", "full"):
        for backend in ("numba", "torch"):
            assert len(row_stats(torch.zeros(0, 64), level, backend)) == 0


def test_a_wrong_shape_or_dtype_is_refused_with_what_was_expected():
    with pytest.raises(ValueError, match=r"shape \(rows, vocabulary\), got \(2, 3, 4\)"):
        row_stats(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        row_stats(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="use backend='torch'"):
        row_stats(torch.zeros(2, 3, device="meta"), "full", "numba")
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        row_stats(torch.zeros(2, 3), first_column=-1)
    with pytest.raises(ValueError, match="use row_stats"):
        pending_row_stats(torch.zeros(2, 3), backend="numba")


def test_nothing_is_compiled_after_warm_up():
    from checkengine.detectors.logits import numba_kernel

    warm_up((torch.float32, torch.bfloat16))
    compile_backend(torch.float16)
    kernels = (numba_kernel.full_rows, numba_kernel.screen_rows)
    before = [len(kernel.signatures) for kernel in kernels]
    for dtype in (torch.float32, *HALVES):
        for rows, columns in ((1, 8), (16, 300), (40, 2049)):
            logits = torch.randn(rows * 2, columns).to(dtype)
            row_stats(logits), row_stats(logits[::2]), row_stats(logits, "screen")
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_without_a_directory_to_cache_in_the_kernels_are_compiled_all_the_same(monkeypatch):
    import numba

    from checkengine.detectors.logits import numba_kernel

    compile_for_real = numba.njit

    def njit(cache: bool = False, **options: object):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compile_for_real(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert numba_kernel.compiled(lambda x: x + 1)(1) == 2
