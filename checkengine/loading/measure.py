"""From the options of `checkengine load` to its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from checkengine.benchmarks.figure import figure
from checkengine.guards.errors import UserError
from checkengine.loading.attained import Limits, attainment, figures_of
from checkengine.loading.client import LONGEST_LINE, Endpoint, LoadClient, listed_models
from checkengine.loading.drive import Run, drive
from checkengine.loading.highest import highest_rate
from checkengine.loading.lecture import LectureWorkload
from checkengine.loading.planned import Planned, faster, rate_of, with_shared
from checkengine.loading.traces import FILES, read_trace, trace
from checkengine.loading.words import TOKENS_A_WORD, PromptMaker

PROBE_WORDS = (40, 240)
CONNECT_SECONDS = 10.0
FEWEST = 10
"""Requests of a run from which a search concludes."""
LECTURE = "lecture"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """See `checkengine load --help`."""

    profile: str
    url: str
    model: str | None = None
    token: str | None = None
    data: Path | None = None
    rate: float | None = None
    duration: float = 60.0
    warm_up: float = 0.0
    seed: int = 0
    most: int = 1024
    endpoint: Endpoint = "chat"
    scale: float = 1.0
    most_input: int | None = None
    most_output: int | None = None
    limits: Limits = field(default_factory=Limits)
    search: bool = False
    units: float = 1.0
    timeout: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)


async def measure(options: LoadOptions, say: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """Figures of one run, or of the search for the highest rate and its best run. UserError for whatever can be told
    before or after the whole run: no data, no server, no such model, every request refused."""
    plan = planner(options)
    timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=LONGEST_LINE) as session:
        client = LoadClient(
            session, options.url, await _model(session, options), endpoint=options.endpoint, token=options.token,
            timeout=options.timeout, extra=options.extra,
        )  # fmt: skip
        tokens_a_word = await _tokens_a_word(client, options.seed, say)
        attempts = _Attempts(options, plan, client, tokens_a_word, say)
        if not options.search:
            run, rate = await attempts.run(options.rate)
            return figures_of(run, options.limits, rate)
        good, bad = await highest_rate(attempts.meets, options.rate or 1.0, FEWEST / options.duration)
        return _searched(options, attempts, good, bad)


def planner(options: LoadOptions) -> Callable[[float | None, int], list[Planned]]:
    """A function from (rate or None for the profile's own, seed) to requests in order; the warm-up's first."""
    span = options.warm_up + options.duration
    if options.profile == LECTURE:
        workload = LectureWorkload()
        return lambda rate, seed: _cut(workload.requests(rate or 1.0, span, seed), options, span)
    path = Path(options.profile)
    if options.profile not in FILES and not path.exists():
        raise UserError(f"--profile {options.profile} is neither {LECTURE}, {', '.join(FILES)} nor a file")
    whole = trace(options.profile, options.data) if options.profile in FILES else read_trace(path)
    own = rate_of(whole)

    def plan(rate: float | None, seed: int) -> list[Planned]:
        played = faster(whole, rate / own) if rate is not None and own else whole
        return _cut(played, options, span)

    return plan


class _Attempts:
    """Runs at different rates. Each with words of its own: a later one must find nothing in the server's cache."""

    def __init__(
        self,
        options: LoadOptions,
        plan: Callable[[float | None, int], list[Planned]],
        client: LoadClient,
        tokens_a_word: float,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._plan, self._client, self._say = options, plan, client, say
        self._tokens_a_word = tokens_a_word
        self._count = 0
        self.best: tuple[Run, float] | None = None
        self.last: tuple[Run, float] | None = None

    async def run(self, rate: float | None) -> tuple[Run, float]:
        """The measured part, and its requests a second."""
        options, seed = self._options, self._options.seed + 1000 * self._count
        self._count += 1
        requests = self._plan(rate, seed)
        if not requests:
            raise UserError(
                f"no request of {options.profile} falls into {options.duration:g} s; give a longer --duration"
            )
        prompts = PromptMaker(seed, self._tokens_a_word)
        run = measured(await drive(requests, self._client, prompts, most=options.most), options.warm_up)
        if not run.samples:
            raise UserError(f"no request of {options.profile} falls behind the warm-up; give a longer --duration")
        errors = [each.error for each in run.samples if each.error is not None]
        if len(errors) == len(run.samples):
            raise UserError(f"all {len(errors)} requests failed; the first one: {errors[0]}")
        self.last = run, len(run.samples) / options.duration
        return self.last

    async def meets(self, rate: float) -> bool:
        run, real = await self.run(rate)
        share = attainment(run, self._options.limits)
        is_met = share >= self._options.limits.share
        self._say(f"{real:.3g} requests/s: {share:.1%} within the limits, {'met' if is_met else 'missed'}")
        if is_met and (self.best is None or real >= self.best[1]):
            self.best = run, real
        return is_met


def measured(run: Run, warm_up: float) -> Run:
    """Without what was meant to be sent before the warm-up ended."""
    kept = [number for number, request in enumerate(run.requests) if request.at >= warm_up]
    requests, samples = (tuple(each[number] for number in kept) for each in (run.requests, run.samples))
    return Run(requests, samples, run.seconds - warm_up, run.late)  # type: ignore[arg-type]


def _searched(options: LoadOptions, attempts: _Attempts, good: float, bad: float | None) -> list[dict[str, Any]]:
    peer = ("lowest QPS that missed", (bad if bad is not None else float("inf")) / options.units)
    if bad is None:
        peer = ("highest QPS tried", good / options.units)
    run, rate = attempts.best or attempts.last or (Run((), (), 0.0, 0.0), 0.0)
    highest = figure("load.highest_qps_per_unit", good / options.units, "request/s", 0.0, at_least=True, peer=peer)
    return [highest, *figures_of(run, options.limits, rate)]


def _cut(requests: Sequence[Planned], options: LoadOptions, span: float) -> list[Planned]:
    """To the duration and the lengths that were asked for; what is shared is counted anew."""
    scale = options.scale
    most_input, most_output = options.most_input or (1 << 62), options.most_output or (1 << 62)
    found = [
        replace(
            each,
            input_tokens=min(max(1, round(each.input_tokens * scale)), most_input),
            output_tokens=min(max(1, round(each.output_tokens * scale)), most_output),
            block_tokens=max(1, round(each.block_tokens * scale)),
        )
        for each in requests
        if each.at < span
    ]
    return with_shared(found)


async def _model(session: aiohttp.ClientSession, options: LoadOptions) -> str:
    models = await listed_models(session, options.url, options.token)
    if options.model is None and not models:
        raise UserError(f"{options.url} lists no model; give --model")
    if options.model is not None and models and options.model not in models:
        raise UserError(f"{options.url} serves no model {options.model!r}; it serves {', '.join(models)}")
    return options.model or models[0]


async def _tokens_a_word(client: LoadClient, seed: int, say: Callable[[str], None]) -> float:
    """Slope between two prompts, so that a chat template's own tokens do not count."""
    prompts = PromptMaker(seed)
    counted = []
    for words in PROBE_WORDS:
        sample = await client.send(prompts.probe(words), 1, 0.0, 0.0)
        if sample.error is not None and not sample.error.startswith("an answer without output"):
            raise UserError(f"{client.address} refuses a request for {client.model}: {sample.error}")
        counted.append(sample.prompt_tokens)
    first, second = counted
    if first is None or second is None or second <= first:
        say(f"the server counts no prompt tokens; {TOKENS_A_WORD} tokens a word are assumed")
        return TOKENS_A_WORD
    return (second - first) / (PROBE_WORDS[1] - PROBE_WORDS[0])
