"""What comes in from clients: limits, smuggled requests, paths, and that only configured servers are asked."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress

import pytest

from checkengine.engine_shim.proxy.allowing import Allowed
from checkengine.engine_shim.proxy.server import allow_sockets
from checkengine.engine_shim.proxy.upstream import Ending, Upstream
from checkengine.guards.errors import UserError


async def raw(proxy, data: bytes) -> bytes:
    client = await proxy.client()
    client.writer.write(data)
    await client.writer.drain()
    return await asyncio.wait_for(client.reader.read(), 10)


SMUGGLED = {
    "length and chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\nGET /secret HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "equal lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4, 4\r\n\r\nabcd",
    "a signed length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd",
    "a folded header": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n\r\nabcd",
    "a space before the colon": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 4\r\n\r\nabcd",
    "an unknown coding": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a bad chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a NUL": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    "a bare CR": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rContent-Length: 5\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
}


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_a_request_that_two_servers_could_read_in_two_ways_is_refused(rig, story, say, data):
    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            answer = await raw(proxy, data)
            # What is only found in the body ends the connection without an answer.
            assert answer.startswith(b"HTTP/1.1 400 ") or not answer
            assert answer.count(b"HTTP/1.1 ") <= 1
            assert proxy.upstream.seen == []

    story(told())


def test_a_head_that_is_too_large_is_refused(rig, story, say):
    async def told():
        async with rig(say.whole(b"{}"), proxy={"max_header_bytes": 4096}) as proxy:
            for data in (
                b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 5000 + b"\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
            ):
                assert (await raw(proxy, data)).startswith(b"HTTP/1.1 431 ")
            assert proxy.upstream.seen == []

    story(told())


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(rig, story, say, announced):
    async def told():
        async with rig(say.whole(b"{}"), proxy={"max_body_bytes": 2048}) as proxy:
            client = await proxy.client()
            if announced:
                client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4096\r\n\r\n")
            else:
                head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                client.writer.write(head + b"1000\r\n" + b"x" * 4096 + b"\r\n")
            reply = await client.reply()
            assert (reply.status, reply.json["error"]["code"]) == (413, "body_too_large")
            assert proxy.upstream.seen == []

    story(told())


def test_more_requests_than_are_allowed_are_told_to_come_again(rig, story, chat):
    async def forever(seen, writer):
        await seen.gone.wait()

    async def told():
        async with rig(forever, proxy={"max_requests": 1}) as proxy:
            first = await proxy.client()
            await first.send(chat)
            await proxy.upstream.request()
            reply = await proxy.ask(chat)
            assert (reply.status, reply.header(b"retry-after")) == (429, b"1")

    story(told())


def test_a_proxy_that_drains_takes_no_new_requests(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            proxy.parts.draining = True
            assert (await proxy.ask(chat)).json["error"]["code"] == "not_accepting"
            client = await proxy.client()
            client.writer.write(b"GET /checkengine/healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            health = await client.reply()
            assert (health.status, health.json["status"]) == (503, "draining")

    story(told())


@pytest.mark.parametrize(
    "target",
    [b"http://169.254.169.254/latest", b"//169.254.169.254/latest", b"/@169.254.169.254/", b"/v1/..;/x", b"/%2e%2e/x"],
)
def test_no_target_leads_to_another_server(rig, story, say, target):
    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            await raw(proxy, b"GET " + target + b" HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n")
            for seen in proxy.upstream.seen:
                assert seen.header(b"host").startswith(b"127.0.0.1:")
                assert seen.target.startswith(b"/")

    story(told())


@pytest.mark.parametrize("target", [b"169.254.169.254:80", b"*", b"x"])
def test_a_target_that_is_no_path_is_refused(rig, story, say, target):
    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            answer = await raw(proxy, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 500 ")) or answer == b""
            assert proxy.upstream.seen == []

    story(told())


def test_an_upgrade_is_not_passed_on(rig, story, say):
    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            data = b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
            await raw(proxy, data)
            for seen in proxy.upstream.seen:
                assert seen.header(b"upgrade") is None

    story(told())


ALLOWED = ("/v1/chat/completions", "/v1/models/*")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (b"/v1/chat/completions", True),
        (b"/v1/models/a", True),
        (b"/v1/models/a/b", True),
        (b"/v1/models", False),
        (b"/metrics", False),
        (b"/v1/chat/completions/", False),
        (b"/v1/models/../../metrics", False),
        (b"/v1/models/..", False),
        (b"/v1/models/%2e%2e/x", False),
        (b"/v1/models//x", False),
        (b"/v1/models/a\\b", False),
        (b"/v1/models/;x", False),
        (b"//v1/chat/completions", False),
        (b"/V1/chat/completions", False),
    ],
)
def test_an_allow_list_lets_pass_what_is_on_it(path, wanted):
    assert Allowed(ALLOWED)(path) is wanted


def test_what_is_not_on_the_list_does_not_exist(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("x")), proxy={"allow": ALLOWED}) as proxy:
            assert (await proxy.ask(chat)).status == 200
            reply = await proxy.ask(chat, "/metrics")
            assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")
            assert len(proxy.upstream.seen) == 1

    story(told())


@pytest.mark.parametrize("pattern", ["v1", "/v1/*/x", "/v1*", "*"])
def test_a_pattern_that_is_none_is_refused(pattern):
    with pytest.raises(UserError, match=r"proxy\.allow"):
        Allowed([pattern])


@pytest.mark.parametrize(
    "url", ["engine:8000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x?y=1", "file:///etc/passwd"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(UserError, match="upstream"):
        Upstream.of(url)


@pytest.mark.parametrize(
    ("url", "wanted", "name"),
    [
        ("http://engine:8000/v1/", "http://engine:8000", "engine:8000"),
        ("https://api.example.com/openai/v1", "https://api.example.com/openai", "api.example.com"),
        ("http://[::1]:8000", "http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_an_address_is_taken_with_or_without_its_v1(url, wanted, name):
    assert (Upstream.of(url).url, Upstream.of(url).name) == (wanted, name)


@pytest.fixture
def file_limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_as_many_sockets_are_allowed_as_requests_need(file_limit, caplog):
    _, hard = file_limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    allow_sockets(700)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (700, hard)
    allow_sockets(600)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (700, hard)
    assert not caplog.records


def test_a_system_that_allows_too_few_sockets_is_told_at_the_start(monkeypatch, caplog):
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_to.append(limits))
    allow_sockets(2 * 4096 + 256)
    assert set_to == [(1024, 1024)]
    assert "about 384 requests" in caplog.text
    assert "ulimit -n" in caplog.text


def test_an_upstream_is_not_blamed_where_the_proxy_has_no_sockets_left(rig, story, say, chat, file_limit):
    held = []

    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            client = await proxy.client()
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, file_limit[1]))
            with suppress(OSError):
                while True:
                    held.append(os.dup(0))
            reply = await client.ask(chat)
            assert (reply.status, reply.json["error"]["code"]) == (503, "exhausted")
            assert [outcome.ending for _, outcome in proxy.router.outcomes] == [Ending.CLIENT_GONE]
            while held:
                os.close(held.pop())
            resource.setrlimit(resource.RLIMIT_NOFILE, file_limit)
            assert (await client.ask(chat)).status == 200

    try:
        story(told())
    finally:
        for each in held:
            os.close(each)
