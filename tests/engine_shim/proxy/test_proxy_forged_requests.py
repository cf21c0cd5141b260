"""A request that tries to send the proxy somewhere else (CVE-2024-6587, PYSEC-2026-4070, CVE-2026-136536)."""

from __future__ import annotations

import pytest

ELSEWHERE = "http://169.254.169.254"
NAMES = ("api_base", "base_url", "upstream", "url", "host", "proxy", "callback_url")


@pytest.mark.parametrize(
    "forged",
    [
        dict.fromkeys(NAMES, ELSEWHERE),
        {"user_config": {"model_list": [{"litellm_params": dict.fromkeys(NAMES, ELSEWHERE)}]}},
        {"metadata": {"a": [dict.fromkeys(NAMES, ELSEWHERE)]}, "extra_body": dict.fromkeys(NAMES, ELSEWHERE)},
    ],
)
def test_no_field_of_a_request_however_deep_names_another_upstream(rig, story, say, chat, forged):
    async def told():
        async with rig(say.whole(say.body("hello"))) as proxy:
            assert (await proxy.ask({**chat, **forged})).status == 200
            assert len(proxy.upstream.seen) == 1

    story(told())


@pytest.mark.parametrize(
    "headers",
    [
        [f"X-Forwarded-Host: {ELSEWHERE}", "X-Forwarded-Proto: http"],
        [f"X-Original-URL: {ELSEWHERE}/latest", f"X-Rewrite-URL: {ELSEWHERE}/latest"],
        [f"Forwarded: host={ELSEWHERE};proto=http"],
    ],
)
def test_no_header_of_a_request_names_another_upstream(rig, story, say, chat, headers):
    async def told():
        async with rig(say.whole(say.body("hello"))) as proxy:
            assert (await proxy.ask(chat, headers=headers)).status == 200
            assert len(proxy.upstream.seen) == 1

    story(told())


@pytest.mark.parametrize("target", [f"{ELSEWHERE}/v1/chat/completions", f"//169.254.169.254{'/v1/models'}", "@evil/v1"])
def test_no_target_of_a_request_names_another_upstream(rig, story, say, chat, target):
    async def told():
        async with rig(say.whole(say.body("hello"))) as proxy:
            reply = await proxy.ask(chat, target)
            for seen in proxy.upstream.seen:
                assert seen.target.startswith(b"/")
            assert reply.status in (200, 400, 404)

    story(told())
