"""The proxy's own addresses, on another port than the clients'."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from checkengine.benchmarks.proxy_addresses import faults_of
from checkengine.engine_shim.proxy.admin import AdminThread
from checkengine.engine_shim.proxy.server import bound
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.guards.errors import UserError


class Controls:
    def __init__(self) -> None:
        self.draining = False
        self.switched: list[tuple[str, str]] = []

    def metrics(self, accept: str) -> tuple[bytes, str]:
        return f"# {accept}\n".encode(), "text/plain; version=0.0.4"

    def status(self) -> dict:
        return {"draining": self.draining, "running": 0, "upstreams": ["engine:8000"]}

    def guards(self) -> list[dict]:
        return [{"name": "repetition", "active": True, "reason": ""}]

    def switch(self, name: str, action: str) -> None:
        if name != "repetition":
            raise KeyError(name)
        self.switched.append((name, action))

    def upstreams(self) -> list[dict]:
        return [{"name": "engine:8000", "standing": "serving"}]

    def act(self, name: str, action: str, reason: str) -> None:
        if action not in ("convict", "release"):
            raise UserError("no such action")
        self.switched.append((name, action))


@contextmanager
def serving(**settings: object):
    told: list[str] = []
    controls = Controls()
    chosen = ProxySettings.model_validate({"admin_port": 0, **settings})
    thread = AdminThread(controls, chosen, told.append)

    def ask(method: str, path: str, body: str | None = None, **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", thread.port, timeout=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        return SimpleNamespace(status=reply.status, body=data, json=lambda: json.loads(data))

    try:
        yield ask, controls, told
    finally:
        thread.close()


def test_metrics_and_health_are_told():
    with serving() as (ask, controls, told):
        assert ask("GET", "/metrics", Accept="x/y").body == b"# x/y\n"
        assert ask("GET", "/healthz").json()["upstreams"] == ["engine:8000"]
        controls.draining = True
        assert ask("GET", "/healthz").status == 503
        assert told[0].startswith("http://127.0.0.1:")
        assert ask("GET", "/v1/models").status == 404


def test_every_admin_address_answers_as_its_own_document_says():
    with serving() as (ask, _, told):
        document = ask("GET", "/openapi.json").json()
        faults, count = faults_of(document, told[0].split()[0], examples=16)
    assert faults == []
    assert count > 30


def test_an_answer_that_the_document_does_not_promise_is_found():
    promised = {"get": {"responses": {"204": {"description": "Nothing."}}}}
    document = {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": {"/healthz": promised}}
    with serving() as (_, _, told):
        assert faults_of(document, told[0].split()[0], examples=2)[0]


def test_another_method_is_refused_as_such():
    with serving() as (ask, _, _):
        assert ask("POST", "/metrics").status == 405
        assert ask("DELETE", "/checkengine/guards/repetition").status == 405


def test_guards_are_switched_from_this_machine():
    with serving() as (ask, controls, _):
        switched = ask(
            "POST", "/checkengine/guards/repetition", '{"action": "disable"}', Content_Type="application/json"
        )
        assert switched.json() == {"guards": [{"name": "repetition", "active": True, "reason": ""}]}
        assert controls.switched == [("repetition", "disable")]
        assert ask("GET", "/checkengine/guards").json()["guards"][0]["name"] == "repetition"


def test_a_person_convicts_and_releases_an_upstream():
    with serving() as (ask, controls, _):
        given = {"Content_Type": "application/json"}
        assert ask("GET", "/checkengine/upstreams").json()["upstreams"][0]["standing"] == "serving"
        done = ask("POST", "/checkengine/upstreams/engine%3A8000", '{"action": "convict", "reason": "x"}', **given)
        assert done.status == 200
        assert controls.switched == [("engine:8000", "convict")]
        for body in ('{"action": "explode"}', "{}", "[]"):
            assert ask("POST", "/checkengine/upstreams/engine%3A8000", body, **given).status == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/checkengine/guards/nobody", '{"action": "disable"}', 404),
        ("/checkengine/guards/repetition", '{"action": "explode"}', 400),
        ("/checkengine/guards/repetition", "[", 400),
        ("/checkengine/guards/repetition", "[" * 5000, 413),
        ("/checkengine/guards/repetition", '{"action": ["disable"]}', 400),
    ],
)
def test_what_is_no_switch_is_refused(path, body, status):
    with serving() as (ask, controls, _):
        assert ask("POST", path, body, Content_Type="application/json").status == status
        assert controls.switched == []


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Forwarded_For": "10.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Content_Type": "text/plain"},
    ],
)
def test_switches_are_not_reached_through_a_proxy_or_a_web_page(headers):
    with serving() as (ask, controls, _):
        given = {"Content_Type": "application/json", **headers}
        assert ask("POST", "/checkengine/guards/repetition", '{"action": "disable"}', **given).status in (403, 415)
        assert controls.switched == []


def test_switches_take_a_token_where_there_is_one():
    with serving(control_token="secret") as (ask, controls, _):
        given = {"Content_Type": "application/json"}
        body = '{"action": "rearm"}'
        assert ask("POST", "/checkengine/guards/repetition", body, **given).status == 401
        given["Authorization"] = "Bearer secret"
        assert ask("POST", "/checkengine/guards/repetition", body, **given).status == 200
        assert controls.switched == [("repetition", "rearm")]


def test_a_port_that_is_taken_is_told_in_one_sentence():
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=r"proxy\.admin_port"):
            AdminThread(Controls(), ProxySettings(admin_port=port), lambda address: None)
