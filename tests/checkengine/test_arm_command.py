"""`checkengine arm` against real servers: what is armed, what is refused, and what stands in the access log."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner

from checkengine.commands import arm as command
from checkengine.engine_shim.arming import Armings
from checkengine.engine_shim.engine.server_control import control_router
from checkengine.engine_shim.engine.server_errors import install_error_handlers
from checkengine.engine_shim.settings import ServerSettings
from checkengine.replay.bundle import AccessLog
from checkengine.switches import ShimSwitches


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CHECKENGINE_REPLICA", "replica-a")
    monkeypatch.delenv(command.TOKEN, raising=False)


def switches(captures: Any) -> ShimSwitches:
    shim = SimpleNamespace(
        parts=SimpleNamespace(pipeline=None, policy=None), assembly=SimpleNamespace(captures=captures)
    )
    return ShimSwitches(shim)  # type: ignore[arg-type]


class Announcing(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


def listening(controller: Any, **settings: Any) -> Any:
    app = FastAPI()
    install_error_handlers(app)
    app.include_router(control_router(controller, ServerSettings(**settings)))
    return serving(app)


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    server = Announcing(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.up.wait(20)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command.app, list(arguments))


def told(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_condition_is_armed_listed_and_disarmed_and_stands_in_the_access_log() -> None:
    captures = SimpleNamespace(armings=Armings())
    with listening(switches(captures)) as url:
        when = "length % 16 == 1 and not prefix_hit"
        armed = told("--url", url, "--when", when, "--level", "L2", "--for", "6h", "--most", "5")
        assert armed["replica"] == "replica-a"
        (arming,) = captures.armings.active(0.0)
        assert (arming.condition.text, arming.level, arming.most) == (when, "L2", 5)
        assert told("--url", url)["armed"] == [armed["armed"]]
        assert arming.identifier in run("--url", url).output
        assert told("--url", url, "--disarm", arming.identifier) == {"disarmed": arming.identifier}
        assert "nothing is armed" in run("--url", url).output
    rows = AccessLog.of_this_deployment().read()
    assert [row["action"] for row in rows] == ["arm", "disarm"]
    assert when in rows[0]["purpose"]
    assert "until" in rows[0]["purpose"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--when", "length"], "neither true nor false"),
        (["--when", "length == 1", "--level", "L7"], "no level"),
        (["--when", "length == 1", "--for", "30d"], "seven days"),
        (["--disarm", "../guards"], "nothing armed is named unknown"),
        (["--disarm", "abc"], "nothing armed is named abc"),
    ],
)
def test_what_the_server_refuses_is_told_in_its_words(arguments: list[str], words: str) -> None:
    with listening(switches(SimpleNamespace(armings=Armings()))) as url:
        result = run("--url", url, *arguments)
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_nothing_is_armed_that_the_access_log_does_not_know_of(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = SimpleNamespace(armings=Armings())
    (tmp_path / "file").write_text("where the folder should be")
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "file" / "state"))
    with listening(switches(captures)) as url:
        result = run("--url", url, "--when", "length == 1")
    assert "access log" in str(result.exception)
    assert not captures.armings


def test_where_nothing_can_be_captured_nothing_is_armed() -> None:
    with listening(switches(None)) as url:
        assert told("--url", url)["armed"] == []
        assert "nothing can be captured" in str(run("--url", url, "--when", "length == 1").exception)
        assert "nothing armed" in str(run("--url", url, "--disarm", "ab").exception)


def test_of_several_servers_only_the_replica_asked_for_is_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(ShimSwitches):
        def armed(self) -> dict[str, Any]:
            return {**super().armed(), "replica": "replica-b"}

    first, second = SimpleNamespace(armings=Armings()), SimpleNamespace(armings=Armings())
    shim = SimpleNamespace(parts=SimpleNamespace(pipeline=None, policy=None), assembly=SimpleNamespace(captures=second))
    with listening(switches(first)) as one, listening(Other(shim)) as two:  # type: ignore[arg-type]
        both = ["--url", one, "--url", two]
        assert run(*both, "--replica", "replica-b", "--when", "length == 1").exit_code == 0
        assert (bool(first.armings), bool(second.armings)) == (False, True)
        assert "there are replica-a, replica-b" in str(run(*both, "--replica", "c", "--when", "length == 1").exception)


def test_the_control_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(switches(SimpleNamespace(armings=Armings())), control_token="s3cret") as url:
        assert "control token" in str(run("--url", url).exception)
        monkeypatch.setenv(command.TOKEN, "s3cret")
        assert told("--url", url)["armed"] == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x", "nonsense"])
def test_only_http_is_an_address(url: str) -> None:
    assert run("--url", url).exit_code == 2


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    result = run("--url", "http://127.0.0.1:9")
    assert isinstance(result.exception, command.ArmError)
    assert "does not answer" in str(result.exception)


@pytest.mark.parametrize("lasts", ["", "6", "6 h", "-1h", "h", "1e3s"])
def test_a_time_that_is_none_is_a_usage_error(lasts: str) -> None:
    assert run("--url", "http://127.0.0.1:9", "--when", "prefix_hit", "--for", lasts).exit_code == 2


def test_the_token_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    app = FastAPI()

    @app.get("/checkengine/arm")
    def elsewhere() -> Any:
        from fastapi.responses import RedirectResponse

        return RedirectResponse("/stolen")

    @app.get("/stolen")
    def stolen() -> dict[str, str]:
        seen.append("here")
        return {}

    monkeypatch.setenv(command.TOKEN, "s3cret")
    with serving(app) as url:
        assert "HTTP 307" in str(run("--url", url).exception)
    assert seen == []
