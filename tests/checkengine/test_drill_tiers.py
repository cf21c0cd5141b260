"""The tiers' drill: its parts on the tiny model, and the rule that decides where a block is found."""

from __future__ import annotations

import gzip
import json

import numpy as np

from checkengine.motion.lru import Tiers, lecture_turns, mooncake_hits, mooncake_requests
from checkengine.motion.seal_speed import seal_figures
from checkengine.motion.tiers import planted_figures


def test_every_planted_class_is_caught_named_and_refused_before_the_first_token():
    found = planted_figures(1)
    assert [each["name"] for each in found if not each["ok"]] == []
    assert all(each["unit"].startswith("share of ") and each["value"] == 1 for each in found)


def test_a_block_that_gave_way_is_found_one_tier_further_down():
    tiers = Tiers(device=2, host=2, disk=1)
    for block in "abcde":
        tiers.request([block])
    tiers.request(["e"])
    tiers.request(["b"])
    tiers.request(["a"])
    assert tiers.hits == [1, 1, 1]


def test_behind_a_block_that_is_nowhere_all_blocks_are_computed():
    tiers = Tiers(device=8, host=0, disk=0)
    tiers.request([1, 2, 3])
    tiers.request([1, 9, 3])
    assert (tiers.hits[0], tiers.misses) == (1, 5)


def test_the_lectures_turns_and_gaps_have_its_quantiles():
    turns: dict[int, int] = {}
    for blocks in lecture_turns(4000, seed=1):
        turns[blocks[0][0]] = turns.get(blocks[0][0], 0) + 1
    middle, late = np.quantile(list(turns.values()), [0.5, 0.99])
    assert 6 <= middle <= 8
    assert 40 <= late <= 60


def test_the_traces_blocks_come_in_its_order(tmp_path):
    with gzip.open(tmp_path / "mooncake_conversation.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"hash_ids": ids}) + "\n" for ids in ([0, 1], [0, 2]))
    assert list(mooncake_requests(tmp_path)) == [[0, 1], [0, 2]]
    assert [each["value"] for each in mooncake_hits(tmp_path)] == [0.25, 0, 0, 0.25]


def test_the_cost_of_a_seal_is_measured_beside_a_plain_copy():
    names = [each["name"] for each in seal_figures(pairs=1)]
    assert names == [
        "seal.hashing on one core",
        "seal.a copy in memory with its seal, beside one without",
        "seal.a move sealed in one pass on its own thread",
        "seal.a pipelined move, added to the moving thread",
        "seal.a pipelined move, until its last seal is there",
    ]
