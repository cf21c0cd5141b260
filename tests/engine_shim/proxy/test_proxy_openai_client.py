"""OpenAI's own client through the proxy: every feature gives what it gives without."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STOPPING = {"repetition": {"action": "stop"}}


def client_of(proxy, **options):
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0, **options)


def call_chunk(say, index, identity=None, name=None, arguments=""):
    function = {"arguments": arguments} | ({"name": name} if name else {})
    call = {"index": index, "function": function} | ({"id": identity, "type": "function"} if identity else {})
    return say.chunk(delta={"tool_calls": [call]})


def test_streamed_tool_calls_are_put_together(rig, story, say):
    parts = [
        call_chunk(say, 0, "a", "weather"),
        call_chunk(say, 0, arguments='{"city": "Os'),
        call_chunk(say, 1, "b", "time"),
        call_chunk(say, 0, arguments='lo"}'),
        call_chunk(say, 1, arguments="{}"),
        say.chunk("", "tool_calls"),
        say.done,
    ]

    async def told():
        async with rig(say.events(*parts)) as proxy, client_of(proxy) as client:
            async with client.chat.completions.stream(**CHAT) as stream:
                calls = (await stream.get_final_completion()).choices[0].message.tool_calls
            assert [(call.function.name, call.function.arguments) for call in calls] == [
                ("weather", '{"city": "Oslo"}'),
                ("time", "{}"),
            ]
            await proxy.quiet()
            assert proxy.observer.ends[0].notes == ()

    story(told())


def test_structured_output_is_parsed(rig, story, say):
    class City(BaseModel):
        name: str

    async def told():
        async with rig(say.whole(say.body('{"name": "Oslo"}'))) as proxy, client_of(proxy) as client:
            answer = await client.chat.completions.parse(**CHAT, response_format=City)
            assert answer.choices[0].message.parsed == City(name="Oslo")
            assert json.loads(proxy.upstream.seen[0].body)["response_format"]["type"] == "json_schema"

    story(told())


def test_logprobs_come_through(rig, story, say):
    row = {"token": "x", "logprob": -0.1, "bytes": [120], "top_logprobs": []}
    parts = [say.chunk("x", logprobs={"content": [row], "refusal": None}), say.chunk("", "stop"), say.done]

    async def told():
        async with rig(say.events(*parts)) as proxy, client_of(proxy) as client:
            stream = await client.chat.completions.create(**CHAT, stream=True, logprobs=True)
            rows = [row.logprob async for chunk in stream for row in (chunk.choices[0].logprobs or _None).content or ()]
            assert rows == [-0.1]

    class _None:
        content = ()

    story(told())


def test_a_stopped_stream_ends_for_the_client_like_any_other(rig, story, say):
    parts = [say.chunk(word) for word in ["a ", "LOOP", *"bcdefghijkl"]]

    async def told():
        async with rig(say.events(*parts), guards=STOPPING) as proxy, client_of(proxy) as client:
            chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
            assert chunks[-1].choices[0].finish_reason == "content_filter"
            assert chunks[-1].model_extra["checkengine"]["kind"] == "repetition.loop"

    story(told())


def test_a_stopped_answer_is_read_like_any_other(rig, story, say):
    async def told():
        async with rig(say.whole(say.body("a LOOP")), guards=STOPPING) as proxy, client_of(proxy) as client:
            answer = await client.chat.completions.create(**CHAT)
            assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("a ", "content_filter")

    story(told())


def test_a_stopped_response_is_read_like_any_other(rig, story, say):
    def event(name, **body):
        return f"event: {name}\ndata: {json.dumps({'type': name, **body})}\n\n".encode()

    head = {"id": "r", "object": "response", "created_at": 1, "status": "in_progress", "model": "m", "output": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    delta = {"item_id": "i", "output_index": 0, "content_index": 0, "logprobs": []}
    words = ["a ", "LOOP", *"bcdefgh"]
    parts = [event("response.created", response=head, sequence_number=0)]
    parts += [
        event("response.output_text.delta", delta=word, sequence_number=at, **delta) for at, word in enumerate(words, 1)
    ]

    async def told():
        async with rig(say.events(*parts), guards=STOPPING) as proxy, client_of(proxy) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            events = [each async for each in stream]
            assert events[-1].type == "response.incomplete"
            assert events[-1].response.incomplete_details.reason == "content_filter"
            assert events[-1].response.output_text.startswith("a LOOP")

    story(told())


def test_an_upstream_that_breaks_is_an_error_of_the_client(rig, story, say):
    async def breaking(seen, writer):
        writer.write(say.head)
        await say.put(writer, say.chunk("a"))
        writer.close()

    async def told():
        async with rig(breaking) as proxy, client_of(proxy) as client:
            stream = await client.chat.completions.create(**CHAT, stream=True)
            with pytest.raises(openai.APIError, match="broke off"):
                async for _ in stream:
                    pass

    story(told())


def test_a_timeout_and_a_cancelled_task_free_the_upstream(rig, story):
    async def forever(seen, writer):
        await seen.gone.wait()

    async def told():
        async with rig(forever) as proxy, client_of(proxy, timeout=0.2) as client:
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(**CHAT)
            await asyncio.wait_for(proxy.upstream.seen[0].gone.wait(), 5)
            asking = asyncio.ensure_future(client.with_options(timeout=60).chat.completions.create(**CHAT))
            seen = await proxy.upstream.request(1)
            asking.cancel()
            await asyncio.wait_for(seen.gone.wait(), 5)
            await asyncio.gather(asking, return_exceptions=True)

    story(told())


def test_rate_limits_and_embeddings_pass(rig, story, say):
    vectors = {"object": "list", "model": "e", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]}

    async def told():
        answer = say.whole(json.dumps(vectors | {"usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode())
        async with rig(answer) as proxy, client_of(proxy) as client:
            found = await client.embeddings.create(model="e", input="x", encoding_format="float")
            assert found.data[0].embedding == [0.5, -0.5]
        error = say.whole(b'{"error":{"message":"slow"}}', "429 Too Many", headers="Retry-After: 7\r\n")
        async with rig(error) as proxy, client_of(proxy) as client:
            with pytest.raises(openai.RateLimitError) as raised:
                await client.chat.completions.create(**CHAT)
            assert raised.value.response.headers["retry-after"] == "7"

    story(told())
