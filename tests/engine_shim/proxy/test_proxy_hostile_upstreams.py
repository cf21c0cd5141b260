"""Upstreams that lie, flood or forge: what comes out is HTTP, in bounded time and memory."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from checkengine.dashboards.proxy_metrics import ProxyMetrics
from checkengine.engine_shim.proxy.calls import CallText
from checkengine.engine_shim.proxy.guarding import GuardMakers
from checkengine.engine_shim.proxy.parts import ExchangeEnd
from checkengine.engine_shim.proxy.stream import EventFramer
from checkengine.guards.finding import Severity
from checkengine.guards.text import TextFinding


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


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_is_cut_at_any_byte_never_looks_whole(rig, story, say, chat, streamed):
    events = [say.chunk("one "), say.chunk("two", "stop"), say.done]
    body = say.body("one two")
    whole = b"".join([say.head, *(b"%x\r\n%s\r\n" % (len(each), each) for each in events), b"0\r\n\r\n"])
    data = whole if streamed else OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    sent = 0

    async def cut(seen, writer):
        writer.write(data[:sent])
        await writer.drain()
        writer.close()

    async def told():
        nonlocal sent
        async with rig(cut) as proxy:
            for sent in range(0, len(data), 3 if streamed else 1):
                reply = await proxy.ask(chat | {"stream": streamed})
                told = reply.status == 502 or b'"upstream_broken"' in reply.body
                assert told, data[:sent]
                assert proxy.observer.ends[-1].error == "upstream_broken"
            sent = len(data)
            assert (await proxy.ask(chat | {"stream": streamed})).whole

    story(told())


NO_JSON = ["NaN", "Infinity", "1e999"]


@pytest.mark.parametrize("number", NO_JSON)
@pytest.mark.parametrize("streamed", [True, False])
def test_logprobs_that_are_no_json_are_read_and_stopped(rig, story, say, chat, number, streamed):
    rows = f'{{"content":[{{"token":"a","logprob":{number},"top_logprobs":[]}}]}}'
    logprobs = {"logprobs": "ROWS"}

    def with_rows(data: bytes) -> bytes:
        return data.replace(b'"ROWS"', rows.encode())

    stream = say.events(
        with_rows(say.chunk("one", **logprobs)), with_rows(say.chunk("two", "stop", **logprobs)), say.done
    )
    body = say.whole(with_rows(say.body("one two", choice=logprobs)))

    async def told():
        async with rig(stream if streamed else body) as proxy:
            reply = await proxy.ask(chat | {"stream": streamed})
            assert reply.status == 200
            assert b'"finish_reason":"content_filter"' in reply.body
            assert b"logits.nonfinite" in reply.body
            assert proxy.observer.passed == []

    story(told())


def test_half_of_a_surrogate_pair_hides_no_text_and_breaks_no_label(rig, story, say, chat):
    body = say.body("a LOOP", "HALF").replace(b"LOOP", b"LOOP \\ud83d").replace(b'"HALF"', b'"odd\\ud83d"')

    async def told():
        async with rig(say.whole(body), guards={"repetition": {"action": "warn"}}) as proxy:
            assert b"repetition.loop" in (await proxy.ask(chat)).body
            assert [reason.encode() for reason in proxy.observer.ends[-1].finish_reasons] == [b"odd?"]

    story(told())


def test_events_that_no_guard_can_read_are_counted_once_a_stream(rig, story, say, chat):
    garbage = [b"data: {\n\n", b"data: " + b"[" * 100_000 + b"\n\n", b'data: {"choices": 7}\n\n', b"data: \xff\xfe\n\n"]

    async def told():
        async with rig(say.events(*garbage, say.chunk("fine", "stop"), say.done)) as proxy:
            reply = await proxy.ask(chat | {"stream": True})
            assert reply.body == b"".join([*garbage, say.chunk("fine", "stop"), say.done])
            assert proxy.observer.passed == ["unread"]

    story(told())


def test_a_choice_of_any_number_is_a_choice_or_none(rig, story, say, chat):
    numbers = [str(-1), "18446744073709551616", "1" + "0" * 400, "null", '"0"', "1.5", "[[]]"]
    chunks = [say.chunk("x", index="N").replace(b'"N"', number.encode()) for number in numbers]

    async def told():
        async with rig(say.events(*chunks, say.done)) as proxy:
            reply = await proxy.ask(chat | {"stream": True})
            assert reply.body.startswith(b"".join(chunks))
            assert proxy.observer.ends[-1].error is None

    story(told())


def test_a_hundred_thousand_choices_in_one_event_pass(rig, story, say, chat):
    choices = [{"index": index, "delta": {"content": "x"}} for index in range(100_000)]
    event = b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n"

    async def told():
        async with rig(say.events(event, say.done)) as proxy:
            assert (await proxy.ask(chat | {"stream": True})).body.startswith(event)

    story(told())


def test_a_request_that_may_have_ended_a_server_is_not_sent_to_it_again(rig, story, chat):
    async def dies(seen, writer):
        writer.close()

    async def told():
        async with rig(dies) as proxy:
            assert (await proxy.ask(chat)).json["error"]["code"] == "upstream_broken"
            assert len(proxy.upstream.seen) == 1

    story(told())


def test_a_finding_of_several_rules_is_told_once_in_a_header(rig, story, say, chat):
    loop = {"repetition": lambda start: Twice(start.id)}

    class Twice:
        name, version = "repetition", 1

        def __init__(self, identity):
            self.identity = identity

        def push(self, piece):
            levels = (Severity.WARNING, Severity.ERROR)
            return [TextFinding("repetition.loop", self.identity, each, "repetition", {"char": 0}) for each in levels]

        def end(self):
            return []

    async def told():
        async with rig(say.whole(say.body("x")), makers=GuardMakers(loop), proxy={"annotate": "body"}) as proxy:
            reply = await proxy.ask(chat)
            assert reply.header(b"x-checkengine-findings").count(b"repetition.loop") == 1
            assert "findings" not in reply.json["checkengine"]

    story(told())


def test_made_up_finish_reasons_take_no_other_reasons_place():
    registry = CollectorRegistry()
    metrics = ProxyMetrics(registry, lambda: 0)
    for number in range(500):
        metrics.ended(ExchangeEnd("r", upstream="u", status=200 + number, finish_reasons=(f"{number}" + "x" * 10_000,)))
    metrics.unguarded("unread")
    told = generate_latest(registry).decode()
    assert 'checkengine_proxy_unguarded_total{reason="unread"} 1.0' in told
    assert len(told) < 100_000


def test_an_event_in_very_small_parts_costs_no_more_than_its_length(say):
    framer, part = EventFramer(1 << 25), b"a" * 256
    began = time.thread_time()
    for _ in range(32_768):
        framer.push(part)
    assert framer.push(b"\n\n") == [part * 32_768 + b"\n\n"]
    # Copied whole for each part it took a minute.
    assert time.thread_time() - began < 10


def test_a_call_in_very_small_parts_costs_no_more_than_its_length():
    calls, began = CallText(), time.thread_time()
    first = {"index": 0, "function": {"name": "x", "arguments": '{"a": "'}}
    part = {"index": 0, "function": {"name": "x", "arguments": "y" * 10}}
    text = calls.push([first]) + "".join(calls.push([part]) for _ in range(60_000))
    text += calls.push([{"index": 0, "function": {"arguments": '"}'}}]) + calls.end()
    assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"]["a"] == "y" * 600_000
    assert time.thread_time() - began < 10


def test_calls_that_wait_for_another_without_end_are_given_up():
    calls = CallText()
    calls.push([{"index": 0, "id": "a", "function": {"name": "x", "arguments": '{"a": "'}}])
    for _ in range(64):
        assert calls.push([{"index": 1, "id": "b", "function": {"name": "y", "arguments": "z" * 65_536}}]) == ""
    assert calls.end() == ""


def test_other_requests_go_on_while_a_long_answer_is_read(rig, story, say, chat):
    long, turns = say.body("word " * 60_000), []

    async def by_model(seen, writer):
        await say.whole(long if b"long" in seen.body else say.body("short"))(seen, writer)

    async def others():
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0)

    async def told():
        async with rig(by_model, makers=GuardMakers({"repetition": Slow})) as proxy:
            client = await proxy.client()
            await client.ask(chat)
            Slow.begun, Slow.ended = None, None
            counting = asyncio.ensure_future(others())
            await client.ask(chat | {"model": "long"})
            counting.cancel()
            assert sum(Slow.begun < turn < Slow.ended for turn in turns) >= 10

    story(told())


def test_a_long_answer_is_no_overrun_of_a_guards_budget(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("word " * 20_000)), guards={"warm_up_steps": 0}) as proxy:
            ticks = iter(range(0, 1 << 60, 2_000_000))
            proxy.parts.bench._cpu = lambda: next(ticks)
            for _ in range(3):
                await proxy.ask(chat)
            # 2 ms for 16,384 characters, which are 4,096 tokens or so.
            assert proxy.parts.bench.seats["repetition"].batches >= 3 * 7
            assert proxy.parts.bench.seats["repetition"].overruns <= 3

    story(told())


class Slow:
    """Tells when it read first and last."""

    name, version = "repetition", 1
    begun = ended = None

    def __init__(self, start):
        del start

    def push(self, piece):
        Slow.begun = Slow.begun or time.monotonic()
        Slow.ended = time.monotonic()
        return []

    def end(self):
        return []
