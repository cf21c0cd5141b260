"""Canaries: what counts as a wrong answer, and what is done about it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from checkengine.engine_shim.proxy.routing.canary import CANARIES, fault_of, foreign_language, mean_entropy
from checkengine.engine_shim.proxy.routing.canary_http import HttpCanaryClient
from checkengine.engine_shim.proxy.routing.canary_runner import CanaryAnswer, CanaryRunner
from checkengine.engine_shim.proxy.routing.fleet import Fleet, Standing
from checkengine.engine_shim.proxy.routing.settings import Canary, CanarySettings, DrainSettings
from checkengine.engine_shim.proxy.upstream import Upstream

CAPITAL = CANARIES[0]
GOOD = "The capital of France is Paris."


def completion(text: str | None, logprobs: Any = None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "logprobs": logprobs}]}


def logprobs(*rows: list[float], chosen: float = -0.1) -> dict[str, Any]:
    return {"content": [{"logprob": chosen, "top_logprobs": [{"logprob": each} for each in row]} for row in rows]}


def fault(answer: object) -> str | None:
    found = fault_of(answer, CAPITAL, 2.5)
    return found.reason if found else None


def test_the_right_answer_is_right_whatever_its_words_and_case() -> None:
    assert fault(completion(GOOD)) is None
    assert fault(completion("paris")) is None
    assert fault(completion(GOOD, logprobs([-0.01, -5.0, -7.0]))) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (completion("The capital of France is Parisian Lyon."), "a wrong answer to capital"),
        (completion("   "), "an empty answer to capital"),
        (completion(None), "an empty answer to capital"),
        (completion("法国的首都是巴黎 Paris"), "answered in zh, not en"),
        (completion("La capitale de la France est bien entendu la ville de Paris."), "answered in fr, not en"),
        (completion(GOOD, logprobs([-11.7] * 5)), "logits.uniform"),
        (completion(GOOD, logprobs([-3.0] * 5)), "entropy of"),
        (completion(GOOD, logprobs([-0.1], chosen=math.nan)), "logits.nonfinite"),
        ({}, "no choice"),
        (None, "no choice"),
        ([1], "no choice"),
        ({"choices": [3]}, "no choice"),
    ],
)
def test_a_wrong_answer_is_told_by_its_deepest_cause(answer: object, words: str) -> None:
    assert words in (fault(answer) or "")


def test_an_answer_that_was_thought_aloud_is_read_too() -> None:
    answer = completion(None)
    answer["choices"][0]["message"]["reasoning_content"] = "The user asks for a capital. It is Paris."
    assert fault(answer) is None


def test_entropy_takes_what_is_not_listed_for_as_likely_as_the_last_that_is() -> None:
    assert mean_entropy(logprobs([math.log(0.5), math.log(0.25)])) == pytest.approx(1.5 * math.log(2))
    assert mean_entropy(logprobs([math.log(1 / 1000)] * 5)) == pytest.approx(math.log(1000))
    assert mean_entropy(logprobs([0.0])) == pytest.approx(0.0)
    assert mean_entropy(None) is None
    assert mean_entropy({"content": [None, {"top_logprobs": "x"}]}) is None


def test_short_or_mixed_words_are_no_foreign_language() -> None:
    assert foreign_language("Paris", "en") is None
    assert foreign_language("H2O", "en") is None
    assert foreign_language("", "en") is None


class Client:
    """Answers by name; raises what is an exception."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.bodies: list[Mapping[str, Any]] = []

    async def chat(self, upstream: Upstream, body: Mapping[str, Any]) -> CanaryAnswer:
        self.bodies.append(body)
        answer = self.answers[upstream.name]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer(body)
        return answer if isinstance(answer, CanaryAnswer) else CanaryAnswer(200, completion(answer))

    async def model(self, upstream: Upstream) -> str:
        return "m"


def runner(client: Client) -> tuple[CanaryRunner, Fleet, dict[str, Upstream]]:
    upstreams = {name: Upstream.of(f"http://{name}:8000", name) for name in client.answers}
    settings = CanarySettings()
    fleet = Fleet(dict.fromkeys(upstreams, "default"), DrainSettings(), settings, clock=lambda: 0.0)
    return CanaryRunner(fleet, list(upstreams.values()), client, settings), fleet, upstreams


def ask(made: tuple[CanaryRunner, Fleet, dict[str, Upstream]], *names: str) -> None:
    for name in names:
        asyncio.run(made[0].once(made[2][name], CAPITAL))


def test_an_upstream_that_answers_wrong_where_another_is_right_is_drained_and_returns_when_right() -> None:
    client = Client(a=GOOD, b="banana banana")
    made = runner(client)
    ask(made, "a", "b", "b")
    assert made[1].standing("b") is Standing.DRAINED
    client.answers["b"] = GOOD
    ask(made, "b", "b", "b")
    assert made[1].standing("b") is Standing.SERVING


def test_a_canary_that_no_server_of_the_pool_can_answer_drains_nobody() -> None:
    made = runner(Client(a="Lyon", b="Marseille"))
    ask(made, "a", "b", "a", "b", "a", "b")
    assert made[1].serving("default") == ["a", "b"]


def test_broken_logprobs_drain_without_a_healthy_sibling_to_compare_with() -> None:
    made = runner(Client(a=CanaryAnswer(200, completion(GOOD, logprobs([-11.7] * 5))), b=GOOD))
    ask(made, "a", "a")
    assert made[1].standing("a") is Standing.DRAINED


def test_no_answer_is_down_and_a_server_that_is_busy_is_not() -> None:
    made = runner(Client(a=ConnectionRefusedError(), b=CanaryAnswer(429, None), c=CanaryAnswer(503, None)))
    ask(made, "a", "a", "b", "b", "b", "c", "c", "c")
    assert [made[1].standing(name) for name in "abc"] == [Standing.DOWN, Standing.SERVING, Standing.SERVING]


def test_a_server_without_logprobs_is_asked_once_with_them() -> None:
    def without(body: Mapping[str, Any]) -> CanaryAnswer:
        return CanaryAnswer(400, {}) if "logprobs" in body else CanaryAnswer(200, completion(GOOD))

    client = Client(a=without, b=GOOD)
    made = runner(client)
    ask(made, "a", "a", "a")
    assert ["logprobs" in body for body in client.bodies] == [True, False, False, False]
    assert made[1].standing("a") is Standing.SERVING


def test_no_two_canaries_have_the_same_beginning() -> None:
    client = Client(a=GOOD, b=GOOD)
    made = runner(client)
    ask(made, "a", "a", "b")
    firsts = [body["messages"][0]["content"] for body in client.bodies]
    assert len(set(firsts)) == 3


def test_canaries_go_on_after_one_that_raised_and_end_with_the_proxy() -> None:
    async def story() -> list[float]:
        naps: list[float] = []
        third = asyncio.Event()

        async def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                third.set()
            await asyncio.Event().wait() if len(naps) >= 3 else None

        client = Client(a=RuntimeError("a bug"))
        made, fleet, upstreams = runner(client)
        made = CanaryRunner(fleet, list(upstreams.values()), client, CanarySettings(), sleep=sleep)
        made.start()
        await third.wait()
        await made.close()
        assert len(asyncio.all_tasks()) == 1
        return naps

    naps = asyncio.run(story())
    assert all(24.0 <= each <= 36.0 for each in naps)


def test_over_http_answers_models_and_failures_are_what_the_server_says() -> None:
    async def story() -> None:
        async def chat(request: web.Request) -> web.Response:
            body = await request.json()
            assert request.headers["Authorization"] == "Bearer secret"
            return web.json_response(completion(GOOD if "France" in str(body) else "?"))

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": "served"}]})

        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/chat/completions", chat)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            upstream = Upstream.of(str(server.make_url("")).rstrip("/"), "a")
            client = HttpCanaryClient(session, "secret")
            assert await client.model(upstream) == "served"
            answer = await client.chat(upstream, {"messages": "France"})
            assert fault(answer.body) is None
            await server.close()
            with pytest.raises(OSError, match="Error"):
                await client.chat(upstream, {})

    asyncio.run(story())


def test_an_answer_that_is_no_regular_expression_is_refused_in_the_settings() -> None:
    with pytest.raises(ValidationError, match="no regular expression"):
        Canary(name="x", question="?", answer="(")
