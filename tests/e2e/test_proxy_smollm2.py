"""`checkengine proxy` in front of `checkengine serve smollm2-135m`, both as processes, used by OpenAI's client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

MODEL = "smollm2-135m"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
LONG = [{"role": "user", "content": "Tell me a long story about a river."}]
CONFIG = """
[server]
port = 0
[proxy]
port = 0
admin_port = 0
[spool]
directory = "spool"
"""


def started(here: Path, marks: int, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Its process, and the lines that name its addresses."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "checkengine", *arguments, "--config", "checkengine.toml"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=here)
    assert process.stderr is not None
    lines, found = [], []
    for line in process.stderr:
        lines.append(line)
        if " on http://" in line:
            found.append(next(word for word in line.split() if word.startswith("http://")).removesuffix("/v1"))
            if len(found) == marks:
                return process, found
    return pytest.fail("".join(lines))


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    here = tmp_path_factory.mktemp("proxy")
    (here / "checkengine.toml").write_text(CONFIG)
    server, (engine,) = started(here, 1, "serve", MODEL)
    proxy, (admin, front) = started(here, 2, "proxy", "--upstream", f"{engine}/v1")
    yield {"engine": engine, "admin": admin, "front": front, "proxy_process": str(proxy.pid)}
    proxy.send_signal(signal.SIGTERM)
    assert proxy.wait(60) == 0
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def clients(addresses: dict[str, str]) -> Iterator[tuple[openai.OpenAI, openai.OpenAI]]:
    made = [
        openai.OpenAI(base_url=f"{addresses[name]}/v1", api_key="none", max_retries=0, timeout=120)
        for name in ("engine", "front")
    ]
    yield made[0], made[1]
    for client in made:
        client.close()


def test_models_and_answers_are_those_of_the_engine(clients) -> None:
    engine, front = clients
    assert [model.id for model in front.models.list()] == [model.id for model in engine.models.list()]
    asked = {"model": MODEL, "messages": FRANCE, "temperature": 0, "max_tokens": 24}
    direct, through = (each.chat.completions.create(**asked) for each in (engine, front))
    assert "Paris" in through.choices[0].message.content
    assert through.choices == direct.choices
    # The second one finds the first one's prompt in the engine's prefix cache.
    assert through.usage.completion_tokens == direct.usage.completion_tokens


def test_streams_usage_and_several_choices_are_those_of_the_engine(clients) -> None:
    asked = {"model": MODEL, "messages": FRANCE, "seed": 7, "max_tokens": 12, "n": 2, "stream": True}
    told = []
    for client in clients:
        text, usage = {0: "", 1: ""}, None
        for chunk in client.chat.completions.create(**asked, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                text[choice.index] += choice.delta.content or ""
            usage = chunk.usage or usage
        told.append((text, usage.completion_tokens))
    assert told[0] == told[1]


def test_tools_and_older_completions_pass(clients) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    chat = {"model": MODEL, "messages": FRANCE, "temperature": 0, "max_tokens": 8, "tools": [tool]}
    first, second = (each.chat.completions.create(**chat) for each in clients)
    assert first.choices == second.choices
    text = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    first, second = (each.completions.create(**text) for each in clients)
    assert first.choices == second.choices


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "nobody"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"logprobs": True}, openai.BadRequestError),
        ({"max_tokens": 10**6}, openai.BadRequestError),
    ],
)
def test_errors_are_those_of_the_engine(clients, change, error) -> None:
    told = []
    for client in clients:
        with pytest.raises(error) as raised:
            client.chat.completions.create(**({"model": MODEL, "messages": FRANCE} | change))
        told.append((raised.value.status_code, raised.value.body))
    assert told[0] == told[1]


def waits_for(condition, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        pass
    return condition()


def test_a_client_that_gives_up_frees_the_engine(addresses, clients) -> None:
    def running() -> float:
        lines = httpx.get(f"{addresses['engine']}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("checkengine_sequences_running "))

    front = clients[1]
    asked = {"model": MODEL, "messages": LONG, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        front.with_options(timeout=1.0).chat.completions.create(**asked)
    assert waits_for(lambda: running() == 0)
    stream = front.chat.completions.create(**asked, stream=True)
    next(iter(stream))
    stream.close()
    assert waits_for(lambda: running() == 0)


def test_metrics_health_and_guards_are_told_on_the_admin_port(addresses) -> None:
    metrics = httpx.get(f"{addresses['admin']}/metrics").text
    for name in ("checkengine_proxy_requests_total", "checkengine_proxy_tokens_total", "checkengine_guard_active"):
        assert name in metrics
    assert httpx.get(f"{addresses['admin']}/healthz").json()["draining"] is False
    guards = httpx.get(f"{addresses['admin']}/checkengine/guards").json()["guards"]
    assert {"repetition", "salad", "language", "tool_calls", "sidecar"} <= {guard["name"] for guard in guards}
    assert all(guard.get("failures", 0) == 0 for guard in guards)
    assert httpx.get(f"{addresses['front']}/checkengine/healthz").status_code == 200


def test_healthy_answers_carry_no_finding(addresses) -> None:
    body = {"model": MODEL, "messages": FRANCE, "temperature": 0, "max_tokens": 24}
    reply = httpx.post(f"{addresses['front']}/v1/chat/completions", json=body, timeout=120)
    assert "x-checkengine-findings" not in reply.headers
    assert "checkengine" not in json.loads(reply.content)
