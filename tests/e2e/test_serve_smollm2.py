"""`checkengine serve smollm2-135m` as a process: OpenAI's client, many at once, and SIGTERM in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import openai
import pytest

MODEL = "smollm2-135m"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass
class Process:
    process: subprocess.Popen[str]
    address: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    command = [sys.executable, "-m", "checkengine", "serve", MODEL, "--port", "0"]
    environment = {**os.environ, "CHECKENGINE_SERVER__DRAIN_SECONDS": "120"}
    here = tmp_path_factory.mktemp("serve")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=here)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("serving on "):
            break
    else:
        pytest.fail("".join(lines))
    yield Process(process, line.split()[2].removesuffix("/v1"))
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def client(server: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client: openai.OpenAI, question: str, tokens: int = 24) -> str:
    messages = [{"role": "user", "content": question}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=tokens)
    return answer.choices[0].message.content


def test_a_real_answer_comes_whole_and_in_a_stream_alike(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, max_tokens=24)
    stream = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, max_tokens=24, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "Paris" in whole.choices[0].message.content
    assert streamed == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"


def test_many_at_once_get_the_answers_that_each_gets_alone(client: openai.OpenAI) -> None:
    questions = [f"Name one thing that is {colour}." for colour in ("red", "green", "blue", "white")]
    alone = [ask(client, question) for question in questions]
    with ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda question: ask(client, question), questions))
    assert [text.split()[:3] for text in together] == [text.split()[:3] for text in alone]


def test_metrics_and_switches_answer_on_the_same_port(server: Process) -> None:
    metrics = httpx.get(f"{server.address}/metrics").text
    assert "checkengine_steps_total" in metrics
    assert "checkengine_kv_blocks_free" in metrics
    guards = httpx.get(f"{server.address}/checkengine/guards").json()["guards"]
    assert {"nonfinite", "repetition", "sidecar"} <= {guard["name"] for guard in guards}


def test_sigterm_finishes_the_stream_that_runs_and_ends_with_zero(server: Process) -> None:
    """Last in this file: it ends the server."""
    body = {"model": MODEL, "messages": FRANCE, "max_tokens": 48, "stream": True, "ignore_eos": True}
    finish = None
    with httpx.stream("POST", f"{server.address}/v1/chat/completions", json=body, timeout=120) as answer:
        for number, line in enumerate(answer.iter_lines()):
            if number == 4:
                server.process.send_signal(signal.SIGTERM)
            if line.startswith("data: {"):
                finish = json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"]
    assert line == ""
    assert finish in ("length", "content_filter")
    assert server.process.wait(60) == 0
