"""vLLM looks through the attributes of every module; llvmlite's must bear it."""

from __future__ import annotations

import llvmlite.binding
from llvmlite.binding import ffi

from checkengine.engine_shim.vllm.numba_first import let_vllm_scan_llvmlite


def test_llvmlites_library_has_no_dict_to_stumble_over_and_still_works() -> None:
    let_vllm_scan_llvmlite()
    let_vllm_scan_llvmlite()
    assert not hasattr(ffi.lib, "__dict__")
    assert len(llvmlite.binding.llvm_version_info) == 3
    assert llvmlite.binding.get_default_triple()
