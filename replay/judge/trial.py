"""The judge's bench: one window on one executor, and a count of what was run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from checkengine.replay.executor import Executor, StepOutput
from checkengine.replay.playback import Playback
from checkengine.replay.window import Window, WindowStep


@dataclass(slots=True)
class Bench:
    """`memory`: what every playback starts from, where that is not the window's image."""

    executor: Executor
    window: Window
    replays: int = 0
    memory: Any = None

    def playback(self, *, fill: float | None = None, kernel: str | None = None, free: bool = False) -> Playback:
        self.replays += 1
        memory = None if self.memory is None else self.executor.copy(self.memory)
        return Playback(self.executor, self.window, fill=fill, kernel=kernel, free=free, hashes=True, memory=memory)

    def run_again(self, step: WindowStep, memory: Any, *, kernel: str | None = None) -> StepOutput:
        """Run one step on memory in which it has run before: it writes its own slots before it reads them."""
        self.replays += 1
        return self.executor.run(step.replay, memory, kernel=kernel, hashes=True)

    def steps(self, *, kernel: str | None = None, free: bool = False) -> Iterator[tuple[WindowStep, StepOutput]]:
        return iter(self.playback(kernel=kernel, free=free))

    def chosen(self, steps: Collection[int]) -> Iterator[tuple[WindowStep, Playback]]:
        """The window's run up to each of these steps, with memory prepared for it: whoever takes the step runs it."""
        playback = self.playback()
        for step in self.window.steps:
            if step.number in steps:
                playback.prepare(step)
                yield step, playback
            else:
                playback.run(step)

    def at(self, step: WindowStep, memory: Any) -> Bench:
        """A bench for one step of the window; `memory` is as of before it."""
        return Bench(self.executor, replace(self.window, steps=[step]), memory=memory)
