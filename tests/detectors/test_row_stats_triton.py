"""The Triton backend through triton's interpreter: the same statistics as the other two."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import math, warnings
import numpy as np, torch
from checkengine.detectors.logits import RowStats, merge, pending_row_stats, row_stats, triton_backend

torch.set_num_threads(1)
np.seterr(all="ignore")
CLOSE = ("logsumexp", "entropy", "log_total")

def check(found, expected):
    for name in set(RowStats.__dataclass_fields__) - {"level"}:
        a, b = getattr(found, name), getattr(expected, name)
        if b is None:
            assert a is None, name
        elif name in CLOSE:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)
        else:
            assert a.dtype == b.dtype, name
            np.testing.assert_array_equal(a, b, err_msg=name)

def agree(logits, first=0, levels=("full",)):
    for level in levels:
        found = row_stats(logits, level, "triton", first_column=first)
        for backend in ("numba", "torch"):
            check(found, row_stats(logits, level, backend, first_column=first))

generator = torch.Generator().manual_seed(0)
triton_backend.LANES = 256
triton_backend.STRETCH = 512
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    faults = torch.randn(9, 601, generator=generator) * 9
    faults[0, 5], faults[1, 600], faults[2, 300] = math.nan, math.inf, -math.inf
    faults[3], faults[4], faults[5, 1:] = -math.inf, math.nan, -math.inf
    faults[6, :300], faults[6, 300:] = math.nan, -math.inf
    faults[7], faults[7, 4] = 3e38, -3e38
    faults[8] = -0.0
    faults[8, 200:] = 0.0
    agree(faults.to(dtype), 5)
agree(faults, 0, ("screen",))
agree(faults.bfloat16()[::4, ::3])
agree(faults[:1, 100:101])
row = torch.randn(1, 500, generator=generator)
whole = row_stats(row)
check(merge([row_stats(row[:, :300], "full", "triton"), row_stats(row[:, 300:], first_column=300)]), whole)
later = pending_row_stats(row, backend="triton")
assert later.ready()
check(later.collect(), whole)
assert len(row_stats(torch.zeros(0, 500), "full", "triton")) == 0
try:
    row_stats(row.double(), "full", "triton")
except ValueError as error:
    assert "not float64; use backend='torch'" in str(error)
else:
    raise AssertionError("float64 was taken")
print("agree")
"""


def test_the_triton_backend_agrees_with_numba_and_torch_on_sizes_dtypes_faults_and_strides():
    """In a process of its own: triton reads TRITON_INTERPRET when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "agree"


def test_without_triton_the_package_takes_torch_on_a_gpu(monkeypatch):
    import torch

    from checkengine.detectors.logits import rows, torch_backend

    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "checkengine.detectors.logits.triton_backend", raising=False)
    rows._module.cache_clear()
    rows.triton_installed.cache_clear()
    try:
        assert not rows.triton_installed()

        class OnGpu:
            device = torch.device("cuda")
            dtype = torch.float32

        assert rows._backend("auto", OnGpu()) is torch_backend
    finally:
        rows._module.cache_clear()
        rows.triton_installed.cache_clear()


@pytest.mark.parametrize(("rows", "columns"), [(1, 10), (1, 151_936), (256, 151_936), (5000, 151_936)])
def test_a_row_is_cut_into_few_stretches_where_many_rows_fill_the_device(rows, columns):
    from checkengine.detectors.logits import triton_backend

    stretches = triton_backend.stretches_of(rows, columns)
    assert 1 <= stretches <= triton_backend.MOST_STRETCHES
    assert rows * stretches <= max(triton_backend.PROGRAMS, rows)
    assert stretches == 1 or columns / stretches >= triton_backend.STRETCH / 2


COMPILES = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from checkengine.detectors.logits.triton_kernel import join_stretches, read_stretches

reads = dict(words=None, stride="i32", columns="i32", width="i32", keys="*i64", floats="*fp32", counts="*i32",
             wide="*i64", field="i32", FORMAT="constexpr", FULL="constexpr", LANES="constexpr")
joins = dict(floats="*fp32", counts="*i32", wide="*i64", field="i32", stretches="i32", row_floats="*fp32",
             row_counts="*i32", row_wide="*i64", rows="i32", FULL="constexpr", STRETCHES="constexpr")
for target, binary in ((GPUTarget("cuda", 90, 32), "cubin"), (GPUTarget("hip", "gfx942", 64), "hsaco")):
    for form, words in enumerate(("*i32", "*i16", "*i16")):
        constants = {"FORMAT": form, "FULL": True, "LANES": 1024}
        done = compile(ASTSource(read_stretches, reads | {"words": words}, constexprs=constants), target=target)
        assert binary in done.asm
    compile(ASTSource(join_stretches, joins, constexprs={"FULL": True, "STRETCHES": 16}), target=target)
print("compiled")
"""


def test_the_kernels_compile_for_an_nvidia_and_an_amd_gpu(tmp_path):
    """What the interpreter lets pass, a compiler may not (annotations that name a Python global, for one)."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "compiled"
