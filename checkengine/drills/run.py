"""The demo: a clean run, then each drill unguarded, guarded, replayed and judged."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from checkengine.config import Settings
from checkengine.drills.catalogued import Judged
from checkengine.drills.compare import Difference, differences, first_difference
from checkengine.drills.drill import DRILLS, Drill
from checkengine.drills.outcome import Clean, DemoResult, Outcome
from checkengine.drills.requests import CHATS, to_request
from checkengine.drills.serving import Bench, Run
from checkengine.guards.events import FindingRaised

NEAR_TIE = 1e-3
Say = Callable[[str], None]


def drill_settings(directory: Path, threads: int | None = None) -> Settings:
    """The demo's configuration, as checkengine.toml would hold it."""
    return Settings.model_validate(
        {
            "logits": {"level": "full"},
            "guards": {
                "tool_calls": {"action": "stop"},
                "salad": {"action": "stop"},
                "language": {"action": "stop"},
            },
            "capture": {"content": "full", "directory": directory / "bundles", "window_steps": 12},
            "spool": {"directory": directory / "spool"},
            "catalog": {"url": str(directory / "catalog.db")},
            "audit": {"every_steps": 8, "waiting": 4},
            "engine": {"blocks": 96, "threads": threads},
        }
    )


def with_threads(settings: Settings, model: Any, tokenizer: Any) -> Settings:
    """The number of threads that is fastest here now, chosen once: every run must have the same for equal bits."""
    from checkengine.assemble import embed

    embed(model, tokenizer, settings, watched=False)
    engine = settings.engine.model_copy(update={"threads": torch.get_num_threads()})
    return settings.model_copy(update={"engine": engine})


class Demo:
    """Runs the parts in order; `say` tells what runs now."""

    def __init__(self, model: Any, tokenizer: Any, settings: Settings, say: Say = lambda line: None) -> None:
        settings = with_threads(settings, model, tokenizer)
        quiet = settings.audit.model_copy(update={"enabled": False})
        self.model, self.tokenizer, self.say = model, tokenizer, say
        self.judged: list[Judged] = []
        self.bench = Bench(model, tokenizer, settings.model_copy(update={"audit": quiet}))
        self.audited = Bench(model, tokenizer, settings)
        self.prompts = {chat.name: len(to_request(chat, tokenizer).prompt_tokens) for chat in CHATS}

    def run(self, pairs: int = 2) -> DemoResult:
        began = time.perf_counter()
        clean, reference = self.clean(pairs)
        outcomes = [self.drill(drill, reference) for drill in DRILLS]
        return DemoResult(clean, outcomes, time.perf_counter() - began)

    def clean(self, pairs: int) -> tuple[Clean, Run]:
        """No fault, with and without guards in turn."""
        bare, guarded = [], []
        for pair in range(pairs):
            self.say(f"clean run, pair {pair + 1} of {pairs}: without guards")
            bare.append(self.bench.run(CHATS, watched=False))
            self.say(f"clean run, pair {pair + 1} of {pairs}: with guards")
            guarded.append(self.bench.run(CHATS, watched=True))
        return summarise_clean(bare, guarded), guarded[0]

    def drill(self, drill: Drill, clean: Run) -> Outcome:
        began = time.perf_counter()
        faults = drill.make_faults(self.tokenizer, self.prompts)
        outcome = Outcome(drill.name, drill.title, drill.story, drill.victim, [fault.models for fault in faults])
        self.say(f"{drill.title}: with guards")
        bench = self.audited if drill.quiet else self.bench
        guarded = bench.run(CHATS, faults=faults, watched=True, warm=drill.warm)
        unguarded = guarded
        if not drill.quiet:  # an audit stops nothing: its run is the unguarded one
            self.say(f"{drill.title}: without guards")
            unguarded = self.bench.run(CHATS, faults=faults, watched=False, warm=drill.warm)
        self.compare(outcome, drill, clean, unguarded, guarded)
        self.judge(outcome, guarded)
        outcome.seconds = time.perf_counter() - began
        return outcome

    def compare(self, outcome: Outcome, drill: Drill, clean: Run, unguarded: Run, guarded: Run) -> None:
        victim, free = guarded.served[drill.victim], unguarded.served[drill.victim]
        outcome.tokens, outcome.unguarded_tokens = len(victim.tokens), len(free.tokens)
        outcome.tokens_saved = outcome.unguarded_tokens - outcome.tokens
        outcome.guarded_text, outcome.unguarded_text, outcome.finish = victim.text, free.text, victim.finish
        outcome.unguarded_repeats = len(list(takewhile(lambda token: token == free.tokens[-1], reversed(free.tokens))))
        outcome.stopped = victim.note is not None
        outcome.first_bad_token = first_bad(drill, clean, unguarded, guarded)
        caught = caught_at(drill, guarded)
        if caught is not None and outcome.first_bad_token is not None:
            outcome.caught_after_tokens = caught - outcome.first_bad_token
            if outcome.stopped:
                outcome.stopped_after_tokens = victim.index_at(victim.ended_step) - outcome.first_bad_token
        outcome.findings = [told(event) for event in guarded.findings]
        self.neighbours(outcome, drill, clean, guarded)

    def neighbours(self, outcome: Outcome, drill: Drill, clean: Run, guarded: Run) -> None:
        names = [chat.name for chat in CHATS if chat.name != drill.victim]
        for difference in differences(clean, guarded, names):
            if self.margin(clean, difference) < NEAR_TIE:
                outcome.near_ties.append(difference)
            else:
                return
        outcome.neighbours_equal = True

    def margin(self, clean: Run, difference: Difference) -> float:
        chat = next(chat for chat in CHATS if chat.name == difference.name)
        prompt = to_request(chat, self.tokenizer).prompt_tokens
        return self.bench.margin(prompt + clean.served[difference.name].tokens[: difference.index])

    def judge(self, outcome: Outcome, guarded: Run) -> None:
        """Replay the first bundle of the incident, from disk, as `checkengine replay` does."""
        from checkengine.commands.replay import investigate_bundle
        from checkengine.replay.report import result_json

        outcome.incident = next(iter(guarded.bundles), None)
        if outcome.incident is None:
            return
        outcome.bundle = guarded.bundles[outcome.incident]
        self.say(f"{outcome.title}: replaying {Path(outcome.bundle).name}")
        investigation = investigate_bundle(Path(outcome.bundle), quiet=True)
        found = investigation.to_dict()
        self.judged.append(
            Judged(Path(outcome.bundle).name, time.time(), investigation.exit_code, result_json(investigation))
        )
        kept = ("bit_exact", "from_step", "steps", "reproduced", "rows", "equal_rows", "exact_from", "reference")
        outcome.replay = {key: found[key] for key in kept}
        verdict = found["verdict"]
        outcome.verdict, outcome.verdict_kind = f"{verdict['kind']}: {verdict['sentence']}", verdict["kind"]
        outcome.layers = list(verdict["layers"])
        outcome.slots = [slot["words"] for slot in verdict["slots"]]


def summarise_clean(bare: list[Run], guarded: list[Run]) -> Clean:
    speeds = [statistics.median(run.tokens_per_second for run in runs) for runs in (bare, guarded)]
    names = list(bare[0].served)
    return Clean(
        requests=len(names),
        findings=sum(len(run.findings) for run in guarded),
        tokens=bare[0].tokens,
        tokens_per_s_bare=speeds[0],
        tokens_per_s_guarded=speeds[1],
        overhead=1 - speeds[1] / speeds[0],
        cpu_overhead=sum(run.guard_cpu_seconds for run in guarded) / sum(run.seconds for run in guarded),
        equal=all(not differences(bare[0], run, names) for run in (*bare, *guarded)),
    )


def first_bad(drill: Drill, clean: Run, unguarded: Run, guarded: Run) -> int | None:
    if drill.quiet:
        return first_difference(clean.fingerprints(drill.victim), guarded.fingerprints(drill.victim))
    return first_difference(clean.served[drill.victim].tokens, unguarded.served[drill.victim].tokens)


def caught_at(drill: Drill, guarded: Run) -> int | None:
    """Output index of the victim's token in whose step the first finding about it fell."""
    victim = guarded.served[drill.victim]
    steps = [event.finding.step for event in guarded.findings if event.finding.sequence == drill.victim]
    return victim.index_at(min(steps)) if steps else None


def told(event: FindingRaised) -> dict[str, Any]:
    finding = event.finding
    return {
        "kind": finding.kind,
        "sequence": finding.sequence,
        "guard": finding.guard,
        "step": finding.step,
        "token": finding.token,
        "primary": event.primary,
        "incident": event.incident,
        "evidence": dict(finding.evidence),
    }
