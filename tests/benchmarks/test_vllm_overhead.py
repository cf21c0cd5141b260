"""The arithmetic of `bench vllm`, on engines whose speed is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkengine.benchmarks import vllm_overhead
from checkengine.benchmarks.vllm_overhead import ARMS, Bench, Round, batch_figures
from checkengine.engine_shim.vllm.switch_file import SwitchFile
from checkengine.guards.errors import UserError

SECONDS = {"plain": 0.010, "guarded": 0.011, "counting": 0.012}
"""Of a step: the guarded engine is slower for reasons of its own."""
COST = {"screen": 1.005, "full": 1.02}


class Engine:
    def __init__(self, name: str, switches: SwitchFile) -> None:
        self.name, self._switches = name, switches
        self.level, self.spent = "screen", 0.0

    def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[float]:
        if name == "checkengine_set":
            self.level = args[0]
        return [self.spent]

    def seconds(self) -> float:
        on = self.name == "guarded" and self._switches.read().get("sidecar") == "enable"
        self.spent += 47 * 0.0001 if on else 0.0
        return SECONDS[self.name] * (COST[self.level] if on else 1.0)


def test_guards_are_set_beside_the_same_engine_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_round(engine: Engine, batch: int) -> Round:
        step = engine.seconds()
        return Round([step] * 47, 48 * step, 48 * batch)

    monkeypatch.setattr(vllm_overhead, "one_round", one_round)
    monkeypatch.setattr(vllm_overhead, "time", SimpleNamespace(sleep=lambda seconds: None))
    switches = SwitchFile(tmp_path)
    bench = Bench({name: Engine(name, switches) for name in SECONDS}, switches)
    found = {each["name"]: each for each in batch_figures(bench, 8, 4)}
    assert found["batch 8: inter-token latency without guards"]["value"] == pytest.approx(11.0)
    latency = {arm.name: found[name] for arm in ARMS for name in found if f", {arm.name}: inter-token" in name}
    assert latency["screen"]["value"] == pytest.approx(0.5)
    assert latency["full"]["value"] == pytest.approx(2.0)
    assert latency["switched off, beside plain vLLM"]["value"] == pytest.approx(10.0)
    assert latency["vLLM's NaN counter, beside plain vLLM"]["value"] == pytest.approx(20.0)
    assert (latency["screen"]["target"], latency["full"]["target"]) == (1.0, 2.5)
    spent = [each["value"] for name, each in found.items() if "CPU time" in name]
    assert spent == pytest.approx([100.0] * 3)


def test_without_vllm_it_says_where_to_run() -> None:
    with pytest.raises(UserError, match="make vllm-setup"):
        vllm_overhead.vllm_figures(quick=True)
