"""`checkengine probe residency` on this processor, with a small cache so that it takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from checkengine.guards.errors import UserError
from checkengine.probing import loop_block
from checkengine.probing.caches import bytes_of, last_cache_bytes
from checkengine.probing.loop_block import block_bytes, block_of
from checkengine.probing.plot import as_svg
from checkengine.probing.products import Sharing, chain, random_rows, sizes_around, stops_paying
from checkengine.probing.residency import ProbeOptions, probe
from checkengine.probing.silence import silent_stderr
from checkengine.probing.timing import FEWEST, Pairs, Share
from checkengine.probing.words import sentences

CPU = torch.device("cpu")
COMMAND = [sys.executable, "-m", "checkengine", "probe", "residency"]
SMALL = ProbeOptions(seconds=2, cache=2**20, memory=32 * 2**20, on_chip=10**6, eager_only=True)


def sharing(mib: float, ratio: float) -> Sharing:
    return Sharing(int(mib * 2**20), 1.0, ratio, ratio, ratio - 0.01, ratio + 0.01)


def test_a_probe_measures_sizes_on_both_sides_of_the_cache_and_blocks_of_a_looped_model():
    threads = torch.get_num_threads()
    found = probe(SMALL)
    sizes = [each.bytes for each in found.sharing]
    assert min(sizes) < SMALL.cache < max(sizes)
    assert all(each.low <= each.ratio <= each.high for each in found.sharing)
    assert all(not each.problem and each.loops_seconds > each.one_seconds for each in found.looped)
    assert {each.bytes > SMALL.cache for each in found.looped} == {True, False}
    assert found.kernels[0][1] > 0
    assert torch.get_num_threads() == threads
    ElementTree.fromstring(as_svg(found))


def test_the_command_prints_one_json_object_and_writes_its_plot(tmp_path: Path):
    plot = tmp_path / "curve.svg"
    done = subprocess.run(
        [*COMMAND, "--json", "--eager", "--seconds", "1", "--cache", "512K", "--memory", "8M", "--plot", str(plot)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "USDT" not in done.stderr
    assert found["last_cache_bytes"] == 512 * 2**10
    assert [each["variant"] for each in found["looped"]].count("eager") == 3
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


def test_sharing_stops_paying_where_no_larger_size_pays():
    found = [sharing(1, 1.3), sharing(2, 1.0), sharing(4, 1.2), sharing(8, 0.95), sharing(16, 1.01)]
    assert stops_paying(found) == 8 * 2**20
    assert stops_paying(found[:3]) is None
    assert stops_paying([sharing(1, 0.9)]) == 2**20
    assert not replace(sharing(1, 1.3), low=0.9).pays


def test_the_sentences_say_that_sharing_parameters_is_not_residency():
    found = probe(replace(SMALL, memory=2**18))
    told = " ".join(sentences(found))
    assert found.sharing == ()
    assert "Sharing parameters is not residency" in told
    assert "No size was measured" in told


def test_eight_products_of_one_weight_and_of_copies_do_the_same_arithmetic():
    weight = random_rows((32, 32), CPU, torch.float32)
    same = [weight.clone() for _ in range(8)]
    assert torch.equal(chain([weight] * 8)(), chain(same)())


def test_sizes_never_take_more_memory_than_allowed():
    assert max(sizes_around(260 * 2**20, 2**30)) * 9 <= 2**30
    assert sizes_around(2**20, 2**10) == []


def test_a_block_is_as_large_as_asked_and_at_least_one_head_wide():
    assert 0.8e8 < block_bytes(block_of(10**8, CPU, torch.float32)) <= 1e8
    assert block_bytes(block_of(1, CPU, torch.float32)) > 0


@pytest.mark.parametrize(
    ("text", "size"), [("250MB", 250 * 2**20), ("266240K", 266240 * 2**10), ("1.5 GiB", 3 * 2**29)]
)
def test_sizes_are_read_in_the_units_that_people_write(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "-1", "nan", "many", "1T", "1e400", "0"])
def test_a_size_that_is_none_is_refused_with_what_to_write(text):
    with pytest.raises(UserError, match="is no size"):
        bytes_of(text)


def test_a_machine_that_does_not_tell_its_caches_is_asked_for_them(tmp_path: Path):
    with pytest.raises(UserError, match="--cache"):
        last_cache_bytes(CPU, tmp_path)


def test_a_device_that_is_not_there_is_one_clear_error():
    with pytest.raises(UserError, match="no device 'cuda'"):
        probe(replace(SMALL, device="cuda"))


def test_what_one_thing_leaves_over_goes_to_the_others():
    now = [0.0]
    time = Share(30.0, 3, lambda: now[0])
    assert time.take() == 10
    now[0] = 4.0
    assert time.take() == 13
    now[0] = 40.0
    assert (time.take(), time.left) == (0, 0)


def test_a_block_that_there_is_no_time_to_compile_is_left_out_and_says_so():
    found = loop_block.measure([2**16, 2**18], CPU, torch.float32, Share(0.0, 4), ("eager", "compiled"))
    assert [(each.variant, bool(each.problem)) for each in found] == [
        ("eager", False), ("eager", False), ("compiled", True), ("compiled", True),
    ]  # fmt: skip
    assert "more --seconds" in found[-1].problem
    assert found[-1].bytes == found[1].bytes


def test_sizes_that_there_was_no_time_for_are_named_and_not_made_up():
    told: list[str] = []
    found = probe(replace(SMALL, seconds=1e-9), told.append)
    assert found.sharing == ()
    assert any("left out" in line for line in told)


def test_pairs_stop_in_time_but_never_before_a_ratio_can_be_told():
    pairs = Pairs(lambda: None, lambda: None, CPU, least=50, ends=0.0)
    assert len(pairs.first) == FEWEST


def test_lines_of_a_library_on_standard_error_are_silenced_and_it_comes_back(capfd: pytest.CaptureFixture[str]):
    with silent_stderr():
        os.write(2, b"noise")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
