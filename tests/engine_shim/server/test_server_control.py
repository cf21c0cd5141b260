"""Run-time switches, and who may turn them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.errors import UserError

LOCAL = {"base_url": "http://127.0.0.1:8000", "client": ("127.0.0.1", 50000)}


class Switches:
    """A controller that remembers."""

    def __init__(self) -> None:
        self.states = {"logits": "on", "repetition": "on"}
        self.released = 0
        self.conditions: dict[str, Any] = {}

    def guards(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": name, "state": state} for name, state in self.states.items()]

    def switch_guard(self, name: str, action: str) -> None:
        if name not in self.states:
            raise KeyError(name)
        self.states[name] = action

    def release_brake(self) -> None:
        self.released += 1

    def armed(self) -> Mapping[str, Any]:
        return {"replica": "here", "armed": list(self.conditions.values())}

    def arm(self, when: str, *, level: str, seconds: float, most: int) -> Mapping[str, Any]:
        if when == "nonsense":
            raise UserError("'nonsense' is no condition")
        self.conditions["a1"] = {"id": "a1", "when": when, "level": level, "seconds": seconds, "most": most}
        return {"replica": "here", "armed": self.conditions["a1"]}

    def disarm(self, identifier: str) -> None:
        del self.conditions[identifier]


@pytest.fixture
def switches() -> Switches:
    return Switches()


def test_guards_are_listed_and_switched_one_by_one(service: Service, switches: Switches) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        assert client.get("/checkengine/guards").json()["guards"][0] == {"name": "logits", "state": "on"}
        answer = client.post("/checkengine/guards/logits", json={"action": "disable"})
        assert answer.json() == {"guards": [{"name": "logits", "state": "disable"}]}
    assert switches.states == {"logits": "disable", "repetition": "on"}


def test_an_unknown_guard_is_404_and_an_unknown_action_400(service: Service, switches: Switches) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        missing = client.post("/checkengine/guards/none", json={"action": "disable"})
        wrong = client.post("/checkengine/guards/logits", json={"action": "explode"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "no_such_guard")
    assert "logits, repetition" in missing.json()["error"]["message"]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "action")


def test_the_brake_is_released(service: Service, switches: Switches) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        assert client.post("/checkengine/brake/release", json={}).json() == {"released": True}
    assert switches.released == 1


def test_a_condition_is_armed_listed_and_disarmed(service: Service, switches: Switches) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        body = {"when": "length == 17", "level": "L2", "seconds": 60, "most": 2}
        assert client.post("/checkengine/arm", json=body).json()["armed"] == {"id": "a1", **body}
        assert client.get("/checkengine/arm").json() == {"replica": "here", "armed": [{"id": "a1", **body}]}
        assert client.delete("/checkengine/arm/a1").json() == {"disarmed": "a1"}
        assert client.delete("/checkengine/arm/a1").status_code == 404
    assert switches.conditions == {}


@pytest.mark.parametrize(
    "body", [{"when": "nonsense"}, {"when": "x" * 501}, {"when": "length == 1", "seconds": -1}, {"most": 1}, {}]
)
def test_a_condition_that_cannot_be_armed_is_400(service: Service, switches: Switches, body: dict[str, Any]) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        assert client.post("/checkengine/arm", json=body).status_code == 400
    assert switches.conditions == {}


@pytest.mark.parametrize(
    ("where", "headers"),
    [
        ({**LOCAL, "client": ("192.0.2.7", 1)}, {}),
        ({**LOCAL, "base_url": "http://rebound.example.org"}, {}),
        (LOCAL, {"X-Forwarded-For": "192.0.2.7"}),
        (LOCAL, {"Origin": "https://example.org"}),
    ],
    ids=["another machine", "a name that points here", "a proxy", "a web page"],
)
def test_without_a_token_only_this_machine_may_switch(
    service: Service, switches: Switches, where: dict[str, Any], headers: dict[str, str]
) -> None:
    with TestClient(build_app(service, controller=switches), **where) as client:
        for answer in (
            client.get("/checkengine/guards", headers=headers),
            client.post("/checkengine/guards/logits", json={"action": "disable"}, headers=headers),
            client.post("/checkengine/brake/release", json={}, headers=headers),
            client.get("/checkengine/arm", headers=headers),
            client.post("/checkengine/arm", json={"when": "length == 1"}, headers=headers),
            client.delete("/checkengine/arm/a1", headers=headers),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "loopback_only")
    assert (switches.states["logits"], switches.released) == ("on", 0)


def test_a_form_of_a_web_page_cannot_release_the_brake(service: Service, switches: Switches) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        assert client.post("/checkengine/brake/release", data={"a": "b"}).status_code == 415
    assert switches.released == 0


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "bearer s3cret", "s3cret", "Bearer s3crét"])
def test_with_a_token_nobody_gets_in_without_it(service: Service, switches: Switches, given: str | None) -> None:
    service.settings = ServerSettings(control_token="s3cret")
    headers = {} if given is None else {"Authorization": given.encode()}
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        assert client.get("/checkengine/guards", headers=headers).status_code == 401


def test_with_the_token_another_machine_gets_in(service: Service, switches: Switches) -> None:
    service.settings = ServerSettings(control_token="s3cret")
    with TestClient(build_app(service, controller=switches), client=("192.0.2.7", 1)) as client:
        assert client.get("/checkengine/guards", headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_without_a_controller_there_is_nothing_to_switch(client: TestClient) -> None:
    assert client.get("/checkengine/guards").status_code == 404


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil_name.example",
        "evil@localhost",
        "localhost:99999999",
        "[::1",
        "localhost.evil:80",
        "x y",
        "",
    ],
)
def test_a_host_header_that_is_not_plainly_this_machine_turns_no_switch(
    service: Service, switches: Switches, host: str
) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        answer = client.get("/checkengine/guards", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "loopback_only")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_a_host_header_that_names_this_machine_may_turn_switches(
    service: Service, switches: Switches, host: str
) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        assert client.get("/checkengine/guards", headers={"Host": host}).status_code == 200


def test_of_two_host_headers_both_must_name_this_machine(service: Service, switches: Switches) -> None:
    with TestClient(build_app(service, controller=switches), **LOCAL) as client:
        headers = [("Host", "localhost"), ("Host", "evil.example")]
        assert client.get("/checkengine/guards", headers=headers).status_code == 403
