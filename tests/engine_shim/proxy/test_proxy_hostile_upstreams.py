"""Upstreams that lie, flood or forge: what comes out is HTTP, in bounded time and memory."""

from __future__ import annotations

import asyncio
import json

import pytest


def raw(data: bytes, *, close: bool = True):
    async def answer(seen, writer):
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()
        else:
            await seen.gone.wait()

    return answer


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("status", [b"304 Not Modified", b"204 No Content"])
def test_an_answer_that_has_no_body_by_its_status_is_whole(rig, story, status):
    async def told():
        length = b"" if status.startswith(b"204") else b"Content-Length: 100\r\n"
        async with rig(raw(b"HTTP/1.1 " + status + b"\r\nETag: x\r\n" + length + b"\r\n", close=False)) as proxy:
            client = await proxy.client()
            for _ in range(2):
                client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nIf-None-Match: x\r\n\r\n")
                code, headers = await client.head()
                assert code == int(status[:3])
                assert dict(headers)[b"etag"] == b"x"
                assert b"transfer-encoding" not in dict(headers)
            assert proxy.observer.ends[-1].error is None

    story(told())


def test_the_head_of_a_large_answer_is_no_fault(rig, story):
    async def told():
        async with rig(raw(OK + b"Content-Length: 1000000\r\n\r\n", close=False)) as proxy:
            client = await proxy.client()
            for _ in range(2):
                client.writer.write(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
                code, headers = await client.head()
                assert (code, dict(headers)[b"content-length"]) == (200, b"1000000")
            assert proxy.observer.ends[-1].error is None

    story(told())


LIES = {
    "length and chunks": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    "a length that is too large": OK + b"Content-Length: 200\r\n\r\n{}",
    "a head without an end": OK + b"X: " + b"a" * (1 << 22),
    "more heads without an end": OK + b"X: y\r\n" * (1 << 19),
    "a status line without an end": b"HTTP/1.1 200 " + b"a" * (1 << 22),
    "a chunk's size without an end": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n{}",
    "early hints without an end": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100_000,
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
    "a NUL in a header": OK + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "an unknown version": b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "a status of two digits": b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_an_answer_that_is_no_honest_http_is_an_error_of_the_gateway(rig, story, chat, lie, path):
    async def told():
        async with rig(raw(lie, close=True)) as proxy:
            reply = await asyncio.wait_for(proxy.ask(chat, path), 10)
            assert (reply.status == 502 and reply.whole) or not reply.whole
            assert reply.body in (b"", b"{}") or reply.json["error"]["type"] == "server_error"
            assert not proxy.observer.ends[-1].finish_reasons

    story(told())


def test_bytes_behind_an_answer_are_never_the_next_answer(rig, story, say, chat):
    body = say.body("honest")
    head = OK + b"Content-Length: %d\r\n\r\n" % len(body)

    async def told():
        async with rig(raw(head + body + OK + b"Content-Length: 6\r\n\r\nforged", close=False)) as proxy:
            client = await proxy.client()
            for _ in range(3):
                reply = await client.ask(chat)
                assert reply.body == body or reply.status == 502

    story(told())


@pytest.mark.parametrize("status", [b"600 Strange", b"999 Stranger"])
def test_a_status_that_nobody_knows_is_passed_on_or_refused_in_order(rig, story, chat, status):
    async def told():
        async with rig(raw(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}", close=False)) as proxy:
            reply = await proxy.ask(chat)
            assert reply.whole
            assert reply.status in (int(status[:3]), 502)

    story(told())


def test_an_event_in_several_lines_is_annotated_as_an_event(rig, story, say, chat):
    choice = b'data: {"index": 0, "delta": {"content": "a LOOP "},\ndata: "finish_reason": "stop"}]}\n\n'
    lines = b'event: message\nid: 7\ndata: {"choices": [\n' + choice

    async def told():
        guards = {"repetition": {"action": "warn"}}
        async with rig(say.events(lines, say.done), guards=guards) as proxy:
            reply = await proxy.ask(chat | {"stream": True})
            first = reply.body.split(b"\n\n")[0]
            assert all(line.startswith((b"data: ", b"event: ", b"id: ")) for line in first.split(b"\n"))
            assert b"event: message\n" in first
            assert b"id: 7\n" in first
            data = b"\n".join(line[6:] for line in first.split(b"\n") if line.startswith(b"data: "))
            assert json.loads(data)["checkengine"]["kind"] == "repetition.loop"

    story(told())


FORGED = [-5, 10**30, 10**400, 1e308, -1.5, True, "7", None, [], {"a": 1}]


@pytest.mark.parametrize("count", FORGED, ids=lambda value: str(value)[:12])
def test_a_forged_usage_is_no_count(rig, story, say, chat, count):
    usage = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}

    async def told():
        async with rig(say.whole(say.body("fine", usage=usage))) as proxy:
            assert (await proxy.ask(chat)).status == 200
            end = proxy.observer.ends[-1]
            assert (end.prompt_tokens, end.output_tokens, end.cached_tokens, end.counted) == (0, 1, 0, False)

    story(told())
