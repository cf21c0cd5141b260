"""What numba keeps on disk is never older than the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

IMPORT = "from checkengine.detectors.compiled import compiled\n"
OUTER = f"{IMPORT}from inner import value\n\n\n@compiled\ndef outer():\n    return value()\n"
INNER = IMPORT + "\n\n@compiled\ndef value():\n    return {}\n"
RUN = "from outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"


def run(folder: Path) -> tuple[int, int]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True)
    value, hits = told.stdout.split()
    return int(value), int(hits)


def test_a_compiled_function_is_compiled_anew_when_one_that_it_calls_in_another_file_has_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(1))
    assert [run(tmp_path), run(tmp_path)] == [(1, 0), (1, 1)]
    (tmp_path / "inner.py").write_text(INNER.format(2))
    assert [run(tmp_path), run(tmp_path)] == [(2, 0), (2, 1)]


def test_where_nothing_can_be_kept_functions_are_compiled_in_each_process(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(1))
    (tmp_path / "__pycache__").write_text("in the way")
    environment = {"PYTHONPATH": str(tmp_path), "HOME": "/dev/null/nowhere", "PATH": os.environ["PATH"]}
    told = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True)
    assert told.stdout.split() == ["1", "0"], told.stderr
