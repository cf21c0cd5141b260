"""Convert a GGUF file to float32 safetensors with transformers' own loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from checkengine.engine_shim.models import ModelSource


def convert_gguf(gguf: Path, target: Path, source: ModelSource) -> Mapping[str, str]:
    """Writes model, tokenizer, chat template and generation config into `target`; needs `gguf` and `accelerate`."""
    quiet = transformers.utils.logging
    quiet.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    finally:
        quiet.enable_progress_bar()
    _forget_quantization(model)
    # Without these the files would name the directory of this machine, and the tokenizer no limit at all.
    model.config._name_or_path = gguf.stem
    tokenizer.model_max_length = source.context_length
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return {"converter": f"transformers {transformers.__version__}"}


def _forget_quantization(model: Any) -> None:
    """The weights are plain float32 now, but transformers 5 refuses to save what was loaded from a quantized file."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for attribute in ("is_quantized", "quantization_method"):
        if hasattr(model, attribute):
            setattr(model, attribute, None)
