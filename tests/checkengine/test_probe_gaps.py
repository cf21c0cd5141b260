"""`checkengine probe gaps`: how long a device waits for its next launch."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from checkengine.commands.probe import app
from checkengine.guards.errors import UserError
from checkengine.probing.gaps import gaps_in, profiled


def event(category: str, begin: float, took: float, **more: Any) -> dict[str, Any]:
    """Microseconds."""
    return {"ph": "X", "cat": category, "name": "x", "ts": begin, "dur": took, **more}


def trace(folder: Path, *events: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return path


def kernel(begin: float, took: float, device: int = 0, stream: int = 7, category: str = "kernel") -> dict[str, Any]:
    return event(category, begin, took, args={"device": device, "stream": stream})


def test_a_gap_is_the_time_in_which_no_stream_of_the_device_runs_anything(tmp_path: Path) -> None:
    events = [kernel(0, 10), kernel(5, 10, stream=8), kernel(20, 10), kernel(31, 9, category="gpu_memcpy")]
    (found,) = gaps_in(trace(tmp_path, *events, event("cpu_op", 0, 1000, tid=1)))
    assert (found.where, found.launches) == ("device 0", 4)
    assert found.seconds == pytest.approx(40e-6)
    assert found.longest == pytest.approx(5e-6)
    assert found.median == pytest.approx(3e-6)
    assert found.busy == pytest.approx(34 / 40)


def test_each_device_has_its_own_gaps(tmp_path: Path) -> None:
    events = [kernel(0, 10), kernel(12, 10), kernel(0, 10, device=1), kernel(50, 10, device=1)]
    first, second = gaps_in(trace(tmp_path, *events))
    assert (first.where, second.where) == ("device 0", "device 1")
    assert (first.longest, second.longest) == (pytest.approx(2e-6), pytest.approx(40e-6))


def test_without_a_device_operators_count_that_no_other_one_called(tmp_path: Path) -> None:
    outer = [event("cpu_op", 0, 10, tid=1), event("cpu_op", 2, 3, tid=1), event("cpu_op", 14, 6, tid=1)]
    (found,) = gaps_in(trace(tmp_path, *outer, event("cpu_op", 10, 4, tid=2), event("python_function", 10, 4, tid=1)))
    assert (found.where, found.launches) == ("cpu", 2)
    assert found.longest == pytest.approx(4e-6)


def test_a_packed_trace_is_read_as_the_engines_write_it(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json.gz"
    path.write_bytes(gzip.compress(trace(tmp_path, kernel(0, 1), kernel(3, 1)).read_bytes()))
    assert gaps_in(path)[0].longest == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"{}", "no traceEvents"),
        (b'{"traceEvents": 7}', "no traceEvents"),
        (b'[7, "x", {"cat": "kernel"}, {"cat": "kernel", "ts": "soon", "dur": 1}]', "no kernel and no operator"),
        (
            b'[{"cat": "kernel", "ts": 1e999, "dur": 1}, {"cat": "kernel", "ts": 1, "dur": -5}]',
            "no kernel and no operator",
        ),
    ],
)
def test_what_is_no_trace_is_one_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        gaps_in(path)


def test_a_damaged_archive_and_a_missing_file_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b"{}")[:-4])
    for name in ("t.json.gz", "nothere.json"):
        with pytest.raises(UserError, match="cannot be read"):
            gaps_in(tmp_path / name)


class Dawdling(torch.nn.Module):
    """Spends a while outside of torch between two operators."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.first, self.second, self.seconds = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), seconds

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        hidden = self.first(input_ids.float().expand(-1, 8))
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return torch.as_tensor(self.second(hidden))


def test_time_outside_of_torch_is_seen_in_a_real_profile() -> None:
    found = profiled(Dawdling(0.02), rows=2, steps=3)
    (gaps,) = found.gaps
    assert gaps.longest >= 0.02
    assert gaps.launches >= 6
    assert gaps.busy < 0.5
    assert found.step_seconds >= 0.02


def test_the_command_reads_a_trace_and_prints_one_json_object(tmp_path: Path) -> None:
    path = trace(tmp_path, kernel(0, 1), kernel(3, 1))
    result = CliRunner().invoke(app, ["gaps", str(path), "--json"])
    assert json.loads(result.output)["gaps"][0]["launches"] == 2
    assert "busy 50.0 %" in CliRunner().invoke(app, ["gaps", str(path)]).output


def test_a_device_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkengine.engine_shim.models.model_directory", Path)
    monkeypatch.setattr("checkengine.engine_shim.engine.load.load_model", lambda *_: (torch.nn.Linear(2, 2), None))
    result = CliRunner().invoke(app, ["gaps", "--device", "cuda:97"])
    assert isinstance(result.exception, UserError)
    assert "--device cuda:97 cannot be used" in str(result.exception)
