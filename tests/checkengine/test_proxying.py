"""From settings to a proxy."""

from __future__ import annotations

from typing import Any

import pytest

from checkengine.config import Settings
from checkengine.engine_shim.proxy.parts import ExchangeEnd
from checkengine.engine_shim.proxy.routing.service import Routing
from checkengine.engine_shim.proxy.upstream import OneUpstream
from checkengine.guards.errors import UserError
from checkengine.proxy_controls import SIDECAR
from checkengine.proxying import Proxy, assemble_proxy, guard_makers, proxy_settings


def proxy_of(*upstreams: str, **sections: Any) -> Proxy:
    settings = {"proxy": {"upstreams": upstreams}, "spool": {"enabled": False}, **sections}
    return assemble_proxy(Settings.model_validate(settings))


def test_one_upstream_gets_no_canaries_and_several_are_chosen_among() -> None:
    one, two = proxy_of("http://a:8000/v1"), proxy_of("http://a:8000", "http://b:8000")
    assert isinstance(one.app.parts.router, OneUpstream)
    assert one.app.parts.services == []
    assert isinstance(two.app.parts.services[0], Routing)
    assert [each.name for each in two.app.parts.router.upstreams()] == ["a:8000", "b:8000"]
    assert one.app.parts.rescoring is None
    assert two.app.parts.rescoring is not None
    one.close()
    two.close()


def test_a_proxy_without_an_upstream_says_what_to_give() -> None:
    with pytest.raises(UserError, match="--upstream http://engine:8000"):
        proxy_of()


def test_what_the_command_line_says_outweighs_the_configuration(tmp_path) -> None:
    file = tmp_path / "checkengine.toml"
    file.write_text('[proxy]\nport = 9\nhost = "0.0.0.0"\nupstreams = ["http://a"]\n')
    chosen = proxy_settings(file, ["http://b"], None, 10).proxy
    assert (chosen.host, chosen.port, chosen.upstreams) == ("0.0.0.0", 10, ("http://b",))
    with pytest.raises(UserError, match="--port 70000"):
        proxy_settings(file, [], None, 70000)


def test_guards_have_the_names_of_their_settings() -> None:
    makers = guard_makers(Settings().guards)
    assert set(makers.texts) >= {"repetition", "salad", "language", "tool_calls", "ignored_stop"}
    assert set(makers.logprobs) == {"uniform"}
    assert set(makers.conversations) == {"tool_calls"}


def test_guards_are_switched_and_told_with_what_they_would_have_stopped() -> None:
    proxy = proxy_of("http://a")
    controls = proxy.controls
    controls.switch("repetition", "disable")
    controls.switch(SIDECAR, "disable")
    told = {guard["name"]: guard for guard in controls.guards()}
    assert (told["repetition"]["active"], told["repetition"]["reason"]) == (False, "switched off")
    assert not told[SIDECAR]["active"]
    controls.switch("repetition", "rearm")
    controls.switch(SIDECAR, "enable")
    assert all(guard["active"] for guard in controls.guards())
    with pytest.raises(KeyError):
        controls.switch("nobody", "disable")
    proxy.close()


def test_requests_are_counted_in_metrics() -> None:
    proxy = proxy_of("http://a")
    observer = proxy.app.parts.observer
    observer.waited(0.012)
    observer.unguarded("encoded")
    observer.ended(ExchangeEnd("r", "m", "a", 200, ("stop",), 5, 7, 2, True, 0.1, 0.5))
    text = proxy.controls.metrics("")[0].decode()
    for line in (
        'checkengine_proxy_requests_total{status="200",upstream="a"} 1.0',
        'checkengine_proxy_tokens_total{type="output"} 7.0',
        'checkengine_proxy_unguarded_total{reason="encoded"} 1.0',
        'checkengine_proxy_inter_chunk_seconds_bucket{le="0.02"} 1.0',
        'checkengine_proxy_inter_chunk_seconds_bucket{le="0.01"} 0.0',
    ):
        assert line in text
    proxy.close()


def test_a_finding_is_an_exemplar_that_leads_to_its_incident() -> None:
    proxy = proxy_of("http://a")
    from checkengine.engine_shim.proxy.judging import Note
    from checkengine.guards import Severity

    note = Note("repetition.loop", "inc-1", 0, "observe", Severity.ERROR)
    proxy.app.parts.observer.ended(ExchangeEnd("r", "m", "a", 200, total_seconds=0.5, note=note, notes=(note,)))
    text = proxy.controls.metrics("application/openmetrics-text")[0].decode()
    assert 'incident="inc-1"' in text
    proxy.close()


def test_what_loading_the_guards_took_is_not_told_as_their_cost() -> None:
    proxy = proxy_of("http://a:8000")
    proxy.warm_up()
    assert {
        name: seat.nanoseconds for name, seat in proxy.bench.seats.items() if seat.nanoseconds or seat.batches
    } == {}
    proxy.close()
