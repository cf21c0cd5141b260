from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checkengine.replay.audit import AuditSchedule, Strata, rate_bound
from checkengine.replay.audit.budget import CpuBudget, FixedPace
from checkengine.replay.audit.coverage import summed
from checkengine.replay.audit.schedule import shares
from checkengine.replay.record import StepRecord

PAGE = 32


def decode_record(step: int, lengths: list[int], first_handle: int = 0) -> StepRecord:
    rows = len(lengths)
    return StepRecord(
        step=step,
        time_ns=step,
        handles=np.arange(first_handle, first_handle + rows, dtype=np.int32),
        query_lengths=np.ones(rows, np.int32),
        starts=np.array(lengths, np.int32) - 1,
        samples=np.ones(rows, np.bool_),
        token_ids=np.zeros(rows, np.int32),
    )


def named(strata: Strata, record: StepRecord) -> list[set[str]]:
    return [set(strata.named(int(bits))) for bits in strata.of(record)]


def test_every_row_at_the_edge_of_a_page_or_a_tile_is_told() -> None:
    strata = Strata(PAGE, tile=128)
    found = named(strata, decode_record(0, [33, 34, 64, 63, 40, 129, 130, 128, 127]))
    edges = [{name for name in names if name.startswith(("page", "tile"))} for names in found]
    assert edges[:5] == [{"page start"}, {"page second"}, {"page full"}, {"page end"}, set()]
    assert edges[5:] == [
        {"page start", "tile start"},
        {"page second", "tile second"},
        {"page full", "tile full"},
        {"page end", "tile end"},
    ]


def test_prefix_hits_chunk_edges_and_reused_blocks_are_told() -> None:
    strata = Strata(8)
    first = decode_record(0, [10])
    first.block_changes = np.array([[0, 0, 7]], np.int32)
    assert "prefix hit" in named(strata, first)[0]
    assert "prefix hit" not in named(strata, decode_record(1, [11]))[0]
    again = replace(first, step=2, handles=np.array([5], np.int32), query_lengths=np.array([3], np.int32))
    again.block_changes = np.array([[5, 0, 7]], np.int32)
    assert {"chunk edge", "reused block"} <= named(strata, again)[0]


def test_a_sequence_that_computes_its_tokens_again_was_preempted() -> None:
    strata = Strata(8)
    strata.of(decode_record(0, [20]))
    again = replace(decode_record(1, [21]), starts=np.array([0], np.int32), query_lengths=np.array([21], np.int32))
    assert "resumed" in named(strata, again)[0]
    assert "resumed" not in named(strata, decode_record(2, [22]))[0]


def test_a_length_is_fresh_once() -> None:
    strata = Strata(8)
    assert "fresh length" in named(strata, decode_record(0, [50]))[0]
    assert "fresh length" not in named(strata, decode_record(1, [50]))[0]


def test_a_batch_counts_for_the_graph_that_it_is_padded_to() -> None:
    strata = Strata(8, buckets=(1, 2, 4))
    buckets = [named(strata, decode_record(step, [9] * rows))[0] for step, rows in enumerate((1, 2, 3, 4, 5))]
    found = [next(name for name in names if name.startswith("batch")) for names in buckets]
    assert found == ["batch 1", "batch 2", "batch 4", "batch 4", "batch above 4"]


def test_an_empty_step_is_in_no_stratum() -> None:
    strata = Strata(8)
    assert strata.counts(strata.of(decode_record(0, []))).sum() == 0


def schedule(every: int, *, rows: int = 1, seed: int = 0) -> AuditSchedule:
    return AuditSchedule(Strata(PAGE, tile=128), FixedPace(every), seed=seed, rows_per_audit=rows)


def audited_steps(subject: AuditSchedule, records: list[StepRecord]) -> list[int]:
    steps = []
    for record in records:
        chosen = subject.choose(record)
        if chosen is not None:
            subject.judged(chosen)
            steps.append(record.step)
    return steps


def decoding(steps: int, rows: int) -> list[StepRecord]:
    """Rows of random lengths that grow by one a step."""
    first = np.random.default_rng(0).integers(100, 1000, rows)
    return [decode_record(step, (first + step % 700).tolist()) for step in range(steps)]


def test_the_schedule_audits_one_step_in_so_many_on_average_and_repeats_with_its_seed() -> None:
    records = decoding(4000, 1)
    first = audited_steps(schedule(20, seed=1), records)
    assert first == audited_steps(schedule(20, seed=1), records)
    assert first != audited_steps(schedule(20, seed=2), records)
    assert 140 < len(first) <= 220  # a row that two strata draw at once is one audit
    assert len(set(np.diff(first).tolist())) > 10


def test_rows_are_drawn_from_their_first_steps_on_where_a_schedule_began_with_prompts_that_sample_nothing() -> None:
    """A first plan over rows that are not drawn from would draw nothing until the next plan."""
    prompt = replace(decode_record(0, [40, 50]), samples=np.zeros(2, np.bool_))
    for seed in range(20):
        schedule = AuditSchedule(Strata(PAGE), FixedPace(2), seed=seed)
        schedule.choose(prompt)
        chosen = [schedule.choose(decode_record(step, [60 + step, 70 + step])) for step in range(1, 32)]
        assert sum(selection is not None for selection in chosen) >= 5, seed


def test_rare_strata_are_audited_to_a_larger_share_than_common_ones() -> None:
    subject = schedule(20)
    audited_steps(subject, decoding(3000, 16))
    share = {each.name: each.share for each in subject.coverage.strata()}
    assert share["page start"] > 4 * share["all rows"]
    assert share["tile start"] > 2 * share["page start"]


def test_uniform_draws_alone_count_for_all_rows() -> None:
    subject = schedule(10, rows=8)
    audited_steps(subject, decoding(1500, 16))
    counts = subject.coverage.counts()
    assert counts["all rows"][0] == 1500 * 16
    assert 0 < counts["all rows"][1] < 0.2 * sum(numbers[1] for name, numbers in counts.items() if name[:5] == "batch")


def test_rows_that_ride_along_come_from_the_strata_that_were_drawn() -> None:
    subject = schedule(1, rows=3)
    lengths = [33, 40, 41, 42, 43, 65, 97, 44, 45]
    edges = []
    for step in range(300):
        chosen = subject.choose(decode_record(step, lengths))
        if chosen is not None and len(chosen.handles) == 3:
            subject.judged(chosen)
            edges.append(len({0, 5, 6} & set(chosen.handles)))
    assert np.mean(edges) > 1.5


def test_a_dear_judge_slows_the_schedule_down_to_its_share_of_cpu_time() -> None:
    now = [0.0]
    budget = CpuBudget(0.1, clock=lambda: now[0])
    subject = AuditSchedule(Strata(PAGE), budget, seed=3)
    audits = 0
    for record in decoding(8_000, 4):
        now[0] += 0.01
        chosen = subject.choose(record)
        if chosen is not None:
            budget.charge(0.25)
            audits += 1
    assert 0.8 * 0.1 * 80 < budget.spent < 0.1 * 80 + 1
    assert audits == round(budget.spent / 0.25)


def test_the_budget_of_an_idle_night_is_not_saved_up() -> None:
    now = [0.0]
    budget = CpuBudget(0.5, clock=lambda: now[0])
    budget.charge(10.0)
    now[0] = 100_000.0
    budget.step()
    assert not budget.may_spend


def test_shares_are_equal_where_rows_last_and_never_more_than_one() -> None:
    found = shares(np.array([10.0, 1.0, 0.01, 0.0]), 0.31)
    assert found.tolist() == pytest.approx([0.015, 0.15, 1.0, 0.0])
    assert shares(np.array([2.0, 1.0]), 100.0).tolist() == [1.0, 1.0]
    assert shares(np.zeros(3), 0.1).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("audited", "bound"), [(1, 0.95), (299, 0.00997), (3_000_000, 0.99858e-6)])
def test_no_conviction_bounds_the_rate_by_three_over_the_number_audited(audited: int, bound: float) -> None:
    assert rate_bound(audited) == pytest.approx(bound, rel=1e-3)
    assert rate_bound(audited) == pytest.approx(1 - 0.05 ** (1 / audited))


def test_a_conviction_widens_the_bound_as_clopper_and_pearson_do() -> None:
    assert rate_bound(100, 1) == pytest.approx(0.04656, rel=1e-3)
    assert rate_bound(0) == rate_bound(3, 3) == 1.0
    with pytest.raises(ValueError, match="convicted"):
        rate_bound(3, 4)


def test_counts_of_several_replicas_add_up() -> None:
    total = {
        each.name: each for each in summed([{"page start": [10, 2, 0]}, {"page start": [5, 1, 1], "x": [1, 0, 0]}])
    }
    assert (total["page start"].seen, total["page start"].audited, total["page start"].convicted) == (15, 3, 1)
    assert total["x"].bound == 1.0


@pytest.mark.parametrize("every", [0, -1])
def test_a_schedule_that_never_audits_is_refused(every: int) -> None:
    with pytest.raises(ValueError, match="every_steps"):
        FixedPace(every)
