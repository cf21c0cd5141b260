"""One vLLM process of the transfer drill: `vllm_transfer_run prefill|decode FOLDER`; prints answers as JSON.

The decoding process serves each prompt once clean and once for every fault, each time with its own cache emptied, so
that the prompt's blocks come through the connector.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FAULTS = ("bit flip", "swapped layers", "read before ready", "late write", "short restore")
TEXT = "The lighthouse keeper wrote in his log every evening: wind from the west, sea calm, two ships passed. "


def main() -> None:
    role, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["KV_FAULT"] = str(folder / "fault")
    from vllm import LLM, SamplingParams

    from checkengine.engine_shim.models import model_directory

    inner = {
        "kv_connector": "FaultyConnector",
        "kv_connector_module_path": "checkengine.motion.vllm_faulty_connector",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "kv")},
    }
    transfer = {
        "kv_connector": "SealedConnector",
        "kv_connector_module_path": "checkengine.engine_shim.vllm.sealed_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "connector": inner,
            "seals": str(folder / "seals"),
            "spool": str(folder / f"spool-{role}"),
            "name": role,
        },
    }
    model = LLM(
        str(model_directory("smollm2-135m")), dtype="float32", max_model_len=512, enforce_eager=True,
        kv_transfer_config=transfer, max_num_seqs=4,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=12)

    def answer() -> list[int]:
        return list(model.generate(TEXT * 8, sampling, use_tqdm=False)[0].outputs[0].token_ids)

    answers = {"clean": answer()}
    if role == "decode":
        for fault in FAULTS:
            model.reset_prefix_cache()
            (folder / "fault").write_text(json.dumps(fault))
            answers[fault] = answer()
            answers[f"{fault} struck"] = [] if (folder / "fault").exists() else [1]
    print("ANSWERS " + json.dumps(answers))


if __name__ == "__main__":
    main()
