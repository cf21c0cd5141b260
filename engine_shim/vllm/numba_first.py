"""numba before vLLM: vLLM's CPU worker, without Triton, looks for kernels in every module that is imported, and asks
llvmlite's wrapper of its C library for its `__dict__`. The wrapper takes that for a C function, and vLLM fails.
"""

from __future__ import annotations

import sys
from typing import Any


def let_vllm_scan_llvmlite() -> None:
    """Makes the wrapper say that it has no special attributes, as any object without them does. May be called any
    number of times; does nothing where llvmlite is not imported or is made in another way."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    wrapper = getattr(ffi, "_lib_wrapper", None)
    if not isinstance(wrapper, type) or "__getattr__" not in vars(wrapper):
        return
    asked = vars(wrapper)["__getattr__"]
    if getattr(asked, "checkengine", False):
        return

    def __getattr__(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return asked(self, name)

    __getattr__.checkengine = True  # type: ignore[attr-defined]
    wrapper.__getattr__ = __getattr__  # type: ignore[attr-defined]
    libraries: list[Any] = [value for value in vars(ffi).values() if type(value) is wrapper]
    for library in libraries:
        library._fntab.pop("__dict__", None)
