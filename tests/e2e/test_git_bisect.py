"""`git bisect run checkengine replay BUNDLE` with real git over a history in which one commit is guilty."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from checkengine.engine_shim.engine.executor import cached_model
from checkengine.engine_shim.faults import NanAttention, describe_fault
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.record import StepRecord
from checkengine.selftest_cases import BLOCK, sampled_requests
from checkengine.selftest_serving import run
from checkengine.tiny import tiny_model, tiny_tokenizer

COMMITS, GUILTY = 64, 41
OTHER_ROUNDING = range(20, 38)
"""Commits whose numbers differ in their last bits from the recorded ones; they have no fault, so they are good."""
CANNOT_RUN = range(47, 49)
"""Commits that do not even load."""
WHEN = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T00:00:00+00:00")
"""One date for every run: where to go after a skipped commit, git decides by the commits' hashes."""

EXECUTOR = """
import kernel
from checkengine.engine_shim.engine.executor import EmbeddedExecutor


class HistoryExecutor(EmbeddedExecutor):
    name = "history"

    def load(self, environment):
        super().load({**environment, "faults": kernel.FAULTS})

    def run(self, step, memory, *, kernel=None, hashes=False):
        return super().run(step, memory, kernel=self.rounding(kernel), hashes=hashes)

    def rounding(self, name):
        return "reference" if kernel.OTHER_ROUNDING and name in (None, "paged") else name
"""
INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: history\nVersion: 1\n",
    "entry_points.txt": "[checkengine.executors]\nhistory = history_executor:HistoryExecutor\n",
}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    environment = {**os.environ, **WHEN}
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def kernel_source(commit: int) -> str:
    if commit in CANNOT_RUN:
        return f"raise ImportError('revision {commit} does not build')\n"
    faults = [describe_fault(FAULT)] if commit >= GUILTY else []
    return f"# revision {commit}\nFAULTS = {faults!r}\nOTHER_ROUNDING = {commit in OTHER_ROUNDING}\n"


FAULT = NanAttention(modulus=BLOCK, remainder=1, layer=1)


def history(folder: Path) -> list[str]:
    """A commit for each revision, oldest first."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "history_executor.py").write_text(EXECUTOR)
    (folder / "history-1.dist-info").mkdir()
    for name, text in INFO.items():
        (folder / "history-1.dist-info" / name).write_text(text)
    for commit in range(COMMITS):
        (folder / "kernel.py").write_text(kernel_source(commit))
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"revision {commit}")
    return git(folder, "rev-list", "--reverse", "HEAD").split()


def from_the_beginning(record: StepRecord) -> tuple[list[int], int]:
    """A window that holds the step which went wrong first, wherever it shows."""
    return record.handles.tolist(), 0


def incident(model_folder: Path) -> Capture:
    """Of the guilty engine: the first step in which the guard saw NaN."""
    tokenizer = tiny_tokenizer()
    tiny_model().save_pretrained(model_folder)
    tokenizer.save_pretrained(model_folder)
    seen = run(cached_model(str(model_folder), "float32"), tokenizer, sampled_requests(), [FAULT], from_the_beginning)
    finding = next(finding for finding in seen.findings if finding.kind == "logits.nonfinite")
    capture = next(c for c in seen.captures if c.window.records[-1].step == finding.step)
    environment = {**capture.environment, "engine": "history", "faults": []}
    told = Finding("logits.nonfinite", finding.sequence, Severity.ERROR, finding.step, finding.token, "nonfinite")
    return replace(capture, environment=MappingProxyType(environment), findings=(told,))


@pytest.mark.timeout(600)
def test_git_bisect_names_the_guilty_one_of_64_commits_in_at_most_seven_replays(tmp_path: Path) -> None:
    bundle = write_bundle(incident(tmp_path / "model"), tmp_path / "bundles", content="full")
    commits = history(tmp_path / "history")
    # A record names its model by the last part of the folder; it is looked for where the replay runs.
    (tmp_path / "history" / "model").symlink_to(tmp_path / "model")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "history"), "PYTHONDONTWRITEBYTECODE": "1"}
    git(tmp_path / "history", "bisect", "start", commits[-1], commits[0])
    replay = [sys.executable, "-m", "checkengine", "replay", str(bundle), "--repeats", "0"]
    done = subprocess.run(
        ["git", "bisect", "run", *replay], cwd=tmp_path / "history", env=environment, capture_output=True, text=True
    )
    log = git(tmp_path / "history", "bisect", "log")
    steps = re.findall(r"^git bisect (good|bad|skip) (\w+)", log, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{commits[GUILTY]} is the first bad commit" in done.stdout
    # What does not build was not replayed: git is told so (125) and steps aside.
    assert len([word for word, _ in steps if word != "skip"]) <= 7, log
    judged = {commits.index(commit): word for word, commit in steps}
    assert {"good", "bad", "skip"} <= set(judged.values()), judged
    assert {word for number, word in judged.items() if number in OTHER_ROUNDING} == {"good"}, judged
