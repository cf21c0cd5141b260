"""Clients that mean harm: heads without an end, smuggled fields, connections held open."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from checkengine.engine_shim.proxy.requests import Operation, RequestFacts, facts_of


async def answered(client) -> bytes:
    """All that comes until the proxy closes."""
    return await asyncio.wait_for(client.reader.read(), 10)


@pytest.mark.parametrize("beginning", [b"X: ", b"", b"X: y\r\n", b"X: y\r\nX-"])
def test_a_head_without_an_end_is_refused_before_it_fills_memory(rig, story, say, beginning):
    async def told():
        async with rig(say.whole(b"{}"), proxy={"max_header_bytes": 65536}) as proxy:
            client = await proxy.client()
            client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + beginning)
            sent = 0
            try:
                while sent < 1 << 23:
                    client.writer.write(b"a" * 65536)
                    await client.writer.drain()
                    sent += 65536
            except ConnectionError:
                pass
            assert sent < 1 << 23
            assert proxy.upstream.seen == []

    story(told())


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HT", b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_connection_whose_head_does_not_come_is_closed(rig, story, say, sent):
    async def told():
        async with rig(say.whole(b"{}"), proxy={"client_seconds": 0.2}) as proxy:
            client = await proxy.client()
            client.writer.write(sent)
            told = await answered(client)
            assert told.startswith(b"HTTP/1.1 408 ") if sent else told == b""
            assert proxy.upstream.seen == []

    story(told())


def test_a_second_head_on_a_connection_is_waited_for_no_longer_than_the_first(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("x")), proxy={"client_seconds": 0.2}) as proxy:
            client = await proxy.client()
            assert (await client.ask(chat)).status == 200
            client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n")
            assert (await answered(client)).startswith(b"HTTP/1.1 408 ")

    story(told())


def test_a_head_in_single_bytes_is_read_all_the_same(rig, story, say):
    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            client = await proxy.client()
            for byte in b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n":
                client.writer.write(bytes([byte]))
                await client.writer.drain()
            assert (await client.reply()).status == 200

    story(told())


def test_what_comes_behind_a_body_becomes_no_header(rig, story, say):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: x-role\r\n\r\n"
    trailers = b"Authorization: Bearer stolen\r\nX-Role: admin\r\nX-Session-Id: another\r\n"

    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            client = await proxy.client()
            client.writer.write(head + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
            assert (await client.reply()).status == 200
            seen = await proxy.upstream.request()
            assert seen.header(b"authorization") is seen.header(b"x-role") is seen.header(b"x-session-id") is None
            assert [value for name, value in seen.headers if name == b"content-length"] == [b"2"]

    story(told())


def test_trailers_without_an_end_are_refused(rig, story, say):
    async def told():
        async with rig(say.whole(say.body("x")), proxy={"max_header_bytes": 4096}) as proxy:
            client = await proxy.client()
            head = (
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
            )
            client.writer.write(head + b"X: y\r\n" * 2000)
            await answered(client)
            assert proxy.upstream.seen == []

    story(told())


MORE_SMUGGLED = {
    "lines without CR": b"POST / HTTP/1.1\nHost: x\nContent-Length: 4\n\nabcd",
    "a chunk that ends with LF": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\nabcd\n0\n\n",
    "a chunk's size without end": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"f" * 17
    + b"\r\nabcd\r\n0\r\n\r\n",
    "a negative chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\nabcd\r\n0\r\n\r\n",
    "a length beyond 64 bits": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551620\r\n\r\nabcd",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
    "two codings in two headers": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a control character in a name": b"GET / HTTP/1.1\r\nHost: x\r\nX\x0b: y\r\n\r\n",
    "another protocol": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "a tab in the target": b"GET /a\tb HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("data", MORE_SMUGGLED.values(), ids=MORE_SMUGGLED.keys())
def test_a_request_of_doubtful_form_never_reaches_the_upstream(rig, story, say, data):
    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            client = await proxy.client()
            client.writer.write(data)
            told = await answered(client)
            assert told.startswith(b"HTTP/1.1 400 ") or not told
            assert proxy.upstream.seen == []

    story(told())


def test_chunk_extensions_end_at_the_proxy(rig, story, say):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            client = await proxy.client()
            client.writer.write(head + b'2;a="b\x09c"\r\n{}\r\n0;x=y\r\n\r\n')
            assert (await client.reply()).status == 200
            seen = await proxy.upstream.request()
            assert (seen.body, seen.header(b"transfer-encoding")) == (b"{}", None)

    story(told())


def test_pipelined_requests_are_answered_in_their_order(rig, story, say):
    async def echo(seen, writer):
        await say.whole(seen.target)(seen, writer)

    async def told():
        async with rig(echo) as proxy:
            client = await proxy.client()
            client.writer.write(b"".join(b"GET /v1/%d HTTP/1.1\r\nHost: x\r\n\r\n" % each for each in range(200)))
            for each in range(200):
                assert (await client.reply()).body == b"/v1/%d" % each

    story(told())


def test_no_method_has_the_proxys_own_token_sent_back(rig, story, say):
    async def told():
        async with rig(say.whole(b"{}"), proxy={"upstream_token": "secret"}) as proxy:
            client = await proxy.client()
            client.writer.write(b"TRACE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.reply()).status == 405
            assert proxy.upstream.seen == []

    story(told())


def of(body) -> RequestFacts:
    return facts_of(Operation.CHAT, body if isinstance(body, bytes) else json.dumps(body).encode())


EMPTY_LISTS = b'{"stream":true,"messages":[' + b"[]," * 600_000 + b"[]]}"
MANY_NUMBERS = b'{"stream":true,"prompt":[' + b"1," * 5_000_000 + b"1]}"
DEEP = b'{"stream":true,"messages":' + b"[" * 2_000_000


@pytest.mark.parametrize("body", [EMPTY_LISTS, MANY_NUMBERS, DEEP], ids=["lists", "numbers", "depth"])
def test_a_body_that_takes_seconds_to_read_is_passed_on_unread(rig, story, say, body):
    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            began = time.thread_time()
            assert (await proxy.ask(body)).status == 200
            assert proxy.upstream.seen[0].body == body
            assert proxy.observer.starts[0].stream is False
            assert time.thread_time() - began < 3

    story(told())


def test_a_long_prompt_full_of_brackets_is_read():
    text = "if (a[0]) { b[1] = {c: 2}; } " * 50_000
    assert "b[1] = {c: 2};" in of({"messages": [{"role": "user", "content": text}]}).prompt


def test_of_more_tools_than_anybody_has_nothing_is_known():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert len(of({"tools": [tool] * 128}).tools) == 128
    assert of({"tools": [tool] * 100_000}).tools == ()


def test_a_conversation_of_more_calls_than_anybody_makes_is_not_looked_back_on(rig, story, say, chat):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call] * 50_000}]

    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            assert (await proxy.ask(chat | {"messages": turns})).status == 200
            assert proxy.parts.bench.seats["tool_calls"].longest < 100_000_000

    story(told())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leaving", ["closes", "sends what is no HTTP"])
def test_a_client_that_leaves_with_requests_waiting_frees_the_upstream_at_once(rig, story, say, chat, stream, leaving):
    async def forever(seen, writer):
        if stream:
            writer.write(say.head)
            await say.put(writer, say.chunk("first"))
        await seen.gone.wait()

    async def told():
        async with rig(forever) as proxy:
            client = await proxy.client()
            for _ in range(3):
                await client.send(chat | {"stream": stream})
            seen = await proxy.upstream.request()
            if leaving == "closes":
                client.leave()
            else:
                client.writer.write(b"\x00\x01 no HTTP\r\n\r\n")
            await asyncio.wait_for(seen.gone.wait(), 2)
            await proxy.quiet()
            assert len(proxy.upstream.seen) == 1
            assert [end.error for end in proxy.observer.ends] == ["client_gone"]

    story(told())
