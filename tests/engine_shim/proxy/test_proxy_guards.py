"""What guards do to answers: nothing, an annotation, a well-formed end."""

from __future__ import annotations

import asyncio
import json

import pytest

from checkengine.engine_shim.proxy.guarding import Bench, GuardMakers
from checkengine.guards.events import ActionTaken, FindingRaised
from checkengine.guards.settings import GuardsSettings

STOPPING = {"repetition": {"action": "stop"}}


def payloads(body: bytes) -> list:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) if line != b"[DONE]" else "[DONE]" for line in lines]


def stream_of(say, *words: str) -> tuple[bytes, ...]:
    return (*(say.chunk(word) for word in words), say.chunk("", "stop"), say.done)


def test_a_guard_that_observes_leaves_the_stream_as_it_is(rig, story, say, chat):
    parts = stream_of(say, "a ", "LOOP ", *"bcdefgh")

    async def told():
        async with rig(say.events(*parts)) as proxy:
            reply = await proxy.ask(chat | {"stream": True})
            assert reply.body == b"".join(parts)
            await proxy.quiet()
            found = [event for event in proxy.events if isinstance(event, FindingRaised)]
            assert [(each.finding.kind, each.finding.evidence["char"]) for each in found] == [("repetition.loop", 2)]
            assert proxy.observer.ends[0].note.kind == "repetition.loop"

    story(told())


def test_a_guard_that_stops_ends_the_stream_well_formed_and_lets_go_of_the_upstream(rig, story, say, chat):
    async def told():
        async def answer(seen, writer):
            writer.write(say.head)
            await say.put(writer, say.chunk("a "))
            for _ in range(8):
                await say.put(writer, say.chunk("LOOP "))
            await seen.gone.wait()

        async with rig(answer, guards=STOPPING) as proxy:
            reply = await proxy.ask(chat | {"stream": True})
            last, done = payloads(reply.body)[-2:]
            assert (done, reply.whole) == ("[DONE]", True)
            assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "content_filter"}]
            assert (last["id"], last["object"], last["created"]) == ("chatcmpl-1", "chat.completion.chunk", 7)
            assert last["checkengine"]["kind"] == "repetition.loop"
            assert set(last["checkengine"]) == {"kind", "incident", "action"}
            await asyncio.wait_for(proxy.upstream.seen[0].gone.wait(), 5)
            await proxy.quiet()
            assert [event.action.kind for event in proxy.events if isinstance(event, ActionTaken)] == ["stop"]
            assert proxy.router.outcomes[0][1].ending == "stopped"
            assert proxy.router.outcomes[0][1].findings == ("repetition.loop",)

    story(told())


def test_a_stop_comes_a_batch_late_at_most(rig, story, say, chat):
    parts = stream_of(say, "LOOP", *"abcdefghijklmnop")

    async def told():
        async with rig(say.events(*parts), guards=STOPPING, proxy={"batch_chunks": 4}) as proxy:
            reply = await proxy.ask(chat | {"stream": True})
            said = [each["choices"][0]["delta"].get("content") for each in payloads(reply.body)[:-2]]
            assert said == ["LOOP", "a", "b"]

    story(told())


def test_streams_that_begin_together_are_read_at_different_chunks_and_never_later_than_a_batch():
    bench = Bench(GuardMakers(), GuardsSettings())
    first = [bench.first_batch(16) for _ in range(90)]
    assert sorted(set(first)) == list(range(8, 17))
    assert max(first.count(number) for number in set(first)) == 10
    assert [bench.first_batch(1) for _ in range(3)] == [1, 1, 1]


def test_a_stopped_choice_leaves_the_others_running(rig, story, say, chat):
    first = [say.chunk(word, index=0) for word in ("LOOP", "a", "b", "c", "d", "e")]
    second = [say.chunk(word, index=1) for word in ("u", "v", "w", "x", "y", "z")]
    ends = [say.chunk("", "stop", index=0), say.chunk("", "length", index=1), say.done]
    parts = [part for pair in zip(first, second, strict=True) for part in pair] + ends

    async def told():
        async with rig(say.events(*parts), guards=STOPPING) as proxy:
            reply = await proxy.ask(chat | {"stream": True, "n": 2})
            found = payloads(reply.body)
            text = {0: "", 1: ""}
            reasons = {}
            for chunk in found[:-1]:
                for choice in chunk["choices"]:
                    text[choice["index"]] += choice["delta"].get("content", "")
                    reasons[choice["index"]] = choice["finish_reason"]
            assert text == {0: "LOOPab", 1: "uvwxyz"}
            assert reasons == {0: "content_filter", 1: "length"}
            assert found[-1] == "[DONE]"

    story(told())


def test_a_chunk_of_several_choices_loses_the_stopped_one_only(rig, story, say, chat):
    def both(first, second):
        body = json.loads(say.chunk(first)[6:])
        body["choices"].append({"index": 1, "delta": {"content": second}, "finish_reason": None})
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    parts = [both("LOOP", "u")] + [both(word, word) for word in "abcdef"] + [say.done]

    async def told():
        async with rig(say.events(*parts), guards=STOPPING) as proxy:
            reply = await proxy.ask(chat | {"stream": True, "n": 2})
            second = "".join(
                choice["delta"].get("content", "")
                for chunk in payloads(reply.body)[:-1]
                for choice in chunk["choices"]
                if choice["index"] == 1
            )
            assert second == "uabcdef"

    story(told())


def test_a_stopped_stream_still_tells_the_usage_that_was_asked_for_as_an_estimate(rig, story, say, chat):
    parts = stream_of(say, "LOOP", *"abcdefghijklmnop")

    async def told():
        async with rig(say.events(*parts), guards=STOPPING) as proxy:
            asked = chat | {"stream": True, "stream_options": {"include_usage": True}}
            usage = payloads((await proxy.ask(asked)).body)[-2]
            assert usage["choices"] == []
            assert usage["usage"]["completion_tokens"] == 4
            assert usage["checkengine"] == {"usage": "estimated"}

    story(told())


def test_a_guard_that_warns_annotates_the_last_chunk_and_nothing_else(rig, story, say, chat):
    parts = stream_of(say, "LOOP", *"abcdefg")

    async def told():
        async with rig(say.events(*parts), guards={"repetition": {"action": "warn"}}) as proxy:
            body = (await proxy.ask(chat | {"stream": True})).body
            assert body.startswith(b"".join(parts[:-2]))
            last = payloads(body)[-2]
            assert last["choices"][0]["finish_reason"] == "stop"
            assert last["checkengine"]["kind"] == "repetition.loop"
            assert body.replace(
                b',"checkengine":' + json.dumps(last["checkengine"], separators=(",", ":")).encode(), b""
            ) == b"".join(parts)

    story(told())


def test_a_finding_after_the_last_chunk_is_told_before_the_end(rig, story, say, chat):
    parts = (say.chunk("LOOP"), say.chunk("a"), say.done)

    async def told():
        async with rig(say.events(*parts), guards={"repetition": {"action": "warn"}}) as proxy:
            found = payloads((await proxy.ask(chat | {"stream": True})).body)
            assert found[-1] == "[DONE]"
            assert found[-2]["choices"] == []
            assert found[-2]["checkengine"]["kind"] == "repetition.loop"

    story(told())


def test_a_whole_answer_is_cut_before_what_was_found(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("good LOOP bad")), guards=STOPPING) as proxy:
            reply = await proxy.ask(chat)
            choice = reply.json["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("good ", "content_filter")
            assert reply.json["checkengine"]["kind"] == "repetition.loop"
            assert reply.header(b"content-length") == str(len(reply.body)).encode()
            assert reply.header(b"x-checkengine-findings").startswith(b"repetition.loop; incident=")

    story(told())


def test_an_observed_finding_is_told_in_a_header_only(rig, story, say, chat):
    body = say.body("LOOP")

    async def told():
        async with rig(say.whole(body)) as proxy:
            reply = await proxy.ask(chat)
            assert reply.body == body
            assert b"action=observe" in reply.header(b"x-checkengine-findings")
        async with rig(say.whole(body), proxy={"annotate": "off"}) as proxy:
            assert (await proxy.ask(chat)).header(b"x-checkengine-findings") is None
        async with rig(say.whole(body), proxy={"annotate": "body"}) as proxy:
            assert (await proxy.ask(chat)).json["checkengine"]["action"] == "observe"

    story(told())


def test_older_completions_are_guarded_as_chats_are(rig, story, say):
    def chunk(text, finish=None):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return (
            b"data: "
            + json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [choice]}).encode()
            + b"\n\n"
        )

    parts = [chunk("LOOP"), *(chunk(word) for word in "abcdef"), chunk("", "stop"), say.done]
    body = json.dumps({"choices": [{"index": 0, "text": "yes LOOP", "finish_reason": "stop"}]}).encode()

    async def told():
        asked = {"model": "m", "prompt": "hi"}
        async with rig(say.events(*parts), guards=STOPPING) as proxy:
            last = payloads((await proxy.ask(asked | {"stream": True}, "/v1/completions")).body)[-2]
            assert (last["object"], last["choices"][0]["text"]) == ("text_completion", "")
            assert last["choices"][0]["finish_reason"] == "content_filter"
        async with rig(say.whole(body), guards=STOPPING) as proxy:
            assert (await proxy.ask(asked, "/v1/completions")).json["choices"][0]["text"] == "yes "

    story(told())


def test_a_guard_that_crashes_costs_itself_and_not_the_answer(rig, story, say, chat):
    parts = stream_of(say, "CRASH", "LOOP", *"abcdefgh")

    async def told():
        async with rig(say.events(*parts)) as proxy:
            assert (await proxy.ask(chat | {"stream": True})).body == b"".join(parts)
            seat = proxy.parts.bench.seats["repetition"]
            assert (seat.failures, seat.reason) == (1, "")

    story(told())


def test_a_guard_that_crashes_on_every_request_is_switched_off(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("CRASH")), guards={"overruns": 3}) as proxy:
            for _ in range(4):
                assert (await proxy.ask(chat)).status == 200
            assert "RuntimeError" in proxy.parts.bench.seats["repetition"].reason
            proxy.parts.bench.enable("repetition")
            assert proxy.parts.bench.active("repetition")

    story(told())


def test_a_policy_that_fails_costs_the_verdict_and_not_the_answer(rig, story, say, chat, monkeypatch):
    async def told():
        async with rig(say.whole(say.body("LOOP")), guards=STOPPING) as proxy:
            monkeypatch.setattr(proxy.parts.judge.policy, "decide", lambda *_: 1 / 0)
            assert (await proxy.ask(chat)).json["choices"][0]["message"]["content"] == "LOOP"

    story(told())


def test_broken_logits_stop_an_answer_by_default(rig, story, say, chat):
    row = {"token": "x", "logprob": -10.8, "top_logprobs": [{"logprob": -10.8}, {"logprob": -10.8}]}
    parts = [say.chunk("x", logprobs={"content": [row]}) for _ in range(8)]

    async def told():
        async with rig(say.events(*parts, say.done)) as proxy:
            last = payloads((await proxy.ask(chat | {"stream": True, "logprobs": True})).body)[-2]
            assert last["checkengine"]["kind"] == "logits.uniform"
            assert last["checkengine"]["action"] == "stop"

    story(told())


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_a_model_thinks_is_read_too(rig, story, say, chat, name):
    parts = [say.chunk(delta={name: word}) for word in ("LOOP", "a", "b", "c", "d")]

    async def told():
        async with rig(say.events(*parts, say.done), guards=STOPPING) as proxy:
            last = payloads((await proxy.ask(chat | {"stream": True})).body)[-2]
            assert last["checkengine"]["kind"] == "repetition.loop"

    story(told())


def test_calls_that_run_away_are_found_in_their_parts(rig, story, say, chat):
    def call(number):
        function = {"name": "look", "arguments": '{"at":1}'}
        return say.chunk(delta={"tool_calls": [{"index": number, "id": f"call_{number}", "function": function}]})

    parts = [call(number) for number in range(6)]

    async def told():
        async with rig(say.events(*parts, say.done), guards={"tool_calls": {"action": "stop"}}) as proxy:
            last = payloads((await proxy.ask(chat | {"stream": True})).body)[-2]
            assert last["checkengine"]["kind"] == "tool_call.runaway"

    story(told())


def test_an_answer_without_a_word_is_told(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("  \n"))) as proxy:
            assert b"answer.empty" in (await proxy.ask(chat)).header(b"x-checkengine-findings")
        async with rig(say.events(say.chunk("hello"))) as proxy:
            await proxy.ask(chat | {"stream": True})
            await proxy.quiet()
            assert [note.kind for note in proxy.observer.ends[0].notes] == ["answer.cut"]

    story(told())


def test_the_sidecar_as_a_whole_can_be_switched_off(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("LOOP")), guards=STOPPING) as proxy:
            proxy.parts.enabled = False
            assert (await proxy.ask(chat)).json["choices"][0]["message"]["content"] == "LOOP"

    story(told())
