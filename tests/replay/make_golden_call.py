"""Makes the golden call bundle of the present format: `python tests/replay/make_golden_call.py`, once a format.

Golden bundles are never made again: they stand for what is on users' disks.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from checkengine.replay.bundle.calls import CallOrigin, StoredCall, write_call
from checkengine.replay.bundle.layout import VERSION
from checkengine.replay.minimise.values import Values, with_values
from checkengine.replay.op_call import Beside, OpCall

GOLDEN_CALLS = Path(__file__).parent / "golden_calls"
SYMPTOM = {
    "kind": "code defect",
    "shown": "finite fill",
    "relation": {"place": "past the end", "distance": 1},
    "fault_class": None,
}
"""A decode row of 5 tokens that reads the sixth slot of its two pages of 4."""


def stored() -> StoredCall:
    call = OpCall(
        layer=3,
        row=0,
        kernel="paged",
        query=torch.empty(1, 2, 8),
        keys=torch.empty(3, 4, 1, 8),
        values=torch.empty(3, 4, 1, 8),
        blocks=np.array([1, 2, 4], np.int32),
        table=np.array([1, 2], np.int32),
        length=5,
        scaling=0.25,
        options={"faults": [{"name": "over_read", "minimum_length": 5, "block_size": 4, "layers": [3]}]},
        beside=(Beside(torch.empty(1, 2, 8), np.array([4], np.int32), 2),),
        place=1,
    )
    return StoredCall(with_values(call, Values.NOISE, 7), SYMPTOM, 9, Values.NOISE, 7)


def main() -> None:
    target = GOLDEN_CALLS / f"{VERSION[0]}.{VERSION[1]}"
    if target.exists():
        return
    GOLDEN_CALLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKENGINE_STATE"] = folder
        origin = CallOrigin({"engine": "embedded", "dtype": "float32", "block_size": 4})
        os.rename(write_call(stored(), folder, origin), target)


if __name__ == "__main__":
    main()
