"""What a call bundle tells: does its fault show here and now?"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import entry_points

from checkengine.replay.bundle import BundleReader
from checkengine.replay.bundle.calls import read_call
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.find_executor import GROUP, refuse_kernel
from checkengine.replay.investigate import Investigation
from checkengine.replay.minimise.judge_call import judge_call
from checkengine.replay.minimise.reproducer import shows
from checkengine.replay.minimise.symptom import Symptom
from checkengine.replay.op_call import OpExecutor, takes_calls


def investigate_call(
    reader: BundleReader, *, executor: OpExecutor | None = None, bundle: str = "", kernel: str | None = None
) -> Investigation:
    """Judge the call, and see whether the fault that it was kept for shows again. No model is loaded. `executor`: by
    default the one that the bundle names. CannotReplayError where none can run it. `kernel`: runs in place of the
    recorded one, and then there is no verdict, as for a window; NoSuchChoiceError where the executor lacks it."""
    began = time.monotonic()
    stored = read_call(reader)
    environment = reader.json("env.json")
    runs = executor or op_executor(str(environment.get("engine", "")))
    refuse_kernel(runs, kernel)
    found = Investigation(bundle or str(reader.path), reader.findings, environment)
    found.finding = found.findings[0] if found.findings else None
    changed = getattr(runs, "changed", None)
    found.notes += [f"not as recorded: {difference}" for difference in (changed(environment) if changed else ())]
    found.notes.append(f"one attention call, its values {stored.values}: {Symptom.from_json(stored.symptom).words}")
    if kernel is None:
        found.verdict = judge_call(runs, stored.call)
    else:
        found.notes.append(f"run with the {kernel} kernel in place of the recorded {stored.call.kernel}: no verdict")
        stored = replace(stored, call=replace(stored.call, kernel=kernel))
    found.reproduced = shows(runs, stored)
    found.seconds = time.monotonic() - began
    return found


def op_executor(engine: str) -> OpExecutor:
    """The executor of that name, as it is before it loads a model. CannotReplayError where there is none, or where it
    cannot run single calls."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if engine not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CannotReplayError(f"the call comes from engine {engine!r}, and no executor of that name is here; {known}")
    executor: object = found[engine].load()()
    if not takes_calls(executor):
        raise CannotReplayError(f"the executor {engine} cannot run one call alone: use a newer one")
    return executor
