"""Exponent bits flipped in logits and hidden states of SmolLM2: what the guards of a step's numbers find.

A flip counts where it changes the greedy token. Honest rows are real generations. For the simulation whole traces are
drawn with replacement, and each reading beyond its 95 % quantile is drawn anew from a generalised Pareto tail with the
mean excess measured. Its shape is 0 (exponential) or, where it is heavier than that by a standard error, the measured
one less that error: traces keep their order, and no tail is lighter than exponential, though most real ones are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.detectors.logits import RowStats, row_stats
from checkengine.detectors.magnitude import TailLimits, TailSettings
from checkengine.guards.magnitude import MagnitudeGuard
from checkengine.guards.settings import MagnitudeSettings, UniformSettings
from checkengine.guards.step import StepView
from checkengine.guards.uniform import UniformGuard

BATCH = 32
AT_ONCE = 64
"""Flips that one forward pass tries, a row each."""
BEGIN_OF_TAIL = 0.95
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Honest:
    """Rows of real generations, in order: row i is token `position[i]` of trace `trace[i]`."""

    stats: list[RowStats]
    hidden: list[torch.Tensor]
    traces: list[NDArray[np.int64]]
    positions: list[int]
    logits: torch.Tensor
    """Some whole rows, for flips."""
    tokens: list[list[int]]
    """Prompt and output of each trace."""
    prompts: list[int]
    """Length of each trace's prompt."""

    def column(self, name: str) -> Floats:
        return np.concatenate([getattr(stats, name) for stats in self.stats]).astype(np.float64)


class HiddenTap:
    """Sees the residual stream in front of the final norm, and flips bits of it where a plan says so."""

    def __init__(self, model: Any) -> None:
        self.hidden = torch.empty(0)
        self.plan: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
        """Place (layer, 0 the embedding, last the final norm), element, bit: one flip a row; a place of -1 is none."""
        places = [model.model.embed_tokens, *model.model.layers, model.model.norm]
        self.places = len(places)
        self._hooks = [place.register_forward_hook(self._flip(number)) for number, place in enumerate(places)]
        self._hooks.append(model.model.norm.register_forward_pre_hook(self._see))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _see(self, module: Any, inputs: Any) -> None:
        self.hidden = inputs[0][:, -1]

    def _flip(self, place: int) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> Any:
            if self.plan is None:
                return None
            rows = np.flatnonzero(self.plan[0] == place)
            if not len(rows):
                return None
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            words = hidden.view(torch.int32)
            bits = torch.from_numpy((1 << self.plan[2][rows]).astype(np.int32))
            words[torch.from_numpy(rows), -1, torch.from_numpy(self.plan[1][rows])] ^= bits
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        return hook


@torch.inference_mode()
def generate(model: Any, tokenizer: Any, tap: HiddenTap, tokens: int, seed: int = 0) -> Honest:
    """One batch of chats at temperatures 0, 0.7 and 1, each until its end token or `tokens`."""
    generator = torch.Generator().manual_seed(seed)
    chats = [chat(tokenizer, QUESTIONS[(number * 3) % len(QUESTIONS)]) for number in range(BATCH)]
    widest = max(map(len, chats))
    ids = torch.tensor([[tokenizer.eos_token_id] * (widest - len(chat)) + chat for chat in chats])
    attended = torch.tensor([[0] * (widest - len(chat)) + [1] * len(chat) for chat in chats])
    temperature = torch.tensor([(0.0, 0.7, 1.0)[number % 3] for number in range(BATCH)])[:, None]
    found = Honest([], [], [], [], torch.empty(0), [list(chat) for chat in chats], [len(chat) for chat in chats])
    live, kept, cache = np.arange(BATCH), [], None
    step_ids = ids
    for position in range(tokens):
        places = (attended.cumsum(-1) - 1).clamp_min(0)[:, -step_ids.shape[1] :]
        out = forward(model, step_ids, cache, attention_mask=attended, position_ids=places)
        cache, logits = out.past_key_values, out.logits[:, -1]
        found.stats.append(row_stats(logits[live]))
        found.hidden.append(tap.hidden[live].clone())
        found.traces.append(live)
        found.positions.append(position)
        if position % 8 == 3:
            kept.append(logits[live[:8]].clone())
        noise = torch.empty_like(logits).exponential_(generator=generator).log_().neg_()
        chosen = (logits + temperature * noise).argmax(-1)
        for trace in live.tolist():
            found.tokens[trace].append(int(chosen[trace]))
        live = live[chosen[live].numpy() != tokenizer.eos_token_id]
        if not len(live):
            break
        step_ids = chosen[:, None]
        attended = torch.cat([attended, torch.ones_like(step_ids)], 1)
    found.logits = torch.cat(kept)
    return found


def chat(tokenizer: Any, question: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text).input_ids)


def forward(model: Any, ids: torch.Tensor, cache: Any, **more: Any) -> Any:
    name = "past_key_values"
    return model(ids, use_cache=True, logits_to_keep=1, **{name: cache}, **more)


def taught_guard(honest: Honest, passes: int = 6) -> tuple[MagnitudeGuard, int]:
    """A guard that has seen the honest rows, and how many of them it found something in."""
    guard = MagnitudeGuard(MagnitudeSettings())
    found = 0
    for number in range(passes):
        for stats, hidden, traces, position in zip(
            honest.stats, honest.hidden, honest.traces, honest.positions, strict=True
        ):
            names = tuple(f"{number}-{trace}" for trace in traces.tolist())
            found += len(list(guard.observe(view(stats, names, position, hidden))))
    return guard, found


def view(stats: RowStats, names: tuple[str, ...], position: int = 0, hidden: torch.Tensor | None = None) -> StepView:
    rows = len(names)
    lengths = np.full(rows, position, np.int32)
    return StepView(0, 0.0, names, ((0,),) * rows, stats, np.zeros(rows, np.int32), lengths, hidden=hidden)


def found_rows(guard: MagnitudeGuard, stats: RowStats, hidden: torch.Tensor | None = None) -> Flags:
    """Rows that the guards of a step's numbers find: non-finite, uniform, magnitude. The guard learns nothing here."""
    names = tuple(map(str, range(len(stats))))
    step = view(stats, names, 10_000, hidden)
    flags = np.zeros(len(stats), np.bool_)
    flags |= stats.nonfinite
    for finding in (*UniformGuard(UniformSettings(), 49_152).observe(step), *guard.observe(step)):
        flags[int(finding.sequence)] = True
    for name in names:
        guard.forget(name)
    return flags


@torch.inference_mode()
def hidden_flips(
    model: Any, tap: HiddenTap, honest: Honest, guard: MagnitudeGuard, contexts: int
) -> tuple[Flags, Flags, NDArray[np.int64]]:
    """Of the flips that change the token: found, found from the logits alone, and the bit (23 to 30)."""
    random = np.random.default_rng(3)
    found, from_logits, bits = [], [], []
    for _ in range(contexts):
        trace = int(random.integers(len(honest.tokens)))
        tokens = honest.tokens[trace]
        end = int(random.integers(honest.prompts[trace] + 1, len(tokens) + 1))
        ids = torch.tensor([tokens[:end]])
        cache = forward(model, ids[:, :-1], None).past_key_values
        cache.batch_repeat_interleave(AT_ONCE)
        place = random.integers(0, tap.places, AT_ONCE)
        place[0] = -1
        bit = random.integers(23, 31, AT_ONCE)
        tap.plan = (place, random.integers(0, model.config.hidden_size, AT_ONCE), bit)
        logits = forward(model, ids[:, -1:].expand(AT_ONCE, 1), cache).logits[:, -1]
        tap.plan = None
        stats = row_stats(logits)
        assert stats.argmax is not None
        changed = stats.argmax != stats.argmax[0]
        found.append(found_rows(guard, stats, tap.hidden)[changed])
        from_logits.append(found_rows(guard, stats)[changed])
        bits.append(bit[changed])
    return np.concatenate(found), np.concatenate(from_logits), np.concatenate(bits)


def logit_flips(
    honest: Honest, guard: MagnitudeGuard, tries: int, dtype: torch.dtype
) -> tuple[Flags, NDArray[np.int64]]:
    """Of flips of one logit that change the token: found, and the bit (0 is the exponent's lowest)."""
    random = np.random.default_rng(4)
    logits = honest.logits.to(dtype)
    word, lowest, count = {
        torch.float32: (torch.int32, 23, 8),
        torch.bfloat16: (torch.int16, 7, 8),
        torch.float16: (torch.int16, 10, 5),
    }[dtype]
    row = torch.from_numpy(random.integers(0, len(logits), tries))
    column = torch.from_numpy(random.integers(0, logits.shape[1], tries))
    bit = torch.from_numpy(random.integers(0, count, tries))
    flipped = (logits[row, column].view(word) ^ (1 << (bit + lowest)).to(word)).view(dtype).float()
    stats = row_stats(logits)
    assert stats.argmax is not None
    assert stats.runner_up is not None
    index = row.numpy()
    value, hit = flipped.numpy(), stats.argmax[index] == column.numpy()
    others = np.where(hit, stats.runner_up[index], stats.maximum[index])
    nonfinite = ~np.isfinite(value)
    changed = nonfinite | np.where(hit, value < others, value > others)
    with np.errstate(invalid="ignore"):
        margin = np.abs(value - others)
    after = RowStats(
        "full",
        nonfinite=nonfinite[changed],
        maximum=np.fmax(value, others)[changed],
        minimum=np.fmin(value, stats.minimum[index])[changed],
        margin=margin[changed],
    )
    return found_rows(guard, after), bit.numpy()[changed]


def simulated_findings(honest: Honest, guard_rows: int, seed: int = 0) -> tuple[int, int]:
    """Findings in logits of a fresh guard, and in hidden states of fresh limits, on so many healthy rows."""
    random = np.random.default_rng(seed)
    traces = np.concatenate(honest.traces)
    order = np.lexsort((np.arange(len(traces)), traces))
    names = ("maximum", "minimum", "margin")
    sizes = hidden_sizes(honest)
    columns = {name: honest.column(name)[order] for name in names} | {"hidden": sizes[order]}
    columns["minimum"] = -columns["minimum"]
    ends = np.flatnonzero(np.diff(traces[order], append=-1)) + 1
    spans = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
    tails = {name: tail_of(values) for name, values in columns.items()}
    guard, limits = MagnitudeGuard(MagnitudeSettings()), TailLimits(1, TailSettings())
    found = in_hidden = done = 0
    while done < guard_rows:
        picked = np.concatenate([np.arange(*spans[i]) for i in random.integers(0, len(spans), 64)])
        drawn = {name: redrawn(values[picked], tails[name], random) for name, values in columns.items()}
        maximum, minimum = drawn["maximum"].astype(np.float32), -drawn["minimum"].astype(np.float32)
        finite = np.zeros(len(picked), np.bool_)
        stats = RowStats("full", finite, maximum, minimum, margin=drawn["margin"].astype(np.float32))
        found += len(list(guard.observe(view(stats, tuple(f"{done}-{row}" for row in range(len(picked)))))))
        hidden = drawn["hidden"][None, :].astype(np.float32)
        in_hidden += int((hidden > limits.limits[:, None]).sum())
        limits.learn(hidden)
        done += len(picked)
    return found, in_hidden


def hidden_sizes(honest: Honest) -> Floats:
    """Each row's largest element against the element's usual size, as the guard reads it."""
    hidden = torch.cat(honest.hidden).double().numpy()
    sizes: Floats = np.abs(hidden / np.sqrt(np.square(hidden).mean(0))).max(1)
    return sizes


@dataclass(frozen=True, slots=True)
class Tail:
    beyond: float
    scale: float
    shape: float


def tail_of(values: Floats) -> Tail:
    """Generalised Pareto by moments; see the heading for its shape."""
    beyond = float(np.quantile(values, BEGIN_OF_TAIL))
    excess = values[values > beyond] - beyond
    ratio = excess.mean() ** 2 / excess.var()
    shape = max(0.0, 0.5 * (1 - ratio) - 1 / math.sqrt(len(excess)))
    return Tail(beyond, float(excess.mean() * (1 - shape)), shape)


def redrawn(values: Floats, tail: Tail, random: np.random.Generator) -> Floats:
    high = values > tail.beyond
    drawn = random.exponential(1, len(values))
    excess = drawn if tail.shape == 0 else np.expm1(tail.shape * drawn) / tail.shape
    return np.where(high, tail.beyond + tail.scale * excess, values)
