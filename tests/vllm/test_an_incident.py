"""From a fault in a running vLLM to its verdict, without a hand in between: guards, capture, bundle, replay; and audits
of steps that no guard minds. First of these tests, while no other incident has used up what is captured of one kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import CHATS, VICTIM, ask, findings, prompt_length, tokens
from conftest import Switches

pytestmark = pytest.mark.timeout(1500)
UNTIL_JUDGED = 900


def replayed(bundle: Path, environment: dict[str, str], executor: str) -> tuple[int, Any]:
    """In a fresh process: exit code and what `checkengine replay` says."""
    given = {**os.environ, **environment}
    given.pop("CHECKENGINE_VLLM", None)
    command = ["-m", "checkengine", "replay", str(bundle), "--json", "--repeats", "0", "--executor", executor]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=given, timeout=900)
    assert done.stdout.strip(), done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def over_read(engine: Any, switches: Switches, bundles: Path) -> tuple[Any, int, Path]:
    """A slot too many is read at one length, on memory that was made loud: the answer, the length and the bundle."""
    length = prompt_length(ask(engine, [VICTIM], max_tokens=1)[VICTIM]) + 9
    engine.reset_prefix_cache()
    engine.collective_rpc("checkengine_loud", args=(True,))
    with switches.on("over_read", length=length):
        struck = ask(engine)
        bundle = bundle_of(engine, bundles)
    engine.collective_rpc("checkengine_loud", args=(False,))
    return struck, length, bundle


def bundle_of(engine: Any, bundles: Path) -> Path:
    """The order leaves with the next step's message."""
    ask(engine, ["moon"], max_tokens=4)
    return wait_for(lambda: next(bundles.glob("*-logits.*/manifest.json"), None), "no bundle was written").parent


def wait_for(found: Callable[[], Any], words: str, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while (value := found()) is None:
        assert time.monotonic() < end, words
        time.sleep(0.1)
    return value


def test_loud_memory_lets_a_guard_see_a_slot_that_is_read_past_the_end(
    engine: Any, over_read: tuple[Any, int, Path]
) -> None:
    struck, _, _ = over_read
    assert str(struck[VICTIM].outputs[0].stop_reason) in ("checkengine:logits.uniform", "checkengine:logits.nonfinite")
    assert len(tokens(struck[VICTIM])) == 9
    assert all(struck[name].outputs[0].stop_reason is None for name in CHATS.keys() - {VICTIM})


def test_the_bundle_of_a_running_engine_convicts_its_kernel_in_a_fresh_process(
    over_read: tuple[Any, int, Path], environment: dict[str, str], switches: Switches
) -> None:
    _, length, bundle = over_read
    with switches.on("over_read", length=length):
        code, found = replayed(bundle, environment, "vllm")
    assert found["bit_exact"], (found["first_difference"], found["compared"], found["notes"])
    assert (code, found["verdict"]["kind"], found["verdict"]["fault_class"]) == (1, "code defect", "over-read")
    assert "past the end" in found["verdict"]["sentence"]


def test_the_same_bundle_under_another_engine_s_kernels_does_not_show_the_fault(
    over_read: tuple[Any, int, Path], environment: dict[str, str], switches: Switches
) -> None:
    _, length, bundle = over_read
    with switches.on("over_read", length=length):
        code, found = replayed(bundle, environment, "embedded")
    assert (code, found["reproduced"]) == (0, False), found["notes"]


def test_an_audit_convicts_a_quiet_over_read_that_no_guard_sees(engine: Any, switches: Switches) -> None:
    engine.collective_rpc("fill_memory", args=(0.0,))
    known = len(findings(engine.spool))
    with switches.on("over_read", **{"from": 1}):
        engine.collective_rpc("audit_every", args=(8,))
        answers = ask(engine, ["bread", "sleep"], max_tokens=64)
        engine.collective_rpc("audit_every", args=(10**9,))
        # Between two steps is when a step that was drawn is cloned.
        convicted = wait_for(
            lambda: next((each for each in findings(engine.spool) if each["kind"] == "audit.defect"), None),
            "no audit convicted",
            UNTIL_JUDGED,
        )
    assert all(answer.outputs[0].stop_reason is None for answer in answers.values()), "no guard minded"
    fresh = findings(engine.spool)[known:]
    # That the kernel lets NaN in through masked slots is true of every step here, and told apart.
    assert {each["kind"] for each in fresh} - {"audit.masked_read"} == {"audit.defect"}
    assert convicted["evidence"]
