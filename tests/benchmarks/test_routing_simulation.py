"""The simulated servers behind `checkengine bench routing`."""

from __future__ import annotations

import numpy as np
import pytest

from checkengine.benchmarks.routing import Series, figures_of
from checkengine.benchmarks.routing_engine import Hardware, Server, pairs
from checkengine.benchmarks.routing_simulation import Layout, policies, simulate
from checkengine.engine_shim.proxy.routing.prefix_index import PrefixIndex
from checkengine.loading.planned import Planned, with_shared

ALONE = Layout(servers=1, shares_kv=False)
HARDWARE = Hardware()


def played(requests: list[Planned], layout: Layout, router: str = "least loaded") -> list[float]:
    found = simulate(requests, policies(layout, requests[0].block_tokens, 1)[router](), layout)
    return [float(each) for each in found.ttft]


def request(at: float, tokens: int, first: int, outputs: int = 1, block: int = 64) -> Planned:
    return Planned(at, tokens, outputs, tuple(range(first, first + tokens // block)), block)


def test_a_prompt_alone_takes_its_roofline() -> None:
    assert played([request(0, 4096, 0)], ALONE) == pytest.approx([HARDWARE.prefill(4096, 0)])
    flop = 2 * HARDWARE.parameters * 4096 + 4 * HARDWARE.layers * HARDWARE.width * 4096 * 4097 / 2
    assert HARDWARE.prefill(4096, 0) == pytest.approx(flop / HARDWARE.flops + HARDWARE.overhead)


def test_a_short_prompt_waits_for_the_weights_and_not_for_the_arithmetic() -> None:
    assert HARDWARE.prefill(8, 0) == pytest.approx(
        2 * HARDWARE.parameters / HARDWARE.bandwidth + HARDWARE.overhead, 0.01
    )


def test_a_repeated_prompt_computes_only_what_is_not_cached() -> None:
    first, second = played([request(0, 4096, 0), request(9, 4096 + 64, 0)], ALONE)
    assert second == pytest.approx(HARDWARE.prefill(4096 + 64, 4096))
    assert second < first / 10


def test_a_warm_request_waits_for_the_long_cold_prompt_before_it() -> None:
    warm = request(9.001, 640, 0)
    before, behind = played([request(0, 576, 0), request(9, 8192, 10_000), warm], ALONE)[0::2]
    assert behind > HARDWARE.prefill(8192, 0) - 0.001
    assert before < 0.1


def test_a_cold_line_keeps_the_long_prompt_away_from_the_warm_one() -> None:
    layout = Layout(servers=2, shares_kv=True)
    requests = [request(0, 1024, 0), *[request(9 + 1e-4 * n, 8192, 10_000 * (n + 1)) for n in range(2)]]
    requests.append(request(9.001, 1024 + 64, 0))
    one, two = (played(requests, layout, router)[-1] for router in ("one line", "two lines"))
    assert two < one / 4


def test_a_long_prompt_in_chunks_delays_every_token_of_those_that_decode() -> None:
    layout = Layout(servers=1, decodes=True, budget=512, shares_kv=False)
    quiet = simulate([request(0, 64, 0, 64)], policies(layout, 64, 1)["least loaded"](), layout)
    both = [request(0, 64, 0, 64), request(0.1, 16_384, 5_000, 2)]
    disturbed = simulate(both, policies(layout, 64, 1)["least loaded"](), layout)
    assert disturbed.tbt[0] > 1.5 * quiet.tbt[0]


def test_kv_from_a_shared_store_costs_its_way_and_what_is_there_nothing() -> None:
    prompt = request(0, 4096, 0)
    store, own = PrefixIndex(1000), PrefixIndex(1000)
    server = Server("a", HARDWARE, own, decodes=False, budget=8192, store=store)
    assert server.fetched(prompt) == 0.0
    store.insert("", prompt.whole_blocks)
    assert server.fetched(prompt) == pytest.approx(4096 * HARDWARE.kv_bytes / HARDWARE.link)
    own.insert("", prompt.whole_blocks[:48])
    assert server.fetched(prompt) == pytest.approx(1024 * HARDWARE.kv_bytes / HARDWARE.link)


def test_every_request_gets_its_first_token_and_every_server_is_left_idle() -> None:
    random = np.random.default_rng(0)
    requests = with_shared(
        request(float(at), int(random.integers(64, 4096)), int(random.integers(0, 50)) * 1000, 20)
        for at in np.cumsum(random.exponential(0.05, 200))
    )
    layout = Layout(servers=3, decodes=True, budget=1024, shares_kv=False)
    for make in policies(layout, 64, 1).values():
        policy = make()
        found = simulate(requests, policy, layout)
        assert np.all(found.ttft > 0)
        assert found.cached + found.computed == sum(each.input_tokens for each in requests)
        assert all((load.running, load.waiting) == (0, 0) for load in policy.loads.values())


def test_pairs_of_a_prompt_are_the_same_in_any_chunks() -> None:
    assert pairs(0, 1000) == pairs(0, 300) + pairs(300, 700)


def test_figures_compare_ours_with_each_rival_and_say_what_the_cold_pay() -> None:
    layout = Layout(servers=2)
    requests = with_shared([request(0.01 * n, 640, (n % 7) * 100) for n in range(100)])
    series = Series("x")
    for router, make in policies(layout, 64, 1).items():
        series.results[router] = [simulate(requests, make(), layout)]
    found = figures_of(series)
    assert len(found) == 3 * 3 + 1
    assert all(each["low"] <= each["value"] <= each["high"] for each in found if "low" in each)
