"""`vllm serve` as users start it: what a client of the OpenAI API sees of a stop, and what Prometheus does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from chats import CHATS, VICTIM, findings, records
from conftest import Switches

pytestmark = pytest.mark.timeout(900)
READY_SECONDS = 600


class Server:
    """A running `vllm serve`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, engines: int, folder: Path) -> None:
        self.process, self.port, self.engines = process, port, engines
        self.spool, self.log = folder / "spool", folder / "log"
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text()[-4000:])
            try:
                self.get("/health")
            except (urllib.error.URLError, OSError):
                self.pause()
            else:
                return
        raise AssertionError("the server is not ready: " + self.log.read_text()[-4000:])

    def pause(self) -> None:
        """Half a second, or until the server has died."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)

    def stream(self, name: str, **more: Any) -> list[Any]:
        """All chunks of a streamed answer."""
        answer = self.client.chat.completions.create(
            model="m", messages=CHATS[name], temperature=0, max_tokens=32, stream=True, **more
        )
        return list(answer)


# On two cores vLLM must be kept from binding the threads of two engines to the same one.
TWO_ENGINES = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", params=[1, 2], ids=["one-engine", "two-engines-behind-two-api-servers"])
def server(
    request: pytest.FixtureRequest,
    model: str,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", model, "--served-model-name", "m"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "1024"]
    command += ["--enforce-eager", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    command += ["--api-server-count", str(request.param), "--data-parallel-size", str(request.param)]
    given = {**os.environ, **environment, "CHECKENGINE_SPOOL__DIRECTORY": str(folder / "spool")}
    given |= TWO_ENGINES if request.param == 2 else {}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=given, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
        made = Server(process, port, request.param, folder)
        try:
            made.wait_until_ready()
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def length_of(server: Server, name: str) -> int:
    usage = server.client.chat.completions.create(model="m", messages=CHATS[name], max_tokens=1).usage
    assert usage is not None
    return int(usage.prompt_tokens)


def test_a_streaming_client_sees_a_well_formed_end_of_a_stopped_answer(server: Server, switches: Switches) -> None:
    clean = server.stream(VICTIM)
    with switches.on("nan_row", length=length_of(server, VICTIM) + 7):
        chunks = server.stream(VICTIM, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = "".join(chunk.choices[0].delta.content or "" for chunk in clean if chunk.choices)
    ends = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert [(end.finish_reason, end.stop_reason) for end in ends] == [("stop", "checkengine:logits.nonfinite")]
    assert text
    assert whole.startswith(text)
    assert chunks[-1].usage.completion_tokens == 7
    assert server.stream(VICTIM)[-1].choices[0].finish_reason == "length", "it serves on"


def test_an_answer_that_is_not_streamed_tells_the_same(server: Server, switches: Switches) -> None:
    with switches.on("nan_row", length=length_of(server, VICTIM) + 3):
        answer = server.client.chat.completions.create(
            model="m", messages=CHATS[VICTIM], temperature=0.8, max_tokens=32, n=2, logprobs=True
        )
    assert {(each.finish_reason, each.stop_reason) for each in answer.choices} == {
        ("stop", "checkengine:logits.nonfinite")
    }
    assert [len(each.logprobs.content) for each in answer.choices] == [3, 3]


def test_findings_and_actions_are_on_vllm_s_own_metrics(server: Server, switches: Switches) -> None:
    with switches.on("nan_row", length=length_of(server, VICTIM) + 3):
        server.stream(VICTIM)
    # One cause, one incident; engines on their own have one each.
    assert 1 <= len({finding["incident"] for finding in findings(server.spool)}) <= server.engines
    text = wait_for(
        server, lambda: f'checkengine_actions_total{{action="stop",kind="logits.nonfinite"}} {stops(server)}'
    )
    assert "vllm:num_requests_running" in text
    assert "checkengine_steps_total" in text


def stops(server: Server) -> float:
    """By the spool, to which what happened comes a moment later."""
    return float(sum(each["data"]["kind"] == "stop" for each in records(server.spool) if each["kind"] == "action"))


def wait_for(server: Server, sample: Callable[[], str]) -> str:
    """Pages are written once a second."""
    end = time.monotonic() + 60
    while sample() not in (text := server.get("/metrics")):
        assert time.monotonic() < end, text
        server.pause()
    return text
