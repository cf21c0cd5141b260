"""OpenAI's own client through `checkengine proxy` in front of a plain vLLM: all features give what they always give."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from chats import CHATS, MARGIN, VICTIM
from pydantic import BaseModel
from test_serving import Server

pytestmark = pytest.mark.timeout(900)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    },
}
FORCED = {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
ASKED: dict[str, Any] = {"model": "m", "messages": CHATS[VICTIM], "temperature": 0, "max_tokens": 24, "seed": 1}


class City(BaseModel):
    """Of words that end: a small model would go on with a name for as long as it may."""

    name: Literal["Oslo", "Rome"]
    size: Literal["large", "small"]


@dataclass
class Pair:
    """The same server, without and with the proxy between."""

    bare: openai.OpenAI
    through: openai.OpenAI
    engine: str

    def running(self) -> float:
        """Requests that vLLM works on, by its own count."""
        with urllib.request.urlopen(f"{self.engine}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running{"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, ports = tmp_path_factory.mktemp("in-front"), (free_port(), free_port())
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(ports[0]), "--dtype", "float32"]
    command += ["--max-model-len", "1024", "--enforce-eager", "--max-num-seqs", "8"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    engine = f"http://127.0.0.1:{ports[0]}"
    proxy = [sys.executable, "-m", "checkengine", "proxy", "--upstream", engine, "--port", str(ports[1])]
    with served(command, folder, environment) as process:
        Server(process, ports[0], 1, folder).wait_until_ready()
        beside = tmp_path_factory.mktemp("proxy")
        (beside / "checkengine.toml").write_text("[proxy]\nadmin_port = 0\n[spool]\nenabled = false\n")
        with served(proxy, beside, environment) as process:
            Server(process, ports[1], 1, beside).wait_until_ready()
            clients = [
                openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) for port in ports
            ]
            yield Pair(*clients, engine)


def said(answer: Any) -> Any:
    """Without what differs from request to request, and log probabilities without their last bits."""
    found = json.loads(json.dumps(answer.model_dump()), parse_float=lambda number: round(float(number), 2))
    return {name: value for name, value in found.items() if name not in ("id", "created")} | {
        "choices": [_choice(choice) for choice in found["choices"]]
    }


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    calls = (choice.get("message") or {}).get("tool_calls") or ()
    for call in calls:
        call["id"] = "call"
    return choice


def both(pair: Pair, **asked: Any) -> tuple[Any, Any]:
    return tuple(client.chat.completions.create(**ASKED | asked) for client in (pair.bare, pair.through))


@pytest.mark.parametrize(
    "asked",
    [{}, {"logprobs": True, "top_logprobs": 3}, {"n": 3, "temperature": 0.9}, {"stop": ["the"]}, FORCED],
    ids=["plain", "logprobs", "several choices", "stop strings", "tools"],
)
def test_an_answer_is_the_same_with_the_proxy_between(pair: Pair, asked: dict[str, Any]) -> None:
    bare, through = both(pair, **asked)
    assert said(through) == said(bare)


@pytest.mark.parametrize("asked", [{}, {"logprobs": True}, FORCED], ids=["plain", "logprobs", "tools"])
def test_a_stream_is_the_same_with_the_proxy_between(pair: Pair, asked: dict[str, Any]) -> None:
    streams = both(pair, stream=True, stream_options={"include_usage": True}, **asked)
    bare, through = ([choices(chunk) for chunk in stream] for stream in streams)
    told, expected = joined(through), joined(bare)
    # The second run finds the first one's prefix in the cache: last bits differ.
    assert told.pop("logprobs") == pytest.approx(expected.pop("logprobs"), abs=MARGIN)
    assert told == expected
    assert through[-1]["usage"] == bare[-1]["usage"]


def choices(chunk: Any) -> dict[str, Any]:
    found: dict[str, Any] = chunk.model_dump()
    return found


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a stream said: vLLM puts a token or two into a chunk, as they come."""
    told: dict[str, Any] = {"content": "", "arguments": "", "names": "", "finish": [], "logprobs": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        told["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            told["names"] += call["function"].get("name") or ""
            told["arguments"] += call["function"].get("arguments") or ""
        told["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
        told["logprobs"] += [row["logprob"] for row in (choice["logprobs"] or {}).get("content") or ()]
    return told


def test_forced_tool_calls_and_structured_output_are_parsed(pair: Pair) -> None:
    messages = [answer.choices[0].message for answer in both(pair, **FORCED, max_tokens=64)]
    calls = [[(call.function.name, call.function.arguments) for call in each.tool_calls or ()] for each in messages]
    # What this small model puts into the arguments is vLLM's affair.
    assert calls[1] == calls[0]
    assert calls[1][0][0] == "weather"
    assert json.loads(calls[1][0][1]), messages
    asked = ASKED | {"max_tokens": 200}
    found = [
        client.chat.completions.parse(**asked, response_format=City).choices[0].message.parsed
        for client in (pair.bare, pair.through)
    ]
    assert isinstance(found[1], City)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("asked", "raised"),
    [
        ({"model": "none"}, openai.NotFoundError),
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "tide " * 2000}]}, openai.BadRequestError),
    ],
    ids=["no such model", "a wrong parameter", "a prompt that is too long"],
)
def test_an_error_is_the_same_with_the_proxy_between(
    pair: Pair, asked: dict[str, Any], raised: type[openai.APIStatusError]
) -> None:
    found = []
    for client in (pair.bare, pair.through):
        with pytest.raises(raised) as error:
            client.chat.completions.create(**ASKED | asked)
        found.append((error.value.status_code, error.value.body))
    assert found[0] == found[1]


def test_a_client_that_gives_up_frees_the_engine(pair: Pair) -> None:
    endless = ASKED | {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        pair.through.with_options(timeout=1.0).chat.completions.create(**endless)
    with pair.through.chat.completions.create(**endless, stream=True) as stream:
        next(iter(stream))
    waiting = threading.Event()
    for _ in range(100):
        if not pair.running():
            break
        waiting.wait(0.1)
    assert pair.running() == 0


def test_completions_and_models_are_the_same_with_the_proxy_between(pair: Pair) -> None:
    clients = (pair.bare, pair.through)
    asked = {"model": "m", "prompt": "The tide comes in", "max_tokens": 8, "temperature": 0}
    bare, through = (said(client.completions.create(**asked)) for client in clients)
    assert through == bare
    assert [each.id for each in pair.through.models.list()] == ["m"]
