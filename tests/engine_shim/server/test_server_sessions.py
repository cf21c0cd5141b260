"""Conversations that come back: hints over HTTP, and requests that open one again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.prefix_cache import block_ids
from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.engine.server_sessions import MOST_LETTERS, Conversations
from checkengine.engine_shim.settings import EngineSettings, ServerSettings
from checkengine.engine_shim.tier_settings import TierSettings
from checkengine.tiny import tiny_model, tiny_tokenizer

BLOCK = 8
PROMPTS = {name: [(seed * 7 + index * 3) % 150 + 3 for index in range(41)] for seed, name in enumerate("abcdefgh")}
BODY = {"model": "scripted", "max_tokens": 3, "stream": False}


class Tiers:
    """Notes what it is asked for; a block is named by its first token."""

    prefetches = True

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.full = False

    def names(self, tokens: Sequence[int]) -> list[bytes]:
        return block_ids(tokens[:-1], BLOCK)

    def prefetch_blocks(self, names: Sequence[bytes]) -> bool:
        self.asked.append(list(names))
        return not self.full


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()


@pytest.fixture
def hinted(service: Service, tiers: Tiers, engine: Any) -> Iterator[TestClient]:
    service.conversations = Conversations(tiers, most=2)
    with TestClient(build_app(service), raise_server_exceptions=False) as client:
        assert service.runtime.wait_ready(20)
        yield client
        engine.may_step.set()


def say(client: TestClient, session: str, prompt: str, **more: Any) -> None:
    done = client.post("/v1/completions", json={**BODY, "prompt": prompt, **more}, headers={"X-Session-Id": session})
    assert done.status_code == 200


def test_a_request_that_opens_a_conversation_again_prefetches_its_prompt_by_itself(hinted, tiers):
    say(hinted, "s", "x" * 20)
    assert [len(names) for names in tiers.asked] == [2]


def test_a_hint_brings_the_blocks_of_prompt_and_answer(hinted, tiers):
    say(hinted, "s", "x" * 22)
    done = hinted.post("/v1/sessions/s/prefetch")
    # 22 and three tokens that were said, the last of which is in no block.
    assert (done.status_code, done.json()) == (202, {"object": "session.prefetch", "blocks": 3})
    assert tiers.asked[-1][:2] == tiers.asked[0]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_streamed_answer_counts_like_a_whole_one(hinted, tiers, streamed):
    say(hinted, "s", "x" * 22, stream=streamed)
    assert hinted.post("/v1/sessions/s/prefetch").json()["blocks"] == 3


@pytest.mark.parametrize("session", ["nobody", "ä 字", "%00", "x" * (MOST_LETTERS + 1), "..", "'; --"])
def test_a_hint_for_a_session_that_was_not_seen_is_a_plain_404(hinted, session):
    done = hinted.post(f"/v1/sessions/{session}/prefetch")
    assert done.status_code == 404
    assert "error" in done.json()


def test_the_session_used_longest_ago_is_forgotten(hinted):
    for session in ("one", "two", "three"):
        say(hinted, session, "x" * 20)
    codes = [hinted.post(f"/v1/sessions/{session}/prefetch").status_code for session in ("one", "two", "three")]
    assert codes == [404, 202, 202]


def test_hints_beyond_what_may_wait_are_refused_and_may_be_tried_again(hinted, tiers):
    say(hinted, "s", "x" * 20)
    tiers.full = True
    done = hinted.post("/v1/sessions/s/prefetch")
    assert (done.status_code, done.headers["retry-after"]) == (429, "1")


def test_without_a_disk_tier_a_hint_says_so(client):
    done = client.post("/v1/sessions/s/prefetch")
    assert (done.status_code, done.json()["error"]["code"]) == (404, "no_tiers")


def test_no_session_name_and_no_token_is_kept(hinted, service):
    say(hinted, "alice@example.org", "x" * 20)
    kept = repr(service.conversations._blocks)
    assert "alice" not in kept
    assert "120" not in kept


@contextmanager
def real(directory: Path) -> Iterator[tuple[TestClient, Any]]:
    """The embedded engine whose memory holds one conversation, host memory two, and the disk all."""
    chosen = TierSettings(host_bytes=1 << 16, disk_bytes=1 << 24, directory=directory)
    engine = Engine(tiny_model(), None, EngineSettings(block_size=BLOCK, blocks=9, threads=1, tiers=chosen))
    runtime = EngineRuntime(engine)
    service = Service(
        runtime, tiny_tokenizer(), "scripted", engine.max_length, ServerSettings(port=0),
        conversations=Conversations(engine.tiers),
    )  # fmt: skip
    try:
        with TestClient(build_app(service)) as client:
            assert runtime.wait_ready(60)
            yield client, engine.tiers.blocks
    finally:
        engine.close()


def test_after_a_hint_a_returning_conversation_waits_for_no_disk_and_its_answer_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    with real(tmp_path) as (client, blocks):

        def answer(name: str) -> Any:
            body = {**BODY, "prompt": PROMPTS[name], "temperature": 0, "ignore_eos": True}
            return client.post("/v1/completions", json=body, headers={"X-Session-Id": name}).json()

        first = {name: answer(name)["choices"][0]["text"] for name in PROMPTS}
        blocks.wait()
        assert client.post("/v1/sessions/a/prefetch").json()["blocks"] == 5
        blocks.wait()
        read = blocks.counts.disk_hits
        again = answer("a")
        assert again["choices"][0]["text"] == first["a"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
        assert blocks.counts.disk_hits == read
        assert blocks.counts.prefetched >= 5
