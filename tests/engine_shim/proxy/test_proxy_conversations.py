"""Conversations that bring their tool calls along, retries that guards ask for, and /v1/responses."""

from __future__ import annotations

import json

import pytest

from checkengine.engine_shim.proxy.requests import Operation, facts_of
from checkengine.engine_shim.proxy.sessions import Sessions

LOOPS = {"tool_calls": {"action": "stop"}}


def looping(times: int) -> list[dict]:
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for number in range(times):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": '{"error":"unknown city"}'})
    return messages


def test_a_tool_loop_is_told_once_and_the_request_goes_on(rig, story, say):
    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            headers = [
                (await proxy.ask({"model": "m", "messages": looping(times)})).header(b"x-checkengine-findings") or b""
                for times in (1, 8, 9)
            ]
            assert [b"tool_call.loop" in header for header in headers] == [False, True, False]
            assert len(proxy.upstream.seen) == 3

    story(told())


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_loop_is_stopped_before_it_is_sent(rig, story, say, stream):
    async def told():
        async with rig(say.whole(say.body("x")), guards=LOOPS) as proxy:
            reply = await proxy.ask({"model": "m", "messages": looping(8), "stream": stream})
            body = json.loads(reply.body.split(b"\n")[0][6:]) if stream else reply.json
            assert reply.status == 200
            assert body["choices"][0]["finish_reason"] == "content_filter"
            assert body["checkengine"]["kind"] == "tool_call.loop"
            assert proxy.upstream.seen == []
            assert proxy.router.outcomes == []

    story(told())


def test_a_tool_loop_of_responses_is_found_too(rig, story, say):
    items = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for number in range(8):
        items.append(
            {"type": "function_call", "call_id": f"c{number}", "name": "weather", "arguments": '{"city":"Oslo"}'}
        )
        items.append({"type": "function_call_output", "call_id": f"c{number}", "output": '{"error":"unknown city"}'})

    async def told():
        async with rig(say.whole(say.body("x")), guards=LOOPS) as proxy:
            reply = await proxy.ask({"model": "m", "input": items}, "/v1/responses")
            assert reply.json["incomplete_details"] == {"reason": "content_filter"}
            assert reply.json["checkengine"]["kind"] == "tool_call.loop"

    story(told())


def test_an_answer_that_a_guard_wants_again_is_asked_for_once_more(rig, story, say, chat):
    async def told():
        async def answer(seen, writer):
            text = "LOOP" if len(proxy.upstream.seen) == 1 else "fine"
            await say.whole(say.body(text))(seen, writer)

        async with rig(answer, guards={"repetition": {"action": "retry"}}) as proxy:
            reply = await proxy.ask(chat)
            assert reply.json["choices"][0]["message"]["content"] == "fine"
            assert reply.json["checkengine"]["action"] == "retry"
            endings = [outcome.ending for _, outcome in proxy.router.outcomes]
            findings = [outcome.findings for _, outcome in proxy.router.outcomes]
            assert endings == ["stopped", "done"]
            assert findings == [("repetition.loop",), ()]

    story(told())


def test_an_answer_that_is_no_better_the_second_time_is_stopped(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("ok LOOP")), guards={"repetition": {"action": "retry"}}) as proxy:
            reply = await proxy.ask(chat)
            choice = reply.json["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("ok ", "content_filter")
            assert len(proxy.upstream.seen) == 2

    story(told())


def event(name: str, **body: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **body})}\n\n".encode()


def response_events(*words: str) -> list[bytes]:
    head = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "m", "output": []}
    text = [
        event(
            "response.output_text.delta",
            item_id="msg_1",
            output_index=0,
            content_index=0,
            delta=word,
            sequence_number=2 + at,
        )
        for at, word in enumerate(words)
    ]
    usage = {"input_tokens": 5, "output_tokens": len(words), "total_tokens": 5 + len(words)}
    done = event("response.completed", response=head | {"status": "completed", "usage": usage}, sequence_number=99)
    return [event("response.created", response=head, sequence_number=0), *text, done]


def test_a_healthy_stream_of_a_response_passes_and_its_tokens_are_counted(rig, story, say):
    parts = response_events("a", "b", "c", "d", "e")

    async def told():
        async with rig(say.events(*parts)) as proxy:
            reply = await proxy.ask({"model": "m", "input": "hi", "stream": True}, "/v1/responses")
            assert reply.body == b"".join(parts)
            await proxy.quiet()
            end = proxy.observer.ends[0]
            assert (end.prompt_tokens, end.output_tokens, end.finish_reasons) == (5, 5, ("stop",))
            assert end.notes == ()

    story(told())


def test_a_stopped_stream_of_a_response_ends_as_incomplete(rig, story, say):
    parts = response_events("a ", "LOOP ", "b", "c", "d", "e", "f", "g")

    async def told():
        async with rig(say.events(*parts), guards={"repetition": {"action": "stop"}}) as proxy:
            reply = await proxy.ask({"model": "m", "input": "hi", "stream": True}, "/v1/responses")
            last = json.loads(reply.body.rstrip().split(b"\n")[-1][6:])
            assert last["type"] == "response.incomplete"
            assert last["response"]["id"] == "resp_1"
            assert last["response"]["incomplete_details"] == {"reason": "content_filter"}
            assert last["response"]["checkengine"]["kind"] == "repetition.loop"
            assert last["response"]["output"][0]["content"][0]["text"] == "a LOOP bc"
            assert last["sequence_number"] == 6

    story(told())


def test_a_whole_response_is_read_and_stopped(rig, story, say):
    def body(text):
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"type": "message", "role": "assistant", "content": content}
        return json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": [message]}).encode()

    async def told():
        async with rig(say.whole(body("LOOP")), guards={"repetition": {"action": "stop"}}) as proxy:
            reply = await proxy.ask({"model": "m", "input": "hi"}, "/v1/responses")
            assert reply.json["status"] == "incomplete"
            assert reply.json["checkengine"]["kind"] == "repetition.loop"
        async with rig(say.whole(body("fine"))) as proxy:
            assert (await proxy.ask({"model": "m", "input": "hi"}, "/v1/responses")).body == body("fine")

    story(told())


def chat_facts(**body: object):
    return facts_of(Operation.CHAT, json.dumps(body).encode())


def test_a_conversation_is_known_by_header_user_and_beginning():
    sessions = Sessions("x-session-id", 10)
    turn = [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]
    later = [*turn, {"role": "assistant", "content": "a"}, {"role": "user", "content": "two"}]
    other = [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]
    key = sessions.key_of([], chat_facts(messages=turn))
    assert key
    assert sessions.key_of([], chat_facts(messages=later)) == key
    assert sessions.key_of([], chat_facts(messages=other)) != key
    assert sessions.key_of([], chat_facts(messages=turn, user="ann")) != key
    named = [(b"x-session-id", b"ann-1")]
    assert sessions.key_of(named, chat_facts(messages=other)) == sessions.key_of(named, chat_facts(messages=turn))
    assert sessions.key_of([], chat_facts(prompt="x")) == ""
    assert "ann" not in sessions.key_of(named, chat_facts(messages=turn))


def test_as_many_conversations_are_remembered_as_are_allowed():
    sessions = Sessions("x-session-id", 3)
    for name in "abcde":
        assert sessions.is_news(name, "loop")
    assert len(sessions) == 3
    assert not sessions.is_news("e", "loop")
    assert sessions.is_news("a", "loop")
