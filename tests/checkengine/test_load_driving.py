"""How `checkengine load` sends and measures: open loop, from the intended time."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from checkengine.commands import load
from checkengine.guards.errors import UserError
from checkengine.loading.attained import Limits, attainment, bands, figures_of, meets
from checkengine.loading.client import LoadClient, Sample
from checkengine.loading.drive import Run, drive
from checkengine.loading.highest import RATIO, highest_rate
from checkengine.loading.measure import LoadOptions, measure
from checkengine.loading.planned import Planned
from checkengine.loading.words import PromptMaker

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(text: str = "", **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode() + b"\n\n"


async def answer(request: web.Request, *pieces: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m"}]})


async def counting(request: web.Request) -> web.StreamResponse:
    """Three tokens, and a count of the prompt's words: two tokens a word and ten of a template."""
    body = await request.json()
    prompt = 10 + 2 * len(body["messages"][0]["content"].split(" "))
    usage = {"prompt_tokens": prompt, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": prompt // 2}}
    end = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    return await answer(request, chunk(), chunk("a"), chunk("b"), chunk("c"), end, b"data: [DONE]\n\n")


async def with_server(handler: Handler, use: Callable[[str], Awaitable[Any]]) -> Any:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", handler)
    async with TestServer(app) as server:
        return await use(str(server.make_url("")))


def measured(handler: Handler, **options: Any) -> list[dict[str, Any]]:
    async def use(url: str) -> list[dict[str, Any]]:
        chosen = {"profile": "lecture", "rate": 200.0, "duration": 0.5, "url": url, **options}
        return await measure(LoadOptions(**chosen))

    found: list[dict[str, Any]] = asyncio.run(with_server(handler, use))
    return found


def sent(handler: Handler, tokens: int = 3, **more: Any) -> Sample:
    async def use(url: str) -> Sample:
        async with aiohttp.ClientSession() as session:
            return await LoadClient(session, url + "/v1", "m", **more).send("a prompt", tokens, 0.0, 0.0)

    sample: Sample = asyncio.run(with_server(handler, use))
    return sample


def by_name(figures: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in figures if each["name"] == name)


def test_a_stream_is_timed_piece_by_piece_and_counted_by_the_server() -> None:
    sample = sent(counting)
    assert sample.error is None
    assert len(sample.pieces) == 3
    assert sample.pieces == sorted(sample.pieces)
    assert (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens) == (14, 7, 3)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"data: {broken\n\n",), "JSONDecodeError"),
        ((chunk("a"), b'data: {"error": {"message": "out of memory"}}\n\n'), "out of memory"),
        ((chunk(), b"data: [DONE]\n\n"), "an answer without output"),
        ((), "an answer without output"),
    ],
)
def test_a_broken_stream_is_a_failed_request_and_no_exception(pieces: tuple[bytes, ...], words: str) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        return await answer(request, *pieces)

    sample = sent(broken)
    assert words in (sample.error or "")


def test_a_server_that_never_ends_is_failed_by_the_timeout() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    assert sent(hang, timeout=0.05).error == "no end within 0.05 s"


class Held:
    """A server on a clock that moves only when it answers: each answer takes a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[tuple[float, float]] = []

    def clock(self) -> float:
        return self.now

    async def send(self, prompt: str, tokens: int, start: float, intended: float) -> Sample:
        self.sent.append((intended, self.now - start))
        self.now += 1.0
        return Sample(intended, self.sent[-1][1], pieces=[self.now - start])


def test_a_wait_for_a_place_counts_from_the_intended_time() -> None:
    held = Held()
    requests = [Planned(-0.05, 8, 1) for _ in range(4)]
    run = asyncio.run(drive(requests, held, PromptMaker(0), most=1, clock=held.clock))  # type: ignore[arg-type]
    assert [each.ttft for each in run.samples] == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_requests_do_not_wait_for_answers_to_those_before_them() -> None:
    arrived = []

    async def use(url: str) -> Run:
        all_there = asyncio.Event()

        class Client:
            async def send(self, prompt: str, tokens: int, start: float, intended: float) -> Sample:
                arrived.append(intended)
                if len(arrived) == 20:
                    all_there.set()
                await all_there.wait()
                return Sample(intended, intended, pieces=[intended])

        requests = [Planned(index * 1e-3, 8, 1) for index in range(20)]
        return await drive(requests, Client(), PromptMaker(0), most=100)  # type: ignore[arg-type]

    assert len(asyncio.run(use("")).samples) == 20


def test_a_request_meets_the_limits_only_with_both_times_and_no_error() -> None:
    limits = Limits(0.5, 0.03)
    assert meets(Sample(1.0, 1.0, [1.4, 1.42, 1.44]), limits)
    assert not meets(Sample(1.0, 1.0, [1.6, 1.62]), limits)
    assert not meets(Sample(1.0, 1.0, [1.4, 1.5]), limits)
    assert not meets(Sample(1.0, 1.0, [1.4, 1.42], error="reset"), limits)
    assert not meets(Sample(1.0, 1.0), limits)
    assert meets(Sample(1.0, 1.0, [1.4]), limits)


def test_pieces_of_several_tokens_are_timed_by_the_servers_count() -> None:
    assert Sample(0.0, 0.0, [1.0, 2.0], output_tokens=11).tbt == pytest.approx(0.1)


def test_bands_hold_every_request_once() -> None:
    requests = [
        Planned(0.0, size, 1, shared_tokens=int(size * hit)) for size in (1, 128, 5000, 90_000) for hit in (0, 1)
    ]
    run = Run(tuple(requests), tuple(Sample(0.0, 0.0, [0.1]) for _ in requests), 1.0, 0.0)
    found = bands(run, Limits())
    assert sum(each["peer_value"] for each in found) == len(requests)
    assert all(each["value"] == 1.0 for each in found)
    assert attainment(run, Limits()) == 1.0


@pytest.mark.parametrize("edge", [0.03, 0.9, 1.0, 7.3, 1000.0])
def test_the_search_ends_within_a_tenth_of_the_highest_rate(edge: float) -> None:
    tried = []

    async def is_met(rate: float) -> bool:
        tried.append(rate)
        return rate <= edge

    good, bad = asyncio.run(highest_rate(is_met, 1.0))
    assert good <= edge < bad
    assert bad / good <= RATIO
    assert len(tried) <= 16


def test_the_search_says_where_no_rate_is_met_and_where_none_is_missed() -> None:
    async def never(rate: float) -> bool:
        return False

    async def always(rate: float) -> bool:
        return True

    assert asyncio.run(highest_rate(never, 1.0))[0] == 0.0
    assert asyncio.run(highest_rate(always, 1.0))[1] is None


def test_a_whole_run_tells_attainment_hits_and_bands() -> None:
    found = measured(counting, limits=Limits(10.0, 10.0, 0.9))
    assert by_name(found, "load.attained")["ok"]
    assert by_name(found, "load.failed")["value"] == 0
    assert by_name(found, "load.hit_share")["value"] == pytest.approx(0.5, abs=0.02)
    assert any(each["name"].startswith("load.attained, ") for each in found)


def test_prompts_are_as_long_as_planned_by_the_servers_own_count() -> None:
    planned, counted = [], []

    async def keep(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        counted.append(2 * len(body["messages"][0]["content"].split(" ")))
        planned.append(body["max_tokens"])
        return await counting(request)

    run = measured(keep, scale=0.5)
    assert by_name(run, "load.failed")["value"] == 0
    assert 100 < sorted(counted[2:])[len(counted) // 2] < 500


def test_a_search_reports_the_rate_for_one_unit() -> None:
    found = measured(counting, rate=80.0, search=True, units=4.0, limits=Limits(1e-9, 1e-9, 0.9))
    highest = by_name(found, "load.highest_qps_per_unit")
    assert highest["value"] == 0.0
    assert highest["peer_value"] == pytest.approx(20.0 / 4)


def test_a_wrong_model_and_a_server_that_refuses_everything_are_one_clear_error() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no"}, status=401)

    with pytest.raises(UserError, match="serves no model 'x'; it serves m"):
        measured(counting, model="x")
    with pytest.raises(UserError, match="refuses a request for m: 401"):
        measured(refuse)


def test_a_missing_client_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "checkengine.loading.measure")
    done = CliRunner().invoke(load.app, ["--profile", "lecture", "--url", "http://127.0.0.1:1"])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == "load needs aiohttp: pip install 'checkengine[proxy]'"


def test_a_server_that_breaks_after_the_probe_is_told_by_its_first_error() -> None:
    seen = []

    async def breaks(request: web.Request) -> web.StreamResponse:
        seen.append(1)
        return await counting(request) if len(seen) <= 2 else web.json_response({}, status=500)

    with pytest.raises(UserError, match=r"all \d+ requests failed; the first one: 500"):
        measured(breaks)


def test_figures_of_an_empty_search_are_figures_too() -> None:
    assert by_name(figures_of(Run((), (), 0.0, 0.0), Limits(), 0.0), "load.attained")["value"] == 0.0
