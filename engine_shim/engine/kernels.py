"""Attention kernels by name."""

from __future__ import annotations

from collections.abc import Mapping

from checkengine.engine_shim.engine.kernel import AttentionCall, AttentionKernel, Rows
from checkengine.engine_shim.engine.kernel_paged import paged
from checkengine.engine_shim.engine.kernel_reference import reference

__all__ = ["KERNELS", "AttentionCall", "AttentionKernel", "Rows"]

KERNELS: Mapping[str, AttentionKernel] = {"paged": paged, "reference": reference}
