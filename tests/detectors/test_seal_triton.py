"""The seal's Triton kernel through triton's interpreter: the same hashes as on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import numpy as np, torch
from checkengine.detectors.seal import hash_tensor
from checkengine.detectors.seal import triton_backend

np.seterr(all="ignore")
generator = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
    for shape in ((2, 3, 1, 64), (3, 33, 2, 80), (1, 1, 1, 8)):
        tensor = torch.randn(shape, generator=generator).to(dtype)
        bits = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[dtype.itemsize]
        found = triton_backend.hash_tensor(tensor).numpy().view(np.uint64)
        np.testing.assert_array_equal(found, hash_tensor(tensor.view(bits).numpy()))
assert triton_backend.hash_tensor(torch.empty(0, 4, 2, 64)).shape == (0, 4, 2)
try:
    triton_backend.hash_tensor(torch.zeros(1, 1, 1, 3))
except ValueError as error:
    assert "no whole number of 8 bytes" in str(error)
else:
    raise AssertionError("a vector of 12 bytes was hashed")
print("equal")
"""


def test_the_triton_kernel_gives_the_hashes_of_the_cpu():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False, timeout=240
    )
    assert done.stdout == "equal\n", done.stderr
