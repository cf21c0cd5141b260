"""What is decided when a rank is lost, slow or odd: pure rules, without a process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim.ranks.exchange import checksum
from checkengine.engine_shim.ranks.policy import Membership, NoRankLeft, plan_for_loss
from checkengine.engine_shim.ranks.slowness import STEPS, Slowness
from checkengine.engine_shim.ranks.witnesses import odd_ones

FOUR = Membership((0, 1, 2, 3), (0, 1, 2, 3, 0, 1, 2, 3))


def test_a_lost_ranks_experts_and_requests_go_to_those_that_have_fewest():
    plan = plan_for_loss(1, FOUR, {"a": 1, "b": 0, "c": 1, "d": 0})
    assert plan.cancel == ("a", "c")
    assert dict(plan.rehome) == {1: 0, 5: 2}
    assert dict(plan.reprefill) == {"a": 2, "c": 3}
    assert plan.membership.ranks == (0, 2, 3)


def test_a_spare_takes_everything_and_is_a_spare_no_longer():
    plan = plan_for_loss(1, Membership((0, 1), (0, 1), (7, 8)), {"a": 1})
    assert (dict(plan.rehome), dict(plan.reprefill)) == ({1: 7}, {"a": 7})
    assert plan.membership == Membership((0, 7), (0, 7), (8,), 1)


def test_the_last_rank_cannot_be_replaced():
    with pytest.raises(NoRankLeft, match="rank 0 was the last"):
        plan_for_loss(0, Membership((0,), (0, 0)), {})


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), st.integers(0, 20))
def test_after_any_losses_every_expert_and_request_is_on_a_living_rank(lost, requests):
    membership, running = FOUR, {f"r{number}": number % 4 for number in range(requests)}
    for rank in lost:
        plan = plan_for_loss(rank, membership, running)
        membership, running = plan.membership, running | dict(plan.reprefill)
    assert set(membership.experts) <= set(membership.ranks)
    assert set(running.values()) <= set(membership.ranks)
    counts = [len(membership.owned(rank)) for rank in membership.ranks]
    assert max(counts) - min(counts) <= 1


def test_a_rank_is_slow_only_after_many_slow_steps_in_a_row_and_told_once():
    slowness = Slowness()
    told = [slowness.push({0: 0.02, 1: 0.02, 2: 0.5 if step != 3 else 0.02}) for step in range(20)]
    assert [step for step, ranks in enumerate(told) if ranks] == [3 + STEPS]
    assert told[3 + STEPS] == [2]


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_of_four_ranks_the_odd_one_is_named_wherever_it_stands(wrong):
    def answer(rank):
        return ["bad"] if rank == wrong else ["good"]

    told = {rank: [{"outputs": answer(rank)[0]}] for rank in range(4)}
    assert odd_ones(told, range(4), lambda rank, witnesses: answer(rank) * len(witnesses)) == [wrong]


def test_of_two_ranks_that_disagree_nobody_is_accused():
    told = {0: [{"outputs": "good"}], 1: [{"outputs": "bad"}]}
    assert odd_ones(told, (0, 1), lambda rank, witnesses: ["good", "bad"][rank : rank + 1]) == []


@given(st.integers(0, 5), st.data())
@settings(deadline=None)
def test_a_checksum_tells_changed_and_swapped_rows(count, data):
    rows, tags = torch.randn(count + 2, 8), torch.arange(count + 2)
    whole = checksum(rows, tags)
    changed = rows.clone()
    changed.view(torch.int32)[data.draw(st.integers(0, count + 1)), 3] ^= 1 << data.draw(st.integers(0, 30))
    assert checksum(changed, tags) != whole
    assert checksum(rows.flip(0), tags.flip(0)) != whole
    assert checksum(rows, tags.flip(0)) != whole
