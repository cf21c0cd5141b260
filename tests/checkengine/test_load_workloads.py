"""What `checkengine load` sends: lengths, arrivals, prefixes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from checkengine.guards.errors import UserError
from checkengine.loading.lecture import LectureWorkload, Quantiles
from checkengine.loading.planned import Planned, faster, rate_of
from checkengine.loading.traces import read_trace, trace
from checkengine.loading.words import PromptMaker


def test_the_lecture_workload_has_the_lectures_quantiles() -> None:
    found = [each for each in LectureWorkload().requests(15.0, 300.0, 3, before=200.0) if each.at >= 0]
    inputs, outputs = ([getattr(each, name) for each in found] for name in ("input_tokens", "output_tokens"))
    assert np.percentile(inputs, [1, 50, 99]) == pytest.approx([32, 512, 4096], rel=0.15)
    assert np.percentile(outputs, [1, 50, 99]) == pytest.approx([64, 256, 1024], rel=0.15)
    low, middle, high = np.percentile([each.hit_share for each in found if each.input_tokens >= 256], [1, 50, 99])
    assert low == pytest.approx(0.05, abs=0.03)
    assert middle == pytest.approx(0.60, abs=0.04)
    assert high == pytest.approx(0.98, abs=0.015)


def test_sessions_and_gaps_have_the_lectures_quantiles() -> None:
    random = np.random.default_rng(1)
    workload = LectureWorkload()
    assert np.percentile(workload.turns.draw(random, 20_000), [50, 99]) == pytest.approx([7, 50], rel=0.1)
    assert np.percentile(workload.gaps.draw(random, 20_000), [50, 99]) == pytest.approx([10, 300], rel=0.1)


def test_the_rate_that_is_asked_for_comes_and_arrivals_are_not_regular() -> None:
    found = [each for each in LectureWorkload().requests(20.0, 100.0, 5) if each.at >= 0]
    assert rate_of(found) == pytest.approx(20.0, rel=0.15)
    gaps = np.diff([each.at for each in found])
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1.0, abs=0.15)


def test_what_a_request_shares_was_sent_before_it() -> None:
    sent: set[int] = set()
    for request in LectureWorkload().requests(5.0, 200.0, 2):
        shared = request.shared_tokens // request.block_tokens
        assert set(request.whole_blocks[:shared]) <= sent
        assert not set(request.whole_blocks[shared : shared + 1]) & sent
        sent.update(request.whole_blocks)
    assert len(sent) > 10_000


def test_the_same_seed_gives_the_same_requests_and_another_one_others() -> None:
    first, again, other = (LectureWorkload().requests(2.0, 60.0, seed) for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_quantiles_are_met_at_the_quantiles() -> None:
    drawn = Quantiles(1.0, 8.0, 1000.0).draw(np.random.default_rng(0), 50_000)
    assert np.percentile(drawn, [1, 50, 99]) == pytest.approx([1, 8, 1000], rel=0.1)


def test_prompts_share_the_planned_prefix_and_nothing_after_it() -> None:
    maker = PromptMaker(7, tokens_a_word=1.0)
    first = Planned(0.0, 100, 8, (1, 2, 3, 9), 30)
    second = Planned(1.0, 125, 8, (1, 2, 4, 5, 9), 30)
    a, b = (maker.prompt(each, number).split(" ") for number, each in enumerate((first, second)))
    assert (len(a), len(b)) == (100, 125)
    common = next(index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    assert 60 <= common < 64


def test_prompts_of_another_seed_share_nothing() -> None:
    request = Planned(0.0, 64, 8, (1, 2), 32)
    a, b = (PromptMaker(seed).prompt(request, 0).split(" ") for seed in (1, 2))
    assert a[:8] != b[:8]


def write_mooncake(path: Path, records: list[dict[str, object]]) -> Path:
    lines = "".join(json.dumps(each) + "\n" for each in records).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


RECORDS: list[dict[str, object]] = [
    {"timestamp": 27_000, "input_length": 1500, "output_length": 3, "hash_ids": [0, 5, 6]},
    {"timestamp": 7_000, "input_length": 1030, "output_length": 0, "hash_ids": [0, 5, 8]},
]


def test_a_mooncake_trace_is_read_in_order_with_its_prefixes(tmp_path: Path) -> None:
    found = read_trace(write_mooncake(tmp_path / "x.jsonl.gz", RECORDS))
    assert [(each.at, each.input_tokens, each.output_tokens, each.shared_tokens) for each in found] == [
        (0.0, 1030, 1, 0),
        (20.0, 1500, 3, 1024),
    ]


def test_an_azure_trace_is_read_with_its_times(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,110,27\n"
    )
    found = read_trace(path)
    assert [(round(each.at, 3), each.input_tokens, each.output_tokens) for each in found] == [
        (0.0, 4808, 10),
        (1.5, 110, 27),
    ]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"timestamp": 0}', '{"timestamp": 0, "input_length": 0, "output_length": 1}',
     '{"timestamp": 1e999, "input_length": 5, "output_length": 1}', '{"timestamp": "x", "input_length": 5}',
     '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "[" * 100_000],
)  # fmt: skip
def test_a_broken_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = write_mooncake(tmp_path / "x.jsonl", RECORDS[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=r"x\.jsonl, line 2 is no request"):
        read_trace(path)


def test_files_that_are_no_traces_are_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"give a \.jsonl or \.csv"):
        read_trace(tmp_path / "x.parquet")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="holds no request"):
        read_trace(tmp_path / "empty.jsonl")
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "torn.jsonl.gz")
    with pytest.raises(UserError, match=r"needs --data DIR with azure_conv\.csv\.gz"):
        trace("azure", None)
    with pytest.raises(UserError, match=r"holds no mooncake_conversation\.jsonl\.gz"):
        trace("mooncake", tmp_path)


def test_a_faster_trace_keeps_its_order_and_multiplies_its_rate() -> None:
    planned = [Planned(float(index), 10, 10) for index in range(11)]
    assert rate_of(faster(planned, 4.0)) == pytest.approx(4.0)
