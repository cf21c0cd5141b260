"""One vLLM process of the transfer drill: `vllm_transfer_run prefill|decode FOLDER`; prints answers as JSON.

The decoding process serves its prompt once clean and once for every fault, each time with its own cache emptied, so
that the prompt's blocks come through the connector. Each fault of the prefill side has a prompt of its own, which the
prefilling process serves first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

TRANSPORT = ("bit flip", "swapped layers", "read before ready", "late write", "short restore")
SIDES = ("bit flip", "late write")
"""What strikes on either side as well."""
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
            "captures": str(folder / "transfers"),
            "name": role,
        },
    }
    model = LLM(
        str(model_directory("smollm2-135m")), dtype="float32", max_model_len=512, enforce_eager=True,
        kv_transfer_config=transfer, max_num_seqs=4,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=12)

    def answer(text: str = TEXT * 8) -> list[int]:
        return list(model.generate(text, sampling, use_tqdm=False)[0].outputs[0].token_ids)

    def struck(name: str, side: str) -> None:
        planted = folder / "fault"
        if role == side or side == "transport":
            planted.write_text(json.dumps([name, side]))
        key = f"{name}, {side}"
        answers[key] = answer(f"{key}. {TEXT * 8}" if side == "prefill" else TEXT * 8)
        answers[f"{key} struck"] = [] if planted.exists() else [1]

    answers = {"clean": answer()}
    if role == "decode":
        for side, names in (("transport", TRANSPORT), ("decode", SIDES)):
            for name in names:
                model.reset_prefix_cache()
                struck(name, side)
    for name in SIDES:
        struck(name, "prefill")
    print("ANSWERS " + json.dumps(answers))


if __name__ == "__main__":
    main()
