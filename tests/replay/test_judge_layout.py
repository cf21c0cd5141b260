"""Layouts of KV memory: judged, or refused with one clear message."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_engine import SmallEngine, SmallExecutor

from checkengine.replay.executor import CannotReplayError
from checkengine.replay.judge.fills import FINITE_FILLS, has_nan
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.layout import holds_fills, refuse_layout
from checkengine.replay.memory import MemoryImage
from checkengine.replay.windows import build_window

HELD = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.int8,
]
PACKED = [torch.uint8, torch.float4_e2m1fn_x2, torch.float8_e8m0fnu]


def image_of(**tensors: torch.Tensor) -> MemoryImage:
    named = {f"full.{name}": tensor for name, tensor in tensors.items()}
    return MemoryImage(4, np.arange(2, dtype=np.int32), named, {"full": (0,)})


@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_a_cache_whose_dtype_holds_the_fills_is_judged(dtype: torch.dtype) -> None:
    memory = torch.zeros(2, 1, 4, 1, 8).to(dtype)
    refuse_layout(image_of(key=memory, value=memory[..., :4]))
    assert holds_fills(dtype)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_packed_caches_and_fp4_are_refused_by_name(dtype: torch.dtype) -> None:
    memory = torch.zeros(2, 1, 4, 1, 8, dtype=torch.uint8).view(dtype)
    with pytest.raises(CannotReplayError, match=f"{str(dtype).removeprefix('torch.')}.*packed caches and FP4"):
        refuse_layout(image_of(key=memory, value=memory))


@pytest.mark.parametrize("name", ["key_scale", "latent", "rope"])
def test_scales_kept_apart_and_latents_are_refused_by_name(name: str) -> None:
    memory = torch.zeros(2, 1, 4, 1, 8)
    with pytest.raises(CannotReplayError, match=rf"'full\.{name}'.*docs/replay\.md"):
        refuse_layout(image_of(key=memory, value=memory, **{name: memory}))


def test_the_judge_refuses_before_it_runs_anything() -> None:
    engine = SmallEngine(seed=3)
    engine.run(20)
    window = build_window(engine.capture([1], first=5, last=9))
    window.image.tensors["kv.latent"] = window.image.tensors["kv.key"]
    with pytest.raises(CannotReplayError, match="latent"):
        Judge(SmallExecutor(engine.model, engine.fault)).judge(window)


def test_the_fills_are_far_from_where_fp8_ends_and_fp8_has_a_nan() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert max(abs(fill) for fill in FINITE_FILLS) * 4 < torch.finfo(dtype).max
        assert has_nan(dtype)
        assert math.isnan(float(torch.tensor(math.nan).to(dtype).float()))
    assert not has_nan(torch.int8)
