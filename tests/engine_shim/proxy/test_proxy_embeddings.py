"""Vectors through the proxy: what carries nothing is found, everything else passes byte for byte."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import struct

import pytest

from checkengine.engine_shim.proxy.dialects import NotReadError
from checkengine.engine_shim.proxy.vectors import MOST_NUMBERS, Vectors

GOOD = [0.1, -0.2, 0.3, 0.05]
PATH = "/v1/embeddings"
ASKED = {"model": "m", "input": "hello"}


def body_of(*vectors: object) -> bytes:
    data = [{"object": "embedding", "index": number, "embedding": each} for number, each in enumerate(vectors)]
    return json.dumps({"object": "list", "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}}).encode()


def in_base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def kinds(body: bytes) -> list[str]:
    return [finding.kind for finding in Vectors(body).findings("x")]


@pytest.mark.parametrize("write", [list, in_base64], ids=["numbers", "base64"])
@pytest.mark.parametrize(
    ("vector", "found"),
    [
        (GOOD, []),
        ([0.0] * 8, ["embedding.zero"]),
        ([0.25] * 8, ["embedding.constant"]),
        ([0.1, math.nan, 0.2], ["embedding.nonfinite"]),
        ([0.1, math.inf, 0.2], ["embedding.nonfinite"]),
    ],
    ids=["good", "zero", "constant", "nan", "infinite"],
)
def test_a_vector_that_carries_nothing_is_found_in_both_forms(write, vector, found):
    assert kinds(body_of(write(GOOD), write(vector))) == found


def test_a_null_in_place_of_a_number_is_no_number():
    assert kinds(body_of(GOOD, [0.1, None, 0.2])) == ["embedding.nonfinite"]


def test_the_first_bad_vector_of_a_kind_is_told_once():
    (finding,) = Vectors(body_of(GOOD, [0.0, 0.0], [0.0, 0.0])).findings("x")
    assert finding.evidence["vector"] == 1
    assert finding.evidence["dimensions"] == 2


def test_behind_what_is_parsed_a_zero_and_a_missing_number_are_still_found():
    long = [float(number % 7) - 3.1 for number in range(MOST_NUMBERS)]
    assert kinds(body_of(long, GOOD, [0.0] * 8)) == ["embedding.zero"]
    assert kinds(body_of(long, GOOD, [None, 1.0])) == ["embedding.nonfinite"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"x", b'{"data": 3}', b'{"data": [{"embedding": {"a": 1}}]}', b'{"a": 1}']
)
def test_what_is_no_list_of_vectors_tells_nothing(body):
    with contextlib.suppress(NotReadError):
        assert kinds(body) == []


@pytest.mark.parametrize("vector", ["!!!", "QQ==", "", [], [[1.0]], ["x"], {}, None, 3, True])
def test_a_vector_of_another_kind_tells_nothing(vector):
    assert kinds(body_of(vector)) == []


def test_good_vectors_pass_byte_for_byte(rig, story, say):
    body = body_of(GOOD, in_base64(GOOD))

    async def told():
        async with rig(say.whole(body)) as proxy:
            reply = await proxy.ask(ASKED, PATH)
            assert reply.body == body
            assert proxy.observer.ends[0].notes == ()
            assert proxy.observer.ends[0].prompt_tokens == 3

    story(told())


def test_a_zero_vector_is_told_in_a_header_and_passes(rig, story, say):
    body = body_of([0.0] * 4)

    async def told():
        async with rig(say.whole(body)) as proxy:
            reply = await proxy.ask(ASKED, PATH)
            assert reply.body == body
            assert reply.header(b"x-checkengine-findings").startswith(b"embedding.zero; incident=")

    story(told())


def test_a_zero_vector_is_an_error_where_the_guard_stops(rig, story, say):
    async def told():
        async with rig(say.whole(body_of([0.0] * 4)), guards={"embeddings": {"action": "stop"}}) as proxy:
            reply = await proxy.ask(ASKED, PATH)
            assert reply.status == 502
            assert reply.json["error"]["code"] == "embedding_invalid"

    story(told())


def test_vectors_are_asked_for_again_where_the_guard_retries(rig, story, say):
    bodies = [body_of([0.0] * 4), body_of(GOOD)]

    async def answer(seen, writer):
        await say.whole(bodies.pop(0))(seen, writer)

    async def told():
        async with rig(answer, guards={"embeddings": {"action": "retry"}}) as proxy:
            reply = await proxy.ask(ASKED, PATH)
            assert reply.json["data"][0]["embedding"] == GOOD

    story(told())
