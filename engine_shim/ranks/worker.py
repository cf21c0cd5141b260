"""A rank's process: JSON lines in, JSON lines out. Ends when its input ends.

In: {"do": "join" | "take" | "drop" | "step" | "commit" | "witness" | "compute", …}. Out: {"did": …} with the answer,
{"failed": …} where a step could not be done, and {"beat"} four times a second.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from checkengine.engine_shim.ranks.exchange import BrokenPayload, Group, checksum
from checkengine.engine_shim.ranks.moe import MoeShape
from checkengine.engine_shim.ranks.rank_model import RankModel, RankSequence
from checkengine.engine_shim.ranks.trouble import Trouble

BEAT_SECONDS = 0.25


class Worker:
    def __init__(self, number: int, weights: Path, shape: MoeShape, trouble: Trouble, timeout: float) -> None:
        self.number = number
        self.model = RankModel(weights, shape, trouble)
        self._timeout = datetime.timedelta(seconds=timeout)
        self._step = 0
        self._writing = threading.Lock()

    def run(self) -> None:
        # Compiling holds the interpreter: it would look like a rank that hangs.
        checksum(torch.zeros(1, self.model.shape.width), torch.zeros(1, dtype=torch.int64))
        threading.Thread(target=self._beat, daemon=True).start()
        self._tell({"did": "start"})
        for line in sys.stdin:
            message = json.loads(line)
            try:
                self._tell({"did": message["do"], **getattr(self, "do_" + message["do"])(message)})
            except BrokenPayload as broken:
                self._tell({"failed": "payload", "sender": broken.sender, "receiver": broken.receiver})
            except RuntimeError as error:
                # What torch.distributed raises where a peer is gone or silent.
                self._tell({"failed": "collective", "why": str(error).splitlines()[0][:200]})

    def do_join(self, message: dict[str, Any]) -> dict[str, Any]:
        """A new epoch: another process group, other owners of experts."""
        if dist.is_initialized():
            dist.destroy_process_group()
        members = tuple(message["members"])
        store: Any = dist.FileStore(message["store"], len(members))  # type: ignore[attr-defined]
        place = members.index(self.number)
        dist.init_process_group("gloo", store=store, rank=place, world_size=len(members), timeout=self._timeout)
        self.model.join(Group(members, self.number), message["experts"])
        return {"epoch": message["epoch"]}

    def do_take(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sequences to compute from their first token on."""
        for name, tokens in message["sequences"].items():
            self.model.sequences[name] = RankSequence(list(tokens))
        return {}

    def do_drop(self, message: dict[str, Any]) -> dict[str, Any]:
        for name in message["names"]:
            self.model.sequences.pop(name, None)
        return {}

    def do_step(self, message: dict[str, Any]) -> dict[str, Any]:
        self._step = message["step"]
        if self.model.trouble.hang_at == self._step:
            threading.Event().wait()
        tokens = self.model.step(self._step, message["names"])
        return {"step": self._step, "tokens": tokens, "seconds": self.model.own_seconds}

    def do_commit(self, message: dict[str, Any]) -> dict[str, Any]:
        self.model.commit(message["tokens"])
        return {}

    def do_witness(self, message: dict[str, Any]) -> dict[str, Any]:
        """What its experts were given and gave in the last step."""
        told = [
            {
                "layer": each.layer,
                "expert": each.expert,
                "inputs": encoded(each.inputs),
                "outputs": encoded(each.outputs),
            }
            for each in self.model.witnesses
        ]
        return {"witnesses": told}

    def do_compute(self, message: dict[str, Any]) -> dict[str, Any]:
        width = self.model.shape.width
        found = [
            encoded(self.model.compute(each["layer"], each["expert"], decoded(each["inputs"], width), self._step))
            for each in message["witnesses"]
        ]
        return {"outputs": found}

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._tell({"beat": self.number})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._writing:
            print(json.dumps(message), flush=True)


def encoded(rows: torch.Tensor) -> str:
    return base64.b64encode(rows.contiguous().numpy().tobytes()).decode()


def decoded(text: str, width: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.float32).reshape(-1, width).copy())


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    worker = Worker(
        given["rank"], Path(given["weights"]), MoeShape(**given["shape"]), Trouble(**given["trouble"]), given["timeout"]
    )
    try:
        worker.run()
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # gloo's threads may still wait for peers that are gone.
        os._exit(0)


if __name__ == "__main__":
    main()
