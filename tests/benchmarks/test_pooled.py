"""Cases that are judged in several processes."""

from __future__ import annotations

from itertools import count

import pytest

from checkengine.benchmarks.pooled import pooled


def test_results_of_other_processes_come_in_the_order_of_the_cases_and_so_does_an_error() -> None:
    found = pooled(abs, [-5, 4, -3, "x", -1], 60.0, processes=2)
    assert [next(found) for _ in range(3)] == [5, 4, 3]
    with pytest.raises(TypeError, match="bad operand"):
        next(found)


def test_nothing_more_is_begun_when_time_is_up() -> None:
    assert list(pooled(abs, count(), -1.0, processes=1)) == []
