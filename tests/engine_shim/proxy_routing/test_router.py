"""The router as the relay sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checkengine.engine_shim.proxy.routing.fleet import Standing
from checkengine.engine_shim.proxy.routing.router import UpstreamRouter
from checkengine.engine_shim.proxy.routing.settings import DrainSettings, LineSettings, RoutingSettings
from checkengine.engine_shim.proxy.upstream import Ending, NoUpstream, Outcome, RoutedRequest, Upstream
from checkengine.guards.errors import UserError
from checkengine.guards.settings import SiblingSettings

DONE = Outcome(Ending.DONE, 200)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def upstreams(*names: str, pool: str = "default") -> list[Upstream]:
    return [Upstream.of(f"http://{name}:8000", name, pool) for name in names]


def request(number: int, text: str, **more: object) -> RoutedRequest:
    body = {"messages": [{"role": "user", "content": text}], **more}
    return RoutedRequest(f"r{number}", "/v1/chat/completions", body=body, session=f"s{number}")


def serve(router: UpstreamRouter, asked: RoutedRequest, outcome: Outcome = DONE) -> str:
    chosen = router.choose(asked)
    router.started(chosen, asked)
    router.answering(chosen, asked)
    router.finished(chosen, asked, outcome)
    return chosen.name


def words(seed: int, count: int) -> str:
    return " ".join(f"w{seed}x{index}" for index in range(count))


def test_a_conversation_goes_to_where_its_prefix_is() -> None:
    router = UpstreamRouter(upstreams("a", "b", "c"))
    talks = [words(seed, 400) for seed in range(6)]
    first = [serve(router, request(index, talk)) for index, talk in enumerate(talks)]
    assert set(first) == {"a", "b", "c"}
    order = [4, 0, 5, 2, 1, 3]
    assert [serve(router, request(10 + index, talks[index] + " and more")) for index in order] == [
        first[index] for index in order
    ]


def test_requests_without_a_common_prefix_are_spread_by_what_waits() -> None:
    router = UpstreamRouter(upstreams("a", "b", "c"))
    chosen = []
    for index in range(9):
        asked = request(index, words(index, 300))
        chosen.append(router.choose(asked))
        router.started(chosen[-1], asked)
    assert sorted(each.name for each in chosen) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_cold_requests_take_the_cold_line_and_warm_ones_the_other() -> None:
    router = UpstreamRouter(upstreams("cold", "warm"), RoutingSettings(lines=LineSettings(cold=("cold",))))
    short = words(0, 20)
    assert serve(router, request(0, short)) == "warm"
    assert serve(router, request(1, words(1, 2000))) == "cold"
    assert serve(router, request(2, short + "?")) == "warm"


def test_a_prefix_on_a_shared_cache_is_a_hit_for_every_upstream() -> None:
    lines = LineSettings(cold=("cold",), shared_cache=True)
    router = UpstreamRouter(upstreams("cold", "warm"), RoutingSettings(lines=lines))
    assert serve(router, request(1, words(1, 2000))) == "cold"
    assert serve(router, request(2, words(1, 2000) + " and now?")) == "warm"


def test_a_cold_line_that_is_far_behind_spills_over() -> None:
    router = UpstreamRouter(upstreams("cold", "warm"), RoutingSettings(lines=LineSettings(cold=("cold",), spill=4)))
    chosen = []
    for index in range(8):
        asked = request(index, words(index, 2000))
        chosen.append(router.choose(asked).name)
        router.started(router.choose(asked), asked)
    assert chosen[:3] == ["cold"] * 3
    assert "warm" in chosen


def test_a_retry_goes_elsewhere_and_the_last_one_is_told() -> None:
    router = UpstreamRouter(upstreams("a", "b"))
    first = router.choose(request(1, "x"))
    other = RoutedRequest("r1", "/v1/completions", excluded=frozenset({first.name}))
    assert router.choose(other).name != first.name
    with pytest.raises(NoUpstream, match="no server behind this proxy"):
        router.choose(RoutedRequest("r1", "/v1/completions", excluded=frozenset({"a", "b"})))


def test_a_pool_that_bears_the_models_name_serves_it() -> None:
    router = UpstreamRouter([*upstreams("a", "b", pool="big"), *upstreams("c", pool="small")])
    asked = RoutedRequest("r", "/v1/chat/completions", model="small", body={"prompt": "x"})
    assert {router.choose(asked).name for _ in range(5)} == {"c"}


def test_what_is_in_hand_is_counted_until_the_end_whatever_the_end() -> None:
    router = UpstreamRouter(upstreams("a"))
    for index, ending in enumerate(Ending):
        asked = request(index, words(index, 50))
        chosen = router.choose(asked)
        router.started(chosen, asked)
        assert router.loads["a"].running == 1
        router.finished(chosen, asked, Outcome(ending))
        router.finished(chosen, asked, Outcome(ending))
    assert (router.loads["a"].running, router.loads["a"].waiting) == (0, 0)


def test_a_dead_upstream_is_left_after_three_refusals_and_its_prefixes_are_forgotten() -> None:
    router = UpstreamRouter(upstreams("a", "b"))
    talk = words(1, 400)
    home = serve(router, request(0, talk))
    for index in range(1, 4):
        asked = request(index, talk)
        chosen = router.choose(asked)
        router.started(chosen, asked)
        router.finished(router._upstreams[home], asked, Outcome(Ending.REFUSED))
    assert router.fleet.standing(home) is Standing.DOWN
    assert router.lines.index.blocks(home) == 0
    assert serve(router, request(9, talk)) != home


def test_a_client_that_leaves_speaks_neither_for_nor_against_an_upstream() -> None:
    router = UpstreamRouter(upstreams("a", "b"))
    for index in range(50):
        serve(router, request(index, "x"), Outcome(Ending.CLIENT_GONE))
    assert {router.fleet.standing(name) for name in ("a", "b")} == {Standing.SERVING}


def test_a_finding_that_no_healthy_server_has_holds_its_upstream_out() -> None:
    router = UpstreamRouter(upstreams("a", "b", "c"))
    bad = serve(router, request(0, "x"), Outcome(Ending.DONE, 200, findings=("logits.nonfinite",)))
    assert router.fleet.standing(bad) is Standing.HELD
    assert router.fleet.case(bad).by == "siblings"
    assert all(serve(router, request(index, words(index, 9))) != bad for index in range(1, 20))


def test_the_sibling_test_convicts_the_upstream_with_the_higher_rate_and_no_other() -> None:
    clock = Clock()
    # No drains: the sibling test alone decides.
    settings = RoutingSettings(drain=DrainSettings(incidents=10**6), siblings=SiblingSettings(interval_seconds=10))
    router = UpstreamRouter(upstreams("a", "b", "c", "d"), settings, clock=clock)
    for index in range(4000):
        clock.now += 0.5
        asked = request(index, "x")
        chosen = router._upstreams["abcd"[index % 4]]
        if router.fleet.standing(chosen.name) is Standing.HELD:
            continue
        router.started(chosen, asked)
        rate = 10 if chosen.name == "c" else 200
        kinds = ("text.salad",) if (index // 4) % rate == 0 else ()
        router.finished(chosen, asked, Outcome(Ending.DONE, 200, findings=kinds))
    assert [name for name in "abcd" if router.fleet.standing(name) is Standing.HELD] == ["c"]
    assert "text.salad" in router.fleet.case("c").reason
    router.release("c", "ada")
    assert router.fleet.standing("c") is Standing.SERVING


def test_a_conviction_survives_a_restart_and_so_does_its_release(tmp_path: Path) -> None:
    settings = RoutingSettings(state_file=tmp_path / "deep" / "state.json")
    router = UpstreamRouter(upstreams("a", "b"), settings)
    router.convict("a", "judge", "stale KV, layer 3")
    router.close()
    again = UpstreamRouter(upstreams("a", "b"), settings)
    assert again.fleet.standing("a") is Standing.HELD
    assert again.status()[0]["case"]["reason"] == "stale KV, layer 3"
    again.release("a", "ada")
    again.close()
    assert UpstreamRouter(upstreams("a", "b"), settings).fleet.standing("a") is Standing.SERVING
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"null", b'{"version": 2, "upstreams": {}}', b'{"version": 1, "upstreams": {"a": {}}}', b"\xff",
     b'{"version": 1, "upstreams": {"a": {"wish": "x", "by": "", "reason": "", "since": 0}}}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_state_file_is_refused_with_one_clear_error(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(damage)
    with pytest.raises(UserError, match=r"state\.json is not a state of the routing .*delete it"):
        UpstreamRouter(upstreams("a"), RoutingSettings(state_file=path))


def test_a_state_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(UserError, match=r"state\.json cannot be written.*is not writable"):
        UpstreamRouter(upstreams("a"), RoutingSettings(state_file=tmp_path / "deep" / "state.json"))


def test_a_disk_that_takes_nothing_stops_no_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = RoutingSettings(state_file=tmp_path / "state.json")
    router = UpstreamRouter(upstreams("a", "b"), settings)
    assert router._state is not None
    router._state.path = tmp_path / "file" / "state.json"
    router.convict("a", "judge", "code defect")
    assert serve(router, request(1, "x")) == "b"
    router.close()
    assert router._state.failed == 1


def test_names_that_lines_do_not_know_and_equal_names_are_refused() -> None:
    with pytest.raises(UserError, match="cold names z; the upstreams are a, b"):
        UpstreamRouter(upstreams("a", "b"), RoutingSettings(lines=LineSettings(cold=("z",))))
    with pytest.raises(UserError, match="names of their own"):
        UpstreamRouter(upstreams("a", "a"))


def test_status_holds_no_address_and_is_json() -> None:
    router = UpstreamRouter(upstreams("a", "b"))
    serve(router, request(1, "the secret prompt"))
    told = json.dumps(router.status())
    assert "http" not in told
    assert "secret" not in told
